"""What the pages tell a person to type and to look at exists: commands, overrides, files, links, messages."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import hydra
import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from arpo.__main__ import RENAMED
from arpo.apps.comparison.command import parser as compare_parser
from arpo.apps.merge import parser as merge_parser
from arpo.apps.tasks import parser as tasks_parser
from arpo.apps.viewer.command import parser as view_parser
from arpo.errors import ArpoError
from arpo.run.arguments import check_arguments
from arpo.run.build import build, compose, register_resolvers

ROOT = Path(__file__).parent.parent
STUDIES = ROOT / "experiments"
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = sorted([*TOP, *ROOT.glob("docs/*.md"), *STUDIES.glob("**/*.md")])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
HARMLESS = ("export", "source", "tensorboard")
NOT_TYPED = (ArpoError, AssertionError, HydraException, OmegaConfBaseException, SystemExit)
"""What `check_command` raises of a command that cannot be typed."""
FOREIGN = ("Could not", "mismatched input")
"""Beginnings of messages that Hydra says, not we."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of one language; a block inside a list is indented."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """Every command line of a page's shell blocks, and every `python …` or `make …` in its running text."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    inline = re.findall(
        r"`((?:python|make) [^`…]*)`", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    )
    return [words for line in [*lines, *inline] if (words := shlex.split(line, comments=True))]


ALL = {relative(page): commands(page) for page in PAGES}


def jobs(arguments: list[str]) -> list[list[str]]:
    """The overrides of every run that a command line starts."""
    multirun = "-m" in arguments
    overrides = [argument for argument in arguments if not argument.startswith("-") and argument != "job"]
    if not multirun:
        return [overrides]
    parsed = OverridesParser.create().parse_overrides(overrides)
    return BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]


OF_OTHERS = {"LoRARequest"}
"""Classes of libraries that the architecture names."""


def check_composes(script: str, arguments: list[str]) -> int:
    """Check the jobs of a command, those that differ in their seed alone once, and tell how many they are."""
    split = jobs(arguments)
    for job in split:
        check_job(script, tuple(re.sub(r"^seed=\d+$", "seed=0", word) for word in job))
    return len(split)


@cache
def check_job(script: str, job: tuple[str, ...]) -> None:
    register_resolvers()
    places = ["paths.run_dir=run", *([] if any("model.path=" in word for word in job) else ["model.path=model"])]
    if script == "evaluate.py" and not any(word.startswith("checkpoint=") for word in job):
        places.append("checkpoint=somewhere")
    with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = hydra.compose(script.removesuffix(".py"), [*places, *job])
    check_arguments(cfg)


def check_tool(arguments: list[str]) -> None:
    scripts = {"plan": "plan", "rehearse": "train.py", "train": "train.py", "evaluate": "evaluate.py"}
    if arguments and arguments[0] in scripts:
        check_composes(scripts[arguments[0]], arguments[1:])
    elif arguments[:1] == ["compare"]:
        assert compare_parser().parse_args(arguments[1:]).runs, f"python -m arpo compare knows no {arguments[1:]}"
    elif arguments[:1] == ["merge"]:
        assert merge_parser().parse_args(arguments[1:]).policies, f"python -m arpo merge knows no {arguments[1:]}"
    elif arguments[:1] == ["tasks"]:
        asked = tasks_parser().parse_intermixed_args(arguments[1:])
        certified = asked.what == "certify"  # names of tasks stand among its words
        check_composes("train.py", [word for word in asked.words if "=" in word or not certified])
    elif arguments[:1] == ["view"]:
        view_parser().parse_args(arguments[1:])
    elif arguments[:1] in (["episodes"], *([word] for word in RENAMED)):
        assert arguments[2:] in (["--to", "parquet"], ["--to", "store"]), (
            f"python -m arpo episodes knows no {arguments[2:]}"
        )
    else:
        assert arguments in ([], ["doctor"], ["doctor", "--look"], ["watch"]), f"python -m arpo knows no {arguments}"


def check_command(words: list[str]) -> None:
    program, *arguments = words
    if program == "make":
        targets = [word for word in arguments if "=" not in word]
        assert targets, words
        assert set(targets) <= TARGETS, f"make has no target {set(targets) - TARGETS}"
        for given in (word.removeprefix("ARGS=") for word in arguments if word.startswith("ARGS=")):
            if targets == ["desktop"]:
                images = (ROOT / "docker" / "build_image.sh").read_text(encoding="utf-8")
                assert f"\n    {given}) " in images, f"docker/build_image.sh knows no image {given}"
            else:
                check_composes("train.py", shlex.split(given))
    elif arguments[:2] == ["-m", "arpo"]:
        check_tool(arguments[2:])
    elif arguments[:1] == ["-m"]:
        assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").is_file(), f"there is no {arguments[1]}"
    elif program == "python":
        script, *rest = arguments
        assert (ROOT / script).is_file(), f"there is no {script}"
        if script in ("train.py", "evaluate.py"):
            check_composes(script, rest)
        else:
            ast.parse((ROOT / script).read_text(encoding="utf-8"))
    else:
        assert program in HARMLESS, f"nobody knows the command {program!r}"


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.long] * ("/" in page)) for page in ALL])
def test_the_commands_of_a_page_can_be_typed(page):
    wrong = []
    for words in ALL[page]:
        if "env=mine" in words:  # the file is the reader's to write
            continue
        try:
            check_command(words)
        except NOT_TYPED as error:
            wrong.append(f"{' '.join(words)}: {error}")
    assert wrong == []


def test_the_two_commands_are_in_the_readme():
    assert ["make", "train"] in ALL["README.md"]
    assert ["make", "test"] in ALL["README.md"]


def test_the_study_of_replay_is_ten_runs():
    words = next(words for words in ALL["experiments/replay_ablation/README.md"] if "-m" in words)
    assert check_composes("train.py", words[2:]) == 10


@pytest.mark.parametrize(
    "line",
    [
        "make trian",
        "python trane.py",
        "python -m arpo docter",
        "python -m arpo compare",
        "python -m arpo tasks fetch tasks=osworld_1",
        "python -m arpo tasks look",
        "python -m arpo compare 'outputs/arpo_miniwob/*' --with default",
        "python train.py experiment=arpo_miniwop",
        "python train.py modul.clip_low=0.1",
        "python train.py +module.clip_lo=0.1",
        "python train.py -m experiment=smoke replay=on,of",
        "pip install arpo",
    ],
)
def test_a_command_that_could_not_be_typed_would_be_found(line):
    with pytest.raises(NOT_TYPED):
        check_command(shlex.split(line))


def test_the_example_of_an_environment_is_a_package_and_a_conf_elsewhere(tmp_path, monkeypatch):
    (python,) = blocks(ROOT / "docs" / "environments.md", "python")
    for block in blocks(ROOT / "docs" / "environments.md", "yaml"):
        (file,) = re.findall(r"\(mine/(conf/.*)\)", block)
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(block, encoding="utf-8")
    (tmp_path / "my_package.py").write_text(python, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = [f"hydra.searchpath=[file://{tmp_path}/conf]", "env=mine", "tasks=mine", "paths.run_dir=run"]
    cfg = compose("train", words)
    check_arguments(cfg)
    for method in ("reset", "step", "evaluate", "close"):
        assert callable(getattr(build(cfg.env.make_env)(), method))
    assert len({task.id for task in build(cfg.tasks.train)}) == 16


# --- files ----------------------------------------------------------------------------------------------------------


def test_every_link_of_a_page_leads_somewhere():
    made_by_plot = {"plot.png"}  # drawn by plot.py once there are results
    lost = [
        f"{relative(page)} links to {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if not target.startswith("http") and target not in made_by_plot and not (page.parent / target).exists()
    ]
    assert lost == []


def test_every_file_that_a_page_names_exists():
    named = re.compile(r"`((?:arpo|conf|tests|docs|experiments|tools|benchmarks)/[\w./-]+)`")
    lost = [
        f"{relative(page)} names {name}"
        for page in PAGES
        for name in named.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
        if not name.endswith("mine.yaml") and not (ROOT / name).exists()
    ]
    assert lost == []


def test_a_file_that_the_architecture_names_by_its_place_in_the_package_exists():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:\w+/)+\w+\.py)`", text)
    assert len(names) > 5
    for name in names:
        assert (ROOT / "arpo" / name).exists() or (ROOT / name).exists(), name


def test_the_classes_and_methods_that_the_architecture_names_exist_and_are_called():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "arpo").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    methods = {
        node.name: {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        for node in nodes
        if isinstance(node, ast.ClassDef)
    }
    called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    named = re.findall(r"`([A-Z][a-z]\w+)\.([a-z]\w*)`", text)
    assert len(named) > 5
    assert [pair for pair in named if pair[1] not in methods.get(pair[0], ()) or pair[1] not in called] == []
    aliases = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    classes = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", text))
    assert classes - methods.keys() - aliases - OF_OTHERS == set()


@pytest.mark.parametrize("name", ["miniwob", "replay_ablation"])
def test_numbers_of_a_study_stand_in_marked_blocks_that_its_collect_script_can_find(name):
    page = (ROOT / "experiments" / name / "README.md").read_text(encoding="utf-8")
    assert page.count("<!-- measured -->") == page.count("<!-- /measured -->") == 1
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(f"<!-- measured {name} -->") == readme.count(f"<!-- /measured {name} -->") == 1


def test_the_pages_are_as_short_as_they_promise():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 120


# --- messages -------------------------------------------------------------------------------------------------------


def emitted() -> list[str]:
    """Every string of the code, with an ellipsis for what varies."""
    strings = [(ROOT / "Makefile").read_text(encoding="utf-8")]
    for path in [*ROOT.glob("arpo/**/*.py"), *ROOT.glob("tools/*.py"), *ROOT.glob("docker/guest/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                strings.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.append(re.sub(r"%\.?\d*[sdfg]", "…", node.value))
    return strings


def explained() -> list[str]:
    """The messages in the first column of the troubleshooting page."""
    rows = re.findall(
        r"^\| (`.*?) \| ", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return [message for row in rows for message in re.findall(r"`((?:[^`])+)`", row)]


def pattern_of(message: str) -> re.Pattern[str]:
    message = message.replace("SIGINT: ", "").replace("arpo.envs.osworld.env", "…")
    return re.compile(".*".join(re.escape(part.strip()) for part in message.split("…")), re.DOTALL)


def test_a_message_that_is_explained_is_one_that_the_code_gives():
    messages, strings = [message for message in explained() if not message.startswith(FOREIGN)], emitted()
    assert len(messages) > 20
    assert [each for each in messages if not any(map(pattern_of(each).search, strings))] == []
