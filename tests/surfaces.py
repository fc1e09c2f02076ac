"""The rows of docs/upgrading.md, by section, and the lookup of what they name."""

import inspect
import re
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "upgrading.md"


def surfaces(*sections: str) -> list[str]:
    """Return the names in the first column of the tables of some sections."""
    parts = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    rows = [line for part in parts if part.partition("\n")[0] in sections for line in part.splitlines()]
    return [found[1] for line in rows if (found := re.match(r"\| `(\w[\w.]*:[\w.()]+)` \|", line))]


def check_surface(surface: str) -> None:
    """Check that `module:name`, or `module:function(parameter)`, is there."""
    module, _, path = surface.partition(":")
    path, _, parameter = path.rstrip(")").partition("(")
    *parents, last = path.split(".")
    found = import_module(module)
    for name in parents:
        found = getattr(found, name)
    fields = getattr(found, "__dataclass_fields__", {})
    assert hasattr(found, last) or last in fields, surface
    assert not parameter or parameter in inspect.signature(getattr(found, last)).parameters, surface
