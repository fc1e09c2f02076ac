"""DART's curation through Trainer.fit: smaller groups, shorter episodes, collected successes, and their resume."""

import shutil
from pathlib import Path

import lightning as L

from arpo.callbacks.replay import ReplayInjection
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.replay import ReplayBuffer
from arpo.rollout.curation.experience import ExperiencePool
from arpo.rollout.curation.requests import DynamicRolloutNumber, DynamicTrajectoryLength
from arpo.rollout.hooks import RolloutCallback
from arpo.rollout.sampler import ShuffledTasks
from tests.callbacks.support import EngineFollows, IdleModule
from tests.integration.parts import GROUP_SIZE, TASKS, MoodyEngine, train
from tests.rollout.conftest import chat, make_collector

__all__ = ["chat", "make_collector"]

NUMBER = DynamicRolloutNumber(GROUP_SIZE)


def at_first(version: int, seed: int) -> str:
    """Every episode of the first iteration succeeds, and about half of the later ones."""
    return "solve" if version == 0 or seed % 2 == 0 else "fail"


def never(version: int, seed: int) -> str:
    """Every episode ends without a success."""
    return "fail"


def always(version: int, seed: int) -> str:
    """Every episode succeeds."""
    return "solve"


def test_groups_of_a_solved_task_shrink_to_two_and_still_teach(tiny_model, tmp_path):
    run = train(
        tiny_model, tmp_path, lambda chat: MoodyEngine(chat, at_first), replay=False, iterations=3, group_size=NUMBER
    )
    sizes = [metrics["group/size"] for metrics in run.metrics]
    assert sizes[:2] == [GROUP_SIZE, 2.0]  # 7/1 - 5
    assert run.metrics[1]["rollout/dropped_groups"] == 0.0
    mixed = [i for i, metrics in enumerate(run.metrics) if metrics["group/degenerate"] < 1.0]
    assert mixed, "the moods of these seeds leave nothing to learn"
    for iteration in mixed:
        assert run.metrics[iteration]["train/grad_norm"] > 0
        assert run.changed(iteration) == set(run.weights[0])


def test_an_episode_may_not_take_longer_than_the_successes_of_its_task(tiny_model, tmp_path):
    def then_lost(version: int, seed: int) -> str:
        return "solve" if version == 0 else "wait"

    lengths = [
        train(
            tiny_model,
            tmp_path / name,
            lambda chat: MoodyEngine(chat, then_lost),
            replay=False,
            iterations=2,
            max_steps=rule,
        ).metrics[1]["rollout/steps"]
        for name, rule in (("free", None), ("bound", DynamicTrajectoryLength(limit=3, floor=1)))
    ]
    assert lengths == [3.0, 1.0]  # one click solves the task


def test_a_group_of_two_failures_learns_from_a_success_that_was_collected_beforehand(tiny_model, tmp_path):
    train(tiny_model, tmp_path / "expert", lambda chat: MoodyEngine(chat, always), replay=False, iterations=1)
    pool = ExperiencePool([tmp_path / "expert" / "trajectories"], TASKS)
    injection = ReplayInjection(ReplayBuffer(replaced="none"), pool=pool, remembers=False)
    run = train(
        tiny_model,
        tmp_path / "run",
        lambda chat: MoodyEngine(chat, never),
        replay=injection,
        iterations=1,
        group_size=lambda task, record: 2,
    )
    (metrics,) = run.metrics
    assert (metrics["group/size"], metrics["group/all_failed"]) == (2.0, 1.0)
    assert metrics["replay/injected"] == len(TASKS)
    assert metrics["train/grad_norm"] > 0


# --- resume ---------------------------------------------------------------------------------------------------------


class Record(RolloutCallback):
    """Keeps what every iteration learned from, and writes a checkpoint after one of them.

    It tells the engine the version that a run begins with, as weight sync does.
    """

    def __init__(self, at: int, path: Path) -> None:
        self.at = at
        self.path = path
        self.groups = {}

    def on_train_start(self, trainer, pl_module):
        trainer.datamodule.runtime.update_weights([], pl_module.policy_version)

    def on_rollout_end(self, trainer, module, batch):
        self.groups[batch.iteration] = list(batch.groups)

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == self.at:
            trainer.save_checkpoint(self.path)


def collect(collector, pool_root: Path, directory: Path, *, iterations: int, checkpoint: Path | None = None) -> Record:
    """Go through a run with all of the curation."""
    record = Record(1, directory / "half.ckpt")
    pool = ExperiencePool([pool_root], TASKS)
    injection = ReplayInjection(ReplayBuffer(replaced="none", seed=5), pool=pool, remembers=False)
    rules = {"group_size": DynamicRolloutNumber(4), "max_steps": DynamicTrajectoryLength(limit=4, floor=1)}
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=iterations,
        callbacks=[injection, record, EngineFollows()],
        logger=False,
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
    )
    data = RolloutDataModule(collector, ShuffledTasks(TASKS, 2, seed=0, **rules))
    trainer.fit(IdleModule(), data, ckpt_path=checkpoint)
    return record


def test_a_resumed_run_goes_on_with_the_same_numbers_and_the_same_pool(tiny_model, tmp_path, make_collector, chat):
    train(tiny_model, tmp_path / "expert", lambda chat: MoodyEngine(chat, always), replay=False, iterations=1)
    expert = tmp_path / "expert" / "trajectories"

    def collector(directory):
        engine = MoodyEngine(chat, lambda version, seed: "solve" if version < 2 and seed % 4 else "fail")
        return make_collector(engine=engine, start=False, directory=directory)

    whole = collect(collector("whole"), expert, tmp_path / "whole", iterations=5)
    half = collect(collector("half"), expert, tmp_path / "half", iterations=2)
    shutil.rmtree(expert)
    checkpoint = tmp_path / "half" / "half.ckpt"
    resumed = collect(collector("half"), expert, tmp_path / "half", iterations=5, checkpoint=checkpoint)
    assert half.groups == {number: whole.groups[number] for number in (0, 1)}
    assert resumed.groups == {number: whole.groups[number] for number in (2, 3, 4)}
    groups = [group for groups in whole.groups.values() for group in groups]
    assert {len(group.trajectories) - len(group.injected) for group in groups} > {4}  # some groups were smaller
    assert any(group.injected for group in groups)
