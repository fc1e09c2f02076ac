"""The tiny policy, loaded once and copied, and trajectories that it could have sampled."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from arpo.methods.grpo import GRPO
from arpo.models.collate import collate
from arpo.models.policy import Policy
from arpo.models.tokenization import ChatTokenizer, tokenize
from arpo.modules.grpo import GRPOModule
from arpo.modules.minibatch import Sample, samples_of
from arpo.types import Group, RolloutBatch, Task, Trajectory
from tests import exchanges
from tests.models.samples import trajectory as sampled

MakePolicy = Callable[[], Policy]

CHOICES = tuple(field.name for field in fields(GRPO))


@pytest.fixture(scope="session")
def loaded_policy(tiny_model: Path) -> Policy:
    return Policy(tiny_model)


@pytest.fixture
def make_policy(loaded_policy: Policy) -> MakePolicy:
    shared = {id(part): part for part in (loaded_policy.chat, loaded_policy.images)}
    return lambda: copy.deepcopy(loaded_policy, dict(shared))


@pytest.fixture(scope="session")
def make_group(loaded_policy: Policy) -> Callable[..., Group]:
    """A group with these task rewards; the members differ in screenshots and responses."""

    def make(*rewards: float, formats: Sequence[float] = (), first: int = 0, injected: tuple[int, ...] = ()) -> Group:
        return Group(
            Task(f"task{first}", "Click."),
            tuple(
                replace(
                    sampled(loaded_policy.chat, (first + member,) * (1 + member % 2)),
                    task_id=f"task{first}",
                    task_reward=reward,
                    format_reward=formats[member] if formats else 0.0,
                )
                for member, reward in enumerate(rewards)
            ),
            injected,
        )

    return make


@pytest.fixture
def make_module(make_policy: MakePolicy) -> Callable[..., GRPOModule]:
    """A module that learns by plain gradient descent, so that a change of the weights is the gradient."""

    def make(**options) -> GRPOModule:
        optimizer = options.pop("optimizer", partial(torch.optim.SGD, lr=1.0))
        method = options.pop("method", None)
        objective = method or GRPO(**{name: options.pop(name) for name in CHOICES if name in options})
        module = GRPOModule(make_policy, optimizer, objective, **({"minibatches": 1, "max_grad_norm": 1e9} | options))
        module.configure_model()
        return module

    return make


def windowed(group: Group, chat: ChatTokenizer, window: int | None = 1) -> Group:
    """The group with so many screenshots at once: of one, each step is a sequence."""
    return replace(group, trajectories=tuple(exchanges.windowed(each, chat, window) for each in group.trajectories))


def samples(module: GRPOModule, *groups: Group) -> list[list[Sample]]:
    """The sequences of groups with what their tokens are to learn, as an update makes them."""
    return samples_of(groups, module.policy.chat, module.objective.credits(groups))


def quiet_trainer(**options) -> L.Trainer:
    """A trainer on the CPU, of one epoch unless the options say otherwise, which shows and stores nothing."""
    off = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    return L.Trainer(accelerator="cpu", **{"max_epochs": 1, **dict.fromkeys(off, False), **options})


def fit(module: L.LightningModule, *batches: Sequence[Group] | Sequence[Trajectory]) -> L.Trainer:
    """Train for real, one iteration a batch."""
    trainer = quiet_trainer()
    data = [
        RolloutBatch(iteration, iteration, list(batch)) if isinstance(batch[0], Group) else batch
        for iteration, batch in enumerate(batches)
    ]
    trainer.fit(module, DataLoader(data, batch_size=None))
    return trainer


def rows(module: L.LightningModule, name: str) -> dict[tuple[int, int], torch.Tensor]:
    """One kind of number of each trajectory's tokens in the last update, by group and member, where it is known."""
    record, found = module.last_update, {}
    sizes = [len(group.members) for group in record.groups]
    places = [(group, member) for group, size in enumerate(sizes) for member in range(size)]
    for number, place in enumerate(places):
        if name in record.tokens(number):
            found[place] = torch.from_numpy(record.tokens(number)[name])
    return found


def metrics(trainer: L.Trainer) -> dict[str, float]:
    """The last number of every metric."""
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


def logprobs_of(policy: Policy, trajectory: Trajectory, temperature: float = 1.0) -> torch.Tensor:
    """An independent forward: one trajectory, its own batch."""
    batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
    output = policy.action_logprobs(batch, temperature=temperature)
    return output.logprobs[output.mask]


def sampled_logprobs(module: GRPOModule, trajectory: Trajectory) -> list[float]:
    """The module's log-probabilities of the sampled tokens of a trajectory, step after step."""
    with torch.no_grad():
        output = module.action_logprobs(tokenize(trajectory, module.policy.chat), trajectory.screenshots)
    return output.logprobs[output.mask].tolist()


def moved(policy: Policy, seed: int) -> Policy:
    """The policy with other weights."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return policy


def weights(policy: Policy) -> torch.Tensor:
    """All trainable weights as one vector."""
    return torch.cat([p.detach().flatten() for p in policy.parameters() if p.requires_grad])
