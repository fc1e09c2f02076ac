"""Desktops that hang, crash, lie and cannot be judged: the run goes on, and learns what it would have learned."""

import io
from collections import Counter

import pytest
from PIL import Image

from arpo.rollout.storage import TrajectoryStore

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

ITERATIONS = 2
FAULTS = [
    ("hang", "step", 4, 0.3),
    ("crash", "step", 4, 0.3),
    ("garbage", "step", 4, 0.3),
    ("undecodable", "reset", 4, 0.3),
    ("error", "evaluate", 8, 0.9),  # four more, for what the others end is never judged
]
PLAN = ",".join(
    f"{{_target_:tests.envs.planned_faults.Fault,kind:{kind},call:{call},attempts:{attempts},probability:{probability}}}"
    for kind, call, attempts, probability in FAULTS
)
"""Each of the first episodes of a task, wherever it runs, has its own draw of each fault."""


def test_broken_desktops_are_counted_and_change_nothing_of_what_is_learned(smoke, ending, tmp_path):
    (tmp_path / "ledger").mkdir()
    faulty = ending(smoke.again(tmp_path / "run"))
    code = faulty.go(
        f"iterations={ITERATIONS}",
        "env.envs_per_worker=2",
        "env.step_timeout_s=2",
        "rollout.settings.max_attempts=12",
        "callbacks.evaluation.at_start=false",  # the faults are meant for training
        "env.make_env._target_=tests.envs.planned_faults.FaultyDesktop",
        "+env.make_env.faults._target_=tests.envs.planned_faults.Faults",
        f"+env.make_env.faults.ledger={tmp_path / 'ledger'}",
        f"+env.make_env.faults.plan=[{PLAN}]",
    )
    assert code == 0, faulty.said
    lines = faulty.metrics[-ITERATIONS:]
    counted = Counter()
    for line in lines:
        counted.update({name: value for name, value in line.items() if name.startswith("env/")})
    for fault in ("timeout", "crash", "screenshot", "evaluate"):
        assert counted[f"env/fault_{fault}"] > 0, fault
    assert counted["env/restarts"] > 0
    assert sum(line["rollout/retried_episodes"] for line in lines) > 0

    # no lost episode is anywhere in what was learned from: ...
    assert all(line["rollout/dropped_episodes"] == line["rollout/dropped_groups"] == 0 for line in lines)
    ours, theirs = (run.trajectories(range(ITERATIONS)) for run in (faulty, smoke.run))
    assert ours == theirs  # ... each was made again, and came out as without the faults
    store = TrajectoryStore(faulty.directory / "trajectories")
    for trajectory in ours:
        assert trajectory.task_reward in (0.0, 1.0)
        for png in store.load_screenshots(trajectory).screenshots.values():
            Image.open(io.BytesIO(png)).verify()

    # ... and the updates are those of the run without faults
    for one, other in zip(faulty.learned[-ITERATIONS:], smoke.run.learned[1:], strict=False):
        common = {name for name in one.keys() & other.keys() if not name.startswith("val/")}
        assert {name: one[name] for name in common} == {name: other[name] for name in common}
    faulty.assert_nothing_left()
