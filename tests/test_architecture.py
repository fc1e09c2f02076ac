"""The shape of the house: who may import whom, which file knows which library, and how long things get."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "arpo").rglob("*.py"))
SOURCES = [*PACKAGE, ROOT / "train.py", ROOT / "evaluate.py"]


@cache
def trees() -> dict[str, ast.Module]:
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in SOURCES}


RUN = {path.relative_to(ROOT).as_posix() for path in (ROOT / "arpo" / "run").rglob("*.py")}

APPS = {
    "arpo/apps/plan/command.py",
    "arpo/apps/plan/fit.py",
    "arpo/apps/rehearsal/changes.py",
    "arpo/apps/rehearsal/rehearse.py",
    "arpo/apps/tasks.py",
}
"""What reads a run's configuration beside it."""

HEAVY = {
    "ray": {
        "arpo/host/ray.py",
        "arpo/apps/rehearsal/harness.py",
        "arpo/envs/pool/ray.py",
        "arpo/inference/remote.py",
        "arpo/inference/fleet.py",
    },
    "vllm": {"arpo/inference/vllm.py", "arpo/inference/vllm_worker.py"},
    "miniwob": {"arpo/envs/miniwob/tasks.py"},
    "gymnasium": {f"arpo/envs/gymnasium/{name}.py" for name in ("tasks", "drawn", "browsergym")},
    "browsergym": {"arpo/envs/gymnasium/browsergym.py"},
    "playwright": {"arpo/envs/gymnasium/browsergym.py"},
    "docker": {"arpo/host/containers.py"},
    "peft": {"arpo/models/lora.py"},
    "pyarrow": {"arpo/apps/dataset/parquet.py"},
    "tensorboard": {"arpo/run/loggers.py"},
    "hydra": {"train.py", "evaluate.py", *APPS, *RUN},
    "omegaconf": {"train.py", "evaluate.py", *APPS, *RUN},
}
"""A library, and the only files that may import it."""
ROOT_MODULES = 6
FUNCTION_LINES = 60

BUDGET = {"core": 34_200, "apps": 5_300, "templates": 2_500, "arpo": 41_900, "tests": 54_250, "conf": 2_230}
"""Lines of each ring; conf/ has a budget of files too."""
CONF_FILES = 125

RIDDLES = re.compile(r"(?i:\b(told|whoever|nobody|somebody)\b)|Return (what|how|where|why)\b")
"""Words of prose that leave open who or what is meant."""
NO_OPENING = {"What", "Where", "Who", "Whose", "When", "How", "Why", "Give", "Gives"}
NOUN_PHRASE = {"A", "An", "The", "One", "Each", "Every", "All", "Any", "No", "This", "That", "Some", "Whether"}
"""Words that open a noun phrase, and so never what a function does."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def imports(tree: ast.Module) -> set[str]:
    """The top-level packages that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(root: Path, files: Iterable[Path]) -> dict[str, set[str]]:
    """Every module of ours with the modules of ours that it imports: anywhere in it, and for types alone too."""
    modules = {module_name(path, root): ast.parse(path.read_text("utf-8")) for path in files}
    graph = {}
    for name, tree in modules.items():
        named: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                named |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        graph[name] = named & modules.keys() - {name}
    return graph


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def written_files() -> list[Path]:
    """What people read and write: everything that git knows or would add, lock files and pictures left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is not a git checkout")
    paths = [ROOT / name for name in listed.stdout.decode().splitlines()]
    return [path for path in paths if path.suffix not in (".lock", ".png", ".csv", ".gz") and path.is_file()]


def test_every_layer_imports_only_what_lies_below_it():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout


def test_no_module_imports_itself_by_a_way_around():
    """An import inside a function, or for types alone, hides a circle from Python, not from a reader."""
    guest = ROOT / "docker" / "guest"
    try:
        TopologicalSorter(import_graph(ROOT, PACKAGE)).prepare()
        TopologicalSorter(import_graph(guest, guest.glob("*.py"))).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


def test_the_root_holds_what_a_person_can_take_in_and_no_ring_outgrows_its_budget():
    at_the_root = [path.name for path in PACKAGE if path.parent == ROOT / "arpo" and path.name != "__init__.py"]
    assert len(at_the_root) <= ROOT_MODULES, at_the_root
    templates = [path for path in PACKAGE if path.parent == ROOT / "arpo" / "envs" / "desktop" / "templates"]
    apps = [path for path in PACKAGE if (ROOT / "arpo" / "apps") in path.parents]
    rings = {
        "core": {*PACKAGE} - {*apps} - {*templates},
        "apps": apps,
        "templates": templates,
        "arpo": PACKAGE,
        "tests": [*(ROOT / "tests").rglob("*.py")],
        "conf": [path for path in (ROOT / "conf").rglob("*") if path.is_file()],
    }
    lines = {ring: sum(len(path.read_bytes().splitlines()) for path in paths) for ring, paths in rings.items()}
    for ring, paths in rings.items():
        print(f"{ring:9} {len(paths):4} files {lines[ring]:7,} lines of {BUDGET[ring]:7,}")  # noqa: T201 - `pytest -s` shows the table
    assert {ring: count for ring, count in lines.items() if count > BUDGET[ring]} == {}
    assert len(rings["conf"]) <= CONF_FILES


def test_a_heavy_library_is_known_to_few_files_and_nothing_is_re_exported():
    used = {name: imports(tree) for name, tree in trees().items()}
    users = {library: {name for name, names in used.items() if library in names} for library in HEAVY}
    assert {library: names - HEAVY[library] for library, names in users.items() if names - HEAVY[library]} == {}
    for path in PACKAGE:
        if path.name == "__init__.py":
            assert imports(ast.parse(path.read_text("utf-8"))) == set(), path


def test_a_function_fits_a_screen():
    too_long = []
    for name, tree in trees().items():
        for function in functions(tree):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            if body and (lines := (body[-1].end_lineno or 0) - body[0].lineno + 1) > FUNCTION_LINES:
                too_long.append(f"{name}: {function.name} has {lines} lines")
    assert too_long == []


def undocumented(name: str, tree: ast.Module) -> list[str]:
    public = [node for node in tree.body if isinstance(node, ast.ClassDef | Function) and node.name[0] != "_"]
    methods = [node for owner in public if isinstance(owner, ast.ClassDef) for node in owner.body]
    shown = [*public, *(node for node in methods if isinstance(node, Function) and node.name[0] != "_")]
    silent = [
        f"{name}:{node.lineno}: {node.name}"
        for node in shown
        if not ast.get_docstring(node) and "override" not in map(ast.unparse, node.decorator_list)
    ]
    return silent if ast.get_docstring(tree) else [name, *silent]


def badly_opened(name: str) -> Iterator[str]:
    """What ruff's D401 lets pass, as `Where` and `The`, and a thing that is documented as if it was a function."""
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            word = re.split(r"[^\w'-]", text, maxsplit=1)[0]
            acts = isinstance(node, Function) and "property" not in " ".join(map(ast.unparse, node.decorator_list))
            if word in NO_OPENING or (word in NOUN_PHRASE if acts else word == "Return"):
                yield f"{name}:{getattr(node, 'lineno', 1)}: {word} …"


def test_what_is_public_is_documented_a_function_by_an_imperative_and_a_thing_by_a_noun_phrase():
    assert [line for name, tree in trees().items() for line in [*undocumented(name, tree), *badly_opened(name)]] == []


def test_nothing_is_printed_evaluated_or_probed():
    """People read logs and the progress line; attributes are declared, not guessed."""
    found = [
        f"{name}:{node.lineno}: {node.func.id}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in {"print", "eval", "exec", "hasattr", "setattr"}
        or (node.func.id == "getattr" and len(node.args) != 2)  # a default is a guess
    ]
    assert found == []


def test_broad_excepts_turn_into_errors_of_ours_or_raise_again():
    """`except Exception` stands at the border to foreign code, and nothing is swallowed."""
    for name, tree in trees().items():
        for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)):
            caught = ast.unparse(handler.type) if handler.type else "everything"
            if caught in ("everything", "Exception", "BaseException"):
                raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
                returns = any(isinstance(node, ast.Return) for node in ast.walk(handler))
                assert raises or returns, f"{name}, line {handler.lineno}"


BINARY = {"Image", "os", "tarfile", "webbrowser", "zipfile"}
"""Modules whose `open` knows no encoding."""
BACKENDS = {"self._backend"}
"""Objects of ours with a method `open`."""
OPENERS = {"io", "os", "tempfile", "gzip", "bz2", "lzma"}
"""Modules whose functions take the name of a file first."""
TEXT_FILES = {"open", "fdopen", "NamedTemporaryFile", "TemporaryFile"}
ALWAYS_TEXT = {"read_text", "write_text", "FileHandler", "TextIOWrapper"}
CHILDREN = {"run", "Popen", "check_output", "check_call", "call"}
MODE = re.compile(r"[rwxab+t]+")


def speaks_the_locale(call: ast.Call) -> bool:
    """Whether a call reads or writes text and leaves the encoding to the locale."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if "encoding" in keywords:
        return False
    if name in CHILDREN and {"text", "universal_newlines"} & keywords.keys():
        return True
    if name not in TEXT_FILES or (name == "open" and owner in BINARY):
        return name in ALWAYS_TEXT
    if name == "open" and owner in BACKENDS:
        return False
    given = [argument.value for argument in [*call.args, *keywords.values()] if isinstance(argument, ast.Constant)]
    modes = [value for value in given if isinstance(value, str) and MODE.fullmatch(value)]
    if not modes and owner not in OPENERS and call.args:
        return not owner  # the first argument of a method `open` would be a mode
    default = "w+b" if name.endswith("File") else "r"
    return "b" not in (modes or [default])[0]


def test_no_text_is_read_or_written_in_the_encoding_of_the_locale():
    """`docker/guest` is left out: it runs in our image, whose LANG is C.UTF-8."""
    left_out = ("docker/guest/", "tests/")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in written_files()
        if path.suffix == ".py" and not path.relative_to(ROOT).as_posix().startswith(left_out)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and speaks_the_locale(node)
    ]
    assert found == []
    assert "LANG=C.UTF-8" in (ROOT / "docker" / "Dockerfile").read_text("utf-8")


LOCALE = """
    path.read_text() | path.write_text(text) | path.open() | path.open('a') | open(name) | open(name, 'w', newline='')
    os.fdopen(reader) | gzip.open(path, 'rt') | subprocess.run(command, text=True) | logging.FileHandler(path)
    tempfile.NamedTemporaryFile('w')
"""
UTF_8_OR_BYTES = """
    path.read_text(encoding='utf-8') | page.open(address) | path.open('ab', buffering=0) | Image.open(path)
    open(os.open(path, os.O_WRONLY), 'wb') | subprocess.run(command, encoding='utf-8')
    tempfile.TemporaryFile(buffering=0)
"""


def test_what_leaves_the_encoding_to_the_locale_is_known():
    for calls, wrong in ((LOCALE, True), (UTF_8_OR_BYTES, False)):
        for call in re.split(r" \| |\n *", calls.strip()):
            assert speaks_the_locale(ast.parse(call).body[0].value) == wrong, call


def lines_with(pattern: re.Pattern[str], paths: Iterable[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in paths
        if path != Path(__file__)
        for number, line in enumerate(path.read_text("utf-8", "ignore").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_work_is_left_in_comments_and_no_file_knows_one_machine_or_one_mirror():
    """Homes and hosts of registries belong into the configuration of a machine; /home/user is that of every guest."""
    code = [path for path in written_files() if path.suffix in (".py", ".yaml", ".js", ".md", ".toml", "")]
    assert lines_with(re.compile(r"\b(TODO|FIXME|HACK)\b"), code) == []
    hosts = r"pythonhosted|pypi\.org/simple|--(?:extra-)?index-url"
    known = re.compile(rf"(?<![\w.])/(?:root|home/(?!user/)\w+|Users/\w+|work)/|{hosts}")
    assert lines_with(known, written_files()) == []


def test_prose_says_who_or_what_is_meant():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    guest = [path for pattern in ("*.py", "*.sh", "*.md", "Dockerfile*") for path in (ROOT / "docker").rglob(pattern)]
    assert lines_with(RIDDLES, [*SOURCES, *pages, *guest]) == []
