"""Trajectories with real screenshots, and a module that learns nothing but goes through every hook."""

import hashlib
import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from PIL import Image

from arpo.agent.actions import Action
from arpo.agent.render import render
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.models.policy import Policy
from arpo.modules.base import PolicyModule
from arpo.modules.metrics import UpdateMeter
from arpo.rollout.collector import RolloutCollector
from arpo.rollout.hooks import RolloutCallback
from arpo.rollout.sampler import ShuffledTasks
from arpo.rollout.updates import UpdateRecord
from arpo.types import Group, Outcome, RolloutBatch, Step, Task, Trajectory


def make_png(size: tuple[int, int], shade: int = 255) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(buffer, "PNG")
    return buffer.getvalue()


def make_step(key: str = "", action: Action | str = "no_action", *, size: tuple[int, int] = (168, 210)) -> Step:
    """A step; a string instead of an action is the kind of its parse error."""
    failed = isinstance(action, str)
    return Step(
        screenshot=key,
        width=size[0],
        height=size[1],
        prompt_ids=(1, 2),
        response_ids=(3, 4, 5),
        sampler_logprobs=(-0.1, -0.2, -0.3),
        policy_version=4,
        response="I would rather not." if failed else f"Thought: look\nAction: {render(action)}",
        action="" if failed else render(action),
        parse_error=action if failed else "",
    )


def make_trajectory(
    actions: Sequence[Action | str],
    *,
    id: str = "3/0/1",
    size: tuple[int, int] = (168, 210),
    instruction: str = "Press OK.",
    task_reward: float = 1.0,
    outcome: Outcome = Outcome.FINISHED,
    last: bool = True,
) -> Trajectory:
    pngs = [make_png(size, shade=255 - index) for index in range(len(actions) + last)]
    keys = [hashlib.sha256(png).hexdigest() for png in pngs]
    return Trajectory(
        id=id,
        task_id="fake/click/1",
        domain="fake-click",
        instruction=instruction,
        seed=1,
        steps=tuple(make_step(key, action, size=size) for key, action in zip(keys, actions, strict=False)),
        outcome=outcome,
        task_reward=task_reward,
        format_reward=-1.0 if outcome is Outcome.PARSE_ERROR else 0.0,
        screenshots=dict(zip(keys, pngs, strict=True)),
        last_screenshot=keys[-1] if last else "",
    )


def make_group(*trajectories: Trajectory, injected: tuple[int, ...] = ()) -> Group:
    return Group(Task("fake/click/1", "Press OK."), trajectories, injected)


def no_policy() -> Policy:
    raise AssertionError("an idle module has no policy")


class IdleModule(PolicyModule):
    """Goes through the hooks of a training iteration as the real module does, and learns nothing."""

    def __init__(self, at_step: Callable[[], None] = lambda: None) -> None:
        super().__init__(no_policy, partial(torch.optim.SGD, lr=0.1), micro_batch_tokens=1, max_grad_norm=1.0)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.at_step = at_step

    def configure_model(self) -> None:
        """Load no policy: there is nothing to learn."""

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        for callback in self.trainer.callbacks:
            if isinstance(callback, RolloutCallback):
                callback.on_rollout_end(self.trainer, self, batch)
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
    meter = UpdateMeter()
    for group, row in enumerate(batch.groups):
        for member, trajectory in enumerate(row.trajectories):
            place = SimpleNamespace(key=(group, member, 0), filler=False, action_tokens=trajectory.action_tokens)
            numbers = torch.zeros(1, trajectory.action_tokens)
            meter.note([place], advantages=numbers + 10 * group + member, logprobs=numbers, old_logprobs=numbers)
    return meter.record(batch)


class EngineFollows(L.Callback):
    """Tells the engine its policy version after every update, so that no rollout is stale."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        trainer.datamodule.runtime.update_weights([], pl_module.policy_version)


def fit(
    directory: Path,
    collector: RolloutCollector,
    callbacks: Sequence[L.Callback],
    *,
    loggers: Sequence[Logger] = (),
    iterations: int = 2,
    module: IdleModule | None = None,
    checkpoint: Path | None = None,
) -> L.Trainer:
    """Train for real on the fake desktop."""
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=iterations,
        callbacks=[*callbacks, EngineFollows()],
        logger=list(loggers),
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
    data = RolloutDataModule(collector, ShuffledTasks(fake_tasks(2), tasks_per_iteration=2, seed=0))
    trainer.fit(module or IdleModule(), data, ckpt_path=checkpoint)
    return trainer
