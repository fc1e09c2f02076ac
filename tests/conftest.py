"""What every test shares: one thread, no network, shapes checked at run time, and one tiny Qwen2.5-VL."""

import gc
import os
import signal
import sys

# A shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(20_000)  # imports make millions of objects, which collections of garbage look at in vain
# Before torch is imported: threads of several libraries that spin against each other make two cores ten times slower.
for name, value in {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TORCH_COMPILE_DISABLE": "1",
}.items():
    os.environ.setdefault(name, value)

from arpo.host.environment import spare_loopback  # noqa: E402

spare_loopback()  # servers of tests, whatever proxies the shell has

from collections import defaultdict  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from importlib import import_module  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import hydra  # noqa: E402
import hypothesis  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from beartype import BeartypeConf, beartype  # noqa: E402
from hydra.core.global_hydra import GlobalHydra  # noqa: E402
from xdist.scheduler import LoadFileScheduling  # noqa: E402

from tests.composed import remember_parts, remembered  # noqa: E402
from tests.forks import Forks  # noqa: E402

hypothesis.settings.register_profile("quick", max_examples=40, deadline=None)
hypothesis.settings.load_profile("quick")

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""Takes an integer where a float is wanted, as Python and mypy do."""
jaxtyping.install_import_hook(["arpo.algorithms", "arpo.models"], "tests.conftest.typechecker")


def words_of(name: str | None = None, overrides: Sequence[str] = (), **options: bool) -> tuple[object, ...]:
    return (str(GlobalHydra.instance().config_loader().get_search_path()), name, *overrides, *options.items())


remember_parts()
hydra.compose = remembered(hydra.compose, words_of)  # a thousand tests look at a configuration

pytest.register_assert_rewrite("tests.integration.runs")  # its assertions say what they found

TINY_CORPUS = (
    "Action: click(start_box='(10,20)')",
    "Action: click(start_box='(100,42)')",
    "Action: left_double(start_box='(35,60)')",
    "Action: type(content='hello world')",
    "Action: hotkey(key='ctrl c')",
    "Action: scroll(start_box='(56,70)', direction='down')",
    "Action: wait()",
    "Action: finished()",
    "Action: finished(content='done')",
    "Thought: I click the button.\nAction: click(start_box='(7,8)')",
    "Click on the Save button.",
    "Type the word hello into the text field and press Submit.",
    "You are a GUI agent. You are given a task and your action history, with screenshots.",
)


TOGETHER = {
    f"tests/{file}.py": scope
    for scope, files in {
        "vllm": "inference/test_contract inference/test_one_copy inference/test_vllm inference/test_adapter "
        "integration/test_shared_weights",
        "ray": "inference/test_fleet inference/test_fleet_sync inference/test_fleet_faults",
        "forks": "invariant/test_ranks invariant/test_resuming callbacks/test_weight_sync rollout/test_hooks "
        "run/test_wrong_commands apps/test_new",
        "clients": "endpoint/test_server endpoint/test_replies",
    }.items()
    for file in files.split()
}
"""Files of one process of pytest, as each process would import vLLM, start Ray or import what is forked anew."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    scheduler = LoadFileScheduling(config, log)
    split = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: TOGETHER.get(split(nodeid), split(nodeid))
    return scheduler


SECONDS = {"slow": 20.0, "engine": 6.0, "ray": 6.0, "docker": 4.0, "browser": 2.0}
"""About how long a test with a mark takes; one without any takes about 0.1."""


@pytest.hookimpl(trylast=True)  # after the choice of marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let files start first that take longest: at the end they would leave processes of pytest idle."""
    longest: dict[Path, float] = defaultdict(float)
    whole: dict[Path, float] = defaultdict(float)
    for item in items:
        for mark in item.iter_markers("timeout"):
            longest[item.path] = max(longest[item.path], mark.args[0])
        whole[item.path] += max([0.1, *(SECONDS.get(mark.name, 0.0) for mark in item.iter_markers())])
    items.sort(key=lambda item: (-longest[item.path], -whole[item.path], item.path))


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at what was imported: every engine that closes asks for one."""
    gc.freeze()
    if loaded := sys.modules.get("transformers.configuration_utils"):
        # Each load of a model writes it out for a line of a log, which takes as long as all the rest of a tiny one.
        loaded.PreTrainedConfig.__repr__ = object.__repr__


def tiny(family: str) -> Callable[[pytest.TempPathFactory], Path]:
    @pytest.fixture(scope="session")
    def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A directory with a random model of 0.7 to 0.9 million parameters: 20 tokens a 112 x 140 screenshot."""
        make_tiny = import_module(f"arpo.models.families.{family}").make_tiny
        # 600 words in an embedding of 640 rows: like the real model, it has ids that mean nothing.
        made: Path = make_tiny(tmp_path_factory.mktemp(family), corpus=TINY_CORPUS * 4, words=600)
        return made

    return directory


tiny_model, tiny_qwen3, tiny_qwen35 = tiny("qwen2_5_vl"), tiny("qwen3_vl"), tiny("qwen3_5")


@pytest.fixture(params=["tiny_model", "tiny_qwen3", pytest.param("tiny_qwen35", marks=pytest.mark.long)])
def each_tiny(request: pytest.FixtureRequest) -> Path:
    """The tiny model of each family."""
    directory: Path = request.getfixturevalue(request.param)
    return directory


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes that have imported what a run imports, which takes six seconds."""
    modules = ("arpo.run.train", "arpo.inference.vllm", "arpo.modules.grpo", "arpo.run.loggers")
    with Forks(modules, tmp_path_factory.mktemp("forks")) as processes:
        yield processes


INSTANT_VENV = """#!/bin/sh
[ "$1 $2 $3" = "-m venv --clear" ] || exit 1
rm -r "$4"; mkdir -p "$4/bin"; : > "$4/bin/python"; echo "version = 3.11.7" > "$4/pyvenv.cfg"
"""


@pytest.fixture
def instant_venv(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose `-m venv --clear DIRECTORY` takes no time, and leaves what our set-up looks for."""
    python = tmp_path_factory.mktemp("python") / "python"
    python.write_text(INSTANT_VENV)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
