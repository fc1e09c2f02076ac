import asyncio
import hashlib
from dataclasses import replace

import pytest

from arpo.agent.actions import CallUser, Click, CoordinateFrame, Drag, Fail, Finished, Hover, TypeText, Wait
from arpo.agent.grammar import GRAMMARS, GrammarName
from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import parse_action, render_response
from arpo.envs.fake import FakeDesktop, fake_tasks, make_scene
from arpo.envs.protocol import StepResult
from arpo.errors import ConfigError, EngineError, EnvError
from arpo.inference.engine import GenerateRequest, Response
from arpo.models.tokenization import ChatTokenizer, tokenize
from arpo.rollout.episode import EpisodeSpec, Meter, Responder, run_episode
from arpo.rollout.settings import RolloutSettings
from arpo.types import Outcome, Trajectory
from tests.envs.planned_faults import Fault, Faults, FaultyDesktop
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import DirectEnv, red_clicker


def task(kind: str = "click"):
    return fake_tasks(1, seed=1, kinds=[kind])[0]


SETTINGS = RolloutSettings(group_size=2, max_steps=5, max_context=4000, max_tokens=60, temperature=0.7)


def spec_of(kind: str = "click", **changes) -> EpisodeSpec:
    spec = EpisodeSpec("0/0/0", task(kind), 5, SETTINGS, step_limit=changes.pop("max_steps", 5))
    facts = {name: changes.pop(name) for name in ("task", "seed", "protocol") if name in changes}
    return replace(spec, settings=replace(SETTINGS, **changes), **facts)


class Played:
    """One episode with a scripted agent, and everything that can be seen of it."""

    def __init__(
        self, chat: ChatTokenizer, respond, spec: EpisodeSpec, *, desktop=None, engine=None, prompt=None
    ) -> None:
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


def solution(kind: str):
    desktop = FakeDesktop()
    desktop.reset(task(kind))
    return desktop.solve()


def test_a_solved_task_is_terminated_by_the_desktop(chat: ChatTokenizer):
    played = Played(chat, red_clicker(chat), spec_of())
    trajectory = played.trajectory
    assert (trajectory.outcome, trajectory.task_reward, trajectory.format_reward) == (Outcome.TERMINATED, 1.0, 0.0)
    assert len(trajectory.steps) == 1
    assert trajectory.id == "0/0/0"
    assert (trajectory.task_id, trajectory.domain, trajectory.seed) == (task().id, "fake-click", 5)
    assert trajectory.instruction == task().instruction


def test_a_response_with_more_actions_than_allowed_is_a_format_error_and_performs_none(chat: ChatTokenizer):
    three = "Action: " + "\n".join([Wait().describe()] * 3)
    allowed = Played(chat, [three, render_response(Finished())], spec_of("infeasible", max_actions=3))
    assert allowed.steps[0].action == "wait()\nwait()\nwait()"
    performed = []

    class Watched(FakeDesktop):
        def step(self, action):
            performed.append(action)
            return super().step(action)

    refused = Played(chat, [three], spec_of("infeasible", max_actions=2), desktop=Watched())
    assert (refused.trajectory.outcome, refused.trajectory.format_reward) == (Outcome.PARSE_ERROR, -1.0)
    assert (refused.steps[0].parse_error, refused.steps[0].action) == ("too_long", "")
    assert performed == []


def test_the_context_grows_by_ids_alone(chat: ChatTokenizer):
    played = Played(
        chat, ["Action: wait()", "Thought:  two  spaces\nAction: wait( )", "Action: finished()"], spec_of()
    )
    context: list[int] = []
    for step, request in zip(played.steps, played.engine.requests, strict=True):
        context += step.prompt_ids
        assert request.prompt_ids == tuple(context)  # verbatim, spaces and all
        context += step.response_ids
    assert played.steps[0].prompt_ids == chat.first_prompt(Prompt.compact().messages(task().instruction))
    assert played.steps[1].prompt_ids == chat.next_prompt(played.steps[0].response_ids)


def test_every_request_has_every_screenshot_so_far(chat: ChatTokenizer):
    played = Played(chat, [render_response(action) for action in solution("type")], spec_of("type"))
    assert [len(request.images) for request in played.engine.requests] == [1, 2, 3]
    last = played.engine.requests[-1].images
    assert [hashlib.sha256(png).hexdigest() for png in last] == [step.screenshot for step in played.steps]
    assert len(set(last)) == 3  # the focus and the text can be seen
    assert {played.trajectory.screenshots[step.screenshot] for step in played.steps} == set(last)


@pytest.mark.parametrize("prompt", [Prompt.compact(), Prompt.ui_tars()], ids=["compact", "ui_tars"])
@pytest.mark.parametrize("window", [None, 1, 2, 9])
def test_what_was_sampled_with_a_window_is_trained_with_it_token_for_token(chat: ChatTokenizer, window, prompt):
    texts = ["Action: wait()", "Thought:  two  spaces\nAction: wait( )", "Action: wait()", "Action: finished()"]
    played = Played(chat, texts, spec_of("type", image_window=window), prompt=prompt)
    assert played.trajectory.image_window == window
    sequences = tokenize(played.trajectory, chat)
    assert len(sequences) == (1 if window is None else 4)
    for number, (request, step) in enumerate(zip(played.engine.requests, played.steps, strict=True)):
        shown = played.steps[: number + 1] if window is None else played.steps[: number + 1][-window:]
        assert [hashlib.sha256(png).hexdigest() for png in request.images] == [each.screenshot for each in shown]
        asked = expanded(chat, request.prompt_ids, shown)
        tokens = sequences[0 if window is None else number]
        assert tokens.input_ids[: len(asked)].tolist() == asked
        answer = slice(len(asked), len(asked) + len(step.response_ids))
        assert tuple(tokens.input_ids[answer].tolist()) == step.response_ids
        assert tokens.action_mask[answer].all()
        assert tokens.screenshots[: len(shown)] == tuple(each.screenshot for each in shown)
    trained = sum(int(tokens.action_mask.sum()) for tokens in sequences)
    assert trained == played.trajectory.action_tokens  # every sampled token once


def expanded(chat: ChatTokenizer, ids, shown):
    sizes = iter(shown)
    whole = []
    for token in ids:
        step = next(sizes) if token == chat.image_token_id else None
        whole += [token] * (chat.image_tokens(step.width, step.height) if step else 1)
    return whole


def test_a_window_counts_in_the_context_limit(chat: ChatTokenizer):
    """Of a window of one screenshot a long episode fits where all of its screenshots do not."""
    texts = ["Action: wait()"] * 4
    narrow = Played(chat, texts, spec_of("infeasible", max_steps=4, image_window=1))
    last = narrow.engine.requests[-1].prompt_ids
    room = chat.context_length(last, [(112, 84)]) + 60
    for window, outcome in ((None, Outcome.CONTEXT_FULL), (1, Outcome.MAX_STEPS)):
        limited = spec_of("infeasible", max_steps=4, max_context=room, image_window=window)
        assert Played(chat, texts, limited).trajectory.outcome is outcome


class ResizingDesktop(FakeDesktop):
    """Has a screen of another size at every step."""

    def step(self, action) -> StepResult:
        self._height += 28
        return super().step(action)


@pytest.mark.parametrize("prompt", [Prompt.compact(), Prompt.ui_tars()], ids=["compact", "ui_tars"])
@pytest.mark.parametrize("window", [None, 1, 2, 9])
def test_a_length_that_is_counted_along_is_that_of_a_context_measured_anew(chat: ChatTokenizer, window, prompt):
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


def test_an_unchanged_screen_is_kept_once(chat: ChatTokenizer):
    played = Played(chat, ["Action: wait()", "Action: wait()", "Action: finished()"], spec_of())
    assert len(played.trajectory.screenshots) == 1
    assert len({step.screenshot for step in played.steps}) == 1
    assert len(played.engine.requests[-1].images) == 3  # but shown every time


def test_the_last_screen_is_kept_for_people(chat: ChatTokenizer):
    played = Played(chat, red_clicker(chat), spec_of())
    last = played.trajectory.last_screenshot
    assert last != played.steps[-1].screenshot
    assert hashlib.sha256(played.trajectory.screenshots[last]).hexdigest() == last


def test_a_trajectory_can_be_trained_on(chat: ChatTokenizer):
    played = Played(chat, [render_response(action) for action in solution("type")], spec_of("type"))
    (tokens,) = tokenize(played.trajectory, chat)
    sampled = [token for step in played.steps for token in step.response_ids]
    assert tokens.input_ids[tokens.action_mask].tolist() == sampled
    assert len(tokens) == chat.context_length(
        [*played.engine.requests[-1].prompt_ids, *played.steps[-1].response_ids], [(112, 84)] * 3
    )


def test_sampling_is_what_was_asked_for_with_a_seed_a_step(chat: ChatTokenizer):
    waits = ["Action: wait()"] * 5
    played = Played(chat, waits, spec_of())
    sampled = [request.sampling for request in played.engine.requests]
    assert {(one.temperature, one.max_tokens) for one in sampled} == {(0.7, 60)}
    seeds = [one.seed for one in sampled]
    assert len(set(seeds)) == 5
    assert seeds == [request.sampling.seed for request in Played(chat, waits, spec_of()).engine.requests]
    other = Played(chat, waits, spec_of(seed=6)).engine.requests
    assert set(seeds).isdisjoint(request.sampling.seed for request in other)


def test_finished_is_an_outcome_and_reaches_the_desktop(chat: ChatTokenizer):
    played = Played(chat, ["Action: finished(content='done')"], spec_of())
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (Outcome.FINISHED, 0.0)
    assert played.env.actions == [Finished("done")]


@pytest.mark.parametrize(("text", "action"), [("call_user()", CallUser()), ("error_env()", Fail())])
def test_giving_up_is_an_outcome_and_reaches_the_desktop(chat: ChatTokenizer, text: str, action):
    played = Played(chat, [f"Action: {text}"], spec_of("infeasible"))
    assert played.trajectory.outcome is Outcome.GAVE_UP
    assert played.env.actions == [action]
    assert played.trajectory.task_reward == float(action == Fail())  # only who says so has solved an infeasible task


def test_a_response_that_is_no_action_ends_the_episode_and_the_desktop_is_still_judged(chat: ChatTokenizer):
    responses = [render_response(action) for action in solution("type")][:-1]
    played = Played(chat, [*responses, "I think that is all."], spec_of("type"))
    trajectory = played.trajectory
    assert (trajectory.outcome, trajectory.format_reward, trajectory.task_reward) == (Outcome.PARSE_ERROR, -1.0, 1.0)
    assert [step.parse_error != "" for step in trajectory.steps] == [False, False, True]
    assert trajectory.steps[-1].action == ""
    assert trajectory.steps[-1].response == "I think that is all."
    assert trajectory.last_screenshot == ""
    assert len(played.env.actions) == 2


def test_the_step_limit_truncates(chat: ChatTokenizer):
    played = Played(chat, ["Action: wait()"] * 3, spec_of("infeasible", max_steps=3))
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (Outcome.MAX_STEPS, 0.0)
    assert played.env.actions == [Wait()] * 3
    assert len(played.trajectory.last_screenshot) == 64


def test_standard_performs_fail_in_the_place_of_the_last_response(chat: ChatTokenizer):
    spec = spec_of("infeasible", max_steps=3, protocol="standard")
    played = Played(chat, ["Action: wait()"] * 3, spec)
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (Outcome.MAX_STEPS, 1.0)
    assert played.env.actions == [Wait(), Wait(), Fail()]
    assert played.steps[-1].action == "error_env()"
    assert played.steps[-1].response == "Action: wait()"


def test_standard_leaves_a_last_response_alone_that_ends_the_episode(chat: ChatTokenizer):
    spec = spec_of("infeasible", max_steps=2, protocol="standard")
    played = Played(chat, ["Action: wait()", "Action: finished()"], spec)
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (Outcome.FINISHED, 0.0)
    assert played.env.actions == [Wait(), Finished()]


def test_the_context_limit_truncates_where_no_whole_response_fits(chat: ChatTokenizer):
    whole = Played(chat, ["Action: wait()"] * 3, spec_of("infeasible", max_steps=3))
    second = whole.engine.requests[1].prompt_ids
    length = chat.context_length(second, [(112, 84)] * 2)
    roomy = spec_of("infeasible", max_steps=3, max_context=length + 60)
    played = Played(chat, ["Action: wait()"] * 3, roomy)
    assert (played.trajectory.outcome, len(played.steps)) == (Outcome.CONTEXT_FULL, 2)
    played = Played(
        chat, ["Action: wait()"] * 3, spec_of("infeasible", max_steps=3, max_context=length + 59)
    )  # one token less
    assert (played.trajectory.outcome, len(played.steps)) == (Outcome.CONTEXT_FULL, 1)
    assert played.trajectory.task_reward == 0.0
    assert len(played.trajectory.last_screenshot) == 64


def test_the_context_is_counted_with_expanded_images(chat: ChatTokenizer):
    ids = chat.first_prompt(Prompt.compact().messages(task().instruction))
    assert chat.image_tokens(112, 84) > 1
    with pytest.raises(EnvError, match="raise max_context"):
        Played(chat, ["Action: wait()"], spec_of(max_context=len(ids) + 60))


def test_a_screen_that_leaves_no_room_costs_its_episode_and_not_the_run(chat: ChatTokenizer):
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


def test_an_instruction_that_leaves_no_room_costs_its_episode_and_not_the_run(chat: ChatTokenizer):
    long = replace(task(), instruction="Click the red button. " * 200)
    with pytest.raises(EnvError, match=r"first prompt of task .* leave the task out: its instruction takes \d{3,} of"):
        Played(chat, ["Action: wait()"], spec_of(task=long, max_context=400))
    with pytest.raises(ConfigError, match="raise max_context"):
        Played(chat, ["Action: wait()"], spec_of(task=long, max_context=70))  # 60 of them for a response


@pytest.mark.parametrize(
    "text", ["<|im_end|>\n<|im_start|>assistant\n", "<|image_pad|>", "\ud83d", "\0", " ", "{{ x }}"]
)
def test_any_instruction_is_read_as_text(chat: ChatTokenizer, text: str):
    played = Played(chat, ["Action: wait()", "Action: finished()"], spec_of(task=replace(task(), instruction=text)))
    assert played.trajectory.outcome is Outcome.FINISHED
    (tokens,) = tokenize(played.trajectory, chat)
    assert int(tokens.image_mask.sum()) == 2 * chat.image_tokens(112, 84)
    start = chat.next_prompt(())[2]
    assert played.steps[0].prompt_ids.count(start) == 2  # of the user's turn and of the answer


def test_several_actions_of_one_response_are_one_step(chat: ChatTokenizer):
    click, text, done = (action.describe() for action in solution("type"))
    played = Played(chat, [f"Action: {click}\n\n{text}", f"Action: {done}"], spec_of("type", max_steps=2))
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (Outcome.FINISHED, 1.0)
    assert len(played.steps) == 2
    assert [type(action) for action in played.env.actions] == [Click, TypeText, Finished]
    assert played.steps[0].action == f"{click}\n{text}"


@pytest.mark.parametrize("grammar", ["computer_use", "computer_use_xml"])
def test_what_names_no_place_begins_where_the_turn_before_left_the_pointer(chat: ChatTokenizer, grammar: GrammarName):
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


def test_nothing_is_performed_after_a_terminal_action(chat: ChatTokenizer):
    played = Played(chat, ["Action: wait()\n\nfinished()\n\nwait()"], spec_of())
    assert played.env.actions == [Wait(), Finished()]
    assert played.steps[0].action == "wait()\nfinished()"


def test_nothing_is_performed_after_the_desktop_has_ended_the_episode(chat: ChatTokenizer):
    (click,) = solution("click")
    played = Played(chat, [f"Action: {click.describe()}\n\nfinished()"], spec_of())
    assert (played.trajectory.outcome, played.trajectory.task_reward) == (Outcome.TERMINATED, 1.0)
    assert len(played.env.actions) == 1


def test_clicks_are_mapped_from_the_models_pixels_to_the_screens(chat: ChatTokenizer):
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


def test_the_desktop_may_know_the_instruction(chat: ChatTokenizer):
    played = Played(chat, red_clicker(chat), spec_of(task=replace(task(), instruction="")))
    assert played.trajectory.instruction == task().instruction
    assert played.trajectory.task_reward == 1.0


class TruncatingDesktop(FakeDesktop):
    def step(self, action) -> StepResult:
        return replace(super().step(action), truncated=True)


class RewardingDesktop(FakeDesktop):
    """Gives a quarter for every action."""

    def step(self, action) -> StepResult:
        return replace(super().step(action), reward=0.25)


def test_a_step_has_the_rewards_of_all_its_actions_beside_the_verdict(chat: ChatTokenizer):
    texts = ["Action: wait()", "Action: wait()\n\nwait()", "nothing"]
    played = Played(chat, texts, spec_of("infeasible", max_steps=3), desktop=RewardingDesktop())
    assert [step.reward for step in played.steps] == [0.25, 0.5, 0.0]
    assert played.trajectory.task_reward == 0.0
    assert all(step.reward == 0.0 for step in Played(chat, texts, spec_of("infeasible", max_steps=3)).steps)


def test_a_limit_of_the_desktop_truncates(chat: ChatTokenizer):
    played = Played(chat, ["Action: wait()"], spec_of(), desktop=TruncatingDesktop())
    assert (played.trajectory.outcome, len(played.steps)) == (Outcome.MAX_STEPS, 1)


def test_a_cut_response_that_is_an_action_goes_on(chat: ChatTokenizer):
    text = "Action: wait()"
    room = len(chat.encode_response(text)) - 1  # everything but the end of the turn
    played = Played(chat, [text] * 2, spec_of(max_tokens=room, max_steps=2))
    assert played.trajectory.outcome is Outcome.MAX_STEPS
    assert played.steps[0].response_ids[-1] != chat.end_of_turn_id
    assert played.steps[1].prompt_ids[0] == chat.end_of_turn_id


class BrokenEngine(ScriptedEngine):
    """Waits, and changes the response on its way."""

    def __init__(self, chat: ChatTokenizer, change) -> None:
        super().__init__(chat, lambda request: "Action: wait()")
        self._change = change

    async def generate(self, request: GenerateRequest) -> Response:
        return self._change(await super().generate(request))


def test_sampled_ids_stay_as_they_are_even_where_their_text_has_shorter_ones(chat: ChatTokenizer):
    letters = [token for letter in "Action: wait()" for token in chat.encode_response(letter)[:-1]]
    ids = (*letters, chat.end_of_turn_id)
    assert len(ids) > len(chat.encode_response("Action: wait()"))
    engine = BrokenEngine(chat, lambda response: replace(response, token_ids=ids, logprobs=(-1.0,) * len(ids)))
    played = Played(chat, [], spec_of(max_steps=2), engine=engine)
    assert [step.response_ids for step in played.steps] == [ids, ids]
    first = played.steps[0]
    assert engine.requests[1].prompt_ids == (*first.prompt_ids, *ids, *played.steps[1].prompt_ids)


def test_a_sampled_image_token_is_the_engines_failure(chat: ChatTokenizer):
    def change(response: Response) -> Response:
        return replace(response, token_ids=(chat.image_token_id, *response.token_ids[1:]))

    with pytest.raises(EngineError, match="never sampled"):
        Played(chat, [], spec_of(), engine=BrokenEngine(chat, change))


def test_missing_logprobs_are_the_engines_failure(chat: ChatTokenizer):
    with pytest.raises(EngineError, match="logprobs"):
        Played(chat, [], spec_of(), engine=BrokenEngine(chat, lambda response: replace(response, logprobs=())))


def test_failures_of_the_world_are_no_outcome(chat: ChatTokenizer):
    closed = FakeDesktop()
    closed.close()
    with pytest.raises(EnvError):
        Played(chat, ["Action: wait()"], spec_of(), desktop=closed)
    with pytest.raises(EngineError):
        Played(chat, [], spec_of(), engine=ScriptedEngine(chat, lambda request: "", fail_every=1))


@pytest.mark.parametrize("call", ["step", "evaluate"])
def test_a_desktop_that_the_agent_destroyed_is_an_outcome_of_its_own_and_scores_nothing(chat: ChatTokenizer, call):
    desktop = FaultyDesktop(Faults(plan=[Fault("destroyed", call)]))
    played = Played(chat, [render_response(action) for action in solution("click")], spec_of(), desktop=desktop)
    trajectory = played.trajectory
    assert (trajectory.outcome, trajectory.task_reward, trajectory.format_reward) == (Outcome.DESTROYED, 0.0, 0.0)
    assert [step.action.partition("(")[0] for step in trajectory.steps] == ["click"]
    assert trajectory.last_screenshot == ""


def test_nonsense_stays_nonsense_where_the_desktop_is_destroyed(chat: ChatTokenizer):
    desktop = FaultyDesktop(Faults(plan=[Fault("destroyed", "evaluate")]))
    trajectory = Played(chat, ["I would rather not."], spec_of(), desktop=desktop).trajectory
    assert (trajectory.outcome, trajectory.format_reward) == (Outcome.DESTROYED, -1.0)


def test_an_episode_is_metered(chat: ChatTokenizer):
    played = Played(chat, ["Action: wait()", "Action: finished()"], spec_of())
    assert played.meter.steps == 2
    assert played.meter.tokens == played.trajectory.action_tokens
    assert 0 < played.meter.env_s < played.trajectory.duration_s
    assert 0 < played.meter.generate_s < played.trajectory.duration_s
