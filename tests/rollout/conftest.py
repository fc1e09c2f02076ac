"""The tokenizer of the tiny model, and collectors that are closed whatever a test does."""

import pytest

from arpo.agent.prompt import Prompt
from arpo.envs.fake import FakeDesktop
from arpo.envs.pool.pool import EnvPool
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from tests.inference.loop import pytest_pyfunc_call  # noqa: F401 - which runs tests that are coroutines
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import ListedCollector, moody_clicker


@pytest.fixture(scope="session")
def chat(tiny_model):
    return ChatTokenizer(tiny_model)


COMPACT = Prompt.compact()


@pytest.fixture
def make_collector(chat, tmp_path):
    collectors = []
    tiny_chat = chat

    def make(
        *,
        engine=None,
        make_engine=lambda: ScriptedEngine(tiny_chat, moody_clicker(tiny_chat)),
        make_env=FakeDesktop,
        make_pool=EnvPool,
        size=3,
        step_timeout_s=5.0,
        directory="trajectories",
        start=True,
        chat=tiny_chat,
        prompt=COMPACT,
        harness=None,
        **settings,
    ):
        numbers = {"group_size": 4, "max_steps": 4, "max_tokens": 40, "max_context": 2000} | settings
        runtime = RolloutRuntime(
            make_engine if engine is None else lambda: engine,
            make_pool(make_env, size=size, backend="thread", reset_timeout_s=5.0, step_timeout_s=step_timeout_s),
            chat,
            prompt,
            TrajectoryStore(tmp_path / directory),
            RolloutSettings(**numbers),
            harness=harness,
        )
        collector = ListedCollector(runtime)
        collectors.append(collector)
        if start:
            runtime.start()
        return collector

    yield make
    for collector in collectors:
        collector.close()


@pytest.fixture
def runtime(make_collector):
    return make_collector(start=False).runtime
