"""`python train.py experiment=smoke_mixture`: the workers of a part are killed, then the run; nothing is lost."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from arpo.envs.fake_phone import FakePhone
from tests.integration.runs import KEEP, Run, assert_same_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.ray, pytest.mark.timeout(1800)]

ITERATIONS = range(3)
LESSON = ("experiment=warmstart_mixture", "datamodule.steps=160", "datamodule.per_task=8")
SIZES = (f"iterations={len(ITERATIONS)}", "datamodule.sampler.tasks_per_iteration=4", "~callbacks.evaluation")


class PhoneWithAddress(FakePhone):
    """Leaves the id of its process in a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        Path(folder, str(os.getpid())).touch()


def workers_in(addresses):
    """Return the workers that live; the run itself builds an environment too, to check its arguments."""
    found = [psutil.Process(int(name)) for name in os.listdir(addresses) if psutil.pid_exists(int(name))]
    return [process for process in found if process.name().startswith("ray::EnvWorker")]


def test_a_part_and_a_run_come_back_and_end_as_if_nothing_had_been(ending, sessions, tmp_path):
    def run_of(name, *words):
        return ending(Run(tmp_path / name, sessions, *words, f"paths.output={tmp_path}"))

    warm = run_of("warm", *LESSON)
    assert warm.go() == 0, warm.said
    words = ("experiment=smoke_mixture", f"model.path={tmp_path}/warm/policy", "engine=hf", KEEP, *SIZES)
    alone = run_of("alone", *words)
    assert alone.go() == 0, alone.said

    (addresses := tmp_path / "addresses").mkdir()
    env = "env.parts.phone.make_env"
    noting = (f"{env}._target_={__name__}.PhoneWithAddress", f"+{env}.folder={addresses}")
    run = run_of("run", *words, *noting, "env.parts.phone.envs_per_worker=4")
    run.start()
    run.wait_for_rollout(1)
    for worker in (killed := workers_in(addresses)):
        worker.kill()
    run.wait_for_rollout(2)
    others = workers_in(addresses)
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, run.said
    assert 0 < len(run.trajectories([2])) < 16  # of four groups of four
    assert len(killed) == 2
    assert others  # one at least has come in their place by then

    counted = next(line for line in run.metrics if line["step"] == 2)
    lost = counted["env/phone/faults"]
    assert 0 < lost == counted["env/fault_crash"] == counted["rollout/retried_episodes"]
    assert counted["env/desktop/faults"] == counted["rollout/dropped_episodes"] == 0

    assert run.go("resume=auto") == 0, run.said
    assert run.metrics[-1]["rollout/resumed_episodes"] > 0
    assert run.trajectories(ITERATIONS) == alone.trajectories(ITERATIONS)
    assert run.learned == alone.learned
    for one, other in zip(run.checkpoints, alone.checkpoints, strict=True):
        assert_same_checkpoint(one, other)
    run.assert_nothing_left()
