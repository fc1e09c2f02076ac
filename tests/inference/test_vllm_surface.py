"""What the engine uses of vLLM beyond its public interface is there; docs/upgrading.md says why, row by row."""

import ast
import os
from dataclasses import fields
from pathlib import Path

import pytest

from tests.surfaces import PAGE, check_surface, surfaces

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.engine]

PACKAGE = Path(__file__).parents[2] / "arpo"
PUBLIC = {"vllm"}
"""The modules whose names vLLM documents."""


@pytest.fixture(scope="module", autouse=True)
def quiet():
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.mark.parametrize("surface", surfaces("vLLM"))
def test_each_row_of_the_page_is_there(surface):
    check_surface(surface)


def test_every_import_of_a_part_of_vllm_has_a_row():
    page = PAGE.read_text(encoding="utf-8")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (PACKAGE / "inference").glob("*.py")]
    named = [
        f"{node.module}:{alias.name}" if node.module != "vllm.model_executor.layers" else node.module
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm.")
        for alias in node.names
    ]
    assert len(named) >= 6
    assert [name for name in named if name not in page] == []


def test_an_engine_takes_the_arguments_that_are_set_and_refused():
    from vllm import EngineArgs

    from arpo.inference.vllm import ALWAYS, REFUSED_ARGS

    known = {field.name for field in fields(EngineArgs)}
    assert set(ALWAYS) <= known
    assert {name for names in REFUSED_ARGS.values() for name in names} <= known | {"model_weights"}


def test_as_many_ids_can_be_forbidden_as_the_check_allows():
    from vllm.v1.worker.gpu.sample.logit_bias import MAX_NUM_LOGIT_BIAS_TOKENS

    from arpo.inference.vllm import MAX_FORBIDDEN

    assert MAX_NUM_LOGIT_BIAS_TOKENS == MAX_FORBIDDEN


def test_vllm_reads_the_variables_that_are_set():
    from vllm.envs import environment_variables

    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if "environment_variables" in line)
    assert {name for name in row.split("`") if name.startswith("VLLM_")} <= environment_variables.keys()
