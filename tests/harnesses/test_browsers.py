"""Playwright in the browser of an episode: it plays a page of MiniWoB++ by DevTools alone."""

from contextlib import closing
from pathlib import Path

import pytest

from arpo.agent.ui_tars import render_response
from arpo.envs.miniwob.env import MiniWobEnv
from arpo.envs.miniwob.tasks import miniwob_task
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.harness import Command
from arpo.rollout.settings import RolloutSettings
from arpo.types import Outcome
from tests.browser import needs_chromium
from tests.endpoint.episodes import check_record
from tests.harnesses.make import environment
from tests.inference.scripted import ScriptedEngine
from tests.rollout.test_harness import Lease, play

pytestmark = [pytest.mark.long, pytest.mark.browser, needs_chromium]
AGENT = Path(__file__).parents[2] / "experiments" / "foreign_loop" / "browser.py"
SETTINGS = RolloutSettings(group_size=2, max_steps=4, max_context=50_000, max_tokens=500, temperature=0.7)
SPEC = EpisodeSpec("0/0/0", miniwob_task("click-test", 1), 5, SETTINGS)


class PageLease(Lease):
    async def devtools(self):
        return self._env.devtools()


@pytest.mark.timeout(120)
def test_playwright_solves_a_page_by_devtools_and_its_record_is_that_of_the_engine(chats):
    if not (place := environment("playwright")).is_dir():
        pytest.skip("no environment of playwright: python -m tests.harnesses.make playwright")
    chat, heard = chats["plain"], []
    with closing(MiniWobEnv()) as env:

        def right(request):
            return render_response(chat.frame(168, 210).to_model(next(env.solve())))

        engine = ScriptedEngine(chat, right, change=lambda response: heard.append(response) or response)
        agent = Command(argv=[str(place / "bin" / "python"), str(AGENT)], devtools=True, limit_s=100)
        made = play(chat, agent, spec=SPEC, desktop=env, engine=engine, lease=PageLease)
    assert (made.outcome, made.task_reward) == (Outcome.FINISHED, 1.0)
    assert made.exchanges
    check_record(made, list(zip(engine.requests, heard, strict=True)), chat)
