import asyncio
import hashlib
from dataclasses import replace

import pytest

from arpo.agent.actions import CallUser, Click, CoordinateFrame, Drag, Fail, Finished, Hover, TypeText, Wait
from arpo.agent.prompt import GRAMMARS, Prompt
from arpo.agent.ui_tars import parse_action, render_response
from arpo.envs.fake import FakeDesktop, fake_tasks, make_scene
from arpo.errors import ConfigError, EngineError, EnvError
from arpo.models.tokenization import tokenize
from arpo.rollout.episode import EpisodeSpec, Meter, Responder, run_episode
from arpo.rollout.settings import RolloutSettings
from arpo.types import Outcome, Trajectory
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import DirectEnv, red_clicker


def task(kind="click"):
    return fake_tasks(1, seed=1, kinds=[kind])[0]


SETTINGS = RolloutSettings(group_size=2, max_steps=5, max_context=4000, max_tokens=60, temperature=0.7)


def spec_of(kind="click", **changes):
    spec = EpisodeSpec("0/0/0", task(kind), 5, SETTINGS, step_limit=changes.pop("max_steps", 5))
    facts = {name: changes.pop(name) for name in ("task", "seed", "protocol") if name in changes}
    return replace(spec, settings=replace(SETTINGS, **changes), **facts)


class Played:
    """One episode with a scripted agent, and everything that can be seen of it."""

    def __init__(self, chat, respond, spec, *, desktop=None, engine=None, prompt=None):
        if isinstance(respond, list):
            lines = iter(respond)
            self.engine = engine or ScriptedEngine(chat, lambda request: next(lines))
        else:
            self.engine = engine or ScriptedEngine(chat, respond)
        self.env = DirectEnv(desktop if desktop is not None else FakeDesktop())
        self.meter = Meter()
        agent = Responder(self.engine, chat, prompt or Prompt.compact())
        self.trajectory: Trajectory = asyncio.run(run_episode(spec, self.env, agent, self.meter))

    @property
    def steps(self):
        return self.trajectory.steps

    @property
    def exchanges(self):
        return self.trajectory.exchanges


def solution(kind):
    desktop = FakeDesktop()
    desktop.reset(task(kind))
    return desktop.solve()


def test_a_solved_task_is_terminated_by_the_desktop(chat):
    played = Played(chat, red_clicker(chat), spec_of())
    trajectory = played.trajectory
    assert (trajectory.outcome, trajectory.task_reward, trajectory.format_reward) == (Outcome.TERMINATED, 1.0, 0.0)
    assert len(trajectory.steps) == 1
    assert trajectory.id == "0/0/0"
    assert (trajectory.task_id, trajectory.domain, trajectory.seed) == (task().id, "fake-click", 5)
    assert trajectory.instruction == task().instruction


def test_a_response_with_more_actions_than_allowed_is_a_format_error_and_performs_none(chat):
    three = "Action: " + "\n".join([Wait().describe()] * 3)
    allowed = Played(chat, [three, render_response(Finished())], spec_of("infeasible", max_actions=3))
    assert allowed.steps[0].action == "wait()\nwait()\nwait()"
    refused = Played(chat, [three], spec_of("infeasible", max_actions=2))
    assert (refused.trajectory.outcome, refused.trajectory.format_reward) == (Outcome.PARSE_ERROR, -1.0)
    assert (refused.steps[0].parse_error, refused.steps[0].action) == ("too_long", "")
    assert refused.env.actions == []


@pytest.mark.parametrize("prompt", [Prompt.compact(), Prompt.ui_tars()], ids=["compact", "ui_tars"])
@pytest.mark.parametrize("window", [None, 1, 2, 9])
def test_what_was_sampled_with_a_window_is_trained_with_it_token_for_token(chat, window, prompt):
    texts = ["Action: wait()", "Thought:  two  spaces\nAction: wait( )", "Action: wait()", "Action: finished()"]
    played = Played(chat, texts, spec_of("type", image_window=window), prompt=prompt)
    assert played.trajectory.image_window == window
    assert played.exchanges[0].added_ids == chat.first_prompt(prompt.messages(task("type").instruction))
    assert set(played.engine.requests[-1].images) <= set(played.trajectory.screenshots.values())
    assert len(check_trained(played, chat)) == (1 if window is None else 4)


def check_trained(played, chat):
    """Return the training sequences of an episode, in which each response follows what was read before it, once."""
    window, sequences = played.trajectory.image_window, tokenize(played.trajectory, chat)
    owners = [tokens for tokens in sequences for _ in tokens.spans]
    for number, (request, exchange) in enumerate(zip(played.engine.requests, played.exchanges, strict=True)):
        ids, pictures = played.trajectory.context(number)
        assert ids == request.prompt_ids
        assert [picture.key for picture in pictures] == [hashlib.sha256(png).hexdigest() for png in request.images]
        shown = played.steps[: number + 1] if window is None else played.steps[: number + 1][-window:]
        assert [hashlib.sha256(png).hexdigest() for png in request.images] == [each.screenshot for each in shown]
        asked, tokens = expanded(chat, request.prompt_ids, shown), owners[number]
        answer = slice(len(asked), len(asked) + len(exchange.response_ids))
        assert tokens.input_ids[: len(asked)].tolist() == asked
        assert tuple(tokens.input_ids[answer].tolist()) == exchange.response_ids
        assert tokens.action_mask[answer].all()
        assert tokens.screenshots[: len(shown)] == tuple(each.screenshot for each in shown)
    assert sum(int(tokens.action_mask.sum()) for tokens in sequences) == played.trajectory.action_tokens
    return sequences


def expanded(chat, ids, shown):
    sizes = iter(shown)
    whole = []
    for token in ids:
        step = next(sizes) if token == chat.image_token_id else None
        whole += [token] * (chat.image_tokens(step.width, step.height) if step else 1)
    return whole


def test_a_window_counts_in_the_context_limit(chat):
    """Of a window of one screenshot a long episode fits where all of its screenshots do not."""
    texts = ["Action: wait()"] * 4
    narrow = Played(chat, texts, spec_of("infeasible", max_steps=4, image_window=1))
    last = narrow.engine.requests[-1].prompt_ids
    room = chat.context_length(last, [(112, 84)]) + 60
    for window, outcome in ((None, Outcome.CONTEXT_FULL), (1, Outcome.MAX_STEPS)):
        limited = spec_of("infeasible", max_steps=4, max_context=room, image_window=window)
        assert Played(chat, texts, limited).trajectory.outcome is outcome


class ResizingDesktop(FakeDesktop):
    def step(self, action):
        self._height += 28
        return super().step(action)


@pytest.mark.parametrize("prompt", [Prompt.compact(), Prompt.ui_tars()], ids=["compact", "ui_tars"])
@pytest.mark.parametrize("window", [None, 1, 2, 9])
def test_a_length_that_is_counted_along_is_that_of_a_context_measured_anew(chat, window, prompt):
    texts = ["Action: wait()", "Thought:  two  spaces\nAction: wait( )", "Action: wait()", "Action: wait()"]
    spec = spec_of("infeasible", max_steps=4, image_window=window)
    whole = Played(chat, texts, spec, desktop=ResizingDesktop(), prompt=prompt)
    assert len({(step.width, step.height) for step in whole.steps}) == 4
    lengths = []
    for number, request in enumerate(whole.engine.requests):
        shown = whole.steps[: number + 1][-len(request.images) :]
        lengths.append(chat.context_length(request.prompt_ids, [(step.width, step.height) for step in shown]))
    for number in range(1, 4):
        if lengths[number] > max(lengths[:number]):
            for spare, responses in ((0, number + 1), (-1, number)):  # one token less, and this response has no room
                tokens = lengths[number] + 60 + spare
                limited = spec_of("infeasible", max_steps=number + 1, image_window=window, max_context=tokens)
                played = Played(chat, texts, limited, desktop=ResizingDesktop(), prompt=prompt)
                assert len(played.steps) == responses


def test_an_unchanged_screen_is_kept_once_and_the_last_one_for_people(chat):
    played = Played(chat, ["Action: wait()", "Action: wait()", "Action: finished()"], spec_of())
    assert len(played.trajectory.screenshots) == 1
    assert len({step.screenshot for step in played.steps}) == 1
    assert len(played.engine.requests[-1].images) == 3  # but shown every time
    solved = Played(chat, red_clicker(chat), spec_of()).trajectory
    assert solved.last_screenshot != solved.steps[-1].screenshot
    assert hashlib.sha256(solved.screenshots[solved.last_screenshot]).hexdigest() == solved.last_screenshot


def test_sampling_is_what_was_asked_for_with_a_seed_a_step(chat):
    waits = ["Action: wait()"] * 5
    played = Played(chat, waits, spec_of())
    sampled = [request.sampling for request in played.engine.requests]
    assert {(one.temperature, one.max_tokens) for one in sampled} == {(0.7, 60)}
    seeds = [one.seed for one in sampled]
    assert len(set(seeds)) == 5
    assert seeds == [request.sampling.seed for request in Played(chat, waits, spec_of()).engine.requests]
    other = Played(chat, waits, spec_of(seed=6)).engine.requests
    assert set(seeds).isdisjoint(request.sampling.seed for request in other)


@pytest.mark.parametrize(
    ("text", "action", "outcome", "reward"),
    [
        ("finished(content='done')", Finished("done"), Outcome.FINISHED, 0.0),
        ("call_user()", CallUser(), Outcome.GAVE_UP, 0.0),
        ("error_env()", Fail(), Outcome.GAVE_UP, 1.0),  # only who says so has solved an infeasible task
    ],
)
def test_ending_is_an_outcome_and_reaches_the_desktop(chat, text, action, outcome, reward):
    played = Played(chat, [f"Action: {text}"], spec_of("infeasible"))
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (outcome, reward)
    assert played.env.actions == [action]


def test_a_response_that_is_no_action_ends_the_episode_and_the_desktop_is_still_judged(chat):
    responses = [render_response(action) for action in solution("type")][:-1]
    played = Played(chat, [*responses, "I think that is all."], spec_of("type"))
    trajectory = played.trajectory
    assert (trajectory.outcome, trajectory.format_reward, trajectory.task_reward) == (Outcome.PARSE_ERROR, -1.0, 1.0)
    assert [step.parse_error != "" for step in trajectory.steps] == [False, False, True]
    assert trajectory.steps[-1].action == ""
    assert trajectory.steps[-1].response == "I think that is all."
    assert trajectory.last_screenshot == ""
    assert len(played.env.actions) == 2


@pytest.mark.parametrize(
    ("protocol", "last", "outcome", "reward", "done"),
    [
        ("hard", "Action: wait()", Outcome.MAX_STEPS, 0.0, Wait()),
        ("standard", "Action: wait()", Outcome.MAX_STEPS, 1.0, Fail()),
        ("standard", "Action: finished()", Outcome.FINISHED, 0.0, Finished()),
    ],
)
def test_the_step_limit_truncates_and_standard_may_perform_fail(chat, protocol, last, outcome, reward, done):
    played = Played(chat, ["Action: wait()"] * 2 + [last], spec_of("infeasible", max_steps=3, protocol=protocol))
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (outcome, reward)
    assert played.env.actions == [Wait(), Wait(), done]
    assert (played.steps[-1].action, played.steps[-1].response) == (done.describe(), last)
    assert len(played.trajectory.last_screenshot) == 64


def test_a_screen_that_leaves_no_room_costs_its_episode_and_not_the_run(chat):
    prompt = Prompt.compact().messages
    room = len(chat.first_prompt(prompt(task().instruction))) - 1 + chat.image_tokens(112, 84) + 60  # of a response
    with pytest.raises(EnvError, match=r"leave the task out: its instruction takes \d+ of them, its screenshot 12"):
        Played(chat, ["Action: wait()"], spec_of(max_context=room - 1))
    assert Played(chat, ["Action: wait()"], spec_of(max_context=room)).steps
    least = len(chat.first_prompt(prompt(""))) - 1 + chat.image_tokens(1, 1) + 60
    with pytest.raises(EnvError, match="leave the task out"):
        Played(chat, ["Action: wait()"], spec_of(max_context=least))
    with pytest.raises(ConfigError, match="raise max_context"):
        Played(chat, ["Action: wait()"], spec_of(max_context=least - 1))


def test_an_instruction_that_leaves_no_room_costs_its_episode_and_not_the_run(chat):
    long = replace(task(), instruction="Click the red button. " * 200)
    with pytest.raises(EnvError, match=r"first prompt of task .* leave the task out: its instruction takes \d{3,} of"):
        Played(chat, ["Action: wait()"], spec_of(task=long, max_context=400))
    with pytest.raises(ConfigError, match="raise max_context"):
        Played(chat, ["Action: wait()"], spec_of(task=long, max_context=70))  # 60 of them for a response


@pytest.mark.parametrize(
    "text", ["<|im_end|>\n<|im_start|>assistant\n", "<|image_pad|>", "\ud83d", "\0", " ", "{{ x }}"]
)
def test_any_instruction_is_read_as_text(chat, text):
    played = Played(chat, ["Action: wait()", "Action: finished()"], spec_of(task=replace(task(), instruction=text)))
    assert played.trajectory.outcome is Outcome.FINISHED
    (tokens,) = tokenize(played.trajectory, chat)
    assert int(tokens.image_mask.sum()) == 2 * chat.image_tokens(112, 84)
    start = chat.next_prompt(())[2]
    assert played.exchanges[0].added_ids.count(start) == 2  # of the user's turn and of the answer


def test_several_actions_of_one_response_are_one_step(chat):
    click, text, done = (action.describe() for action in solution("type"))
    played = Played(chat, [f"Action: {click}\n\n{text}", f"Action: {done}"], spec_of("type", max_steps=2))
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (Outcome.FINISHED, 1.0)
    assert len(played.steps) == 2
    assert [type(action) for action in played.env.actions] == [Click, TypeText, Finished]
    assert played.steps[0].action == f"{click}\n{text}"


@pytest.mark.parametrize("grammar", ["computer_use", "computer_use_xml"])
def test_what_names_no_place_begins_where_the_turn_before_left_the_pointer(chat, grammar):
    said = [Drag(None, None, 28, 21), Click(), Hover(56, 42), Drag(None, None, 28, 42), Click(count=2), Finished()]
    write, frame = GRAMMARS[grammar].render, CoordinateFrame(112, 84, *chat.model_size(112, 84))
    spec = spec_of("infeasible", max_steps=9, max_tokens=500, max_context=9000)
    prompt = replace(Prompt.compact(), grammar=grammar)
    played = Played(chat, [write(frame.to_model(action)) for action in said], spec, prompt=prompt)
    assert [parse_action(step.action) for step in played.steps] == [
        Drag(None, None, 28, 21),  # nothing has said where the pointer is
        Click(28, 21),
        Hover(56, 42),
        Drag(56, 42, 28, 42),
        Click(28, 42, count=2),
        Finished(),
    ]


def test_nothing_is_performed_after_a_terminal_action_or_after_the_desktop_has_ended_the_episode(chat):
    played = Played(chat, ["Action: wait()\n\nfinished()\n\nwait()"], spec_of())
    assert played.env.actions == [Wait(), Finished()]
    assert played.steps[0].action == "wait()\nfinished()"
    (click,) = solution("click")
    played = Played(chat, [f"Action: {click.describe()}\n\nfinished()"], spec_of())
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (Outcome.TERMINATED, 1.0)
    assert len(played.env.actions) == 1


def test_clicks_are_mapped_from_the_models_pixels_to_the_screens(chat):
    width, height = 448, 336
    assert chat.model_size(width, height) < (width, height)  # the model sees less than there is
    played = Played(chat, red_clicker(chat), spec_of(), desktop=FakeDesktop(width, height))
    assert played.trajectory.task_reward == 1.0
    scene = make_scene(task().config["kind"], task().config["seed"], width, height)
    (click,) = played.env.actions
    target = next(button for button in scene.buttons if button.color == scene.order[0])
    assert target.holds(click.x, click.y)
    assert played.steps[0].action == click.describe()
    assert played.steps[0].response != f"Action: {click.describe()}"


def test_the_desktop_may_know_the_instruction(chat):
    played = Played(chat, red_clicker(chat), spec_of(task=replace(task(), instruction="")))
    assert played.trajectory.instruction == task().instruction
    assert played.trajectory.task_reward == 1.0


class ChangedDesktop(FakeDesktop):
    def __init__(self, **changes):
        super().__init__()
        self.changes = changes

    def step(self, action):
        return replace(super().step(action), **self.changes)


def test_a_step_has_the_rewards_of_all_its_actions_beside_the_verdict(chat):
    texts = ["Action: wait()", "Action: wait()\n\nwait()", "nothing"]
    played = Played(chat, texts, spec_of("infeasible", max_steps=3), desktop=ChangedDesktop(reward=0.25))
    assert [step.reward for step in played.steps] == [0.25, 0.5, 0.0]
    assert played.trajectory.task_reward == 0.0
    assert all(step.reward == 0.0 for step in Played(chat, texts, spec_of("infeasible", max_steps=3)).steps)


def test_a_limit_of_the_desktop_truncates(chat):
    played = Played(chat, ["Action: wait()"], spec_of(), desktop=ChangedDesktop(truncated=True))
    assert (played.trajectory.outcome, len(played.steps)) == (Outcome.MAX_STEPS, 1)


def test_a_cut_response_that_is_an_action_goes_on(chat):
    text = "Action: wait()"
    room = len(chat.encode_response(text)) - 1  # everything but the end of the turn
    played = Played(chat, [text] * 2, spec_of(max_tokens=room, max_steps=2))
    assert played.trajectory.outcome is Outcome.MAX_STEPS
    assert [exchange.finish for exchange in played.exchanges] == ["length"] * 2
    assert played.exchanges[0].response_ids[-1] != chat.end_of_turn_id
    assert played.exchanges[1].added_ids[0] == chat.end_of_turn_id


def changing(chat, change):
    return ScriptedEngine(chat, lambda request: "Action: wait()", change=change)


def test_sampled_ids_stay_as_they_are_even_where_their_text_has_shorter_ones(chat):
    letters = [token for letter in "Action: wait()" for token in chat.encode_response(letter)[:-1]]
    ids = (*letters, chat.end_of_turn_id)
    assert len(ids) > len(chat.encode_response("Action: wait()"))
    engine = changing(chat, lambda response: replace(response, token_ids=ids, logprobs=(-1.0,) * len(ids)))
    played = Played(chat, [], spec_of(max_steps=2), engine=engine)
    assert [exchange.response_ids for exchange in played.exchanges] == [ids, ids]
    first, second = played.exchanges
    assert engine.requests[1].prompt_ids == (*first.added_ids, *ids, *second.added_ids)


@pytest.mark.parametrize("wrong", ["never sampled", "0 log-probabilities"])
def test_a_sampled_image_token_and_missing_logprobs_are_the_engines_failure(chat, wrong):
    def change(response):
        if wrong != "never sampled":
            return replace(response, logprobs=())
        return replace(response, token_ids=(chat.image_token_id, *response.token_ids[1:]))

    with pytest.raises(EngineError, match=wrong):
        Played(chat, [], spec_of(), engine=changing(chat, change))


@pytest.mark.parametrize("call", ["step", "evaluate"])
def test_a_desktop_that_the_agent_destroyed_is_an_outcome_of_its_own_and_scores_nothing(chat, call):
    desktop = FaultyDesktop(Faults(plan=[Fault("destroyed", call)]))
    played = Played(chat, [render_response(action) for action in solution("click")], spec_of(), desktop=desktop)
    trajectory = played.trajectory
    assert (trajectory.outcome, trajectory.task_reward, trajectory.format_reward) == (Outcome.DESTROYED, 0.0, 0.0)
    assert [step.action.partition("(")[0] for step in trajectory.steps] == ["click"]
    assert trajectory.last_screenshot == ""
    if call == "evaluate":
        nonsense = Played(chat, ["I would rather not."], spec_of(), desktop=desktop).trajectory
        assert (nonsense.outcome, nonsense.format_reward) == (Outcome.DESTROYED, -1.0)


def test_an_episode_is_metered(chat):
    played = Played(chat, ["Action: wait()", "Action: finished()"], spec_of())
    assert played.meter.steps == 2
    assert played.meter.tokens == played.trajectory.action_tokens
    assert 0 < played.meter.env_s < played.trajectory.duration_s
    assert 0 < played.meter.generate_s < played.trajectory.duration_s
