"""Trajectories by hand, and a module that learns nothing but goes through every hook."""

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger

from arpo.agent.actions import Action
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.methods.method import Credit
from arpo.models.policy import Policy
from arpo.modules.base import PolicyModule
from arpo.modules.metrics import UpdateMeter
from arpo.rollout.hooks import announce
from arpo.rollout.sampler import ShuffledTasks
from arpo.rollout.storage import UpdateRecord
from arpo.rollout.stream import RolloutCollector
from arpo.types import Group, Outcome, RolloutBatch, Step, Task, Trajectory
from tests.exchanges import in_turn


def make_trajectory(
    actions: Sequence[Action | str],
    *,
    id: str = "3/0/1",
    task_reward: float = 1.0,
    outcome: Outcome = Outcome.FINISHED,
) -> Trajectory:
    """A trajectory without screenshots; a string instead of an action is the kind of its parse error."""
    results = [("", each) if isinstance(each, str) else (each.describe(), "") for each in actions]
    turns = [((1, 2), (3, 4, 5), (-0.1, -0.2, -0.3), 4)] * len(results)
    record = in_turn([Step("", 168, 210, "", *result) for result in results], *turns)
    format_reward = -1.0 if outcome is Outcome.PARSE_ERROR else 0.0
    task = ("fake/click/1", "fake-click", "Press OK.", 1)
    return Trajectory(id, *task, record["steps"], outcome, task_reward, format_reward, record["exchanges"])


def make_group(*trajectories: Trajectory, injected: tuple[int, ...] = ()) -> Group:
    return Group(Task("fake/click/1", "Press OK."), trajectories, injected)


def no_policy() -> Policy:
    raise AssertionError("an idle module has no policy")


def fail() -> None:
    raise RuntimeError("boom")


class IdleModule(PolicyModule):
    """Goes through the hooks of a training iteration as the real module does, and learns nothing."""

    def __init__(self, at_step: Callable[[], None] = lambda: None) -> None:
        super().__init__(no_policy, partial(torch.optim.SGD, lr=0.1), micro_batch_tokens=1, max_grad_norm=1.0)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.at_step = at_step

    def configure_model(self) -> None:
        """Load no policy: there is nothing to learn."""

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        announce(self.trainer, self, batch)
        self.at_step()
        self.optimizers().step()
        self.policy_version += 1
        self.last_update = update_of(batch)
        metrics = {"time/update": 0.5, "policy/version": float(self.policy_version)}
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer(self.named_parameters())


def update_of(batch: RolloutBatch) -> UpdateRecord:
    """The record of an update in which a trajectory has ten times its group and its place as advantage."""
    meter, credits = UpdateMeter(), []
    for group, row in enumerate(batch.groups):
        for member, trajectory in enumerate(row.trajectories):
            place = SimpleNamespace(
                key=(group, member, ((0, trajectory.action_tokens),)),
                filler=False,
                action_tokens=trajectory.action_tokens,
            )
            numbers = torch.zeros(1, trajectory.action_tokens)
            meter.note([place], logprobs=numbers, old_logprobs=numbers)
            credits.append(Credit.of_trajectory(trajectory, 10.0 * group + member))
    return meter.record(batch, [credits])


def reloaded(state: dict[str, Any]) -> dict[str, Any]:
    """The state as it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


class EngineFollows(L.Callback):
    """Tells the engine its policy version, that of a checkpoint too, so that no rollout is stale."""

    def on_train_start(self, trainer, pl_module) -> None:
        if pl_module.policy_version:
            trainer.datamodule.runtime.update_weights([], pl_module.policy_version)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        trainer.datamodule.runtime.update_weights([], pl_module.policy_version)


def quiet_trainer(callbacks: Sequence[L.Callback], iterations: int, **options: Any) -> L.Trainer:
    """A trainer on the CPU that shows and writes nothing of its own."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = quiet | {"enable_checkpointing": False, "num_sanity_val_steps": 0, "log_every_n_steps": 1} | options
    return L.Trainer(accelerator="cpu", max_epochs=iterations, callbacks=list(callbacks), **options)


def fit(
    directory: Path,
    collector: RolloutCollector,
    callbacks: Sequence[L.Callback],
    *,
    loggers: Sequence[Logger] = (),
    iterations: int = 2,
    module: IdleModule | None = None,
) -> L.Trainer:
    """Train for real on the fake desktop."""
    callbacks = [*callbacks, EngineFollows()]
    trainer = quiet_trainer(callbacks, iterations, logger=list(loggers), default_root_dir=directory)
    data = RolloutDataModule(collector, ShuffledTasks(fake_tasks(2), tasks_per_iteration=2, seed=0))
    trainer.fit(module or IdleModule(), data)
    return trainer
