import json
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from arpo.algorithms.rewards import group_advantages, group_rewards
from arpo.errors import CheckpointError, ConfigError
from arpo.replay import ReplayBuffer
from arpo.types import Group, Task, Trajectory
from tests.rollout.trajectories import make_trajectory


def trajectory(id: str, task_reward: float, task_id: str = "t", version: int = 0) -> Trajectory:
    made = make_trajectory(id, task_id=task_id, task_reward=task_reward, policy_version=version, steps=1)
    return replace(made, domain="d", screenshots={"aa": b"png"}, last_screenshot="")


def group(rewards: list[float], iteration: int = 0, task_id: str = "t") -> Group:
    ids = (f"{iteration}/{task_id}/{member}" for member in range(len(rewards)))
    made = (trajectory(id, reward, task_id, version=iteration) for id, reward in zip(ids, rewards, strict=True))
    return Group(Task(task_id, "do"), tuple(made))


def ids(trajectories: tuple[Trajectory, ...]) -> list[str]:
    return [t.id for t in trajectories]


def filled(**arguments: object) -> ReplayBuffer:
    buffer = ReplayBuffer(**arguments)  # type: ignore[arg-type]
    buffer.admit(group([1, 0, 1, 1]))
    return buffer


def test_an_all_failed_group_gets_one_success_and_with_it_a_signal():
    failed = group([0, 0, 0, 0], iteration=1)
    injected = filled().inject(failed)
    (position,) = injected.injected
    assert injected.trajectories[position].id in {"0/t/0", "0/t/2", "0/t/3"}
    assert injected.task == failed.task
    kept = [t for i, t in enumerate(injected.trajectories) if i != position]
    assert kept == [t for i, t in enumerate(failed.trajectories) if i != position]
    failed = group([0] * 8, iteration=1)
    injected = filled().inject(failed)
    assert torch.count_nonzero(group_advantages(group_rewards(failed, format_weight=1.0))) == 0
    # One success of eight, sample std: 2.4748666 / -0.3535524
    advantages = group_advantages(group_rewards(injected, format_weight=1.0), std="sample")
    expected = torch.full((8,), -0.3535524)
    expected[injected.injected[0]] = 2.4748666
    torch.testing.assert_close(advantages, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("rewards", "is_all_failed"),
    [
        *((rewards, False) for rewards in ([1, 0, 0, 0], [1, 1, 1, 1], [1], [0, 0.6, 0, 0], [0.9, 0.9])),
        *((rewards, True) for rewards in ([0, 0, 0, 0], [0], [0.5, 0.5], [0.1, 0.4, 0])),  # partial scores too
    ],
    ids=str,
)
def test_a_group_without_a_success_gets_one_and_any_other_is_left_alone(rewards, is_all_failed):
    before = group(rewards, iteration=1)
    found = filled().inject(before)
    assert (found is not before) == (len(found.injected) == 1) == is_all_failed
    other = group([0, 0], iteration=1, task_id="other")  # a task of which no success is known
    assert filled().inject(other) is other


def solved_and_then_unreadable(id: str) -> Trajectory:
    """An episode that solved its task and then failed to parse: its whole reward is 1 - 1 = 0."""
    return replace(trajectory(id, 1.0), format_reward=-1.0)


@pytest.mark.parametrize(("format_weight", "admitted"), [(1.0, 0), (0.5, 0), (0.4, 1), (0.0, 1)])
def test_a_success_is_admitted_only_when_its_whole_reward_lies_above_the_threshold(format_weight, admitted):
    buffer = ReplayBuffer(format_weight=format_weight)  # 1 - weight: 0, 0.5, 0.6, 1 against 0.5
    assert buffer.admit(Group(Task("t", "do"), (solved_and_then_unreadable("0/t/0"),))) == admitted


@pytest.mark.parametrize("rewards", [[0, 0, 0, 0], [0, 0.3, 0, 0]], ids=str)
def test_a_worthless_success_is_never_injected_and_a_worthy_one_always_leads_the_group(rewards):
    # Rewards after injecting one of 1 - 1 = 0 would be 0, 0, 0, 0: no advantage; or with 0.3: it would be pushed down.
    worthless = Group(Task("t", "do"), (solved_and_then_unreadable("0/t/0"),))
    failed = group(rewards, iteration=2)
    buffer = ReplayBuffer()
    buffer.admit(worthless)
    assert buffer.inject(failed) is failed
    buffer.admit(group([0, 1], iteration=1))
    buffer.admit(worthless)
    injected = buffer.inject(failed)
    (position,) = injected.injected
    assert injected.trajectories[position].id == "1/t/1"
    advantages = group_advantages(group_rewards(injected, format_weight=buffer.format_weight))
    assert advantages[position] > 0
    assert int(advantages.argmax()) == position
    older = ReplayBuffer(format_weight=0.0)  # whose checkpoint may hold one
    older.admit(worthless)
    older.admit(group([1], iteration=1))
    store = {"0/t/0": solved_and_then_unreadable("0/t/0"), "1/t/0": trajectory("1/t/0", 1.0)}
    resumed = ReplayBuffer()
    resumed.load_state_dict(older.state_dict(), store.__getitem__)
    drawn = [resumed.inject(group([0, 0], iteration=i)) for i in range(2, 22)]
    assert {g.trajectories[g.injected[0]].id for g in drawn} == {"1/t/0"}


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0, 0, 0, 0], True),
        ([0.19, 0.19, 0.19, 0.19], True),  # std 0, mean .19 < .2
        ([0.2, 0.2, 0.2, 0.2], False),  # mean not below .2
        ([0.1, 0, 0, 0], True),  # std .0433 < .05
        ([0.12, 0, 0, 0], False),  # std .052
        ([1, 1, 1, 1], False),
        ([1, 0, 0, 0], False),
    ],
    ids=str,
)
def test_the_official_trigger_looks_at_spread_and_mean(rewards, expected):
    buffer = filled(trigger="official", success_threshold=0.1)
    assert bool(buffer.inject(group(rewards, iteration=1)).injected) is expected


def test_the_codes_of_arpo_and_dart_replace_a_member_of_their_choice_and_the_paper_of_dart_adds_one():
    buffer = filled(replaced="first")
    assert {buffer.inject(group([0] * 4, iteration=1)).injected for _ in range(20)} == {(0,)}
    members = tuple(trajectory(f"9/t/{member}", 0, version=version) for member, version in enumerate((3, 2, 2, 4)))
    injected = filled(replaced="oldest", choice="newest").inject(Group(Task("t", "do"), members))
    assert injected.injected == (1,)  # the first of the two that version 2 made
    assert ids(injected.trajectories) == ["9/t/0", "0/t/3", "9/t/2", "9/t/3"]
    failed = group([0, 0, 0], iteration=1)
    injected = filled(replaced="none").inject(failed)
    assert injected.trajectories[:3] == failed.trajectories
    assert (injected.injected, injected.trajectories[3].task_reward) == ((3,), 1)


def test_position_and_success_are_drawn_evenly():
    buffer = filled(seed=1)
    drawn = [buffer.inject(group([0] * 4, iteration=1)) for _ in range(1200)]
    positions = Counter(g.injected[0] for g in drawn)
    successes = Counter(g.trajectories[g.injected[0]].id for g in drawn)
    # 300 of 1200 a position (std 15), 400 of 1200 a success (std 16.3): four std
    assert positions.keys() == {0, 1, 2, 3}
    assert all(240 < count < 360 for count in positions.values())
    assert successes.keys() == {"0/t/0", "0/t/2", "0/t/3"}
    assert all(335 < count < 465 for count in successes.values())


def test_every_success_of_a_group_above_the_threshold_is_admitted_in_order_and_once():
    buffer = ReplayBuffer()
    assert buffer.admit(group([0, 0, 0])) == 0
    assert (len(buffer), buffer.metrics(0)) == (0, {"size": 0.0, "tasks": 0.0})
    for count in (3, 0):
        assert buffer.admit(group([1, 0, 0.5, 1, 0.51])) == count
        assert ids(buffer.entries("t")) == ["0/t/0", "0/t/3", "0/t/4"]
    assert ReplayBuffer(success_threshold=0.1).admit(group([0.1, 0.2, 1])) == 2  # as in the official code


def test_the_oldest_goes_first_every_task_has_its_own_room_and_metrics_count_them():
    buffer = ReplayBuffer(capacity_per_task=3)
    buffer.admit(group([1, 1], iteration=0))
    buffer.admit(group([1], iteration=0, task_id="other"))
    buffer.admit(group([1, 1], iteration=1))
    assert ids(buffer.entries("t")) == ["0/t/1", "1/t/0", "1/t/1"]
    assert ids(buffer.entries("other")) == ["0/other/0"]
    buffer.admit(group([1] * 5, iteration=2))  # one good group flushes the room
    assert ids(buffer.entries("t")) == ["2/t/2", "2/t/3", "2/t/4"]
    buffer = ReplayBuffer()
    buffer.admit(group([1, 1], iteration=1))
    buffer.admit(group([1], iteration=4, task_id="other"))
    # Ages at version 5: 4, 4, 1
    assert buffer.metrics(5) == {"size": 3.0, "tasks": 2.0, "age_mean": 3.0, "age_max": 4.0}


def test_a_replayed_success_is_not_admitted_again_even_after_its_eviction():
    buffer = ReplayBuffer(capacity_per_task=1, replaced="first")
    buffer.admit(group([1], iteration=0))
    injected = buffer.inject(group([0, 0], iteration=1))
    buffer.admit(group([1], iteration=1))
    assert buffer.admit(injected) == 0
    assert ids(buffer.entries("t")) == ["1/t/0"]


def test_the_buffer_keeps_no_pixels_nor_does_one_that_is_resumed():
    buffer, resumed = filled(), ReplayBuffer()
    store = {t.id: t for t in group([1, 0, 1, 1]).trajectories}
    resumed.load_state_dict(buffer.state_dict(), store.__getitem__)
    assert all(t.screenshots == {} for each in (buffer, resumed) for t in each.entries("t"))
    injected = buffer.inject(group([0, 0], iteration=1))
    assert injected.trajectories[injected.injected[0]].screenshots == {}
    assert injected.trajectories[1 - injected.injected[0]].screenshots == {"aa": b"png"}


def test_random_numbers_are_the_buffer_s_own_of_its_seed_and_drawn_where_they_are_needed():
    def draws(seed: int) -> list[Group]:
        buffer = filled(seed=seed)
        return [buffer.inject(group([0] * 8, iteration=i)) for i in range(1, 20)]

    random.seed(7)
    elsewhere = random.getstate()
    assert draws(3) == draws(3)
    assert draws(3) != draws(4)
    assert random.getstate() == elsewhere
    buffer = ReplayBuffer()
    before = buffer.state_dict()["random_state"]
    buffer.inject(group([0, 0]))
    buffer.admit(group([1, 0]))
    buffer.inject(group([1, 0], iteration=1))
    assert buffer.state_dict()["random_state"] == before


def test_a_resumed_buffer_goes_on_exactly():
    store = {t.id: t for i in range(3) for t in group([1] * 4, iteration=i).trajectories}
    original = ReplayBuffer(capacity_per_task=6, seed=5)
    for iteration in range(3):
        original.admit(group([1] * 4, iteration=iteration))
        original.inject(group([0] * 8, iteration=iteration))

    state = json.loads(json.dumps(original.state_dict()))
    resumed = ReplayBuffer(capacity_per_task=6, seed=99)
    resumed.load_state_dict(state, store.__getitem__)

    assert resumed.entries("t") == original.entries("t")
    for iteration in range(3, 30):
        failed = group([0] * 8, iteration=iteration)
        assert resumed.inject(failed) == original.inject(failed)
        assert resumed.admit(group([1, 0], iteration=iteration)) == original.admit(group([1, 0], iteration=iteration))
    assert resumed.state_dict() == original.state_dict()


def test_a_store_of_another_run_is_refused_and_a_buffer_of_smaller_capacity_keeps_the_newest():
    stored = filled().state_dict()
    with pytest.raises(CheckpointError, match="names trajectory '0/t/0' of task 't'"):
        ReplayBuffer().load_state_dict(stored, lambda id: replace(trajectory(id, 1.0), task_id="something else"))
    smaller = ReplayBuffer(capacity_per_task=2)
    smaller.load_state_dict(stored, lambda id: trajectory(id, 1.0))
    assert ids(smaller.entries("t")) == ["0/t/2", "0/t/3"]
    smaller.admit(group([1], iteration=1))
    assert ids(smaller.entries("t")) == ["0/t/3", "1/t/0"]
    by_domain, resumed = ReplayBuffer(key="domain"), ReplayBuffer(key="domain")
    done = of_domain([1, 0], 0, "a")
    by_domain.admit(done)
    resumed.load_state_dict(by_domain.state_dict(), {member.id: member for member in done.trajectories}.__getitem__)
    assert ids(resumed.entries("d")) == ["0/a/0"]
    other = replace(done.trajectories[0], domain="elsewhere")
    with pytest.raises(CheckpointError, match="of domain 'd', but the store gave '0/a/0' of domain 'elsewhere'"):
        resumed.load_state_dict(by_domain.state_dict(), lambda _: other)


def of_domain(rewards: list[float], iteration: int, task_id: str, domain: str = "d") -> Group:
    members = group(rewards, iteration, task_id).trajectories
    return Group(Task(task_id, "do", domain), tuple(replace(member, domain=domain) for member in members))


def test_by_domain_or_template_a_success_of_a_task_beside_it_joins():
    buffer = ReplayBuffer(key="domain", capacity_per_task=2)
    buffer.admit(of_domain([1, 0], 0, "a"))
    buffer.admit(of_domain([1, 0], 0, "b"))
    buffer.admit(of_domain([1, 0], 0, "c", "elsewhere"))
    injected = [buffer.inject(of_domain([0, 0], 1, f"new {number}")).trajectories for number in range(40)]
    assert {member.id for members in injected for member in members if member.task_reward} == {"0/a/0", "0/b/0"}
    assert ids(buffer.entries("d")) == ["0/a/0", "0/b/0"]
    failed = of_domain([0, 0], 1, "d", "unknown")
    assert buffer.inject(failed) is failed
    buffer = ReplayBuffer(key="template")
    buffer.admit(of_domain([1, 0], 0, "calc/sort/7"))
    buffer.admit(of_domain([1, 0], 0, "calc/total/7"))
    buffer.admit(of_domain([1, 0], 0, "alone"))
    for wanted, task_id in (("0/calc/sort/7/0", "calc/sort/8"), ("0/alone/0", "alone")):
        members = buffer.inject(of_domain([0, 0], 1, task_id)).trajectories
        assert [member.id for member in members if member.task_reward] == [wanted]
    failed = of_domain([0, 0], 1, "calc/chart/7")
    assert buffer.inject(failed) is failed


@pytest.mark.parametrize(
    ("kept_by", "now"), [("task", "domain"), ("domain", "task"), ("template", "task"), ("task", "template")]
)
def test_a_buffer_that_was_kept_by_another_key_says_which(kept_by, now):
    buffer = ReplayBuffer(key=kept_by)
    done = of_domain([1, 0], 0, "pages/a/1")
    buffer.admit(done)
    said = rf"by {kept_by}, and key={now} .* resume with replay\.buffer\.key={kept_by}"
    with pytest.raises(ConfigError, match=said):
        ReplayBuffer(key=now).load_state_dict(buffer.state_dict(), {t.id: t for t in done.trajectories}.__getitem__)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity_per_task": 0}, "capacity_per_task must be at least 1, got 0"),
        ({"success_threshold": 1.0}, "success_threshold must be below 1, got 1.0"),
        ({"success_threshold": -0.1}, "success_threshold must be at least 0, got -0.1"),
        ({"format_weight": -0.5}, "format_weight must be at least 0, got -0.5"),
        ({"format_weight": float("nan")}, "format_weight must be a finite number, got nan"),
        ({"trigger": "std"}, "trigger must be 'all_failed' or 'official', got 'std'"),
        ({"replaced": "last"}, "replaced must be 'random', 'first', 'oldest' or 'none', got 'last'"),
        ({"choice": "best"}, "choice must be 'random' or 'newest', got 'best'"),
        ({"key": "page"}, "key must be 'task', 'domain' or 'template', got 'page'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments, message):
    with pytest.raises(ValueError, match=message):
        ReplayBuffer(**arguments)  # type: ignore[arg-type]
