"""Learning from data that exists already: what is one sequence, and what a run logs."""

import json
from dataclasses import replace
from functools import partial

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from arpo.callbacks.iteration_axis import IterationAxis
from arpo.modules.offline.base import Sequences
from arpo.modules.sft import SFTModule
from arpo.run.loggers import JsonLinesLogger


def test_a_trajectory_is_a_sequence_and_with_an_image_window_each_of_its_steps_is_one(loaded_policy, judged):
    one, two, three = judged(1.0, 0.0, 1.0)  # as many steps
    data = Sequences.of([one, replace(three, image_window=1), two], loaded_policy.chat)
    assert data.owners.tolist() == [0, 1, 1, 1, 2]
    assert data.trajectories == 3
    assert data.action_tokens == one.action_tokens + two.action_tokens + three.action_tokens
    assert set(data.screenshots) == {key for each in (one, two, three) for key in each.screenshots}


@pytest.mark.parametrize(("iterations", "axis", "lines"), [(1, [], [0, 1, 2]), (2, [IterationAxis()], [1, 2])])
def test_a_run_of_one_iteration_logs_every_step_and_one_of_several_logs_iterations(
    make_policy, judged, tmp_path, iterations, axis, lines
):
    module = SFTModule(make_policy, partial(torch.optim.SGD, lr=0.0), steps=6, micro_batch_tokens=65536)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=iterations,
        logger=JsonLinesLogger(tmp_path / "metrics.jsonl"),
        callbacks=list(axis),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, DataLoader([judged(1.0)] * 3, batch_size=None))
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged] == lines
    assert all("train/loss" in line for line in logged)
