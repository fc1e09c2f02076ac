"""The phases themselves: each is a function, run in a process of its own by `play.py`."""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml
from torch import Tensor

from benchmarks.gpu_session.play import MODEL, RESULTS, ROOT, SITE, note

ARCHITECTURE = ROOT / "arpo" / "models" / "shapes" / "qwen2_5_vl_7b.json"
SMALL_ARCHITECTURE = ROOT / "benchmarks" / "small_architecture.yaml"
DESKTOPS, STEPS, TOKENS, CONTEXT = 4, 4, 128, 16384
SPREAD = 0.02
"""Standard deviation of the weights."""
LOOP = (
    "experiment=arpo_subset32",
    "env=fake",
    "tasks=fake",
    "trainer=ddp",
    "gpus=1",
    "iterations=2",
    f"env.size={DESKTOPS}",
    "env.make_env={_target_: benchmarks.gpu_session.stand_ins.DrawnScreen, _partial_: true}",
    "tasks.train.count=2",
    "rollout.settings.group_size=2",
    f"rollout.settings.max_steps={STEPS}",
    f"rollout.settings.max_tokens={TOKENS}",
    f"rollout.settings.max_context={CONTEXT}",
    f"module.micro_batch_tokens={CONTEXT}",
    "engine.make_engine._target_=benchmarks.gpu_session.stand_ins.TimedEngine",
    "engine.make_engine.max_num_seqs=16",
    "engine.make_engine.engine_args.gpu_memory_utilization=0.35",
)
"""One GPU serves and trains in turn; every episode is as long as it may be."""
TOGETHER = (
    "experiment=arpo_subset32",
    "model=qwen2_5_vl_7b",
    *(word for word in LOOP[1:] if not word.startswith(("engine.", "trainer=", "gpus="))),
    "layout=single",
    "trainer=default",
    "engine=vllm",
    "engine._target_=benchmarks.gpu_session.stand_ins.TimedEngine",
    "engine.max_num_seqs=16",
    "+engine.engine_args.gpu_memory_utilization=0.35",
)
"""Trainer and engine in one process, as a person with one card has them."""
LOOPS = {
    "lora": (*LOOP, "model=qwen2_5_vl_7b"),
    "one_copy": TOGETHER,
    "two_copies": (*TOGETHER, "engine.one_copy=false"),
    "all": (*LOOP, "module.optimizer._target_=arpo.modules.offload.OffloadedAdamW"),
}
SMALL_LOOP = (
    "prompt=compact",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "model.policy.dtype=float32",
    "rollout.settings.max_context=1024",
    "rollout.settings.max_steps=2",
    "rollout.settings.max_tokens=8",
    "module.micro_batch_tokens=1024",
    "env.reset_timeout_s=600",
    "env.step_timeout_s=600",
)
"""On a CPU that others may use, too."""
SMALL_FLEET = ("engine.num_gpus=0", "engine.replicas=1", "engine.stall_s=600")
ROOM_FOR_ALL_GIB = 100
"""Of a GPU that trains all weights of a 7B: `arpo plan` says 80 GB are too few."""
TRACED = 25
"""Operations of the profile with the largest share."""


@dataclass(frozen=True, slots=True)
class Play:
    """What a phase is told."""

    phase: str
    out: Path
    smoke: bool

    @property
    def model(self) -> Path:
        return self.out / "tiny" if self.smoke else MODEL

    def note(self, **figures: object) -> None:
        note(Path(os.environ[RESULTS]), self.phase, **figures)


def weights(play: Play) -> None:
    """Make a random 7B in place, tensor by tensor, under the names of published checkpoints."""
    if play.smoke:
        from arpo.models.families.qwen2_5_vl import make_tiny

        make_tiny(play.model, corpus=["Action: wait()"] * 4, words=600)
        return
    from arpo.models.checkpoint import write_weights
    from benchmarks.gpu_session.published import write_companions

    if not (play.model / "config.json").exists():  # a part has brought them where there is no network
        write_companions(play.model, yaml.safe_load(ARCHITECTURE.read_text(encoding="utf-8")))
    began = time.monotonic()
    write_weights(random_weights(play.model), play.model)
    size = sum(file.stat().st_size for file in play.model.glob("*.safetensors"))
    play.note(written_gb=size / 1e9, seconds=time.monotonic() - began)


def random_weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    from arpo.models.checkpoint import model_without_weights
    from arpo.models.family import family_of

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    family = family_of(path)
    for name, like in model_without_weights(path, "sdpa").named_parameters():
        tensor = torch.empty(like.shape, dtype=torch.bfloat16, device=device)
        norm = like.ndim == 1 and name.endswith("weight")
        yield family.checkpoint_name(name), tensor.fill_(1.0) if norm else tensor.normal_(0.0, SPREAD)


def engine(play: Play) -> None:
    """Serve a few desktops without compilation, then score what was sampled with the trainer's policy."""
    from arpo.models.tokenization import ChatTokenizer
    from benchmarks.gpu_session.stand_ins import TimedEngine

    began = time.monotonic()
    tokens = 8 if play.smoke else TOKENS
    served = TimedEngine(
        play.model,
        dtype="float32" if play.smoke else "bfloat16",
        max_model_len=1024 if play.smoke else CONTEXT,
        max_num_seqs=DESKTOPS,
        max_images=STEPS,
        engine_args={} if play.smoke else {"enforce_eager": True, "gpu_memory_utilization": 0.45},
    )
    play.note(start_seconds=time.monotonic() - began)
    began = time.monotonic()
    trajectories = asyncio.run(conversations(served, ChatTokenizer(play.model), tokens))
    seconds = time.monotonic() - began
    sampled = [logprob for each in trajectories for step in each.steps for logprob in step.sampler_logprobs]
    play.note(sampled_tokens=len(sampled), seconds=seconds, tokens_per_s=len(sampled) / seconds)
    gaps = [abs(a - b) for a, b in zip(sampled, trainer_logprobs(play, trajectories), strict=True)]
    play.note(gap=fmean(gaps), largest_gap=max(gaps), mean_logprob=fmean(sampled))
    asyncio.run(served.close())


async def conversations(served: Any, chat: Any, tokens: int) -> list[Any]:
    return list(await asyncio.gather(*(conversation(served, chat, tokens, desktop) for desktop in range(DESKTOPS))))


async def conversation(served: Any, chat: Any, tokens: int, desktop: int) -> Any:
    """Answer to one screenshot after the other, the whole history before each."""
    from arpo.agent.prompt import Prompt
    from arpo.inference.engine import GenerateRequest, Sampling
    from arpo.types import Outcome, Step, Trajectory
    from benchmarks.gpu_session.stand_ins import drawn

    prompt: tuple[int, ...] = chat.first_prompt(Prompt.compact().messages("Open the report."))
    context, pngs, steps = (), {}, []
    for number in range(STEPS):
        shot = await asyncio.to_thread(drawn, desktop * STEPS + number)
        key = f"{desktop}/{number}"
        pngs[key] = shot.screenshot
        context += prompt
        answer = await served.generate(GenerateRequest(context, tuple(pngs.values()), Sampling(1.0, tokens, number)))
        ids = answer.token_ids
        steps.append(Step(key, shot.width, shot.height, prompt, ids, answer.logprobs, 0, ""))
        context += ids
        prompt = chat.next_prompt(ids)
    return Trajectory(str(desktop), "t", "", "", 0, tuple(steps), Outcome.MAX_STEPS, 0.0, 0.0, pngs)


def trainer_logprobs(play: Play, trajectories: list[Any]) -> list[float]:
    from arpo.models.collate import collate
    from arpo.models.policy import LoraSettings, Policy
    from arpo.models.tokenization import tokenize

    # With adapters, which are nothing at first, the weights under them are never in float32.
    dtype = "float32" if play.smoke else "bfloat16"
    policy = Policy(play.model, dtype=dtype, train_vision=False, lora=LoraSettings())  # type: ignore[arg-type]
    policy.to("cuda" if torch.cuda.is_available() else "cpu")
    found: list[float] = []
    for trajectory in trajectories:
        with torch.no_grad():
            batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
            output = policy.action_logprobs(batch)
        found += output.logprobs[output.mask].tolist()
    return found


def loop(play: Play) -> None:
    """Train two iterations on drawn desktops: rollout, sleep, update, sync, wake."""
    from update_gpu import read

    from arpo.run.build import compose
    from arpo.run.train import train
    from benchmarks.gpu_session.stand_ins import every_answer_waits

    if play.phase == "all" and torch.cuda.is_available() and (room := gpu_gib()) < ROOM_FOR_ALL_GIB:
        play.note(skipped=f"needs a GPU with {ROOM_FOR_ALL_GIB} GiB, this one has {room:.0f}")
        return
    planned = SITE.parent / "plan.json"
    if planned.exists() and not play.smoke:
        gpu = "h200-141" if gpu_gib() > ROOM_FOR_ALL_GIB else "h100-80"
        play.note(planned=json.loads(planned.read_text(encoding="utf-8"))[f"{play.phase} on {gpu}"])
    every_answer_waits()
    with tempfile.TemporaryDirectory() as directory:
        words = [*LOOPS[play.phase], f"model.path={play.model}", f"paths.run_dir={directory}"]
        small = (*SMALL_LOOP, *(SMALL_FLEET if play.phase in ("lora", "all") else ())) if play.smoke else ()
        cfg = compose("train", [*words, *small])
        for name in ("evaluation", "checkpoint", "update_log", "trajectory_log", "progress"):
            cfg.callbacks[name] = None
        cfg.logger = {"json_lines": cfg.logger.json_lines}
        try:
            train(cfg)
        finally:  # an iteration that was measured counts, whatever came after it
            for row in read(Path(directory) / "metrics.jsonl"):
                play.note(metrics=row)
            if torch.cuda.is_available():
                play.note(trainer_gib=torch.cuda.max_memory_allocated() / 2**30)


def gpu_gib() -> float:
    return float(torch.cuda.get_device_properties(0).total_memory / 2**30)


def trace(play: Play) -> None:
    """Profile two updates with LoRA, of which nobody times the first: the operations that take longest."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile
    from update_gpu import SMALL
    from update_ways import Setting, measure

    cuda = torch.cuda.is_available()
    own = SMALL | {"tokens": 256} if play.smoke else {"tokens": 65536}
    setting = Setting(way="ours", trained="lora", **{**own, "micro_batches": 1, "updates": 1})
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        architecture = str(SMALL_ARCHITECTURE if play.smoke else ARCHITECTURE)
        play.note(update=measure(setting, architecture, torch.device("cuda" if cuda else "cpu")))
    kind, time_of = (DeviceType.CUDA, "device") if cuda else (DeviceType.CPU, "cpu")
    rows = [(getattr(row, f"self_{time_of}_time_total"), row) for row in profiler.key_averages()]
    kernels = [(took, row) for took, row in rows if row.device_type == kind]  # not what launched them, too
    for took, row in sorted(kernels, key=lambda pair: -pair[0])[:TRACED]:
        play.note(operation=row.key[:100], ms=took / 1000, calls=row.count)


PHASES: dict[str, Callable[[Play], None]] = {
    "weights": weights,
    "engine": engine,
    "lora": loop,
    "one_copy": loop,
    "two_copies": loop,
    "trace": trace,
    "all": loop,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phase", choices=PHASES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--smoke", action="store_true")
    play = Play(**vars(parser.parse_args()))
    PHASES[play.phase](play)


if __name__ == "__main__":
    main()
