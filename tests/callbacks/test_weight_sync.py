"""Weight sync: when the engine gets weights, and when its distance from the trainer ends the run."""

import asyncio

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from arpo.callbacks.weight_sync import WeightSync, _read_to_the_end
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.errors import RolloutError, WeightSyncError
from arpo.rollout.sampler import ShuffledTasks
from arpo.types import RolloutBatch
from tests.callbacks.support import IdleModule, quiet_trainer
from tests.inference.scripted import ScriptedEngine


def wait(request):
    return "Action: wait()"


class LoggedEngine(ScriptedEngine):
    """Writes down what it was asked for, and by which version it answered."""

    def __init__(self, chat, **options):
        super().__init__(chat, wait, **options)
        self.events = []

    async def generate(self, request):
        self.events.append(("rollout", self.policy_version))
        return await super().generate(request)

    async def update_weights(self, tensors, version):
        self.events.append(("update", version))
        await super().update_weights(tensors, version)

    async def sleep(self):
        await super().sleep()
        self.events.append(("sleep", self.policy_version))

    def story(self):
        """The events without repetitions in a row."""
        return [event for i, event in enumerate(self.events) if i == 0 or event != self.events[i - 1]]


class Policy:
    """Weights that remember how often they were read to their end."""

    def __init__(self, chat):
        self.chat = chat
        self.dtype = torch.float32
        self.read = 0
        self.error = None

    def update_error(self):
        return self.error

    def checkpoint_tensors(self):
        yield from ()
        self.read += 1


class SyncedModule(IdleModule):
    """Logs gaps between engine and trainer, one an update."""

    def __init__(self, chat, gaps=()):
        super().__init__()
        self.policy = Policy(chat)
        self.gaps = list(gaps)

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        if self.gaps:
            self.log("engine/logprob_gap_mean", self.gaps.pop(0), on_step=False, on_epoch=True, batch_size=1)


@pytest.fixture
def run(chat, make_collector):
    def train(*, engine=None, module=None, gaps=(), lost=None, sync=None, stall_s=900.0, lag=0, **options):
        engine = engine or LoggedEngine(chat)
        module = module or SyncedModule(chat, gaps)
        module.policy.error = lost
        iterations = len(module.gaps) or options.pop("iterations", 2)
        collector = make_collector(engine=engine, start=False, group_size=2, stall_s=stall_s, max_policy_lag=lag)
        trainer = quiet_trainer([sync or WeightSync(**options)], iterations)
        trainer.fit(module, RolloutDataModule(collector, ShuffledTasks(fake_tasks(2), 2, seed=0)))
        return engine, module, trainer

    return train


def test_the_engine_is_in_sync_before_the_first_rollout_and_after_every_update(run):
    engine, module, trainer = run(lost=0.003)
    assert engine.story() == [("update", 0), ("rollout", 0), ("update", 1), ("rollout", 1), ("update", 2)]
    assert module.policy.read == 3
    assert trainer.callback_metrics["time/sync"].item() > 0
    assert trainer.callback_metrics["engine/update_error"].item() == pytest.approx(0.003)


@pytest.mark.parametrize(
    ("first", "later", "bound"),
    [(2e-5, 1.1e-4, "0.0001"), (2e-7, 1.6e-5, "1.5e-05"), (2e-5, float("nan"), "0.0001")],
)
def test_a_gap_above_five_times_the_run_s_first_ends_it(run, first, later, bound):
    """Of a first gap near 0, five times 3e-6."""
    with pytest.raises(WeightSyncError, match=rf"differ from the trainer's by {later:.2g} .* allowed is {bound}\. "):
        run(gaps=[first, first, later])


def test_gaps_that_are_sound_pass(run, chat):
    run(gaps=[2e-5, 9e-5, 1e-6])  # up to five times the first
    run(gaps=[2e-7, 1.4e-5])
    run(gaps=[1e-6, 1.0], lag=1)  # of a run that is ahead of its updates it is the lag's
    certain = SyncedModule(chat, [1e-5, 0.014])  # tokens nearly certain, and then what is normal in bfloat16
    certain.policy.dtype = torch.bfloat16
    run(module=certain)


def test_a_first_gap_too_large_for_the_same_weights_ends_the_run_unless_the_tolerance_accepts_it(run):
    with pytest.raises(WeightSyncError, match=r"allowed is 0\.0001\. .*weight_sync\.tolerance allows more"):
        run(gaps=[2e-3])
    run(gaps=[0.05, 0.05], tolerance=0.06)
    with pytest.raises(WeightSyncError, match=r"by 0\.05 in the mean .* allowed is 0\.04"):
        run(gaps=[0.05], tolerance=0.04)


def test_a_resumed_run_is_held_to_the_first_gap_of_the_run_and_a_second_fit_is_not(run):
    sync = WeightSync()
    run(gaps=[1e-6], sync=sync)
    run(gaps=[2e-5], sync=sync)  # above five times 3e-6

    class Resumed(WeightSync):
        def on_fit_start(self, trainer, pl_module):  # Lightning reads a checkpoint just before
            self.load_state_dict(sync.state_dict())

    with pytest.raises(WeightSyncError, match=r"by 2e-05 in the run's first"):
        run(gaps=[1.1e-4], sync=Resumed())


class Hanging(LoggedEngine):
    """Takes the first weights, and hangs in its next update."""

    async def update_weights(self, tensors, version):
        if version:
            await asyncio.Event().wait()
        await super().update_weights(tensors, version)


def test_an_engine_that_hangs_in_its_update_is_named(run, chat):
    waits = "the trainer waits until the engine serves policy version 1, .* the engine has not taken the new weights"
    with pytest.raises(RolloutError, match=waits):
        run(engine=Hanging(chat), stall_s=1.0)


def breaking(engine_failed):
    """A gathering that breaks off, and whether the engine has failed before."""

    def gather():
        yield "weight", torch.zeros(1)
        raise TimeoutError("a rank is gone")

    _read_to_the_end(gather(), WeightSyncError("the engine refuses") if engine_failed else None)


def test_a_gathering_that_breaks_off_is_the_error_unless_the_engine_failed_first():
    with pytest.raises(TimeoutError, match="a rank is gone"):
        breaking(engine_failed=False)
    with pytest.raises(WeightSyncError, match="the engine refuses") as error:
        breaking(engine_failed=True)
    assert isinstance(error.value.__cause__, TimeoutError)


def test_beside_the_trainer_the_engine_sleeps_from_the_end_of_a_rollout_to_the_next_sync(run):
    engine, _, _ = run(colocated=True)
    iterations = [(event, number) for number in range(2) for event in ("update", "rollout", "sleep")]
    assert engine.story() == [*iterations, ("update", 2)]


class Offline(L.LightningDataModule):
    """Has three batches an iteration, and a runtime for evaluations."""

    def __init__(self, runtime):
        super().__init__()
        self.runtime = runtime

    def setup(self, stage):
        self.runtime.start()

    def train_dataloader(self):
        return DataLoader([RolloutBatch(0, 0, []) for _ in range(3)], batch_size=None)


def test_offline_the_engine_gets_the_policy_of_an_iteration_s_last_step(chat, make_collector):
    engine = LoggedEngine(chat)
    trainer = quiet_trainer([WeightSync(colocated=True)], iterations=2)
    trainer.fit(SyncedModule(chat), Offline(make_collector(engine=engine, start=False).runtime))
    assert engine.story() == [("update", 0), ("sleep", 0), ("update", 3), ("sleep", 3), ("update", 6)]
    assert [engine.events.count(("sleep", version)) for version in (0, 3)] == [1, 1]  # not before every step
