"""A whole training in this process: every part is real, the desktops are in memory, and the responses are written."""

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import lightning as L
import torch

from arpo.agent.prompt import Prompt
from arpo.callbacks.logs import RolloutMetrics
from arpo.callbacks.replay import ReplayInjection
from arpo.callbacks.weight_sync import WeightSync
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.pool.pool import EnvPool
from arpo.envs.protocol import DesktopEnv
from arpo.inference.engine import GenerateRequest, InferenceEngine
from arpo.methods.grpo import GRPO
from arpo.models.policy import Policy
from arpo.models.tokenization import ChatTokenizer
from arpo.modules.grpo import GRPOModule
from arpo.replay import ReplayBuffer
from arpo.rollout.harness import Harness
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import RequestRule, ShuffledTasks
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from arpo.rollout.stream import RolloutCollector
from arpo.types import Task
from tests.inference.scripted import ScriptedEngine
from tests.modules.conftest import quiet_trainer
from tests.rollout.support import red_clicker

Mood = Callable[[int, int], str]
"""From the policy version and the seed of a response to what it does: `solve`, `fail`, `wait` or `babble`."""

TASKS = fake_tasks(2, kinds=["click"])
GROUP_SIZE = 6
SETTINGS = RolloutSettings(group_size=GROUP_SIZE, max_steps=3, max_tokens=40, max_context=1000)


class MoodyEngine(ScriptedEngine):
    """Solves a click task, gives it up, waits or says nothing that can be read, as its mood is."""

    def __init__(self, chat: ChatTokenizer, mood: Mood) -> None:
        solve = red_clicker(chat)

        def respond(request: GenerateRequest) -> str:
            match mood(self.policy_version, request.sampling.seed):
                case "solve":
                    return solve(request)
                case "fail":
                    return "Action: finished()"
                case "wait":
                    return "Action: wait()"
                case _:
                    return "I would rather not."

        super().__init__(chat, respond)


class Recorder(L.Callback):
    """Keeps parameters, optimizer steps and metrics of every iteration."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []
        self.steps: list[int] = []
        self.metrics: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.weights.append({name: p.detach().clone() for name, p in pl_module.named_parameters()})
        self.steps.append(trainer.global_step)
        self.metrics.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def changed(self, iteration: int) -> set[str]:
        """The parameters that this iteration changed, by a single bit or more."""
        before, after = self.weights[iteration - 1], self.weights[iteration]
        return {name for name in after if not torch.equal(before[name], after[name])}


@cache
def loaded(model: Path) -> Policy:
    """The policy that trainings begin with: each copies it, which takes a fraction of the time."""
    return Policy(model)


def train(
    model: Path,
    directory: Path,
    make_engine: Callable[[ChatTokenizer], InferenceEngine],
    *,
    replay: bool | ReplayInjection,
    iterations: int,
    tasks: Sequence[Task] = TASKS,
    make_env: Callable[[], DesktopEnv] = FakeDesktop,
    tolerance: float = 100.0,
    learning_rate: float = 1e-3,
    policy: Callable[..., Policy] | None = None,
    settings: RolloutSettings = SETTINGS,
    callbacks: Sequence[L.Callback] = (),
    group_size: RequestRule | None = None,
    max_steps: RequestRule | None = None,
    resume: Path | None = None,
    harness: Harness | None = None,
) -> Recorder:
    """Train for real and record each iteration; `replay` is a switch, or the callback itself.

    The tolerance is that of written responses, whose log-probabilities no model computed.
    """
    chat, images = loaded(model).chat, loaded(model).images
    runtime = RolloutRuntime(
        lambda: make_engine(chat),
        EnvPool(make_env, size=4, backend="thread"),
        chat,
        Prompt.compact(),
        TrajectoryStore(directory / "trajectories"),
        settings,
        harness,
    )
    collector = RolloutCollector(runtime)
    recorder = Recorder()
    injection = [ReplayInjection(ReplayBuffer()) if replay is True else replay] if replay else []
    torch.manual_seed(0)
    trainer = quiet_trainer(
        max_epochs=iterations,
        callbacks=[RolloutMetrics(), *injection, WeightSync(tolerance=tolerance), recorder, *callbacks],
        default_root_dir=directory,
        num_sanity_val_steps=0,
    )
    make = policy or (lambda: copy.deepcopy(loaded(model), {id(part): part for part in (chat, images)}))
    module = GRPOModule(make, partial(torch.optim.AdamW, lr=learning_rate), GRPO())
    sampler = ShuffledTasks(tasks, len(tasks), seed=0, group_size=group_size, max_steps=max_steps)
    data = RolloutDataModule(collector, sampler)
    try:
        trainer.fit(module, data, ckpt_path=resume)
    finally:
        collector.close()
    return recorder
