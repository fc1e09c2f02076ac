"""DART's curation through Trainer.fit: smaller groups, shorter episodes, collected successes, and their resume."""

import shutil
from dataclasses import replace
from pathlib import Path

from arpo.callbacks.replay import ReplayInjection
from arpo.replay import ReplayBuffer
from arpo.rollout.curation.experience import ExperiencePool
from arpo.rollout.curation.requests import DynamicRolloutNumber, DynamicTrajectoryLength
from arpo.rollout.hooks import RolloutCallback
from arpo.types import Group
from tests.integration.parts import GROUP_SIZE, SETTINGS, TASKS, MoodyEngine, train

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
    """Keeps what every iteration learned from, and writes a checkpoint after the second."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.groups = {}

    def on_rollout_end(self, trainer, module, batch):
        self.groups[batch.iteration] = list(batch.groups)

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)


def test_a_resumed_run_goes_on_with_the_same_numbers_and_the_same_pool(tiny_model, tmp_path):
    train(tiny_model, tmp_path / "expert", lambda chat: MoodyEngine(chat, always), replay=False, iterations=1)
    expert, checkpoint = tmp_path / "expert" / "trajectories", tmp_path / "half.ckpt"

    def collect(directory: str, iterations: int, resume: Path | None = None) -> dict[int, list[Group]]:
        """Go through a run with all of the curation."""
        pool = ExperiencePool([expert], TASKS)
        record = Record(tmp_path / f"{directory}.ckpt")
        train(
            tiny_model,
            tmp_path / directory,
            lambda chat: MoodyEngine(chat, lambda version, seed: "solve" if version < 2 and seed % 4 else "fail"),
            replay=ReplayInjection(ReplayBuffer(replaced="none", seed=5), pool=pool, remembers=False),
            iterations=iterations,
            settings=replace(SETTINGS, group_size=4, max_steps=4),
            callbacks=[record],
            group_size=DynamicRolloutNumber(4),
            max_steps=DynamicTrajectoryLength(limit=4, floor=1),
            resume=resume,
        )
        return record.groups

    whole, half = collect("whole", 5), collect("half", 2)
    shutil.rmtree(expert)
    assert {**half, **collect("half", 5, checkpoint)} == whole
    assert half.keys() == {0, 1}
    groups = [group for groups in whole.values() for group in groups]
    assert {len(group.trajectories) - len(group.injected) for group in groups} > {4}  # some groups were smaller
    assert any(group.injected for group in groups)
