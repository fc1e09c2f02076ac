"""How well environments, engine and trainer are used, by the way in which rollouts and updates are scheduled.

    python benchmarks/scheduling.py schedules             # six schedules side by side, 180 environments
    python benchmarks/scheduling.py reference             # the laws and the size of an older measurement, by lag
    python benchmarks/scheduling.py law                   # what scheduling_law predicts, and what happens
    python benchmarks/scheduling.py environments          # 16 to 1,024 environments
    python benchmarks/scheduling.py driver --profile      # 1,024 environments in real time: what the driver costs

The data module, collector, runtime, pool (threads), episodes and trainer loop are those of a run. Desktops, engine and
update are fake: they take the time that a log-normal law says, divided by `--speed`. All times and rates that are
printed are in the time of the laws. One JSON line a setting is appended to `--output`.
"""

import argparse
import cProfile
import json
import logging
import math
import os
import pstats
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import lightning as L
import transformers
from scheduling_baselines import GROUP_SIZE, LockStep, LockStepEngine, LockStepPool, TaskWisePool
from scheduling_law import Work, bounds, iteration_s
from scheduling_parts import MAX_STEPS, Desktop, Engine, Trainer
from scheduling_settings import (
    DECOUPLED,
    LOCK_STEP,
    TASK,
    Setting,
    default_speed,
    real_time,
    reference,
    schedules,
    sizes,
    worlds,
)

from arpo.agent.prompt import Prompt
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import EpisodeState, draw, make_scene
from arpo.envs.pool.pool import EnvPool
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.tokenization import ChatTokenizer
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import RolloutCallback
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import ShuffledTasks
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from arpo.rollout.stream import RolloutCollector
from arpo.types import Observation, RolloutBatch, Task

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that only grows, at one moment."""

    updates: int
    wall: float
    counters: dict[str, float]
    trainer_s: float
    loop_cpu: float
    process_cpu: float


class Recorder(RolloutCallback):
    """Tells the engine of every update, and reads the counters behind it."""

    def __init__(self, runtime: RolloutRuntime, profile: cProfile.Profile | None) -> None:
        self._runtime = runtime
        self._profile = profile
        self.readings: list[Reading] = []
        self.groups: list[list[list[float]]] = []
        """Seconds of every episode, by iteration and group."""
        self.lags: list[float] = []
        self._trainer_s = self._began = 0.0

    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        self._began = time.monotonic()
        self.groups.append([[t.duration_s for t in group.trajectories] for group in batch.groups])
        trajectories = [t for group in batch.groups for t in group.trajectories]
        self.lags.append(fmean(batch.policy_version - t.policy_version for t in trajectories))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._profile is not None:
            self._runtime.run(_call(self._profile.enable))
        self._read()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._profile is not None:
            self._runtime.run(_call(self._profile.disable))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object) -> None:
        self._runtime.update_weights([], PolicyModule.of(pl_module).policy_version)
        self._trainer_s += time.monotonic() - self._began
        self._read()

    def _read(self) -> None:
        counters, loop_cpu = self._runtime.counters(), self._runtime.run(_call(time.thread_time))
        reading = len(self.readings), time.monotonic(), counters, self._trainer_s, loop_cpu, time.process_time()
        self.readings.append(Reading(*reading))


async def _call(function: Callable[[], _T]) -> _T:
    """Call a function in the thread of the event loop."""
    return function()


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that all settings share."""

    chat: ChatTokenizer
    screen: Observation
    profile: cProfile.Profile | None = None
    """Of the event loop."""


def measure(setting: Setting, parts: Parts) -> tuple[dict[str, Any], Work]:
    """Run one setting; return its figures, and what the law needs to know of it."""
    with tempfile.TemporaryDirectory() as directory:
        recorder = _fit(setting, parts, Path(directory))
    window = setting.window
    first, last = recorder.readings[window.start], recorder.readings[window.stop]
    figures = _use(setting, first, last)
    work = Work(
        groups=[[s * setting.speed for s in group] for batch in recorder.groups[window] for group in batch],
        groups_per_iteration=setting.groups,
        environments=setting.environments,
        update_s=figures["trainer_busy"] * figures["iteration_s"],
        reset_s=figures["reset_s"],
        engine_s=figures["engine_busy"] * figures["iteration_s"],
        driver_s=figures["driver_cores_here"] * figures["iteration_s"],  # the driver is not faster than it is
    )
    limits = bounds(work, setting.lag)
    figures |= {
        "bound_by": max(limits, key=limits.__getitem__),
        "bound_s": max(limits.values()),
        "share_of_bound": max(limits.values()) / figures["iteration_s"],
        "mean_lag": fmean(recorder.lags[window]),
        "whole_run": _use(setting, recorder.readings[0], recorder.readings[-1]),
    }
    return figures, work


def _use(setting: Setting, first: Reading, last: Reading) -> dict[str, float]:
    """Return what was used of what there is between two readings."""
    wall = last.wall - first.wall
    owned, seconds = setting.environments * wall, wall * setting.speed
    grown = {name: value - first.counters[name] for name, value in last.counters.items()}
    acting_s = sum(grown[f"env/{call}_s"] for call in ("reset", "step", "evaluate"))
    actions, loop_cpu = grown["env/step_calls"], last.loop_cpu - first.loop_cpu
    return {
        "leased": grown["env/busy_s"] / owned,
        "acting": acting_s / owned,
        "actions_a_minute": 60 * actions / seconds,
        "waiting": (grown["env/busy_s"] - acting_s - grown["engine/busy_s"]) / owned,
        "engine_busy": grown["engine/busy_s"] / (wall * setting.slots),
        "trainer_busy": (last.trainer_s - first.trainer_s) / wall,
        "iteration_s": seconds / (last.updates - first.updates),
        "reset_s": grown["env/reset_s"] * setting.speed / max(1.0, grown["env/reset_calls"]),
        "steps_an_episode": actions / max(1.0, grown["env/episodes"]),
        "driver_ms_an_action": 1000 * loop_cpu / actions,
        "process_ms_an_action": 1000 * (last.process_cpu - first.process_cpu) / actions,
        "driver_cores": loop_cpu / seconds,
        "driver_cores_here": loop_cpu / wall,
    }


def _fit(setting: Setting, parts: Parts, directory: Path) -> Recorder:
    iterations = setting.window.stop + setting.lag  # the last ones admit nothing new
    laws, speed, chat = replace(setting.laws, slots=setting.slots), setting.speed, parts.chat
    make_engine: type[Engine] = Engine
    make_pool: type[EnvPool] = TaskWisePool if setting.schedule == TASK else EnvPool
    if setting.schedule == LOCK_STEP:
        make_engine, make_pool = LockStepEngine, LockStepPool
        LockStepEngine.steps = LockStepPool.steps = LockStep()
    pool = make_pool(
        partial(Desktop, laws, speed, parts.screen),
        size=setting.environments,
        backend="thread",
        reset_timeout_s=600,
        step_timeout_s=600,
    )
    settings = RolloutSettings(
        group_size=GROUP_SIZE,
        max_steps=MAX_STEPS,
        max_tokens=64,
        max_context=100_000,
        max_policy_lag=setting.lag,
        order=setting.order,
    )
    runtime = RolloutRuntime(
        partial(make_engine, chat, laws, speed),
        pool,
        chat,
        Prompt.compact(),
        TrajectoryStore(directory),
        settings,
    )
    recorder = Recorder(runtime, parts.profile)
    count = setting.groups * math.ceil(203 / setting.groups)  # no task stands in an iteration twice
    tasks = [Task(f"task/{number}", "click", domain="fake") for number in range(count)]
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=iterations,
        callbacks=[recorder],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        default_root_dir=directory,
    )
    sampler = ShuffledTasks(tasks, setting.groups, seed=0)
    trainer.fit(Trainer(setting.update_s / speed), RolloutDataModule(RolloutCollector(runtime), sampler))
    return recorder


COLUMNS = {
    "leased": "{:.1%}",
    "acting": "{:.1%}",
    "waiting": "{:.1%}",
    "actions_a_minute": "{:.0f}",
    "engine_busy": "{:.1%}",
    "trainer_busy": "{:.1%}",
    "driver_cores": "{:.3f}",
    "iteration_s": "{:.0f}",
    "bound_by": "{}",
    "bound_s": "{:.0f}",
    "share_of_bound": "{:.1%}",
    "mean_lag": "{:.2f}",
}


class Table:
    """Lines of figures, for people and as JSON."""

    def __init__(self, options: argparse.Namespace, parts: Parts) -> None:
        self._options = options
        self._parts = parts
        self.work: Work
        """What the law needs to know of the setting that was measured last."""
        print(" | ".join(["environments", "groups", "schedule", *COLUMNS]), flush=True)

    def add(
        self,
        setting: Setting,
        *,
        world: str = "",
        turns: Mapping[str, Any] | None = None,
        predicted: float | None = None,
    ) -> dict[str, Any]:
        """Measure a setting and write it down; `turns` is the same world while it takes turns."""
        options = self._options
        speed = options.speed or min(setting.speed, default_speed(setting.environments))
        setting = replace(setting, speed=speed, measured=options.measured or setting.measured)
        load = os.getloadavg()[0]
        figures, self.work = measure(setting, self._parts)
        line = [f"{setting.environments}", f"{setting.groups}", setting.name]
        line += [form.format(figures[name]) for name, form in COLUMNS.items()]
        print(" | ".join(line), flush=True)
        if turns is not None:
            figures["predicted_speedup"] = predicted
            figures["measured_speedup"] = turns["iteration_s"] / figures["iteration_s"]
        record = {"command": options.command, "world": world, **asdict(setting), **figures, **_origin(), "load": load}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return figures


def _origin() -> dict[str, Any]:
    """Return which code was measured, when and where."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, encoding="utf-8", check=True
    )
    return {"commit": done.stdout.strip(), "day": time.strftime("%Y-%m-%d", time.gmtime()), "cores": os.cpu_count()}


def try_law(table: Table) -> None:
    """Measure each world while it takes turns, predict its lags from that, and measure them."""
    for name, (turns, lags) in worlds().items():
        print(f"-- {name}", flush=True)
        before = table.add(turns, world=name)
        work = table.work
        for lag in lags:
            predicted = before["iteration_s"] / iteration_s(work, lag)
            after = table.add(
                replace(turns, schedule=DECOUPLED, lag=lag), world=name, turns=before, predicted=predicted
            )
            print(f"   predicted {predicted:.3f}x, measured {after['measured_speedup']:.3f}x", flush=True)


def main() -> None:
    options = _options()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    corpus = ["Action: click(start_box='(10,20)')", "Action: finished()"]
    width, height = 112, 84
    screen = Observation(draw(make_scene("click", 0), EpisodeState(), width, height), width, height)
    with tempfile.TemporaryDirectory() as directory:
        chat = ChatTokenizer(make_tiny(Path(directory) / "tiny", corpus=corpus))
        profile = cProfile.Profile() if options.profile else None
        table = Table(options, Parts(chat, screen, profile))
        if options.command == "law":
            try_law(table)
            return
        chosen = {"schedules": schedules, "reference": reference, "environments": sizes, "driver": real_time}
        for setting in chosen[options.command]():
            table.add(setting)
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["schedules", "reference", "law", "environments", "driver"])
    parser.add_argument("--measured", type=int, help="iterations of every setting, without its warm-up")
    parser.add_argument("--speed", type=float, help="how many times as fast as the laws; the default suits two cores")
    parser.add_argument("--profile", action="store_true", help="also print where the event loop spends its time")
    parser.add_argument("--output", type=Path, default=Path("outputs/scheduling.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
