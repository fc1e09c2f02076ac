"""Replay that is weighted by the similarity of instructions."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest

from arpo.errors import ConfigError
from arpo.rollout.curation.relevance import RelevanceBuffer, similarity
from arpo.types import Group, Task
from tests.methods.conftest import trajectory

TASKS = {name: Task(name, "") for name in ("open the file", "open the mail", "write")}


def success(name: str):
    return replace(trajectory("a", 1.0), id=f"0/0/{name}", task_id=name, instruction=name)


def failed(name: str) -> Group:
    return Group(TASKS[name], (replace(trajectory("a", 0.0), task_id=name, instruction=name),))


def filled(**options) -> RelevanceBuffer:
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
    buffer = filled(seed=0, temperature=0.5)
    drawn = Counter(buffer.inject(failed("open the file")).trajectories[0].task_id for _ in range(6000))
    weights = {name: math.exp(s / 0.5) for name, s in zip(TASKS, (1, 2 / 3, 0), strict=True)}
    for name, weight in weights.items():
        assert drawn[name] / 6000 == pytest.approx(weight / sum(weights.values()), abs=0.02)


def test_a_small_temperature_draws_the_same_instruction_alone():
    buffer = filled(temperature=1e-3)
    assert {buffer.inject(failed("write")).trajectories[0].task_id for _ in range(50)} == {"write"}


def test_a_task_without_a_success_gets_that_of_another():
    buffer = RelevanceBuffer()
    buffer.admit(Group(TASKS["write"], (success("write"),)))
    assert buffer.inject(failed("open the file")).injected == (0,)


def test_it_goes_on_from_its_state():
    buffer = filled(temperature=1.0)
    buffer.inject(failed("write"))
    state = json.loads(json.dumps(buffer.state_dict()))
    again = RelevanceBuffer(temperature=1.0)
    again.load_state_dict(state, lambda id: success(id.removeprefix("0/0/")))
    for _ in range(50):
        assert again.inject(failed("write")) == buffer.inject(failed("write"))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_temperature_is_refused(temperature):
    with pytest.raises(ConfigError, match="temperature must be"):
        RelevanceBuffer(temperature=temperature)
