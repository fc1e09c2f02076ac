"""Judged trajectories, and the losses of a module computed the plain way: whole, in one graph."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import lightning as L
import pytest
import torch

from arpo.models.collate import collate
from arpo.models.policy import Policy
from arpo.models.tokenization import tokenize
from arpo.types import Trajectory
from tests.models import samples

PLAIN_DESCENT = partial(torch.optim.SGD, lr=25.0)
"""Gradient descent whose first step is the gradient: one cycle begins at 1/25 of the peak."""
NUMBERS = {"beta": 0.5, "steps": 3, "micro_batch_tokens": 65536, "max_grad_norm": 1e9}


@pytest.fixture
def judged(loaded_policy: Policy) -> Callable[..., list[Trajectory]]:
    """Episodes with these rewards; the first two are of one task, the next two of another, and so on."""

    def make(*rewards: float) -> list[Trajectory]:
        return [
            replace(
                samples.trajectory(loaded_policy.chat, (number,) * (1 + number % 3)),
                task_id=f"task{number // 2}",
                task_reward=reward,
            )
            for number, reward in enumerate(rewards)
        ]

    return make


def likelihoods(policy: Policy, batch: Sequence[Trajectory]) -> torch.Tensor:
    """Σ log π of each trajectory, a forward each, with gradient."""
    rows = []
    for trajectory in batch:
        tokens = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
        rows.append(policy.action_logprobs(tokens).logprobs.sum())
    return torch.stack(rows)


def logged(trainer: L.Trainer) -> dict[str, float]:
    """What a fit has logged last, by name."""
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


def moved(policy: Policy) -> Policy:
    """The policy, after something has changed it."""
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.02)
    return policy


def gradient(policy: Policy, loss: torch.Tensor) -> torch.Tensor:
    """The gradient of a loss by all trainable weights, as one vector."""
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    parts = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [
            torch.zeros(parameter.numel()) if part is None else part.flatten()
            for parameter, part in zip(parameters, parts, strict=True)
        ]
    )
