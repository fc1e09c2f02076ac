"""Buffers of hard-won successes (AdaPR) and of successes at similar tasks."""

import json
import math
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from arpo.methods.c3po import C3PO
from arpo.methods.grpo import GRPO
from arpo.methods.spa import ShortestPath
from arpo.rollout.curation.buffers import AdaptiveBuffer, RelevanceBuffer, similarity
from arpo.types import Group, Task
from tests.methods.conftest import trajectory


def episode(id, reward, steps=1):
    return replace(trajectory("a" * steps, reward), id=id, task_id=id.split("/")[1])


def group(task, *rewards, iteration=0):
    members = (episode(f"{iteration}/{task}/{member}", reward) for member, reward in enumerate(rewards))
    return Group(Task(task, ""), tuple(members))


def filled(count, **options):
    """A buffer with so many successes of the task `a`, each of an iteration of its own."""
    buffer = AdaptiveBuffer(method=GRPO(), **options)
    for iteration in range(count):
        assert buffer.admit_all([group("a", 1.0, 0.0, iteration=iteration)]) == 1
    return buffer


def stored(buffer, *tasks):
    return [each.id for task in tasks for each in buffer.entries(task)]


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.01, ["0/hard/2"]),
        (0.25, ["0/hard/2", "0/even/0"]),  # of 7 successes the first 2, rounded up; of equals the earlier one
        (0.4, ["0/hard/2", "0/even/0", "0/even/3"]),
        (1.0, ["0/hard/2", "0/even/0", "0/even/3"]),  # in a group that succeeds as a whole no success is worth more
    ],
)
def test_the_successes_of_the_largest_advantages_are_stored(share, expected):
    # advantages of a success: 0, 1 and the root of 3
    groups = [group("easy", 1, 1, 1, 1), group("even", 1, 0, 0, 1), group("hard", 0, 0, 1, 0), group("never", 0, 0)]
    buffer = AdaptiveBuffer(method=GRPO(), share=share)
    assert buffer.admit_all(groups) == len(expected)
    assert stored(buffer, "hard", "even", "easy", "never") == expected
    assert buffer.admit_all(groups) == 0  # known by their ids


def test_a_success_that_did_not_parse_is_neither_counted_nor_stored():
    lost = replace(episode("0/a/0", 1.0), format_reward=-1.0)
    mixed = Group(Task("a", ""), (lost, episode("0/a/1", 1.0), episode("0/a/2", 0.0)))
    buffer = AdaptiveBuffer(method=GRPO(), share=0.5)
    assert buffer.admit_all([mixed]) == 1
    assert stored(buffer, "a") == ["0/a/1"]


def test_the_advantage_is_that_of_the_method_of_the_update():
    """SPA's shortest success of a group is worth most; to GRPO the first is as good."""
    mixed = Group(Task("a", ""), (episode("0/a/0", 1.0, 4), episode("0/a/1", 1.0, 2), episode("0/a/2", 0.0)))
    for method, expected in ((GRPO(), "0/a/0"), (ShortestPath(), "0/a/1")):
        buffer = AdaptiveBuffer(method=method)
        buffer.admit_all([mixed])
        assert stored(buffer, "a") == [expected]


def test_what_a_budget_of_tokens_leaves_out_of_an_update_is_compared_and_stored_as_well():
    groups = [group("easy", 1, 1, 1, 0), group("hard", 0, 0, 1, 0), group("even", 1, 0, 0, 1)]
    plain, limited = AdaptiveBuffer(method=GRPO(), share=0.5), AdaptiveBuffer(method=C3PO(budget=1), share=0.5)
    assert [limited.admit_all(groups), plain.admit_all(groups)] == [3, 3]
    assert stored(limited, "hard", "even", "easy") == stored(plain, "hard", "even", "easy")


@pytest.mark.parametrize(("size", "expected"), [(4, 1), (8, 2), (16, 4)])
def test_a_share_of_every_group_of_the_task_is_replayed_whatever_its_rewards(size, expected):
    buffer = filled(5)
    for rewards in ([0.0] * size, [1.0] * size, [1.0, 0.0] * (size // 2)):
        collected = group("a", *rewards, iteration=9)
        mixed = buffer.inject(collected)
        assert len(mixed.trajectories) == size
        assert len(mixed.injected) == expected
        replayed = {mixed.trajectories[place].id for place in mixed.injected}
        assert replayed <= set(stored(buffer, "a"))
        assert len(replayed) == expected
        kept = [place for place in range(size) if place not in mixed.injected]
        assert all(mixed.trajectories[place] is collected.trajectories[place] for place in kept)


def test_where_the_share_is_no_whole_number_it_is_right_on_average_and_every_place_and_success_is_as_likely():
    buffer = filled(4, replayed=0.3)
    places, drawn = Counter(), Counter()
    for _ in range(4000):
        mixed = buffer.inject(group("a", 0.0, 0.0, 0.0, iteration=9))
        places.update(mixed.injected)
        drawn.update(mixed.trajectories[place].id for place in mixed.injected)
    assert places.total() / (3 * 4000) == pytest.approx(0.3, abs=0.01)
    assert all(count / 4000 == pytest.approx(0.3, abs=0.03) for count in places.values())
    assert all(count / places.total() == pytest.approx(0.25, abs=0.03) for count in drawn.values())
    assert len(drawn) == 4


def test_the_advantage_of_a_replayed_success_is_large_where_the_policy_fails_and_none_where_it_succeeds():
    buffer, method = filled(1), GRPO()
    found = []
    for rewards in ((0, 0, 0, 0), (1, 1, 1, 1)):
        mixed = buffer.inject(group("a", *map(float, rewards), iteration=9))
        found.append(method.advantages(mixed)[mixed.injected[0]].item())
    assert found == pytest.approx([3**0.5, 0.0], abs=1e-4)


@pytest.mark.parametrize(
    ("buffer", "rewards"),
    [
        (AdaptiveBuffer(method=GRPO()), (0.0,) * 4),  # nothing is stored
        (filled(3), (0.0,)),  # nothing would be left to compare it with
        (filled(3, replayed=0.0), (0.0,) * 4),
    ],
    ids=["empty", "group of one", "no share"],
)
def test_a_group_stays_as_it_is(buffer, rewards):
    collected = group("a", *rewards, iteration=9)
    assert all(buffer.inject(collected) is collected for _ in range(20))
    other = group("b", 0.0, 0.0, 0.0, 0.0)
    assert buffer.inject(other) is other


def test_no_more_are_replayed_than_are_stored_and_one_member_stays():
    assert len(filled(2, replayed=0.5).inject(group("a", *[0.0] * 8, iteration=9)).injected) == 2
    for _ in range(20):
        assert len(filled(5, replayed=0.99).inject(group("a", 0.0, 0.0, iteration=9)).injected) == 1


def test_an_adaptive_buffer_goes_on_from_its_state():
    buffer = filled(4, replayed=0.3, seed=3)
    buffer.inject(group("a", 0.0, 0.0, 0.0, iteration=9))
    state = json.loads(json.dumps(buffer.state_dict()))
    again = AdaptiveBuffer(method=GRPO(), replayed=0.3, seed=99)
    again.load_state_dict(state, lambda id: episode(id, 1.0))
    for iteration in range(9, 30):
        failed = group("a", 0.0, 0.0, 0.0, iteration=iteration)
        assert again.inject(failed) == buffer.inject(failed)
        mixed = [group("a", 0.0, 1.0, iteration=iteration)]
        assert again.admit_all(mixed) == buffer.admit_all(mixed) == 1


TASKS = {name: Task(name, "") for name in ("open the file", "open the mail", "write")}


def success(name):
    return replace(trajectory("a", 1.0), id=f"0/0/{name}", task_id=name, instruction=name)


def failed(name):
    return Group(TASKS[name], (replace(trajectory("a", 0.0), task_id=name, instruction=name),))


def similar(**options):
    buffer = RelevanceBuffer(**options)
    for name, task in TASKS.items():
        assert buffer.admit(Group(task, (success(name),))) == 1
    return buffer


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("Open the FILE", "open the file", 1.0),
        ("open the file", "open the mail", 2 / 3),
        ("open open", "open", 1.0),
        ("a b", "c", 0.0),
        ("", "", 1.0),
        ("", "a", 0.0),
    ],
)
def test_similarity_is_the_cosine_of_words(one, other, expected):
    assert similarity(one, other) == pytest.approx(expected)
    assert similarity(other, one) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("asked", "alike", "unlike"),
    [
        ("打开设置", "打开文件", "设备管理"),
        ("打开Chrome浏览器", "关闭Chrome浏览器", "打开文件"),
        ("設定を開く", "設定を閉じる", "ファイルを保存"),
        ("เปิดการตั้งค่า", "เปิดไฟล์", "บันทึก"),
    ],
)
def test_without_spaces_instructions_are_alike_by_their_characters(asked, alike, unlike):
    assert 1 > similarity(asked, alike) > similarity(asked, unlike) > 0
    assert similarity(asked, asked) == pytest.approx(1)


def test_between_spaces_words_are_whole_in_every_script():
    assert similarity("Öffne die Datei", "öffne die Mail") == pytest.approx(2 / 3)
    assert similarity("открой файл", "открой почту") == pytest.approx(1 / 2)
    assert similarity("설정 열기", "설정 닫기") == pytest.approx(1 / 2)
    assert similarity("click file_2", "click file_3") == pytest.approx(1 / 2)


def test_a_success_is_drawn_by_the_exponent_of_its_similarity():
    buffer = similar(seed=0, temperature=0.5)
    drawn = Counter(buffer.inject(failed("open the file")).trajectories[0].task_id for _ in range(6000))
    weights = {name: math.exp(s / 0.5) for name, s in zip(TASKS, (1, 2 / 3, 0), strict=True)}
    for name, weight in weights.items():
        assert drawn[name] / 6000 == pytest.approx(weight / sum(weights.values()), abs=0.02)


def test_a_small_temperature_draws_the_same_instruction_alone_and_a_task_without_a_success_gets_another_s():
    buffer = similar(temperature=1e-3)
    assert {buffer.inject(failed("write")).trajectories[0].task_id for _ in range(50)} == {"write"}
    buffer = RelevanceBuffer()
    buffer.admit(Group(TASKS["write"], (success("write"),)))
    assert buffer.inject(failed("open the file")).injected == (0,)


def test_a_buffer_of_similar_tasks_goes_on_from_its_state():
    buffer = similar(temperature=1.0)
    buffer.inject(failed("write"))
    state = json.loads(json.dumps(buffer.state_dict()))
    again = RelevanceBuffer(temperature=1.0)
    again.load_state_dict(state, lambda id: success(id.removeprefix("0/0/")))
    for _ in range(50):
        assert again.inject(failed("write")) == buffer.inject(failed("write"))


@pytest.mark.parametrize(
    ("make", "fixed"),
    [
        (partial(AdaptiveBuffer, method=GRPO()), ("trigger", "replaced", "choice", "key")),
        (RelevanceBuffer, ("choice", "key")),
    ],
)
def test_what_a_buffer_decides_by_its_own_rule_is_no_argument_of_it(make, fixed):
    for name in fixed:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            make(**{name: getattr(make(), name)})
