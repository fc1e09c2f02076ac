"""A training that fails on the first of two ranks."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy

from arpo.callbacks.weight_sync import WeightSync
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.pool.pool import EnvPool
from arpo.errors import WeightSyncError
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.hooks import runtime_of
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import ShuffledTasks
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from arpo.rollout.stream import RolloutCollector
from tests.callbacks.support import quiet_trainer
from tests.callbacks.test_weight_sync import LoggedEngine, Policy, SyncedModule
from tests.invariant.processes import on_ranks
from tests.rollout.conftest import COMPACT

WEIGHTS = 3
STANDS_STILL = "gathering stands still"


class GatheredPolicy(Policy):
    """Gathers each of its weights from both ranks, as one in shards does."""

    def checkpoint_tensors(self):
        for number in range(WEIGHTS):
            weight = torch.full((2,), float(number))
            if threading.current_thread().name == STANDS_STILL:
                threading.Event().wait()  # as when a link between ranks has died
            dist.all_reduce(weight)
            yield f"weight {number}", weight
        self.read += 1


class FailingEngine(LoggedEngine):
    """Takes the first weights, and fails at the second ones, or before them, in a way of its own."""

    def __init__(self, chat, case):
        super().__init__(chat)
        self.case = case

    async def generate(self, request):
        if self.case == "no rollout":
            await asyncio.Event().wait()
        return await super().generate(request)

    async def update_weights(self, tensors, version):
        if version and self.case != "loop ended":
            await self.fail(iter(tensors))
        await super().update_weights(tensors, version)

    async def fail(self, tensors):
        if self.case == STANDS_STILL:
            threading.Thread(target=next, args=(tensors,), daemon=True, name=STANDS_STILL).start()
        else:
            next(tensors)
        if self.case == "breaks off":
            raise WeightSyncError("the object store is full")
        await asyncio.Event().wait()


class EndOfLoop(L.Callback):
    """Ends the event loop of the rollouts after an update, on rank 0, which has one."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.is_global_zero:
            loop = runtime_of(trainer)._loop
            loop._loop.call_soon_threadsafe(loop._loop.stop)
            loop._ended.wait()


def train(model: str, out: str, case: str) -> None:
    torch.set_num_threads(1)
    chat = ChatTokenizer(model)
    runtime = RolloutRuntime(
        lambda: FailingEngine(chat, case),
        EnvPool(FakeDesktop, size=2, backend="thread", reset_timeout_s=5.0, step_timeout_s=5.0),
        chat,
        COMPACT,
        TrajectoryStore(f"{out}.trajectories"),
        RolloutSettings(group_size=2, max_steps=2, max_tokens=40, max_context=2000, stall_s=5.0),
    )
    module = SyncedModule(chat)
    module.policy = GatheredPolicy(chat)
    trainer = quiet_trainer(
        [*([EndOfLoop()] if case == "loop ended" else []), WeightSync()],
        iterations=2,
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=60)),
        use_distributed_sampler=False,
    )
    sampler = ShuffledTasks(fake_tasks(2), 2, seed=0)
    try:
        trainer.fit(module, RolloutDataModule(RolloutCollector(runtime), sampler))
    except Exception as error:  # noqa: BLE001 - what it says is the result
        Path(f"{out}.{trainer.global_rank}").write_text(f"{type(error).__name__}: {error}")


def train_on_two(model: str, out: str, case: str) -> None:
    on_ranks(2, train, model, out, case)
