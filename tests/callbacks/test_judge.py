"""The outcome judge: what it is shown, how its answers are read, and how they go with the graders'."""

from collections.abc import Callable

import pytest

from arpo.agent.prompt import Prompt
from arpo.callbacks.judge import OutcomeJudge, agreement, verdict_of
from arpo.envs.fake import fake_tasks
from arpo.errors import EngineError
from arpo.evaluation.evaluate import roll_out
from arpo.evaluation.settings import EvaluationSettings
from arpo.inference.engine import GenerateRequest
from arpo.inference.hf import HfEngine
from arpo.rollout.hooks import RolloutCallback
from arpo.types import Trajectory, screenshot_key
from tests.callbacks.support import fit
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import moody_clicker

PROMPT = Prompt("", "Was this done: {instruction}? Status: success or failure", screenshot_apart=False)


class Seen(RolloutCallback):
    """Keeps what was collected."""

    def __init__(self) -> None:
        self.trajectories: dict[str, Trajectory] = {}

    def on_rollout_end(self, trainer, module, batch) -> None:
        found = [trajectory for group in batch.groups for trajectory in group.trajectories]
        self.trajectories |= {trajectory.id: trajectory for trajectory in found}


def judging(chat, answer: Callable[[GenerateRequest], str]) -> ScriptedEngine:
    """An engine that clicks about, and answers a judge's questions with `answer`."""
    clicks = moody_clicker(chat)

    def respond(request: GenerateRequest) -> str:
        return answer(request) if request.conversation.startswith("judge/") else clicks(request)

    return ScriptedEngine(chat, respond)


def judged(tmp_path, make_collector, engine, judge, **settings) -> tuple[dict[str, float], dict[str, Trajectory]]:
    """What one iteration with a judge logs, and the episodes of its batch by id."""
    seen = Seen()
    collector = make_collector(engine=engine, start=False, **settings)
    metrics = fit(tmp_path, collector, [seen, judge], iterations=1).callback_metrics
    return {name: float(value) for name, value in metrics.items()}, seen.trajectories


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("Status: success", True),
        ("It was opened.\nStatus: FAILURE.", False),
        ('"status": "success"', True),
        ("Status: success or failure? Status: failure", False),
        ("Status: successful", None),
        ("success", None),
        ("click(start_box='(1,2)')", None),
        ("", None),
    ],
)
def test_the_last_status_of_an_answer_is_its_verdict(answer, verdict):
    assert verdict_of(answer) is verdict


@pytest.mark.parametrize(
    ("said", "graded", "metrics"),
    [
        # Six verdicts: two hits, one false alarm, two misses, one true failure; two answers say nothing.
        (
            [True, True, True, False, False, False, None, None],
            [True, True, False, True, True, False, True, False],
            {"answered": 6 / 8, "agreement": 3 / 6, "precision": 2 / 3, "recall": 2 / 4},
        ),
        ([None, None], [True, False], {"answered": 0.0}),
        ([False], [False], {"answered": 1.0, "agreement": 1.0}),
        ([], [], {}),
    ],
)
def test_agreement_is_of_verdicts_and_what_has_nothing_to_be_measured_of_is_left_out(said, graded, metrics):
    assert agreement(said, graded) == {f"judge/{name}": value for name, value in metrics.items()}


def test_a_judge_that_sees_success_everywhere_has_all_the_recall_and_changes_no_reward(tmp_path, make_collector, chat):
    engine = judging(chat, lambda request: "Status: success")
    metrics, episodes = judged(tmp_path, make_collector, engine, OutcomeJudge(PROMPT, episodes=99))
    share = sum(each.task_reward > 0.5 for each in episodes.values()) / len(episodes)
    assert 0 < share < 1
    assert (metrics["judge/answered"], metrics["judge/recall"]) == (1.0, 1.0)
    assert metrics["judge/precision"] == metrics["judge/agreement"] == pytest.approx(share)
    asked = [request for request in engine.requests if request.conversation.startswith("judge/")]
    assert {request.conversation for request in asked} == {f"judge/{id}" for id in episodes}
    assert all(request.sampling.temperature == 0 for request in asked)


def out_of_memory(request):
    raise EngineError("out of memory")


@pytest.mark.parametrize("answer", [lambda request: "I would rather click.", out_of_memory], ids=["garbage", "none"])
def test_a_sample_of_the_batch_is_judged_and_garbage_is_no_verdict(tmp_path, make_collector, chat, answer):
    engine = judging(chat, answer)
    metrics, episodes = judged(tmp_path, make_collector, engine, OutcomeJudge(PROMPT, episodes=3))
    asked = [request for request in engine.requests if request.conversation.startswith("judge/")]
    assert (len(asked), len(episodes)) == (3, 8)
    assert {name: value for name, value in metrics.items() if name.startswith("judge/")} == {"judge/answered": 0}


@pytest.mark.parametrize(("settings", "screenshots", "most"), [({}, 9, 4), ({}, 2, 2), ({"image_window": 1}, 9, 1)])
def test_it_is_shown_the_last_screenshots_that_the_engine_takes(
    tmp_path, make_collector, chat, settings, screenshots, most
):
    engine = judging(chat, lambda request: "Status: success")
    judge = OutcomeJudge(PROMPT, episodes=99, screenshots=screenshots, max_tokens=20)
    _, episodes = judged(tmp_path, make_collector, engine, judge, **settings)
    shown = {request.conversation.removeprefix("judge/"): request for request in engine.requests}
    longest = 0
    for name, episode in episodes.items():
        keys = [step.screenshot for step in episode.steps] + [episode.last_screenshot] * bool(episode.last_screenshot)
        assert [screenshot_key(png) for png in shown[name].images] == keys[-most:]
        assert shown[name].prompt_ids.count(chat.image_token_id) == len(shown[name].images)
        assert episode.instruction in chat.decode(shown[name].prompt_ids)
        longest = max(longest, len(keys))
    assert longest > most or (most == 4 and longest == 5)


def test_where_the_context_has_no_room_for_all_it_is_shown_fewer(tmp_path, make_collector, chat):
    seen, collector = Seen(), make_collector(start=False)
    fit(tmp_path, collector, [seen], iterations=1)
    long = [episode for episode in seen.trajectories.values() if len(episode.steps) > 1]
    assert long
    for episode in long:

        def shown(max_tokens, episode=episode) -> GenerateRequest:
            return OutcomeJudge(PROMPT, screenshots=2, max_tokens=max_tokens).question(collector.runtime, episode)

        size = (episode.steps[0].width, episode.steps[0].height)
        room = 2000 - chat.context_length(shown(1).prompt_ids, [size, size])
        both, one, no_room_at_all = shown(room).images, shown(room + 1).images, shown(2000).images
        assert len(both) == 2
        assert one == no_room_at_all == both[1:]


def test_the_tiny_policy_can_be_asked_about_its_own_episodes_and_has_not_learned_to_answer(
    make_collector, tiny_model, caplog
):
    runtime = make_collector(make_engine=lambda: HfEngine(tiny_model, max_model_len=2000), max_tokens=8).runtime
    settings = EvaluationSettings(rollouts_per_task=2, temperature=1.0)
    episodes = [episode for row in roll_out(runtime, fake_tasks(2), settings, name="own") for episode in row]
    said = runtime.run(OutcomeJudge(PROMPT, max_tokens=8)._verdicts(runtime, episodes))
    assert said == [None] * 4
    assert "gives no verdict" not in caplog.text  # the engine took the questions
