"""All that pages and messages name exists: commands, keys, files, links, messages."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arpo.__main__ import REMOVED
from arpo.apps.comparison.command import parser as compare_parser
from arpo.apps.merge import parser as merge_parser
from arpo.apps.new import parser as new_parser
from arpo.apps.tasks import parser as tasks_parser
from arpo.apps.viewer.command import parser as view_parser
from arpo.errors import ArpoError
from arpo.run.arguments import check_arguments
from arpo.run.build import build, compose
from arpo.run.choices import choices_of, groups_in
from tests.composed import composed

ROOT = Path(__file__).parent.parent
STUDIES = ROOT / "experiments"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *STUDIES.glob("**/*.md")])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
NOT_TYPED = (ArpoError, AssertionError, HydraException, OmegaConfBaseException, SystemExit)
"""What `check_command` raises of a command that cannot be typed."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of one language; a block inside a list is indented."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """Every command line of a page's shell blocks, and every `python …` or `make …` in its running text."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    inline = re.findall(
        r"`((?:python|make) [^`…]*)`", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    )
    return [words for line in [*lines, *inline] if (words := shlex.split(line, comments=True))]


ALL = {relative(page): commands(page) for page in PAGES}


def jobs(arguments: list[str]) -> list[list[str]]:
    """The overrides of every run that a command line starts."""
    overrides = [argument for argument in arguments if not argument.startswith("-") and argument != "job"]
    if "-m" not in arguments:
        return [overrides]
    parsed = OverridesParser.create().parse_overrides(overrides)
    return BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]


ARCHITECTURE = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("architecture.md", "extending.md"))


def check_composes(script: str, arguments: list[str]) -> int:
    """Check the jobs of a command, those that differ in their seed alone once, and return how many they are."""
    split = jobs(arguments)
    for job in split:
        check_job(script, tuple(re.sub(r"^seed=\d+$", "seed=0", word) for word in job))
    return len(split)


@cache
def check_job(script: str, job: tuple[str, ...]) -> None:
    model = None if any("model.path=" in word for word in job) else "somewhere"
    if script == "evaluate.py" and not any(word.startswith("checkpoint=") for word in job):
        job = (*job, "checkpoint=somewhere")
    check_arguments(composed(*job, config=script.removesuffix(".py"), model=model))


PARSERS = {"compare": compare_parser, "merge": merge_parser, "new": new_parser, "view": view_parser}
SCRIPTS = {"plan": "plan", "rehearse": "train.py", "train": "train.py", "evaluate": "evaluate.py"}


def check_tool(arguments: list[str]) -> None:
    command, *words = arguments or [""]
    if command in SCRIPTS:
        check_composes(SCRIPTS[command], words)
    elif command in PARSERS:
        PARSERS[command]().parse_args(words)
    elif command == "tasks":
        asked = tasks_parser().parse_intermixed_args(words)
        certified = asked.what == "certify"  # names of tasks stand among its words
        check_composes("train.py", [word for word in asked.overrides if "=" in word or not certified])
    elif command == "episodes":
        assert words[1:] in (["--to", "parquet"], ["--to", "store"]), f"python -m arpo episodes knows no {words}"
    else:
        known = ([], ["doctor"], ["doctor", "--look"], ["mcp"], *([word] for word in REMOVED))
        assert arguments in known, f"python -m arpo knows no {arguments}"


def check_command(words: list[str]) -> None:
    program, *arguments = words
    if program == "make":
        targets = [word for word in arguments if "=" not in word]
        assert targets, words
        assert set(targets) <= TARGETS, f"make has no target {set(targets) - TARGETS}"
        for given in (word.removeprefix("ARGS=") for word in arguments if word.startswith("ARGS=")):
            if targets == ["desktop"]:
                images = (ROOT / "docker" / "build_image.sh").read_text("utf-8")
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
            ast.parse((ROOT / script).read_text("utf-8"))
    else:
        assert program in ("export", "source", "tensorboard"), f"there is no command {program!r}"


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


def test_the_two_commands_are_in_the_readme_and_the_study_of_replay_is_ten_runs():
    assert ["make", "train"] in ALL["README.md"]
    assert ["make", "test"] in ALL["README.md"]
    words = next(words for words in ALL["experiments/replay_ablation/README.md"] if "-m" in words)
    assert check_composes("train.py", words[2:]) == 10


NO_COMMANDS = [
    "make trian", "python trane.py", "python -m arpo docter", "python -m arpo compare",
    "python -m arpo tasks fetch tasks=osworld_1", "python -m arpo tasks look",
    "python -m arpo compare 'outputs/arpo_miniwob/*' --with default", "python train.py experiment=arpo_miniwop",
    "python train.py modul.clip_low=0.1", "python train.py +module.clip_lo=0.1",
    "python train.py -m experiment=smoke replay=on,of", "pip install arpo",
]  # fmt: skip


@pytest.mark.parametrize("line", NO_COMMANDS)
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


def test_every_file_class_and_method_that_a_page_names_is_there():
    named = re.compile(r"`((?:arpo|conf|tests|docs|experiments|tools|benchmarks)/[\w./-]+)`")
    lost = []
    for page in PAGES:
        text = page.read_text("utf-8")
        links = [page.parent / target for target in re.findall(r"\]\(([^)#\s]+)", text) if "http" not in target[:4]]
        names = named.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        lost += [
            f"{relative(page)} names {path}"
            for path in [*links, *(ROOT / name for name in names)]
            if path.name not in ("plot.png", "mine.yaml") and not path.exists()  # drawn, and written, later
        ]
    assert lost == []
    names = re.findall(r"`((?:\w+/)+\w+\.py)`", ARCHITECTURE)
    assert len(names) > 5
    assert [name for name in names if not (ROOT / "arpo" / name).exists() and not (ROOT / name).exists()] == []
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
    trees = [ast.parse(path.read_text("utf-8")) for path in (ROOT / "arpo").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    methods = {
        node.name: {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        for node in nodes
        if isinstance(node, ast.ClassDef)
    }
    called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    named = re.findall(r"`([A-Z][a-z]\w+)\.([a-z]\w*)`", ARCHITECTURE)
    assert len(named) > 5
    assert [pair for pair in named if pair[1] not in methods.get(pair[0], ()) or pair[1] not in called] == []
    aliases = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    classes = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", ARCHITECTURE))
    assert classes - methods.keys() - aliases - {"LoRARequest"} == set()  # a class of a library


@pytest.mark.parametrize("name", ["miniwob", "replay_ablation"])
def test_numbers_of_a_study_stand_in_marked_blocks_that_its_collect_script_can_find(name):
    page = (ROOT / "experiments" / name / "README.md").read_text("utf-8")
    assert page.count("<!-- measured -->") == page.count("<!-- /measured -->") == 1
    readme = (ROOT / "README.md").read_text("utf-8")
    assert readme.count(f"<!-- measured {name} -->") == readme.count(f"<!-- /measured {name} -->") == 1
    assert len(readme.splitlines()) <= 150


@cache
def messages(path: Path) -> list[str]:
    """Every string that a file of code may say, with an ellipsis for what varies."""
    found, nodes = [], list(ast.walk(ast.parse(path.read_text("utf-8"))))
    silent = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    silent |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            found.append(re.sub(r"%\.?\d*[sdfg]", "…", node.value))
    return found


def explained() -> list[str]:
    """The messages in the first column of the troubleshooting page."""
    rows = re.findall(r"^\| (`.*?) \| ", (ROOT / "docs" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE)
    return [message for row in rows for message in re.findall(r"`((?:[^`])+)`", row)]


def pattern_of(message: str) -> re.Pattern[str]:
    message = message.replace("SIGINT: ", "").replace("arpo.envs.osworld.env", "…")
    return re.compile(".*".join(re.escape(part.strip()) for part in message.split("…")), re.DOTALL)


def test_a_message_that_is_explained_is_one_that_the_code_gives():
    files = [*ROOT.glob("arpo/**/*.py"), *ROOT.glob("tools/*.py"), *ROOT.glob("docker/guest/*.py")]
    given = [(ROOT / "Makefile").read_text("utf-8"), *(text for path in files for text in messages(path))]
    ours = [message for message in explained() if not message.startswith(("Could not", "mismatched input"))]  # Hydra's
    assert len(ours) > 20
    assert [each for each in ours if not any(map(pattern_of(each).search, given))] == []


# --- keys that messages and pages recommend -----------------------------------------------------------------

GROUPS = {*groups_in("")} - {"hydra"}
HEADS = GROUPS | {"experience", "iterations", "resume", "seed", "source", "teacher", "threads", "warmstart"}
HEADS |= {"checkpoint", "export", "lists", "selection"}
"""What an override of ours begins with."""
OVERRIDE = re.compile(r"(?<![\w.{/%-])([a-z_]+(?:\.[a-z_0-9]+)*=[^\s,;:()\"'`]+|[a-z_]+(?:\.[a-z_0-9]+)+)")
ELSEWHERE = {"env.step", "model.embed_tokens.weight", "model.language_model", "model.safetensors", "model.visual"}
ELSEWHERE |= {"env.evaluate"}
ELSEWHERE |= {"model.make.context", "model.make.hidden", "model.language_model.embed_tokens.weight", "model.tiny"}
"""Names of methods and tensors that look like keys, and keys that a rehearsal adds itself."""
READERS_OWN = {"env=mine", "tasks=mine", "callbacks.mine={_target_"}
"""Files that a reader is about to write."""
BASES = (
    "train experiment=arpo_subset32",
    "train experiment=arpo_subset32 trainer=ddp",
    "train experiment=arpo_miniwob logger=wandb",
    "train experiment=arpo_desktop32",
    "train experiment=warmstart_miniwob",
    "train experiment=warmstart_published",
    "train experiment=offline_dpo",
    "train experiment=smoke method=c3po module.objective.budget=120 entropulse=on curriculum=stages replay=adapr",
    "train experiment=one_gpu",
    "plan experiment=one_gpu",
    "train experiment=smoke method=ui_tars2",
    "train experiment=smoke method=gigpo",
    "train experiment=distillation",
    "train experiment=smoke method=ui_s1 env=recorded tasks=recorded",
    "train experiment=arpo_miniwob env=gymnasium tasks=browsergym",
    "train experiment=arpo_miniwob env=mixture tasks=mixture curriculum=shares",
    "train experiment=smoke harness=command harness.argv=[true]",
    "train experiment=smoke harness=function harness.function=mine.play",
    "select experiment=smoke",
)
"""Whole configurations that have every key of ours between them."""


def overrides_in(texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        for found in OVERRIDE.findall(text):
            name = found.partition("=")[0]
            if name.partition(".")[0] in HEADS and not name.endswith((".py", ".json")):
                yield found.rstrip(".")


@cache
def recommended() -> set[str]:
    texts = (text for path in ROOT.glob("arpo/**/*.py") for text in messages(path) if " " in text)
    found = set(overrides_in(texts))
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docker/*.md")]:
        found |= set(overrides_in(iter(re.findall(r"`([^`\n]+)`", page.read_text("utf-8")))))
    return found - ELSEWHERE - READERS_OWN


def base(words: str, *more: str) -> DictConfig:
    config, *overrides = words.split()
    return composed(*overrides, *more, config=config, model=None)


def bases_with(name: str) -> list[str]:
    """The configurations that have a key."""
    parent, _, last = name.rpartition(".")
    nodes = {words: OmegaConf.select(base(words), parent) if parent else base(words) for words in BASES}
    # `in` alone leaves out what has no value yet
    return [words for words, node in nodes.items() if isinstance(node, DictConfig) and last in list(node)]


def check_override(override: str) -> None:
    name, _, value = override.partition("=")
    concrete = bool(value) and not re.search(r"[A-Z…]{2,}|…", value)
    if name in GROUPS:
        assert not concrete or value in choices_of(name), f"there is no {override}"
        return
    assert bases_with(name), f"there is no key {name}"
    if concrete:
        assert not OverridesParser.create().parse_override(override).is_sweep_override(), f"{override} is several runs"


def test_what_is_recommended_exists():
    found = recommended()
    assert {"resume=auto", "engine=fleet", "rollout.settings.max_context", "replay=off"} <= found
    assert len(found) > 50
    wrong = []
    for override in sorted(found):
        try:
            check_override(override)
        except (AssertionError, HydraException) as error:
            wrong.append(f"{override}: {error}")
    assert wrong == []
    for nowhere in ("datamodule=rollout", "rollout.group_size", "module.lr=1", "iterations=many,few"):
        with pytest.raises((AssertionError, HydraException)):
            check_override(nowhere)


@pytest.mark.long
def test_what_is_recommended_composes():
    values = {text: text.partition("=")[2] for text in recommended() if "=" in text}
    for override in sorted(text for text, value in values.items() if not re.search(r"[A-Z…]{2,}|…", value)):
        name = override.partition("=")[0]
        config = "plan" if name in {"gpu", "architecture"} else "train"
        base(f"{config} experiment=arpo_subset32" if name in GROUPS else bases_with(name)[0], override)
