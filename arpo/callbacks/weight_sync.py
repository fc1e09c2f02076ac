"""Weight sync: the engine gets every new policy, and proves that it serves it."""

import io
import logging
import time

import lightning as L
from PIL import Image
from typing_extensions import override

from arpo.agent.prompt import Prompt
from arpo.inference.engine import GenerateRequest, Response, Sampling
from arpo.inference.probe import check_probe, logprob_gap
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import runtime_of
from arpo.rollout.runtime import RolloutRuntime
from arpo.types import Outcome, Step, Trajectory, screenshot_key

log = logging.getLogger(__name__)


class WeightSync(L.Callback):
    """Sends the policy to the engine before the first rollout and after every update, then probes the engine.

    The probe asks the engine for one fixed response and compares its log-probabilities with the trainer's. Because the
    prompt and the picture are always the same, an engine that kept a cache from before the update (prefix,
    multimodal, encoder) answers with the old policy and is caught here, not forty iterations later.

    Args:
        tolerance: Largest difference of log-probabilities that the probe accepts: 1e-4 in float32; bfloat16 differs
            by up to 0.06 between implementations of the same model.
        probe_tokens: Length of the probe's response.
        probe_every: Probe at every n-th policy version; 0 never.
    """

    def __init__(self, *, tolerance: float = 1e-4, probe_tokens: int = 8, probe_every: int = 1) -> None:
        if tolerance <= 0 or probe_tokens < 1 or probe_every < 0:
            raise ValueError(
                "tolerance must be positive, probe_tokens at least 1 and probe_every not negative, got "
                f"{tolerance}, {probe_tokens}, {probe_every}"
            )
        self.tolerance, self.probe_tokens, self.probe_every = tolerance, probe_tokens, probe_every

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._sync(trainer, pl_module)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        started = time.monotonic()
        gap = self._sync(trainer, pl_module)
        metrics = {"time/sync": time.monotonic() - started}
        if gap is not None:
            metrics["engine/probe_gap"] = gap
        pl_module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    def _sync(self, trainer: L.Trainer, pl_module: L.LightningModule) -> float | None:
        """Update the engine; on every rank, because gathering sharded weights takes them all."""
        module = PolicyModule.of(pl_module)
        tensors = module.policy.checkpoint_tensors()
        if not trainer.is_global_zero:
            for _ in tensors:
                pass
            return None
        runtime = runtime_of(trainer)
        runtime.update_weights(tensors, module.policy_version)
        if self.probe_every == 0 or module.policy_version % self.probe_every:
            return None
        gap = self._probe(runtime, module)
        check_probe(gap, self.tolerance)
        return gap

    def _probe(self, runtime: RolloutRuntime, module: PolicyModule) -> float:
        prompt_ids = module.policy.chat.first_prompt(PROBE_PROMPT.messages("Press OK."))
        png = probe_picture()
        request = GenerateRequest(
            prompt_ids, (png,), Sampling(max_tokens=self.probe_tokens, temperature=module.temperature)
        )
        response = runtime.generate(request)
        return logprob_gap(response.logprobs, module.sampled_logprobs(as_trajectory(request, response)))


PROBE_PROMPT = Prompt.compact()


def probe_picture() -> bytes:
    """A fixed PNG of 112 x 112 pixels: not one colour, so that every patch says something else."""
    picture = Image.linear_gradient("L").resize((112, 112)).convert("RGB")
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def as_trajectory(request: GenerateRequest, response: Response) -> Trajectory:
    """Give a request with one picture and its response the form that the trainer reads."""
    png = request.images[0]
    key = screenshot_key(png)
    width, height = Image.open(io.BytesIO(png)).size
    step = Step(
        screenshot=key,
        width=width,
        height=height,
        prompt_ids=request.prompt_ids,
        response_ids=response.token_ids,
        sampler_logprobs=response.logprobs,
        policy_version=response.policy_version,
        response="",
    )
    return Trajectory(
        id="probe",
        task_id="probe",
        domain="",
        instruction="",
        seed=request.sampling.seed,
        steps=(step,),
        outcome=Outcome.MAX_STEPS,
        task_reward=0.0,
        format_reward=0.0,
        screenshots={key: png},
    )
