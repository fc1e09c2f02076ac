"""Trajectories of another origin: which ids are trusted, which successes are taken, and where they go."""

import logging
import shutil
from dataclasses import replace

import pytest

from arpo.errors import ConfigError
from arpo.models.tokenization import tokenize
from arpo.rollout.curation.experience import ExperiencePool, retokenize
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Task, screenshot_key
from tests.exchanges import windowed, with_exchanges
from tests.rollout.conftest import COMPACT
from tests.rollout.trajectories import foreign, make_png, odd_trajectories, scripted

TASKS = [Task("open", ""), Task("close", ""), Task("never", "")]


def is_success(trajectory):
    return trajectory.task_reward > 0.5


@pytest.fixture
def store(tmp_path):
    def make(*trajectories, name="other"):
        made = TrajectoryStore(tmp_path / name)
        for trajectory in trajectories:
            made.write(trajectory)
        return made

    return make


def moved(runtime, *stores, most=8):
    groups = ExperiencePool([store.root for store in stores], TASKS).move_into(runtime, is_success, most)
    return {group.task.id: group.trajectories for group in groups}


def test_successes_at_the_run_s_tasks_are_taken_and_nothing_else(runtime, store):
    other = store(
        scripted("0/0/0"),
        scripted("0/0/1", task_reward=0.0),
        scripted("0/1/0", task_id="close"),
        scripted("0/2/0", task_id="nobody learns this"),
    )
    found = {task: [t.id for t in members] for task, members in moved(runtime, other).items()}
    assert found == {"open": ["pool-0/0/0"], "close": ["pool-0/1/0"]}


def test_every_split_is_read_and_the_newest_are_kept_where_there_are_too_many(runtime, store):
    ids = ("0/0/0", "eval-3/a/0/0", "demonstration-0/0/0", "1/0/0")
    first = store(*(scripted(id, steps=steps) for steps, id in enumerate(ids, 1)), name="first")
    second = store(scripted("0/0/0", steps=1), name="second")
    # Of iteration 0 first, by the name of the split, then of iterations 1 and 3, then the second store.
    assert [len(t.steps) for t in moved(runtime, first, second)["open"]] == [3, 1, 4, 2, 1]
    assert [len(t.steps) for t in moved(runtime, first, second, most=2)["open"]] == [2, 1]


def test_what_is_taken_stands_in_the_run_s_own_store_with_its_screenshots(runtime, store):
    original = scripted("7/0/0", policy_version=40)
    other = store(original)
    (taken,) = moved(runtime, other)["open"]
    shutil.rmtree(other.root)
    kept = runtime.store.get("pool-0/0/0")
    assert kept == taken
    assert runtime.store.load_screenshots(kept).screenshots == original.screenshots
    assert taken.screenshots == {}
    assert taken.policy_version == 0  # 40 counts the updates of another run


def test_a_scripted_success_is_told_as_the_policy_would_have_told_it(runtime, store, chat):
    (taken,) = moved(runtime, store(scripted("demonstration-0/0/0")))["open"]
    first, second = taken.exchanges
    assert first.added_ids == chat.first_prompt(runtime.prompt.messages("Click on the Save button."))
    assert first.response_ids == chat.encode_response("Action: wait()\n")
    assert second.added_ids == chat.next_prompt(first.response_ids)
    assert first.sampler_logprobs == (0.0,) * len(first.response_ids)


def test_a_success_longer_than_the_context_is_left_out(make_collector, store, chat, caplog):
    short, long = scripted("0/0/0", steps=1), scripted("0/0/1", steps=3)
    told = retokenize(short, chat, COMPACT, None).exchanges[0]
    tokens = len(told.added_ids) - 1 + chat.image_tokens(4, 4) + len(told.response_ids)
    runtime = make_collector(start=False, max_tokens=8, max_context=tokens).runtime
    with caplog.at_level(logging.WARNING):
        assert [len(t.steps) for t in moved(runtime, store(short, long))["open"]] == [1]
    assert "1 successes are longer than max_context" in caplog.text


def test_a_success_that_spells_a_special_token_is_told_by_its_letters(runtime, store, chat):
    text = "Action: type(content='<|im_end|><|im_start|>')"
    odd = scripted("0/0/1", steps=1)
    odd = replace(odd, instruction="Type <|image_pad|>", steps=(replace(odd.steps[0], response=text),))
    (taken,) = moved(runtime, store(odd))["open"]
    (exchange,) = taken.exchanges
    assert chat.decode(exchange.response_ids) == text
    assert exchange.response_ids.count(chat.end_of_turn_id) == 1
    assert "<|image_pad|>" in chat.decode(exchange.added_ids)
    tokenize(taken, chat)


@pytest.mark.parametrize("odd", odd_trajectories("0/0/1"), ids=["600x2", "another size", "damaged", "no PNG"])
def test_a_success_that_shows_what_is_no_screenshot_is_left_out(runtime, store, odd, caplog):
    with caplog.at_level(logging.WARNING):
        assert len(moved(runtime, store(scripted("0/0/0", shade=99), odd))["open"]) == 1
    assert "1 successes show pictures that are no screenshots and stay outside the pool" in caplog.text
    assert "trajectory 0/0/1 of task open: a screenshot" in caplog.text


def test_successes_above_the_step_limit_of_run_or_task_are_left_out_and_counted(make_collector, store, caplog):
    runtime = make_collector(start=False, max_steps=2).runtime
    other = store(
        scripted("0/0/0", steps=2),
        scripted("0/0/1", steps=3),  # above the run's limit
        scripted("0/1/0", task_id="close", steps=1),
        scripted("0/1/1", task_id="close", steps=2),  # above its task's own
        scripted("0/2/0", task_id="never", steps=3),  # whose own limit is wider than the run's
    )
    tasks = [Task("open", ""), Task("close", "", max_steps=1), Task("never", "", max_steps=3)]
    with caplog.at_level(logging.WARNING):
        groups = list(ExperiencePool([other.root], tasks).move_into(runtime, is_success, 8))
    found = [(group.task.id, [len(each.steps) for each in group.trajectories]) for group in groups]
    assert found == [("open", [2]), ("close", [1]), ("never", [3])]
    (line,) = (line for line in caplog.messages if "stay outside" in line)
    assert line == "2 successes are longer than max_steps and stay outside the pool"


def test_a_success_is_told_with_the_image_window_of_the_run(make_collector, store, chat):
    runtime = make_collector(start=False, image_window=1).runtime
    (taken,) = moved(runtime, store(scripted("demonstration-0/0/0")))["open"]
    assert [len(tokens.screenshots) for tokens in tokenize(taken, chat)] == [1, 1]  # a sequence a step


def test_the_length_of_a_windowed_success_is_that_of_its_longest_context(make_collector, store, chat, caplog):
    """A small screen after two large ones: of the three contexts the last one is the shortest."""
    made = scripted("0/0/0", steps=3)
    first, second, third = made.steps
    large = make_png(0, (112, 140))
    key = screenshot_key(large)
    steps = (*(replace(step, screenshot=key, width=112, height=140) for step in (first, second)), third)
    success = replace(made, steps=steps, screenshots={**made.screenshots, key: large})
    lengths = [len(tokens) for tokens in tokenize(retokenize(success, chat, COMPACT, 1), chat)]
    assert max(lengths) == lengths[1]
    for room, taken in ((lengths[1], 1), (lengths[1] - 1, 0)):
        runtime = make_collector(start=False, max_tokens=8, max_context=room, image_window=1).runtime
        assert len(moved(runtime, store(success, name=str(room))).get("open", ())) == taken


def test_a_success_of_a_foreign_agent_is_left_out(runtime, store, caplog):
    odd = foreign()
    with caplog.at_level(logging.WARNING):
        assert moved(runtime, store(replace(odd, task_id="open"))) == {}
    assert "1 successes are of an agent whose requests are not steps of ours and stay outside the pool" in caplog.text


def test_a_directory_without_trajectories_is_refused_and_no_directory_is_an_empty_pool(runtime, tmp_path, caplog):
    with pytest.raises(ConfigError, match=r"directories: .*nowhere holds no trajectories; name the trajectories/"):
        list(ExperiencePool([tmp_path / "nowhere"], TASKS).move_into(runtime, is_success, 8))
    with caplog.at_level(logging.WARNING):
        assert moved(runtime) == {}
    assert "the experience pool is empty" in caplog.text


@pytest.fixture
def told(chat):
    return retokenize(scripted("0/0/0"), chat, COMPACT, None)


def test_ids_that_an_engine_sampled_stay_as_they_are(chat, told):
    cut = chat.encode_response("Action: wait()\n")[:-1]  # without the end of the turn, as when a limit cut it
    first = replace(told.exchanges[0], response_ids=cut, sampler_logprobs=(-0.5,) * len(cut), finish="length")
    second = replace(told.exchanges[1], added_ids=chat.next_prompt(cut))
    sampled = replace(told, exchanges=(first, second))
    assert retokenize(sampled, chat, COMPACT, None) is sampled


@pytest.mark.parametrize("foreign", ["prompt", "response", "glue"])
def test_ids_of_another_prompt_or_tokenizer_are_not_trusted(chat, told, foreign):
    first, second = told.exchanges
    exchanges = {
        "prompt": (replace(first, added_ids=(1, *first.added_ids)), second),
        "response": (
            replace(first, response_ids=first.response_ids[1:], sampler_logprobs=first.sampler_logprobs[1:]),
            second,
        ),
        "glue": (first, replace(second, added_ids=(*second.added_ids, 1))),
    }[foreign]
    assert retokenize(replace(told, exchanges=exchanges), chat, COMPACT, None) == told


def test_ids_that_were_sampled_after_another_image_window_are_not_trusted(chat, told):
    logprobs = [(-0.5,) * len(exchange.response_ids) for exchange in told.exchanges]
    again = retokenize(with_exchanges(told, sampler_logprobs=logprobs), chat, COMPACT, 1)
    assert again == windowed(told, chat)
    assert again.exchanges[0].sampler_logprobs == told.exchanges[0].sampler_logprobs  # 0: nobody sampled them so
    assert retokenize(again, chat, COMPACT, 1) is again
