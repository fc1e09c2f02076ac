"""Episodes of foreign agents: the record of the own loop, whatever an agent does, and failures that are no endings."""

import asyncio
import logging
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import psutil
import pytest

from arpo.agent.actions import Finished
from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import render_response
from arpo.endpoint.server import Endpoint
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.miniwob.env import MiniWobEnv
from arpo.envs.miniwob.tasks import miniwob_task
from arpo.envs.protocol import Execution
from arpo.errors import ConfigError, DesktopDestroyedError, EngineError, EnvError, HarnessError, RequestError
from arpo.host.processes import LABEL_VARIABLE
from arpo.inference.hf import HfEngine
from arpo.models.tokenization import check_exchanges, tokenize
from arpo.rollout import harness
from arpo.rollout.episode import EpisodeSpec, Meter, Responder, at_once, run_episode
from arpo.rollout.harness import Assignment, Command, Function, HarnessPlayer
from arpo.rollout.runtime import sampling_fingerprint
from arpo.rollout.settings import RolloutSettings
from arpo.types import Outcome
from tests.browser import needs_chromium
from tests.inference.scripted import ScriptedEngine
from tests.rollout import agents
from tests.rollout.support import DirectEnv, red_clicker

SETTINGS = RolloutSettings(group_size=2, max_steps=4, max_context=4000, max_tokens=60, temperature=0.7)
TASK = fake_tasks(4, seed=1, kinds=["sequence"])[0]
SPEC = EpisodeSpec("0/0/0", TASK, 5, SETTINGS)
OWN_LOOP = Command(argv=[sys.executable, str(agents.OWN_LOOP)])


def function(name, **options):
    return Function(function=f"tests.rollout.agents.{name}", **options)


class Lease(DirectEnv):
    async def look(self):
        return self._env.look() if hasattr(self._env, "look") else None

    async def execute(self, command, *, shell):
        return self._env.execute(command, shell=shell) if hasattr(self._env, "execute") else None


def play(chat, agent, *, spec=SPEC, desktop=None, engine=None, meter=None, endpoint=None, lease=Lease):
    """Return the trajectory of an agent's episode, checked as a runner checks it."""
    made = engine or ScriptedEngine(chat, lambda request: red_clicker(chat)(request) if request.images else "Well.")
    responder = Responder(made, chat, Prompt.compact())

    async def played():
        served = endpoint or Endpoint()
        await served.start()
        player = HarnessPlayer(agent, served, responder)
        try:
            env = lease(desktop or FakeDesktop())
            return await player(spec, env, responder, meter or Meter(), at_once)
        finally:
            await served.close()

    agents.SEEN.clear()
    trajectory = asyncio.run(played())
    check_exchanges(trajectory, chat)
    return trajectory


def own(chat, *, spec=SPEC, desktop=None, engine=None):
    responder = Responder(engine or ScriptedEngine(chat, red_clicker(chat)), chat, Prompt.compact())
    return asyncio.run(run_episode(spec, DirectEnv(desktop or FakeDesktop()), responder, Meter()))


def assert_same_record(here, there, chat):
    for one, other in zip(here.exchanges, there.exchanges, strict=True):
        assert (one.parent, one.added_ids, one.pictures) == (other.parent, other.added_ids, other.pictures)
        assert one.response_ids == other.response_ids
    assert there.has_a_step_an_exchange
    assert [replace(step, exchange=None) for step in here.steps] == [
        replace(step, exchange=None, parse_error="") for step in there.steps
    ]
    assert (here.outcome, here.task_reward, here.screenshots) == (there.outcome, there.task_reward, there.screenshots)
    assert [len(each) for each in tokenize(here, chat)] == [len(each) for each in tokenize(there, chat)]


@pytest.mark.parametrize("kind", ["click", "sequence"])
def test_the_own_loop_over_http_has_the_record_of_the_own_loop_in_process(chat, kind):
    spec = replace(SPEC, task=fake_tasks(1, seed=3, kinds=[kind])[0])
    assert_same_record(own(chat, spec=spec), play(chat, OWN_LOOP, spec=spec), chat)


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("page", ["click-collapsible", "enter-text", "login-user"])
def test_on_web_pages_too_the_own_loop_over_http_has_the_record_of_the_own_loop_in_process(chat, page):
    spec = replace(SPEC, task=miniwob_task(page, 1001), settings=replace(SETTINGS, max_steps=8))
    with closing(MiniWobEnv()) as env:
        shown, said = env.reset(spec.task), []
        frame = chat.frame(shown.width, shown.height)
        for action in env.solve():
            said.append(render_response(frame.to_model(action)))
            env.step(action)
        solver = ScriptedEngine(chat, lambda request: said[len(request.images) - 1])
        here, there = (
            by(desktop=env)
            for by in (
                partial(own, chat, spec=spec, engine=solver),
                partial(play, chat, OWN_LOOP, spec=spec, engine=solver),
            )
        )
    assert_same_record(here, there, chat)
    assert (here.task_reward, len(here.steps)) == (1.0, len(said))


@pytest.mark.browser
@needs_chromium
def test_osworlds_agent_with_a_tiny_policy_solves_a_page_and_forks_where_its_window_moves(chat):
    """Five screenshots are in the window: with the sixth the first leaves it, and each context is a new one."""
    agent = Command(argv=[sys.executable, "-S", "-E", str(agents.UI_TARS), "tiny"])
    spec = replace(SPEC, task=miniwob_task("click-test-2", 1001), settings=replace(SETTINGS, max_steps=8))
    with closing(MiniWobEnv()) as env:

        def respond(request):
            if len(engine.requests) == 2:
                return "I would rather not."
            waits = len(engine.requests) < 8
            return "Action: wait()" if waits else render_response(chat.frame(168, 210).to_model(next(env.solve())))

        engine = ScriptedEngine(chat, respond)
        made = play(chat, agent, spec=spec, desktop=env, engine=engine)
    assert (made.outcome, made.task_reward, len(made.steps)) == (Outcome.TERMINATED, 1.0, 7)
    assert [each.parent for each in made.exchanges] == [None, 0, 0, 2, 3, 4, None, None]
    assert [len(request.images) for request in engine.requests] == [1, 2, 2, 3, 4, 5, 5, 5]


@pytest.mark.slow
def test_a_greedy_model_says_the_same_over_http_and_in_process_and_scores_the_record_alike(chat, tiny_model):
    spec = replace(SPEC, temperature=0.0)
    with_model = [HfEngine(tiny_model) for _ in range(2)]
    here, there = own(chat, spec=spec, engine=with_model[0]), play(chat, OWN_LOOP, spec=spec, engine=with_model[1])
    assert [each.response_ids for each in here.exchanges] == [each.response_ids for each in there.exchanges]
    assert here.exchanges[0].sampler_logprobs == there.exchanges[0].sampler_logprobs


def test_a_response_that_is_no_action_ends_the_own_loop_over_http_as_in_process(chat):
    nonsense = ScriptedEngine(chat, lambda request: "I would rather not.")
    here, there = own(chat, engine=nonsense), play(chat, OWN_LOOP, engine=nonsense)
    assert here.format_reward == there.format_reward == -1.0
    assert there.steps == ()


# --- endings --------------------------------------------------------------------------------------------------------


def test_an_agent_that_has_asked_for_nothing_gives_no_reward(chat):
    with pytest.raises(HarnessError, match="asked the model for nothing"):
        play(chat, function("silent"))


def test_an_agent_that_dies_is_judged_as_the_desktop_stands(chat, caplog):
    with caplog.at_level(logging.INFO):
        trajectory = play(chat, function("dies"))
    assert (trajectory.outcome, trajectory.task_reward, trajectory.steps) == (Outcome.FINISHED, 0.0, ())
    assert "RuntimeError: out of ideas" in caplog.text


@pytest.mark.parametrize(("name", "reason"), [("exits", "I have finished."), ("cancels_itself", "cancelled itself")])
def test_an_agent_that_ends_as_programs_do_ends_its_own_episode_alone(chat, caplog, name, reason):
    with caplog.at_level(logging.INFO):
        assert play(chat, function(name)).outcome is Outcome.FINISHED
    assert reason in caplog.text


def test_a_program_that_cannot_be_started_gives_no_reward(chat):
    spec = replace(SPEC, task=replace(TASK, instruction="x" * 200_000))  # longer than a variable may be
    with pytest.raises(HarnessError, match="cannot be started"):
        play(chat, OWN_LOOP, spec=spec)


def test_an_agent_without_an_end_is_ended_and_judged(chat):
    trajectory = play(chat, function("hangs", limit_s=0.5))
    assert (trajectory.outcome, trajectory.task_reward) == (Outcome.MAX_STEPS, 0.0)


@pytest.mark.timeout(30)
def test_a_function_that_cannot_be_cancelled_holds_up_neither_its_episode_nor_the_end_of_the_loop(
    chat, caplog, monkeypatch
):
    monkeypatch.setattr(harness, "LEAVING_S", 0.2)
    assert play(chat, function("stays", limit_s=0.5)).outcome is Outcome.MAX_STEPS
    assert "agents.stays goes on after its episode: let asyncio.CancelledError pass" in caplog.text


def test_the_desktop_performs_as_many_steps_as_there_are_and_refuses_the_rest(chat):
    trajectory = play(chat, function("acts"))
    assert (trajectory.outcome, len(trajectory.steps)) == (Outcome.MAX_STEPS, 4)
    assert agents.SEEN[:-1] == [200] * 4 + [409]
    assert agents.SEEN[-1]["steps_left"] == 0
    assert agents.SEEN[-1]["ended"]
    assert [step.exchange for step in trajectory.steps] == [0, None, None, None]


def test_an_engine_that_fails_is_no_ending_and_the_agent_is_ended(chat):
    with pytest.raises(EngineError, match="scripted to fail"):
        play(chat, function("insists"), engine=ScriptedEngine(chat, lambda request: "Well.", fail_every=3))
    assert set(agents.SEEN[2:]) <= {503, 409}


def test_a_desktop_that_fails_is_no_ending(chat):
    class Broken(FakeDesktop):
        def step(self, action):
            raise EnvError("step", "the screen is gone")

    with pytest.raises(EnvError, match="the screen is gone"):
        play(chat, function("acts"), desktop=Broken())


def test_an_agent_may_ask_for_as_many_answers_as_there_are_and_is_judged_all_the_same(chat):
    trajectory = play(chat, function("insists", max_answers=3))
    assert len(trajectory.exchanges) == 3
    assert set(agents.SEEN[3:]) == {429}


def test_an_agent_that_sends_more_pictures_than_the_engine_takes_is_refused_and_judged(chat):
    trajectory = play(chat, function("collects", max_pictures=2))
    assert [reply.status_code for reply in agents.SEEN] == [200, 200, 400, 400]
    assert "hold 3 pictures, more than 2 (harness.max_pictures): leave" in agents.SEEN[2].json()["error"]["message"]
    assert (len(trajectory.exchanges), trajectory.task_reward) == (2, 0.0)


def test_a_request_that_an_engine_refuses_ends_no_episode_and_voids_no_zero(chat):
    def refuse(request):
        if len(request.images) > 2:
            raise RequestError("the picture is larger than the encoder's cache")
        return "Well."

    endpoint = Endpoint()
    trajectory = play(chat, function("collects"), engine=ScriptedEngine(chat, refuse), endpoint=endpoint)
    assert [reply.status_code for reply in agents.SEEN] == [200, 200, 400, 400]
    assert endpoint.counters()["harness/refused_by_engine"] == 2
    assert "does not take this: the picture is larger" in agents.SEEN[2].json()["error"]["message"]
    assert (len(trajectory.exchanges), trajectory.task_reward) == (2, 0.0)


def test_options_without_effect_are_refused_by_name_where_that_is_wanted(chat):
    assert len(play(chat, function("chooses")).exchanges) == 3
    assert len(play(chat, function("chooses", strict=True)).exchanges) == 1
    one, other = (reply.json()["error"] for reply in agents.SEEN)
    assert [reply.status_code for reply in agents.SEEN] == [400, 400]
    assert (one["type"], other["type"], other.keys()) == (*["invalid_request_error"] * 2, {"type", "message"})
    assert "run's: seed, temperature; leave out, or set harness.strict=false" in one["message"]
    assert ": top_k;" in other["message"]


# --- the desktop ----------------------------------------------------------------------------------------------------


def test_bad_requests_to_the_desktop_are_refused_and_do_nothing(chat):
    trajectory = play(chat, function("misbehaves"))
    assert (agents.SEEN, trajectory.steps, trajectory.format_reward) == ([400] * 7 + [413], (), -1.0)


def test_nothing_is_done_on_a_desktop_that_is_judged_however_an_agent_leaves(chat):
    class Slow(Lease):
        async def step(self, action):
            agents.SEEN.append("step")
            await asyncio.sleep(0.3)
            return await super().step(action)

        async def evaluate(self):
            agents.SEEN.append("evaluate")
            await asyncio.sleep(1.0)
            return await super().evaluate()

    trajectory = play(chat, function("leaves_in_the_middle"), lease=Slow)
    assert agents.SEEN == ["step", "evaluate"]
    assert [step.action for step in trajectory.steps] == ["wait()"]


def test_a_position_outside_of_the_screen_is_one_at_its_edge(chat):
    trajectory = play(chat, function("clicks_far_away"))
    assert [step.action for step in trajectory.steps] == ["click(start_box='(111,0)')"]


def test_a_desktop_that_is_gone_when_it_is_looked_at_is_worth_nothing(chat):
    class Gone(FakeDesktop):
        def execute(self, command, *, shell):
            raise AssertionError

        def look(self):
            raise DesktopDestroyedError("it took all memory")

    trajectory = play(chat, function("looks_at_what_is_gone"), desktop=Gone())
    assert (agents.SEEN, trajectory.outcome) == ([200, True], Outcome.DESTROYED)


def test_a_desktop_that_runs_programs_does_so_for_the_key_of_the_episode(chat):
    class Shell(FakeDesktop):
        def execute(self, command, *, shell):
            self.step(Finished())
            return Execution(" ".join(command[1:]))

        def look(self):
            return self._observe()

    trajectory = play(chat, function("looks"), desktop=Shell())
    first, again, status, ran = agents.SEEN
    assert (status, ran["output"], ran["returncode"]) == (200, "hi", 0)
    assert first[:4] == again[:4] == b"\x89PNG"
    assert [step.action for step in trajectory.steps] == ["execute(\"['echo', 'hi']\")"]
    play(chat, function("looks"))
    assert agents.SEEN[2] == 404


def test_an_agent_that_speaks_mcp_looks_and_acts(chat):
    trajectory = play(chat, function("speaks_mcp"))
    task, picture, state = agents.SEEN
    assert TASK.instruction in task.text
    assert (picture.type, picture.mime_type) == ("image", "image/png")
    assert '"steps_left":3' in state.text
    assert [step.action for step in trajectory.steps] == ["wait()"]


# --- programs -------------------------------------------------------------------------------------------------------


def test_a_program_is_ended_with_its_children_and_gets_no_variable_of_ours_but_the_label(
    chat, monkeypatch, caplog, tmp_path
):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv(LABEL_VARIABLE, "1-2")  # by which a watchdog finds it, where this process is killed
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(psutil.pids())
    monkeypatch.setattr(harness, "SILENCE_S", 0.2)
    variables = {"PYTHONPATH": str(agents.OWN_LOOP.parents[2])}
    program = Command(argv=[sys.executable, "-m", "tests.rollout.agents"], variables=variables)
    with caplog.at_level(logging.INFO):
        trajectory = play(chat, program)
    assert trajectory.outcome is Outcome.FINISHED
    assert "it ended with 3" in caplog.text
    assert "ARPO_TASK" in caplog.text
    assert "HF_TOKEN" not in caplog.text
    assert LABEL_VARIABLE in caplog.text
    left = [each for each in psutil.process_iter(["cmdline"]) if each.pid not in before]
    assert not any("time.sleep(613)" in word for each in left for word in each.info["cmdline"] or ())
    (escaped,) = (each for each in left if each.info["cmdline"] == ["sleep", "61"])
    escaped.kill()  # nothing shows it to be of the program, and nothing waits for it
    assert not list(tmp_path.iterdir())


def test_a_program_that_prints_without_end_waits_and_its_last_words_are_kept(tmp_path):
    flood = "import os\nfor _ in range(32): os.write(1, b'x' * 2**20)\nos.write(1, b'\\nwell')\nos._exit(3)"
    given = Assignment("t", "do", "http://127.0.0.1:1", "k", 1, 1, tmp_path)
    began = time.monotonic()
    assert asyncio.run(Command(argv=[sys.executable, "-S", "-c", flood]).play(given)) == "it ended with 3: well"
    assert time.monotonic() - began > 0.5  # some 20 MB a second


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Command(argv=[]), "names no program|no program of the first name"),
        (lambda: Command(argv=["no-such-program"]), "no program of the first name"),
        (lambda: Command(argv=["true"], directory="/no/such"), "is no directory"),
        (lambda: Function(function="tests.rollout.agents.absent"), "is no `async def`"),
        (lambda: Function(function="x.y", aliases=["policy", "boss"]), "there is no boss"),
    ],
)
def test_what_cannot_be_started_is_refused_before_a_run(make, problem):
    with pytest.raises(ConfigError, match=problem):
        make()


def test_a_stored_episode_stands_for_one_of_the_same_agent_alone(chat):
    def digest(agent):
        return sampling_fingerprint(SPEC, Prompt.compact(), "m", agent)

    assert (
        len({digest(None), digest(OWN_LOOP), digest(function("acts")), digest(function("acts", max_answers=9))}) == 4
    )
    assert harness.EPISODE_VARIABLE not in OWN_LOOP.settings()
