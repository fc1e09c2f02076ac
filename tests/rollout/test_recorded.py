"""From the successes of a run to tasks, and episodes on them: what is read, trained and kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from arpo.agent.actions import Finished, Wait
from arpo.agent.matching import StepScore
from arpo.agent.prompt import GRAMMARS, Prompt
from arpo.agent.ui_tars import render_response
from arpo.envs.fake import FakeDesktop
from arpo.envs.recorded import RecordedDesktop
from arpo.errors import ConfigError
from arpo.methods.kto import mismatched
from arpo.models.tokenization import tokenize
from arpo.rollout.curation.experience import retokenize
from arpo.rollout.recorded import recorded_tasks
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Outcome
from tests.exchanges import answered, windowed, with_exchanges
from tests.rollout.test_episode import Played, check_trained, solution, spec_of
from tests.rollout.trajectories import make_png, make_trajectory

WAIT = "Action: wait()"


def solved(chat, store, kind="type"):
    """Store a success on the desktop in memory, and return what was said."""
    said = [render_response(action, "As planned.") for action in solution(kind)]
    trajectory = Played(chat, list(said), spec_of(kind)).trajectory
    assert trajectory.task_reward == 1.0
    store.write(trajectory)
    return said


def replayed(chat, root, texts, *, patches=2, **changes):
    (task,) = recorded_tasks(root)
    desktop = RecordedDesktop(StepScore(), patches=patches)
    spec = spec_of(task=task, **({"max_steps": task.max_steps} | changes))
    return Played(chat, texts, spec, desktop=desktop)


@pytest.fixture
def store(tmp_path):
    return TrajectoryStore(tmp_path / "trajectories")


@pytest.mark.parametrize("kind", ["click", "sequence", "type", "infeasible"])
def test_a_policy_that_repeats_a_recorded_success_succeeds_without_a_correction(chat, store, kind):
    said = solved(chat, store, kind)
    played = replayed(chat, store.root, said)
    recorded = store.get("0/0/0")
    assert (played.trajectory.task_reward, len(played.steps)) == (1.0, len(said))
    assert played.trajectory.outcome is recorded.outcome
    assert played.trajectory.instruction == recorded.instruction
    assert [step.screenshot for step in played.steps] == [step.screenshot for step in recorded.steps]
    assert played.trajectory.last_screenshot == recorded.last_screenshot
    assert [step.reward for step in played.steps] == pytest.approx([1.0] * len(said))
    assert not any(step.patch for step in played.steps)


def test_later_responses_read_the_expert_s_answer_in_the_place_of_a_wrong_one(chat, store):
    said = solved(chat, store)
    played = replayed(chat, store.root, [said[0], WAIT, said[2]])
    (_, wrong, last) = played.steps
    text = chat.decode(chat.encode_response(render_response(next(iter([*solution("type")][1:])))))
    assert (wrong.response, wrong.action, wrong.patch) == (WAIT, "wait()", text)
    one, two, three = played.exchanges
    assert (one.parent, two.parent, three.parent) == (None, 0, 0)
    corrected = (*two.added_ids, *chat.encode_response(wrong.patch), *chat.next_prompt(chat.encode_response(text)))
    assert three.added_ids == corrected
    assert [picture.key for picture in three.pictures] == [wrong.screenshot, last.screenshot]
    assert played.engine.requests[2].prompt_ids == (*one.added_ids, *one.response_ids, *corrected)
    assert [step.reward for step in played.steps] == pytest.approx([1.0, 0.19, 1.0])
    assert (played.trajectory.task_reward, played.trajectory.outcome) == (pytest.approx(1 / 3), Outcome.FINISHED)


def test_a_correction_names_points_of_the_model_s_picture(chat, store):
    desktop = FakeDesktop(150, 100)
    desktop.reset(spec_of().task)
    frame = chat.frame(150, 100)
    (right,) = desktop.solve()
    assert frame.to_model(right) != right
    store.write(Played(chat, [render_response(frame.to_model(right))], spec_of(), desktop=desktop).trajectory)
    assert replayed(chat, store.root, [WAIT]).steps[0].patch == render_response(frame.to_model(right))


def test_a_finish_that_comes_too_early_does_not_end_an_episode_that_is_corrected(chat, store):
    said = solved(chat, store)
    early = render_response(Finished())
    played = replayed(chat, store.root, [early, *said[1:]])
    assert len(played.steps) == 3
    last = replayed(chat, store.root, [early], patches=0)
    assert (len(last.steps), last.trajectory.outcome) == (1, Outcome.TERMINATED)


def test_of_several_actions_in_a_response_those_that_were_right_stay_in_the_correction(chat, store):
    said = solved(chat, store)
    click, typed, _ = solution("type")
    wrong = f"{said[0]}\nwait()\nwait()"
    played = replayed(chat, store.root, [wrong, said[2]])
    frame = chat.frame(played.steps[0].width, played.steps[0].height)
    assert played.steps[0].patch == f"{render_response(frame.to_model(click))}\ntype(content='{typed.text}')"
    assert played.env.actions == [click, Wait(), Finished()]  # what stood behind the wrong one was not looked at
    assert played.steps[0].reward == pytest.approx(1.19)


@pytest.mark.parametrize("prompt", [Prompt.compact(), Prompt.compact_computer_use()], ids=lambda each: each.grammar)
def test_the_recorded_thought_is_read_where_it_is_wanted(chat, store, prompt):
    write, spec = GRAMMARS[prompt.grammar].render, spec_of("type", max_tokens=200, max_context=8000)
    said = [write(action, "As planned.") for action in solution("type")]
    store.write(Played(chat, list(said), spec, prompt=prompt).trajectory)
    (task,) = recorded_tasks(store.root)
    desktop = RecordedDesktop(StepScore(), thought="recorded")
    spec = replace(spec, task=task, step_limit=task.max_steps)
    played = Played(chat, [write(Wait()), *said[1:]], spec, desktop=desktop, prompt=prompt)
    assert played.steps[0].patch == chat.decode(chat.encode_response(said[0]))


def test_a_response_that_does_not_parse_ends_the_episode(chat, store):
    said = solved(chat, store)
    played = replayed(chat, store.root, [said[0], "I would rather not."])
    assert (played.trajectory.outcome, played.trajectory.format_reward) == (Outcome.PARSE_ERROR, -1.0)
    assert (played.steps[1].reward, played.steps[1].patch) == (0.0, "")
    assert played.trajectory.task_reward == pytest.approx(1 / 6)


def test_a_correction_at_the_step_limit_of_the_standard_protocol_is_kept_and_ends_the_episode(chat, store):
    said = solved(chat, store)
    played = replayed(chat, store.root, [said[0], WAIT], max_steps=2, protocol="standard")
    assert (len(played.steps), played.trajectory.outcome) == (2, Outcome.MAX_STEPS)
    assert (played.steps[1].action, bool(played.steps[1].patch)) == ("error_env()", True)


@pytest.mark.parametrize("prompt", [Prompt.compact(), Prompt.ui_tars()], ids=["compact", "ui_tars"])
@pytest.mark.parametrize("window", [None, 1, 2, 9])
@pytest.mark.parametrize("wrong", [(), (0,), (1,), (0, 1), (2,), (0, 2)], ids=str)
def test_every_response_is_trained_once_in_the_context_in_which_it_was_sampled(chat, store, window, wrong, prompt):
    said = solved(chat, store)
    texts = [WAIT if number in wrong else text for number, text in enumerate(said)]
    (task,) = recorded_tasks(store.root)
    spec = spec_of(task=task, image_window=window)
    played = Played(chat, texts, spec, desktop=RecordedDesktop(StepScore()), prompt=prompt)
    assert [bool(step.patch) for step in played.steps] == [number in wrong for number in range(3)]
    sequences = check_trained(played, chat)
    assert len(sequences) == (3 if window is not None else 1 + len([number for number in wrong if number < 2]))
    assert [sum(tokens.step_lengths) for tokens in sequences] == [int(each.action_mask.sum()) for each in sequences]


@pytest.mark.parametrize("window", [None, 2])
def test_a_corrected_episode_is_told_anew_with_its_corrections(chat, store, window):
    said = solved(chat, store)
    trajectory = replayed(chat, store.root, [said[0], WAIT, said[2]]).trajectory
    compact = Prompt.compact()
    assert retokenize(trajectory, chat, compact, None) is trajectory
    first, wrong, last = trajectory.exchanges
    foreign = replace(last, added_ids=(1, 2, *last.added_ids))
    told = retokenize(replace(trajectory, exchanges=(first, wrong, foreign)), chat, compact, window)
    expected = with_exchanges(trajectory, sampler_logprobs=[(0.0,) * length for length in trajectory.trained_lengths])
    assert told == windowed(expected, chat, window)


def test_a_corrected_episode_comes_back_from_the_disk(chat, store):
    said = solved(chat, store)
    trajectory = replace(replayed(chat, store.root, [said[0], WAIT, said[2]]).trajectory, id="1/0/0")
    store.write(trajectory)
    assert store.get("1/0/0") == trajectory


def test_a_mismatch_of_two_episodes_has_the_corrections_of_neither(chat, store):
    said = solved(chat, store)
    one = replayed(chat, store.root, [WAIT, *said[1:]]).trajectory
    other = replayed(chat, store.root, said).trajectory
    crossed = mismatched(one, other, answered(chat))
    assert len(tokenize(crossed, chat)) == 1
    assert not any(step.patch for step in crossed.steps)


def success(number, task="task", **changes):
    """A success of two steps, whose screens are its own."""
    made = make_trajectory(f"0/{number}/0", task_id=task, shade=10 * number)
    return replace(made, **changes)


def test_tasks_are_the_successes_in_turn_and_every_fourth_task_is_held_out(store):
    for number, task in enumerate("aabbcdde"):
        store.write(success(number, task))
    store.write(make_trajectory("0/8/0", task_id="f", task_reward=0.0))
    store.write(success(10, "nothing done", steps=()))
    store.write(success(9, "g", format_reward=-1.0))
    ids = [task.id for task in recorded_tasks(store.root.parent)]
    assert ids == ["a@0/0/0", "b@0/2/0", "c@0/4/0", "e@0/7/0", "a@0/1/0", "b@0/3/0"]
    assert [task.id for task in recorded_tasks(store.root, part="held_out")] == ["d@0/5/0", "d@0/6/0"]
    assert [task.id for task in recorded_tasks(store.root, count=3)] == ids[:3]
    first = recorded_tasks(store.root)[0]
    assert (first.instruction, first.domain, first.max_steps) == ("click “red” \ud83d", "domain", 2)


def test_a_recording_without_a_last_screen_ends_with_the_screen_before_it(store):
    store.write(success(0, last_screenshot=""))
    (task,) = recorded_tasks(store.root)
    assert task.config["last_screen"] == task.config["steps"][-1]["screen"]


WRONG = {
    "were cut by a limit": lambda made: replace(made, outcome=Outcome.MAX_STEPS),
    "were corrected by an expert": lambda made: with_step(made, patch="Action: wait()"),
    "not one action": lambda made: with_step(made, action="wait()\nwait()"),
    "have a step that is not": lambda made: with_step(made, action="jump(high='1')"),
    "of another size": lambda made: with_step(made, width=5),
}


def with_step(made, **changes):
    return replace(made, steps=(replace(made.steps[0], **changes), *made.steps[1:]))


@pytest.mark.parametrize("reason", WRONG)
def test_a_success_that_cannot_be_replayed_is_left_out_with_the_reason(store, reason, caplog):
    store.write(WRONG[reason](success(0)))
    with pytest.raises(ConfigError, match=f"none of its 1 successes can be replayed: 1 .*{reason}"):
        recorded_tasks(store.root)
    store.write(success(1))
    assert [task.id for task in recorded_tasks(store.root)] == ["task@0/1/0"]
    assert reason in caplog.text


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-5])], ids=["lost", "cut"]
)
def test_a_success_without_its_screenshots_is_left_out(store, damage):
    made = success(0)
    store.write(made)
    damage(store.screenshot_path(made.steps[1].screenshot))
    with pytest.raises(ConfigError, match="1 have lost screenshots"):
        recorded_tasks(store.root)


def test_what_is_no_screenshot_or_of_another_size_is_told_by_its_first_bytes(store):
    made = success(0)
    store.write(made)
    for odd in (make_png(1, (8, 4)), b"GIF" + make_png(1)[3:]):
        store.screenshot_path(made.last_screenshot).write_bytes(odd)
        with pytest.raises(ConfigError, match="1 have screenshots of another size"):
            recorded_tasks(store.root)


def test_a_folder_without_trajectories_or_without_a_success_is_refused(store, tmp_path):
    for source in ("", tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="holds no recorded trajectories: name the folder of a run"):
            recorded_tasks(source)
    store.write(make_trajectory("0/0/0", task_reward=0.25))
    with pytest.raises(ConfigError, match="none of its 1 trajectories is a success"):
        recorded_tasks(store.root)
    assert recorded_tasks(store.root, success_threshold=0.2)
