"""Demonstrations, collected for real on the desktop in memory, and their jittered clicks."""

import io
import json
import logging
import random
import re
from dataclasses import replace
from functools import partial
from statistics import fmean, pstdev

import pytest
from PIL import Image

from arpo.agent.actions import Click, CoordinateFrame
from arpo.agent.prompt import GRAMMARS, Prompt
from arpo.agent.ui_tars import parse_response
from arpo.datamodules.collecting import DemonstrationCollector
from arpo.datamodules.demonstrations import DemonstrationDataModule, with_click_jitter
from arpo.datamodules.demonstrator import Demonstrator
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.pool.pool import EnvPool
from arpo.errors import ConfigError, EnvError
from arpo.models.families.qwen2_5_vl import Qwen25VL, make_tiny
from arpo.models.family import FAMILIES
from arpo.models.policy import Policy
from arpo.models.tokenization import ChatTokenizer, tokenize
from arpo.types import Observation, Outcome, Step, Trajectory
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop

TASKS = fake_tasks(3)
"""A click, a sequence of two clicks, and a text: 1, 2 and 3 steps."""


class NoDesktop(FakeDesktop):
    def __init__(self):
        raise EnvError("reset", "there is no desktop here")


class StingyDesktop(FakeDesktop):
    """Gives partial credit for a whole solution."""

    def evaluate(self):
        return 0.3 * super().evaluate()


class NarrowDesktop(FakeDesktop):
    """Shows a picture at one task that no model sees."""

    def reset(self, task):
        observation = super().reset(task)
        if task.id != TASKS[1].id:
            return observation
        buffer = io.BytesIO()
        Image.new("RGB", (600, 2)).save(buffer, "PNG")
        return Observation(buffer.getvalue(), 600, 2)


class Coarse(Qwen25VL):
    """A family whose visual tokens are larger."""

    model_type = "coarse"
    resize_factor = 32


class Thousandths(Qwen25VL):
    """A family that names thousandths of a screen, however large it sees it."""

    model_type = "thousandths"

    def frame(self, screen, seen):
        return CoordinateFrame(*screen, 1000, 1000)


@pytest.fixture
def make_data(tmp_path, tiny_model):
    def make(*, model=tiny_model, make_env=FakeDesktop, pool_size=2, **options):
        how = {"demonstrator": Demonstrator(), "max_steps": 4, "family": "qwen2_5_vl", "image_limits": (3136, 15680)}
        how |= {"success_threshold": 0.5}
        how |= {name: options.pop(name) for name in (*how, "seed") if name in options}
        pool = EnvPool(make_env, size=pool_size, backend="thread", reset_timeout_s=5.0)
        return DemonstrationDataModule(
            DemonstrationCollector(pool=pool, **how),
            options.pop("tasks", TASKS),
            tmp_path / "demonstrations",
            Prompt.compact(),
            partial(make_tiny, hidden=64, layers=1, words=600),
            model,
            **{"per_task": 2, "steps": 5, "batch_size": 4} | options,
        )

    return make


def set_up(data):
    data.setup("fit")
    return data


def kept_in(directory):
    return directory / "demonstrations" / "demonstration" / "iteration_000000.jsonl"


def batches(data):
    return list(data.train_dataloader())


def demonstrated(data):
    """Every demonstration, without an order."""
    return {trajectory.id: trajectory for batch in batches(data) for trajectory in batch}


def test_a_perfect_demonstrator_solves_every_task_on_a_screen_that_the_model_sees_smaller(make_data):
    made = demonstrated(set_up(make_data(make_env=partial(FakeDesktop, width=336, height=252), steps=30)))
    assert len(made) == 3 * 2
    assert all(trajectory.task_reward == 1.0 for trajectory in made.values())
    found = {each.domain: (len(each.steps), each.outcome.value) for each in made.values()}
    ends = {"fake-click": (1, "terminated"), "fake-sequence": (2, "terminated"), "fake-type": (3, "finished")}
    assert found == ends
    assert made["demonstration-0/2/0"].steps[-1].action == "finished()"


@pytest.mark.parametrize(
    ("other", "size"),
    [
        # 336 x 252 is 2.32² times as large as 15,680 pixels: 144.6 x 108.4, down to 5 and 3 x 28, or 4 and 3 x 32.
        (Qwen25VL(), (140, 84)),
        (Coarse(), (128, 96)),
        (Thousandths(), (1000, 1000)),
    ],
    ids=lambda given: getattr(given, "model_type", None),
)
def test_a_demonstration_names_points_as_its_family_does_and_no_model_of_another_learns_from_it(
    make_data, monkeypatch, other, size
):
    monkeypatch.setitem(FAMILIES, other.model_type, other)
    data = make_data(make_env=partial(FakeDesktop, width=336, height=252), family=other.model_type)
    (made,) = data.collector.collect(TASKS[:1], 1)
    (step,) = made[0].steps
    said = parse_response(step.response).actions
    assert step.action == "\n".join(CoordinateFrame(336, 252, *size).to_screen(each).describe() for each in said)
    assert step.action not in step.response
    if other.model_type == "qwen2_5_vl":
        return
    refusal = rf"checkpoint \(qwen2_5_vl, 28 .* and the demonstrations \({other.model_type}, "
    with pytest.raises(ConfigError, match=refusal):
        set_up(make_data(family=other.model_type))


def test_a_demonstrator_that_errs_fails_as_often_as_it_was_told_to(make_data):
    data = set_up(make_data(demonstrator=Demonstrator(success_rate=0.4), per_task=24, steps=200))
    rewards = [trajectory.task_reward for trajectory in demonstrated(data).values()]
    assert len(rewards) == 72
    assert sum(rewards) / 72 == pytest.approx(0.4, abs=0.15)


def test_a_demonstration_has_the_form_of_a_sampled_trajectory(make_data, tiny_model):
    chat = ChatTokenizer(tiny_model)
    for trajectory in demonstrated(set_up(make_data())).values():
        (tokens,) = tokenize(trajectory, chat)
        assert len(tokens.screenshots) == len(trajectory.steps)
        assert int(tokens.action_mask.sum()) == trajectory.action_tokens
        assert set(trajectory.screenshots) == {step.screenshot for step in trajectory.steps}
        prompts = [exchange.added_ids for exchange in trajectory.exchanges]
        assert prompts[0] == chat.first_prompt(Prompt.compact().messages(trajectory.instruction))
        assert prompts[1:] == [chat.next_prompt(each.response_ids) for each in trajectory.exchanges[:-1]]
        for exchange, step in zip(trajectory.exchanges, trajectory.steps, strict=True):
            assert exchange.response_ids[-1] == chat.end_of_turn_id
            assert chat.decode(exchange.response_ids) == step.response
            assert parse_response(step.response).actions


def test_a_demonstration_for_a_run_with_an_image_window_is_a_sequence_a_step(make_data, tiny_model):
    chat = ChatTokenizer(tiny_model)
    for trajectory in demonstrated(set_up(make_data(image_window=1))).values():
        sequences = tokenize(trajectory, chat)
        assert [tokens.screenshots for tokens in sequences] == [(step.screenshot,) for step in trajectory.steps]


def test_batches_are_as_many_and_as_large_as_asked_for_and_follow_from_the_seed(make_data):
    orders = []
    for seed in (0, 0, 1):
        drawn = batches(set_up(make_data(seed=seed)))
        assert [len(batch) for batch in drawn] == [4] * 5
        assert all(len({trajectory.id for trajectory in batch}) == 4 for batch in drawn)
        orders.append([trajectory.id for batch in drawn for trajectory in batch])
    assert orders[0] == orders[1] != orders[2]
    assert {len(batch) for batch in batches(set_up(make_data(batch_size=100)))} == {6}  # what there is


def test_clicks_are_jittered_anew_each_time_a_demonstration_is_drawn_and_follow_from_the_seed(make_data):
    def drawn():
        data = set_up(make_data(click_jitter=4.0, steps=20))
        return [
            (trajectory.id, step.response)
            for batch in batches(data)
            for trajectory in batch
            for step in trajectory.steps
        ]

    first = drawn()
    clicks = [response for id, response in first if id.startswith("demonstration-0/0/") and "click" in response]
    assert len(set(clicks)) > len(clicks) / 2
    assert drawn() == first


def test_a_click_is_jittered_by_pixels_in_whatever_units_a_family_names_points(make_data, tiny_qwen3):
    """A picture of 128 pixels is 1,000 wide to Qwen3-VL, so a jitter of 4 pixels is one of 31."""

    def moves(**options):
        plain, moved = (
            [
                (parse_response(step.response).actions[0], trajectory.id, number)
                for batch in batches(set_up(make_data(steps=40, click_jitter=jitter, **options)))
                for trajectory in batch
                for number, step in enumerate(trajectory.steps)
            ]
            for jitter in (0.0, 4.0)
        )
        places = {(id, number): action for action, id, number in plain}
        return [
            action.x - places[id, number].x
            for action, id, number in moved
            if isinstance(action, Click) and (id, number) in places
        ]

    qwen3 = {"model": tiny_qwen3, "family": "qwen3_vl", "image_limits": (4096, 20480)}
    assert pstdev(moves()) == pytest.approx(4.0, rel=0.3)
    assert pstdev(moves(**qwen3)) == pytest.approx(4.0 * 1000 / 128, rel=0.3)


def test_demonstrations_are_collected_once_and_kept_where_nothing_changes_them(make_data):
    first = demonstrated(set_up(make_data()))
    second = demonstrated(set_up(make_data(make_env=NoDesktop)))
    assert first == second
    assert all(first[name].screenshots == second[name].screenshots for name in first)
    assert len(batches(set_up(make_data(make_env=NoDesktop, steps=7, batch_size=2)))) == 7


@pytest.mark.parametrize(
    "changed",
    [
        {"tasks": fake_tasks(2)},
        {"per_task": 3},
        {"demonstrator": Demonstrator(success_rate=0.9)},
        {"max_steps": 5},
        {"image_limits": (3136, 12544)},
        {"success_threshold": 0.4},
        {"seed": 1},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_demonstrations_are_collected_again_when_they_would_be_others(make_data, changed):
    set_up(make_data())
    with pytest.raises(EnvError, match="no desktop"):
        make_data(make_env=NoDesktop, **changed).setup("fit")


def test_demonstrations_do_not_depend_on_the_number_of_desktops(make_data, tmp_path):
    options = {"demonstrator": Demonstrator(success_rate=0.5), "per_task": 4}
    first = demonstrated(set_up(make_data(pool_size=1, steps=30, **options)))
    kept_in(tmp_path).unlink()
    assert first == demonstrated(set_up(make_data(pool_size=3, steps=30, **options)))


def test_a_torn_collection_is_none(make_data, tmp_path):
    """A process killed while it wrote leaves fewer records than were asked for, or half of one."""
    set_up(make_data())
    kept_in(tmp_path).write_bytes(kept_in(tmp_path).read_bytes()[:-20])
    with pytest.raises(EnvError, match="no desktop"):
        make_data(make_env=NoDesktop).setup("fit")
    assert len(demonstrated(set_up(make_data(steps=30)))) == 6
    lines = kept_in(tmp_path).read_text().splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == 6  # of two records with one id the later counts


def test_a_missing_model_is_made_from_the_texts_of_the_demonstrations_and_then_left_alone(make_data, tmp_path):
    data = set_up(make_data(model=tmp_path / "model"))
    chat = ChatTokenizer(tmp_path / "model")
    for trajectory in demonstrated(data).values():
        pairs = zip(trajectory.exchanges, trajectory.steps, strict=True)
        assert all(len(exchange.response_ids) < len(step.response) / 2 for exchange, step in pairs)
    assert Policy(tmp_path / "model").chat.end_of_turn_id == chat.end_of_turn_id
    written = (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns
    set_up(make_data(model=tmp_path / "model", seed=3))
    assert (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(ConfigError, match=r"sees images of 3136 to 15680 pixels, and .* for 3136 to 31360"):
        set_up(make_data(model=tmp_path / "model", image_limits=(3136, 31360)))


def test_a_model_that_was_half_written_is_none(make_data, tmp_path):
    data = make_data(model=tmp_path / "model")

    def dies(directory, corpus):
        make_tiny(directory, corpus=corpus, hidden=64, layers=1, words=600)
        raise KeyboardInterrupt

    data.make_model = dies
    with pytest.raises(KeyboardInterrupt):
        data.setup("fit")
    assert not (tmp_path / "model").exists()
    set_up(make_data(model=tmp_path / "model"))


def test_a_desktop_that_fails_now_and_then_does_not_end_the_collection_and_one_that_always_fails_does(
    make_data, tmp_path
):
    with pytest.raises(EnvError):
        make_data(make_env=partial(FaultyDesktop, Faults([Fault("error", "step")]))).setup("fit")
    (tmp_path / "ledger").mkdir()
    twice = Faults([Fault("error", "step", attempts=2)], ledger=str(tmp_path / "ledger"))
    trajectories = demonstrated(set_up(make_data(make_env=partial(FaultyDesktop, twice), steps=30)))
    assert len(trajectories) == 6
    assert all(trajectory.task_reward == 1.0 for trajectory in trajectories.values())


def test_a_log_hears_how_far_a_long_collection_is(make_data, monkeypatch, caplog):
    monkeypatch.setattr("arpo.host.log_lines.Heartbeat.__init__.__defaults__", (0.001,))
    with caplog.at_level(logging.INFO):
        set_up(make_data(pool_size=1))
    said = re.findall(r"(\d+) of 6 demonstrations are collected", caplog.text)
    assert len({int(number) for number in said}) > 1


@pytest.mark.parametrize(("threshold", "successes"), [(0.2, 2), (0.3, 0)])
def test_a_success_lies_above_the_threshold(make_data, threshold, successes):
    data = set_up(make_data(make_env=StingyDesktop, tasks=TASKS[:1], success_threshold=threshold))
    assert sum(trajectory.task_reward for trajectory in demonstrated(data).values()) == successes


@pytest.mark.parametrize("success_rate", [1.0, 0.9])
def test_a_task_that_takes_too_many_steps_is_left_out_and_named(make_data, caplog, success_rate):
    """Of a solution of 3 steps a demonstrator that errs finds out before; a perfect one on the way."""
    options = {"max_steps": 2, "demonstrator": Demonstrator(success_rate=success_rate), "steps": 30}
    made = demonstrated(set_up(make_data(**options)))
    assert {trajectory.task_id for trajectory in made.values()} == {"fake/click/0", "fake/sequence/1"}
    assert "1 of 3 tasks have no demonstration" in caplog.text
    assert "more than max_steps=2 steps: fake/type/2" in caplog.text
    assert demonstrated(set_up(make_data(make_env=NoDesktop, **options))) == made


def test_a_task_whose_screen_no_model_sees_is_left_out_and_named(make_data, caplog):
    data = make_data(make_env=NarrowDesktop)
    with caplog.at_level(logging.WARNING):
        made = demonstrated(set_up(data))
    assert {trajectory.task_id for trajectory in made.values()} == {TASKS[0].id, TASKS[2].id}
    assert f"task {TASKS[1].id} cannot be demonstrated: a screenshot of 600x2" in caplog.text


def test_tasks_that_were_left_out_once_are_no_reason_to_collect_nothing(make_data, tmp_path):
    options = {"max_steps": 2, "steps": 30}
    made = demonstrated(set_up(make_data(**options)))
    set_up(make_data(max_steps=4))
    assert demonstrated(set_up(make_data(**options))) == made
    kept_in(tmp_path).unlink()
    assert demonstrated(set_up(make_data(**options))) == made


def test_a_run_whose_every_task_takes_too_many_steps_is_refused(make_data):
    with pytest.raises(ConfigError, match=r"no task can be demonstrated in max_steps=2 steps; raise max_steps"):
        make_data(max_steps=2, tasks=TASKS[2:]).setup("fit")


def test_a_batch_is_drawn_from_a_share_of_the_tasks_that_grows_with_its_step(make_data):
    data = set_up(make_data(tasks=fake_tasks(20), per_task=1, steps=20, arrival=0.5))
    drawn = [{trajectory.task_id for trajectory in batch} for batch in batches(data)]
    tasks = [task.id for task in data.tasks]
    for step in range(10):  # of the first half of the steps, step n of 20 has n tenths of 20 tasks, two at least
        assert drawn[step] <= set(tasks[: max(2, 2 * step)])
    assert len(set().union(*drawn[5:]) - set(tasks[:8])) > 8
    assert len(data.train_dataloader()) == 20  # Lightning asks for the number to show how long training takes


def test_the_first_demonstrations_are_of_all_kinds_of_tasks(make_data):
    tasks = sorted(fake_tasks(30), key=lambda task: task.domain)
    data = make_data(tasks=tasks, arrival=0.5)
    assert len({task.domain for task in data.tasks[:12]}) == 3
    assert make_data(tasks=tasks).tasks == tasks


def test_a_collection_that_was_cut_goes_on_where_it_was(make_data, tmp_path):
    options = {"tasks": fake_tasks(6), "per_task": 2, "steps": 60}
    whole = demonstrated(set_up(make_data(**options)))
    lines = kept_in(tmp_path).read_bytes().splitlines(keepends=True)
    kept_in(tmp_path).write_bytes(b"".join(lines[:7]))  # three tasks and one of two demonstrations of the fourth
    played = []

    class Counted(FakeDesktop):
        def reset(self, task):
            played.append(task.id)
            return super().reset(task)

    assert demonstrated(set_up(make_data(make_env=Counted, **options))) == whole
    assert len(played) == 6  # 3 tasks, 2 demonstrations each


UI_TARS = GRAMMARS["ui_tars"]

RESPONSES = ("Action: click(start_box='(60,2)')", "Thought: a name\nAction: type(content='ann')", "Action: wait()")


def demonstration(responses=RESPONSES):
    steps = tuple(Step(f"screen {number}", 140, 112, text) for number, text in enumerate(responses))
    return Trajectory("demonstration-0/0/0", "t", "", "", 0, steps, Outcome.TERMINATED, 1.0, 0.0)


def jittered_clicks(across, down, count=2000, at=(60, 2)):
    rng, recorded = random.Random(0), demonstration([f"Action: click(start_box='({at[0]},{at[1]})')"])
    for _ in range(count):
        (action,) = parse_response(with_click_jitter(recorded, UI_TARS, (across, down), rng).steps[0].response).actions
        assert isinstance(action, Click)
        yield action


def test_clicks_are_spread_around_their_place_as_widely_as_asked_for_and_stay_on_the_screen():
    moved = list(jittered_clicks(across=3.0, down=0.0))
    across = [click.x for click in moved]
    assert abs(fmean(across) - 60) < 0.3
    assert abs(pstdev(across) - 3.0) < 0.2
    assert {click.y for click in moved} == {2}
    down = [click.y for click in jittered_clicks(across=0.0, down=3.0)]
    assert min(down) == 0
    assert max(down) > 5
    across = [click.x for click in jittered_clicks(across=3.0, down=0.0, at=(2, 60))]
    assert min(across) == 0
    assert max(across) > 5


def test_what_is_no_click_and_all_that_is_not_its_place_stay():
    told = demonstration(["Thought: here\nAction: click(start_box='(60,50)')", *RESPONSES[1:]])
    moved = with_click_jitter(told, UI_TARS, (3.0, 3.0), random.Random(1))
    assert moved.steps[1:] == told.steps[1:]
    assert replace(moved, steps=told.steps) == told
    assert replace(moved.steps[0], response=told.steps[0].response) == told.steps[0]
    assert parse_response(moved.steps[0].response).thought == "here"


def test_a_habit_stays_the_same_from_version_to_version(make_data):
    """Policies of warm starts were trained on these mistakes, whose seeds have a text of the right action in them."""
    data = make_data(demonstrator=Demonstrator(success_rate=0.01, habit=1.0), tasks=fake_tasks(4, kinds=("click",)))
    made = [trajectory for trajectories in data.collector.collect(data.tasks, 1) for trajectory in trajectories]
    ended = "finished()"
    expected = ["click(start_box='(105,35)')", ended, ended, "click(start_box='(80,0)')"]
    assert [trajectory.steps[0].action for trajectory in made] == expected
