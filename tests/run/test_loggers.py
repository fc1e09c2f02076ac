"""What is written is read back with TensorBoard's own reader and with json."""

import json
import math
import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from arpo.errors import ConfigError
from arpo.run.loggers import LAYOUT, JsonLinesLogger, TensorBoardLogger, cut_lines


def read(directory: Path) -> EventAccumulator:
    return EventAccumulator(str(directory), size_guidance={"tensors": 0, "scalars": 0}).Reload()


def curve(directory: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 4)) for event in read(directory).Scalars(tag)]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- TensorBoard -----


def test_scalars_and_a_page_of_the_important_curves_lie_in_the_folder_of_the_run_itself(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    JsonLinesLogger(tmp_path / "metrics.jsonl")
    assert list(tmp_path.iterdir()) == []  # nothing is written before the first value
    logger.log_metrics({"rollout/success_rate": 0.25}, step=1)
    logger.finalize("success")
    assert curve(tmp_path, "rollout/success_rate") == [(1, 0.25)]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
    (event,) = read(tmp_path).Tensors("custom_scalars__config__")
    (category,) = Layout.FromString(event.tensor_proto.string_val[0]).category
    assert category.title == "ARPO"
    assert {chart.title: list(chart.multiline.tag) for chart in category.chart} == LAYOUT


def test_a_resumed_run_hides_what_the_interrupted_one_wrote_beyond_its_checkpoint(tmp_path: Path) -> None:
    first = TensorBoardLogger(tmp_path)
    for step in (1, 2, 3, 4):
        first.log_metrics({"rollout/success_rate": 0.1 * step}, step=step)
    first.save()  # killed after iteration 4; its newest checkpoint is of iteration 2
    (events,) = tmp_path.glob("events.out.tfevents.*")
    before, second, after = re.fullmatch(r"(.*\.)(\d{10})(\..*)", events.name).groups()
    # files are read by name, and a resumed run is never of the same second
    events.rename(events.with_name(f"{before}{int(second) - 1}{after}"))
    resumed = TensorBoardLogger(tmp_path, resume_step=2)
    resumed.log_metrics({"rollout/success_rate": 0.9}, step=3)
    resumed.finalize("success")
    assert curve(tmp_path, "rollout/success_rate") == [(1, 0.1), (2, 0.2), (3, 0.9)]


# --- JSON lines -----


def test_an_iteration_is_one_line_however_many_portions_it_comes_in(tmp_path: Path) -> None:
    logger = JsonLinesLogger(tmp_path / "run" / "metrics.jsonl")
    logger.log_metrics({"val/in_domain/success_rate": 0.5}, step=0)
    logger.log_metrics({"a": 1.0, "epoch": 0}, step=1)
    logger.log_metrics({"b": 2.0, "a": 10.5}, step=1)
    logger.finalize("success")  # a second fit goes on where the first one ended
    logger.log_metrics({"a": 3.0}, step=2)
    first = {"step": 0, "val/in_domain/success_rate": 0.5}
    assert lines(logger.path) == [first, {"step": 1, "a": 10.5, "b": 2.0}, {"step": 2, "a": 3.0}]


def test_a_run_that_goes_on_completes_the_line_of_its_checkpoint_and_cuts_those_beyond(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonLinesLogger(path)
    for step in (0, 1, 2, 3):
        first.log_metrics({"a": float(step), "b": float("nan")}, step=step)
    with path.open("a") as file:
        file.write('{"step": 4, "a"')  # a crash cuts it
    cut_lines(path, 5)
    assert [line["step"] for line in lines(path)] == [0, 1, 2, 3]
    JsonLinesLogger(path, resume_step=1).log_metrics({"c": 2.0}, step=1)
    second = JsonLinesLogger(path, resume_step=1)
    for step in (2, 3):
        second.log_metrics({"a": 10.0 * step}, step=step)
    whole = [{"step": 0, "a": 0.0, "b": None}, {"step": 1, "a": 1.0, "b": None, "c": 2.0}]
    assert lines(path) == [*whole, {"step": 2, "a": 20.0}, {"step": 3, "a": 30.0}]


def test_a_merged_line_that_is_shorter_leaves_nothing_of_the_old_one_and_what_is_no_number_is_null(tmp_path) -> None:
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    logger.log_metrics({"a": 0.123456789, "b": math.nan}, step=1)
    logger.log_metrics({"a": 1.0, "b": math.inf}, step=1)
    assert logger.path.read_text() == '{"step": 1, "a": 1.0, "b": null}\n'


def test_a_value_without_a_step_and_a_negative_step_to_go_on_from_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs the step"):
        JsonLinesLogger(tmp_path / "metrics.jsonl").log_metrics({"a": 1.0})
    with pytest.raises(ConfigError, match="resume_step must be at least 0, got -1"):
        JsonLinesLogger(tmp_path / "metrics.jsonl", resume_step=-1)
