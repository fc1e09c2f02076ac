import asyncio
import json
import logging
import shutil
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from arpo.agent.prompt import Prompt
from arpo.errors import ArpoError, ConfigError, EngineError, RolloutError
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.runtime import ServedVersions
from arpo.rollout.sampler import TaskRequest
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Outcome
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import TASKS, PickyDesktop, dawdle, interrupted, moody_clicker, red_clicker, solver, until


def pictures(batch):
    return [dict(trajectory.screenshots) for group in batch.groups for trajectory in group.trajectories]


def ids(batch):
    return [[trajectory.id for trajectory in group.trajectories] for group in batch.groups]


def test_groups_and_members_stand_in_the_order_that_was_asked_for_each_with_a_seed_of_its_own(make_collector):
    asked = [TASKS[2], TASKS[0], TASKS[2]]
    collector = make_collector(seed=1)
    batches = [collector.collect(asked, policy_version=0, iteration=iteration) for iteration in (7, 8)]
    assert [group.task for group in batches[0].groups] == asked
    assert ids(batches[0]) == [[f"7/{group}/{member}" for member in range(4)] for group in range(3)]
    assert (batches[0].iteration, batches[0].policy_version) == (7, 0)
    batches.append(make_collector(seed=2, directory="other").collect(asked, policy_version=0, iteration=7))
    seeds = [t.seed for batch in batches for group in batch.groups for t in group.trajectories]
    assert len(set(seeds)) == len(seeds) == 36


def test_a_batch_does_not_depend_on_the_order_in_which_episodes_end(chat, make_collector):
    batches = []
    for run, size in enumerate([1, 3, 8, 8]):
        engine = ScriptedEngine(chat, moody_clicker(chat), hold=dawdle)
        collector = make_collector(engine=engine, size=size, directory=f"run-{run}-{size}")
        batches.append(collector.collect(TASKS, policy_version=0, iteration=0))
    assert all(batch.groups == batches[0].groups for batch in batches)
    assert all(pictures(batch) == pictures(batches[0]) for batch in batches)
    outcomes = {trajectory.outcome for group in batches[0].groups for trajectory in group.trajectories}
    assert len(outcomes) > 1  # or the test would show little


def test_a_request_may_ask_for_another_size_and_limit(chat, make_collector):
    waiting = ScriptedEngine(chat, lambda request: "Action: wait()")
    short = replace(TASKS[0], max_steps=2)
    tasks = [TASKS[0], short, TaskRequest(short, group_size=1, max_steps=3)]
    batch = make_collector(engine=waiting, group_size=2, max_steps=1).collect(tasks, 0, 0)
    assert [[len(t.steps) for t in group.trajectories] for group in batch.groups] == [[1, 1], [2, 2], [3]]


@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_destroyed_desktop_is_an_outcome_once_its_agent_acts(chat, make_collector, tmp_path, call):
    fault = Fault("destroyed", call, **({"probability": 0.5} if call == "step" else {"attempts": 1}))
    make = faulty([fault], tmp_path / "ledger")
    batch = make_collector(make_env=make, engine=solver(chat), group_size=8).collect(TASKS[:1], 0, 0)
    outcomes = Counter(trajectory.outcome for trajectory in batch.groups[0].trajectories)
    assert sum(outcomes.values()) == 8
    assert batch.metrics["rollout/dropped_episodes"] == 0
    if call == "step":
        assert 0 < outcomes[Outcome.DESTROYED] < 8
        assert batch.metrics["rollout/retried_episodes"] == 0
    else:
        assert outcomes[Outcome.TERMINATED] == 8
        assert batch.metrics["rollout/retried_episodes"] == batch.metrics["env/fault_guest"] == 1


def faulty(plan, ledger):
    ledger.mkdir()
    faults = Faults(plan=plan, ledger=str(ledger))
    return lambda: FaultyDesktop(faults)


@pytest.mark.parametrize(
    ("kind", "call", "counted"),
    [
        *(("error", call, call) for call in ("reset", "step", "evaluate")),
        *(("garbage", "step", "screenshot"), ("undecodable", "reset", "screenshot")),
        *(("garbage", "evaluate", "evaluate"), ("hang", "step", "timeout")),
    ],
)
def test_a_lost_episode_is_made_again_and_gives_what_it_would_have_given(
    chat, make_collector, tmp_path, kind, call, counted
):
    healthy = make_collector(engine=solver(chat), directory="healthy").collect(TASKS, 0, 0)
    make_env = faulty([Fault(kind, call, attempts=1)], tmp_path / "ledger")
    collector = make_collector(engine=solver(chat), make_env=make_env, step_timeout_s=1.5)
    batch = collector.collect(TASKS, 0, 0)
    assert batch.groups == healthy.groups
    assert batch.metrics["rollout/retried_episodes"] == 4  # the first attempt at each task
    assert batch.metrics[f"env/fault_{counted}"] == 4
    assert batch.metrics["rollout/dropped_episodes"] == 0
    assert len(collector.runtime.store.read("train", 0)) == 16  # and nothing of a lost attempt is stored


def boaster(chat, ahead, times):
    """An engine that stamps a version that there is not yet on its first responses."""
    left = iter(range(times))

    def boast(response):
        return replace(response, policy_version=response.policy_version + (0 if next(left, None) is None else ahead))

    return ScriptedEngine(chat, red_clicker(chat), change=boast)


@pytest.mark.parametrize(("version", "ahead"), [(0, 1), (0, 3), (4, 3)])
def test_a_response_of_a_version_that_there_is_not_is_a_failure_of_the_engine(chat, make_collector, version, ahead):
    collector = make_collector(engine=boaster(chat, ahead, times=2), group_size=4)
    if version:
        collector.runtime.update_weights([], version)
    batch = collector.collect(TASKS[:1], version, 0)
    assert batch.metrics["rollout/retried_episodes"] == 2
    assert batch.metrics["rollout/lag_mean"] == batch.metrics["rollout/lag_max"] == 0
    liar = make_collector(engine=boaster(chat, ahead, times=1000), directory="liar")
    newest = rf"a response carries policy version {ahead}, and the newest that the engine was given is 0"
    with pytest.raises(RolloutError, match=rf"4 of 4 episodes were lost.*EngineError: {newest}"):
        liar.collect(TASKS[:1], 0, 0)


def test_a_group_that_cannot_be_judged_is_dropped_and_counted_and_never_scored(chat, make_collector):
    collector = make_collector(engine=solver(chat), make_env=PickyDesktop)
    batch = collector.collect(TASKS[:3], 0, 0)
    assert [group.task for group in batch.groups] == [TASKS[0], TASKS[2]]
    assert batch.metrics["rollout/dropped_groups"] == 1
    assert batch.metrics["rollout/dropped_episodes"] == 4
    assert batch.metrics["rollout/retried_episodes"] == 8  # three attempts each: two repetitions
    assert batch.metrics["rollout/episodes"] == 8
    assert (collector.statistics[TASKS[1].id].failures, collector.statistics[TASKS[1].id].visits) == (4, 0)
    assert collector.statistics[TASKS[0].id].success_rate == 1.0
    progress = collector.runtime.status()
    assert (progress.episodes_ended, progress.dropped) == (12, 4)


def test_nothing_left_is_an_error_with_the_last_causes(chat, make_collector):
    make_env = lambda: FaultyDesktop(Faults(plan=[Fault("error", "evaluate")]))  # noqa: E731
    with pytest.raises(RolloutError, match=r"2 too small because 8 of 8 .* planned fault in evaluate"):
        make_collector(engine=solver(chat), make_env=make_env).collect(TASKS[:2], 0, 0)


def test_an_engine_failure_costs_an_attempt_and_no_environment(chat, make_collector):
    healthy = make_collector(engine=solver(chat), directory="healthy").collect(TASKS, 0, 0)
    engine = ScriptedEngine(chat, red_clicker(chat), fail_every=5)
    batch = make_collector(engine=engine, max_attempts=20).collect(TASKS, 0, 0)
    assert batch.groups == healthy.groups
    assert batch.metrics["rollout/retried_episodes"] == len(engine.requests) // 5 > 0
    assert batch.metrics["env/restarts"] == 0


def test_counters_are_of_this_batch_and_lost_attempts_are_logged(chat, make_collector, tmp_path, caplog):
    make_env = faulty([Fault("error", "step", attempts=1)], tmp_path / "ledger")
    collector = make_collector(engine=solver(chat), make_env=make_env)
    with caplog.at_level(logging.WARNING):
        first, second = (collector.collect(TASKS[:1], 0, iteration).metrics for iteration in range(2))
    assert (first["env/fault_step"], second["env/fault_step"]) == (1, 0)
    assert (first["env/episodes"], second["env/episodes"]) == (4, 4)
    assert "attempt 1 of 3: planned fault in step" in caplog.text


def test_a_full_disk_ends_the_run_at_once(chat, make_collector, tmp_path):
    (tmp_path / "trajectories").write_text("in the way")
    collector = make_collector(engine=ScriptedEngine(chat, red_clicker(chat), latency_s=0.5), group_size=100, size=2)
    started = time.monotonic()
    with pytest.raises(ArpoError, match="cannot store trajectory 0/0/"):
        collector.collect(TASKS, 0, 0)
    assert time.monotonic() - started < 20  # 400 episodes would take 100 s
    assert collector.runtime.pool.states()["busy"] == 0


def test_a_context_too_short_for_one_prompt_ends_the_run(make_collector):
    with pytest.raises(ConfigError, match="raise max_context"):
        make_collector(max_context=41).collect(TASKS, 0, 0)


def until_all_have_ended(collector):
    until(lambda: collector.runtime.status().episodes_ended >= collector.runtime.status().total)


def test_a_group_made_by_a_policy_that_is_too_old_is_stale(chat, make_collector):
    collector = make_collector(engine=solver(chat), max_policy_lag=1)
    collector.submit(0, TASKS[:2])
    until_all_have_ended(collector)
    collector.runtime.update_weights([], version=2)
    with pytest.raises(RolloutError, match="2 too old for policy version 2"):
        collector.take(0, policy_version=2)


def test_a_success_of_a_group_that_is_too_small_is_carried_in_the_batch(chat, make_collector, tmp_path):
    make_env = faulty([Fault("error", "step", attempts=3)], tmp_path / "ledger")
    numbers = {"size": 1, "max_attempts": 1, "min_group_size": 2}
    asked = [TASKS[0], TaskRequest(TASKS[1], group_size=5)]
    batch = make_collector(engine=solver(chat), make_env=make_env, **numbers).collect(asked, 0, 0)
    assert [(group.task, len(group.trajectories)) for group in batch.groups] == [(TASKS[1], 2)]
    (left,) = batch.leftovers  # the first three episodes of each task met the faults: 4 - 3 = 1, below 2
    assert (left.task, [t.id for t in left.trajectories]) == (TASKS[0], ["0/0/3"])


def test_the_time_of_a_rollout_begins_with_its_first_episode(chat, make_collector):
    collector = make_collector(engine=solver(chat))
    collector.submit(0, TASKS[:1])
    time.sleep(0.3)  # the trainer comes late, and without a lag nothing begins before it
    asked_at = time.monotonic()
    assert collector.take(0, 0).metrics["time/rollout"] <= time.monotonic() - asked_at


def test_an_iteration_lasts_from_rollouts_to_the_next_and_the_trainer_s_wait_is_not_its_time(chat, make_collector):
    collector = make_collector(engine=solver(chat), max_policy_lag=1)
    collector.submit(0, TASKS[:2], iterations=2)
    time.sleep(1.0)  # the trainer is busy
    until_all_have_ended(collector)
    first = collector.take(0, 0).metrics
    assert 0 <= first["time/wait"] < 0.5 <= first["time/rollout"]
    assert "time/iteration" not in first  # its beginning is not known
    began = time.monotonic()
    until_all_have_ended(collector)
    elapsed_s = time.monotonic() - began
    assert collector.take(1, 0).metrics["time/iteration"] >= elapsed_s


def test_finished_episodes_are_not_made_again(chat, make_collector):
    first = make_collector()
    batch, again = (first.collect(TASKS, 0, 3) for _ in range(2))
    first.close()
    engine = ScriptedEngine(chat, moody_clicker(chat))
    resumed = make_collector(engine=engine).collect(TASKS, 0, 3)
    assert again.groups == resumed.groups == batch.groups
    assert pictures(again) == pictures(resumed) == pictures(batch)
    assert again.metrics["rollout/resumed_episodes"] == resumed.metrics["rollout/resumed_episodes"] == 16
    assert engine.requests == []


def test_only_what_a_crash_lost_is_made_again(make_collector, tmp_path):
    first = make_collector()
    batch = first.collect(TASKS, 0, 3)
    first.close()
    path = tmp_path / "trajectories" / "train" / "iteration_000003.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: 2 * len(content) // 3])  # in the middle of a record
    resumed = make_collector().collect(TASKS, 0, 3)
    assert resumed.groups == batch.groups
    assert pictures(resumed) == pictures(batch)
    assert 4 <= resumed.metrics["rollout/resumed_episodes"] < 16
    assert len(TrajectoryStore(tmp_path / "trajectories").read("train", 3)) == 16


@pytest.mark.parametrize("change", [{"seed": 1}, {"iteration": 4}, {"version": 1}])
def test_episodes_of_another_run_iteration_or_policy_are_made_again(chat, make_collector, change):
    make_collector(engine=solver(chat)).collect(TASKS, 0, 3)
    collector = make_collector(engine=solver(chat), seed=change.get("seed", 0))
    version = change.get("version", 0)
    collector.runtime.update_weights([], version)
    batch = collector.collect(TASKS, version, change.get("iteration", 3))
    assert batch.metrics["rollout/resumed_episodes"] == 0
    assert {t.policy_version for group in batch.groups for t in group.trajectories} == {version}


@pytest.mark.parametrize(
    "changed",
    [{"temperature": 0.5}, {"max_tokens": 39}, {"max_context": 1999}, {"max_steps": 3}, {"prompt": Prompt.ui_tars()}],
    ids=lambda changed: next(iter(changed)),
)
def test_episodes_that_were_sampled_with_other_settings_are_made_again(chat, make_collector, caplog, changed):
    make_collector(engine=solver(chat)).collect(TASKS, 0, 3)
    batch = make_collector(engine=solver(chat), **changed).collect(TASKS, 0, 3)
    assert batch.metrics["rollout/resumed_episodes"] == 0
    assert caplog.text.count("4 of 4 stored episodes were sampled with other settings") == 4  # a line a group


def test_episodes_of_another_model_are_made_again(chat, make_collector, tiny_model, tmp_path):
    make_collector(engine=solver(chat)).collect(TASKS, 0, 3)
    shutil.copytree(tiny_model, tmp_path / "copy")
    same = make_collector(engine=solver(chat), chat=ChatTokenizer(tmp_path / "copy"))
    assert same.collect(TASKS, 0, 3).metrics["rollout/resumed_episodes"] == 16  # it is the content that counts
    weights = tmp_path / "copy" / "model.safetensors"
    weights.write_bytes(bytes(byte ^ 1 for byte in weights.read_bytes()))
    other = make_collector(engine=solver(chat), chat=ChatTokenizer(tmp_path / "copy"))
    assert other.collect(TASKS, 0, 3).metrics["rollout/resumed_episodes"] == 0


def test_episodes_from_before_settings_were_stored_are_made_again(chat, make_collector, tmp_path):
    make_collector(engine=solver(chat)).collect(TASKS, 0, 3)
    path = tmp_path / "trajectories" / "train" / "iteration_000003.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({record.pop("sampling") for record in records}) == 1
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    batch = make_collector(engine=solver(chat)).collect(TASKS, 0, 3)
    assert batch.metrics["rollout/resumed_episodes"] == 0


def test_ctrl_c_interrupts_waiting_and_closing_ends_the_episodes(chat, make_collector):
    collector = make_collector(engine=ScriptedEngine(chat, red_clicker(chat), latency_s=60))
    collector.submit(0, TASKS)
    started = time.monotonic()
    with interrupted():
        collector.take(0, 0)
    collector.close()
    assert time.monotonic() - started < 20
    assert "rollout" not in {thread.name for thread in threading.enumerate()}


class LoyalEngine(ScriptedEngine):
    """Holds every request until it is closed, and fails it then, as the real engines do."""

    async def generate(self, request):
        while not self._closed:
            await asyncio.sleep(0.01)
        raise EngineError("the engine is closed")


def test_what_closing_ends_is_no_failure(chat, make_collector, caplog):
    collector = make_collector(engine=LoyalEngine(chat, str), group_size=3, max_policy_lag=1)
    collector.submit(0, TASKS[:1])
    until(lambda: collector.runtime.pool.states()["busy"] == 3)
    time.sleep(0.1)
    collector.close()
    assert "attempt" not in caplog.text


def test_a_wait_that_was_interrupted_can_be_repeated(chat, make_collector):
    collector = make_collector(engine=ScriptedEngine(chat, red_clicker(chat), latency_s=0.2))
    collector.submit(0, TASKS)
    with interrupted():
        collector.take(0, 0)
    assert len(collector.take(0, 0).groups) == 4


def test_groups_that_came_when_whoever_waited_was_interrupted_are_handed_out_again(chat, make_collector):
    collector = make_collector(engine=solver(chat))
    collector.submit(0, TASKS[:2], iterations=2)
    collector.runtime.run(collector.stream.complete(0))  # and nobody takes them
    assert ids(collector.take(0, 0)) == [[f"0/{group}/{member}" for member in range(4)] for group in range(2)]
    assert collector.runtime.runner.activity.requests == len(collector.stream.waiting()) == 0  # none runs ahead


def test_a_rollout_that_starts_again_knows_nothing_of_the_loop_and_the_engine_before(chat, make_collector):
    collector = make_collector(make_engine=lambda: solver(chat))
    collector.submit(0, TASKS, iterations=2)  # the second one waits until it is asked for, on the loop that ends
    collector.take(0, 0)
    collector.runtime.update_weights([], 5)
    collector.close()
    collector.runtime.start()
    assert collector.runtime.served == ServedVersions(0, 0)
    collector.submit(1, TASKS)
    assert len(collector.take(1, 0).groups) == 4


async def linger(request):
    """Take a while to let a request go, however often it is cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)


def test_a_close_that_is_broken_off_leaves_nothing_running(chat, make_collector):
    collector = make_collector(engine=ScriptedEngine(chat, red_clicker(chat), hold=linger), stall_s=1.0)
    collector.submit(0, TASKS)
    with pytest.raises(RolloutError, match="3 engine requests are pending"):
        collector.take(0, 0)
    with pytest.raises(RolloutError, match="the trainer waits for the event loop"):
        collector.close()
    assert "rollout" not in {thread.name for thread in threading.enumerate()}


def test_closing_is_idempotent_and_starting_may_follow(chat, make_collector):
    started = []
    collector = make_collector(make_engine=lambda: started.append(1) or solver(chat), start=False)
    collector.close()
    for iteration in range(2):
        collector.runtime.start()
        collector.runtime.start()
        assert len(started) == iteration + 1
        collector.close()
        collector.close()
        with pytest.raises(ArpoError, match=r"call start\(\) first"):
            collector.submit(iteration, TASKS)
        with pytest.raises(ArpoError, match=r"call start\(\) first"):
            _ = collector.runtime.engine
    collector.runtime.start()
    assert len(collector.collect(TASKS, 0, 9).groups) == 4
