"""No record of the log looks like two, and every handler writes it so."""

import ast
import io
import logging

import pytest
import yaml

from arpo.errors import quoted
from arpo.host.log_lines import LineFormatter
from tests.test_errors import HOSTILE, ROOT, TREES


@pytest.mark.parametrize("name", HOSTILE)
def test_no_record_of_the_log_looks_like_two(name):
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    text, _ = HOSTILE[name]
    logger.warning("a command said %s", text)
    logger.error("a library failed", exc_info=ValueError(text))
    at_the_margin = [line for line in out.getvalue().splitlines() if not line.startswith("  ")]
    assert [line.split()[0] for line in at_the_margin] == ["WARNING", "ERROR"]
    assert quoted(out.getvalue(), most=10**6, keep="\n\t") == out.getvalue()


def test_every_handler_of_the_log_writes_our_lines():
    """Walks the sources: who sets up a log by himself would show what others said as it is."""
    calls = {
        (name, ast.unparse(node))
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("basicConfig", "setFormatter", ".Formatter"))
    }
    theirs = {(name, call) for name, call in calls if "setFormatter(LineFormatter(" not in call}
    assert theirs == {("arpo/host/log_lines.py", "logging.basicConfig(level=level, handlers=[handler])")}
    formatters = yaml.safe_load((ROOT / "conf/hydra/default.yaml").read_text())["job_logging"]["formatters"]
    assert {each["class"] for each in formatters.values()} == {"arpo.host.log_lines.LineFormatter"}
