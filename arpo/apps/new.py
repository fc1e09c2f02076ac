"""A package outside of this code, made from one that works: python -m arpo new env kiosk --to DIR."""

import argparse
import keyword
import logging
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import yaml

from arpo.errors import ConfigError
from arpo.run.choices import ROOT, choices_of

log = logging.getLogger(__name__)

TEMPLATES = ROOT / "tools" / "new"
"""A folder for each kind: a package that is called `new` and its kind, such as `newenv`."""
KINDS = ("env", "method")


def main(arguments: Sequence[str]) -> int:
    """Write a package and return the exit status."""
    asked = parser().parse_args(arguments)
    try:
        write(asked.kind, asked.name, asked.to)
    except OSError as error:
        raise ConfigError(f"cannot write {asked.to}: {error}; name another folder with --to") from error
    readme = asked.to / asked.name / "README.md"
    test = shlex.join([sys.executable, "-m", "pytest", f"tests/test_{asked.name}.py"])
    log.info("%s says how to run it; its own test: cd %s && %s", readme, shlex.quote(str(asked.to)), test)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m arpo new", description="Write a package that works, to be changed.")
    made.add_argument("kind", choices=KINDS, help="an environment with its tasks, or a method of learning")
    made.add_argument("name", help="of its module and its choices, such as kiosk")
    made.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to write; it may hold others")
    return made


def write(kind: str, name: str, directory: Path) -> None:
    """Write a package of a kind: modules, conf/, a test and a README. It replaces no file, and writes all or none.

    Raises:
        ConfigError: If the name is taken, by a module or a choice, or cannot be one; or a file of it exists.
    """
    words = keyword.iskeyword(name) or yaml.safe_load(name) != name  # as null, on and yes are not
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or words:
        raise ConfigError(f"{name!r} cannot be the name of a module: take lower-case letters, digits and _")
    if directory.resolve() == ROOT:
        raise ConfigError("the package is to lie outside of this code: name another folder with --to")
    if find_spec(name) is not None:
        raise ConfigError(f"{name} is the name of a module that is there already: take another one")
    files = _files(kind, name)
    for path, content in files.items():
        if path.parts[0] == "conf" and path.stem in choices_of(path.parts[1]):
            raise ConfigError(f"{path.parts[1]}={path.stem} is a choice that is there already: take another name")
        if (directory / path).exists() and (directory / path).read_bytes() != content:
            raise ConfigError(f"{directory / path} exists: take another name, or another folder with --to")
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)


def _files(kind: str, name: str) -> dict[Path, bytes]:
    """Return the content of each file of a package, by its place."""
    words = {
        f"new{kind}": name,
        f"New{kind.title()}": "".join(part.title() for part in name.split("_")),
        "ARPO_ROOT": shlex.quote(str(ROOT)),
        "ARPO_PYTHON": shlex.quote(sys.executable),
    }
    pattern = re.compile("|".join(words))
    template, found = TEMPLATES / kind, {}
    for file in sorted(path for path in template.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        place, text = str(file.relative_to(template)), file.read_text(encoding="utf-8")
        written, content = (pattern.sub(lambda match: words[match[0]], each) for each in (place, text))
        found[Path(written)] = content.encode()
    return found
