"""The record of what every update did to the tokens it learned from."""

from collections.abc import Sequence

import lightning as L
import numpy as np
import torch
from typing_extensions import override

from arpo.errors import check_at_least
from arpo.modules.base import PolicyModule
from arpo.modules.token_record import TokenRecord
from arpo.rollout.hooks import runtime_of
from arpo.rollout.updates import NUMBERS, UpdatedGroup, UpdateRecord, forget_updates, write_update
from arpo.types import RolloutBatch, Trajectory


class UpdateLog(L.Callback):
    """A file an iteration in the trajectory store, `updates/iteration_<n>.safetensors`, for `python -m arpo view`.

    It holds the groups as they were learned from, with what replay put in, the advantage of each trajectory, and of
    each token log-probability and entropy before the update and in the forward that it was learned from: numbers that
    the update computes anyway. What the policy says of the tokens after the update would be known to nobody, so every
    few iterations one more forward asks it.

    Args:
        after_every_n_iterations: How often that is; the first iteration is always asked. 0 never asks.

    Raises:
        ConfigError: If the number is negative.
    """

    def __init__(self, *, after_every_n_iterations: int = 10) -> None:
        check_at_least(0, after_every_n_iterations=after_every_n_iterations)
        self.after_every_n_iterations = after_every_n_iterations

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            forget_updates(runtime_of(trainer).store.root, trainer.current_epoch)

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        every, iteration = self.after_every_n_iterations, batch.iteration
        PolicyModule.of(pl_module).measures_after = bool(every and (iteration == 0 or (iteration + 1) % every == 0))

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: RolloutBatch, batch_idx: int
    ) -> None:
        if trainer.is_global_zero:
            tokens = PolicyModule.of(pl_module).last_tokens
            write_update(runtime_of(trainer).store.root, update_record(batch, tokens))


def update_record(batch: RolloutBatch, tokens: TokenRecord) -> UpdateRecord:
    """Return the record of an update, from the batch as it was learned from and the trainer's numbers."""
    groups = tuple(
        UpdatedGroup(group.task.id, tuple(trajectory.id for trajectory in group.trajectories), group.injected)
        for group in batch.groups
    )
    members = [
        ((number, position), trajectory)
        for number, group in enumerate(batch.groups)
        for position, trajectory in enumerate(group.trajectories)
    ]
    lengths = [trajectory.action_tokens for _, trajectory in members]
    advantages = tokens.mean_advantages()
    numbers = {name: _concatenated(members, tokens, name) for name in NUMBERS if tokens.rows(name)}
    return UpdateRecord(
        iteration=batch.iteration,
        policy_version=batch.policy_version,
        groups=groups,
        left_out=tuple(trajectory.id for group in batch.leftovers for trajectory in group.trajectories),
        advantages=np.array([advantages.get(place, np.nan) for place, _ in members], dtype=np.float32),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        numbers=numbers,
    )


def _concatenated(members: Sequence[tuple[tuple[int, int], Trajectory]], tokens: TokenRecord, name: str) -> np.ndarray:
    """Return one kind of number of all tokens, NaN where there is none."""
    rows = tokens.rows(name)
    found: list[torch.Tensor] = []
    for place, trajectory in members:
        for part, length in enumerate(_parts(trajectory)):
            found.append(rows.get((*place, part), torch.full((length,), torch.nan)))
    return torch.cat(found).numpy()


def _parts(trajectory: Trajectory) -> list[int]:
    """Return the sampled tokens of each of a trajectory's sequences: one a step where a response saw a window."""
    if trajectory.image_window is None:
        return [trajectory.action_tokens]
    return [len(step.response_ids) for step in trajectory.steps]
