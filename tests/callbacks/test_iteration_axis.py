"""The x axis of every curve, whatever else is logged."""

import json
from pathlib import Path

from arpo.callbacks.iteration_axis import IterationAxis
from arpo.run.loggers import JsonLinesLogger
from tests.callbacks.support import IdleModule, fit


def test_what_was_measured_up_to_the_nth_update_stands_at_n(tmp_path: Path, make_collector) -> None:
    """The module takes two optimizer steps an iteration, and Lightning would count those."""
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    module = IdleModule()
    module.at_step = lambda: module.optimizers().step()
    fit(tmp_path, make_collector(start=False), [IterationAxis()], loggers=[logger], iterations=3, module=module)
    lines = [json.loads(line) for line in logger.path.read_text().splitlines()]
    assert [(line["step"], line["policy/version"]) for line in lines] == [(1, 1), (2, 2), (3, 3)]
