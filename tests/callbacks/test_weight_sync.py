"""Weight sync: when the engine gets weights, and when its distance from the trainer ends the run."""

import asyncio
import time
from itertools import groupby

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from arpo.callbacks.weight_sync import WeightSync, _read_to_the_end
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.errors import RolloutError, WeightSyncError
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.rollout.sampler import ShuffledTasks
from arpo.types import RolloutBatch
from tests.callbacks.support import IdleModule, quiet_trainer
from tests.inference.scripted import ScriptedEngine


class LoggedEngine(ScriptedEngine):
    """Writes down what it was asked for, and by which version it answered."""

    def __init__(self, chat, **options):
        super().__init__(chat, lambda request: "Action: wait()", **options)
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
        return [event for event, _ in groupby(self.events)]


class Policy:
    """Weights that remember how often they were read to their end."""

    def __init__(self, chat):
        self.chat = chat
        self.dtype = torch.float32
        self.read = 0
        self.error = None
        self.shares_trained = False

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
    def train(*, engine=None, module=None, gaps=(), lost=None, shared=False, before=(), sync=None, lag=0, **options):
        stall_s = options.pop("stall_s", 900.0)
        engine = engine or LoggedEngine(chat)
        module = module or SyncedModule(chat, gaps)
        module.policy.error, module.policy.shares_trained = lost, shared
        iterations = len(module.gaps) or options.pop("iterations", 2)
        collector = make_collector(engine=engine, start=False, group_size=2, stall_s=stall_s, max_policy_lag=lag)
        trainer = quiet_trainer([*before, sync or WeightSync(**options)], iterations)
        trainer.fit(module, RolloutDataModule(collector, ShuffledTasks(fake_tasks(2), 2, seed=0)))
        return engine, module, trainer

    return train


@pytest.mark.parametrize(("colocated", "shared"), [(False, False), (True, False), (False, True)])
def test_the_engine_is_in_sync_before_the_first_rollout_and_after_every_update_and_may_sleep_in_it(
    run, colocated, shared
):
    began = time.monotonic()
    engine, module, trainer = run(lost=0.003, colocated=colocated, shared=shared)
    whole = time.monotonic() - began
    # from the end of a rollout to the next sync, on the GPU of a trainer or with its weights
    iteration = ("update", "rollout", *["sleep"] * (colocated or shared))
    assert engine.story() == [*((event, version) for version in range(2) for event in iteration), ("update", 2)]
    assert module.policy.read == 3
    assert 0 < trainer.callback_metrics["time/sync"].item() < whole
    assert trainer.callback_metrics["engine/update_error"].item() == pytest.approx(0.003)


class Asks(RolloutCallback):
    """Asks the engine about a rollout, as a judge does."""

    def on_rollout_end(self, trainer, module, batch):
        runtime_of(trainer).engine.events.append(("asked", module.policy_version))


def test_what_asks_about_a_rollout_finds_the_engine_awake(run):
    engine, _, _ = run(shared=True, before=[Asks()], iterations=1)
    assert engine.story() == [("update", 0), ("rollout", 0), ("asked", 0), ("sleep", 0), ("update", 1)]


@pytest.mark.parametrize(
    ("gaps", "tolerance", "bound"),
    [
        ([2e-5, 2e-5, 1.1e-4], None, "0.0001"),
        ([2e-7, 2e-7, 1.6e-5], None, "1.5e-05"),  # of a first gap near 0, five times 3e-6
        ([2e-5, 2e-5, float("nan")], None, "0.0001"),
        ([2e-3], None, "0.0001"),  # a first one too large for the same weights
        ([0.05], 0.04, "0.04"),
    ],
)
def test_a_gap_above_five_times_the_run_s_first_ends_it_or_above_the_tolerance(run, gaps, tolerance, bound):
    said = rf"trainer's by {gaps[-1]:.2g} in the mean .* allowed is {bound}\. .*weight_sync\.tolerance allows more"
    with pytest.raises(WeightSyncError, match=said):
        run(gaps=gaps, tolerance=tolerance)


def test_gaps_that_are_sound_pass(run, chat):
    run(gaps=[2e-5, 9e-5, 1e-6])  # up to five times the first
    run(gaps=[2e-7, 1.4e-5])
    run(gaps=[0.05, 0.05], tolerance=0.06)
    run(gaps=[1e-6, 1.0], lag=1)  # of a run that is ahead of its updates it is the lag's
    certain = SyncedModule(chat, [1e-5, 0.014])  # tokens nearly certain, and then what is normal in bfloat16
    certain.policy.dtype = torch.bfloat16
    run(module=certain)


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


def test_a_gathering_that_breaks_off_is_the_error_unless_the_engine_failed_first():
    def gather():
        yield "weight", torch.zeros(1)
        raise TimeoutError("a rank is gone")

    with pytest.raises(TimeoutError, match="a rank is gone"):
        _read_to_the_end(gather(), None)
    with pytest.raises(WeightSyncError, match="the engine refuses") as error:
        _read_to_the_end(gather(), WeightSyncError("the engine refuses"))
    assert isinstance(error.value.__cause__, TimeoutError)


class Offline(L.LightningDataModule):
    """Has three batches an iteration, and a runtime for evaluations."""

    def __init__(self, runtime):
        super().__init__()
        self.runtime = runtime

    def setup(self, stage):
        self.runtime.start()

    def train_dataloader(self):
        return DataLoader([RolloutBatch(0, 0, [])] * 3, batch_size=None)


def test_offline_the_engine_gets_the_policy_of_an_iteration_s_last_step(chat, make_collector):
    engine = LoggedEngine(chat)
    trainer = quiet_trainer([WeightSync(colocated=True)], iterations=2)
    trainer.fit(SyncedModule(chat), Offline(make_collector(engine=engine, start=False).runtime))
    # not before every step
    assert engine.events == [("update", 0), ("sleep", 0), ("update", 3), ("sleep", 3), ("update", 6)]


WAITS = "RolloutError: the trainer waits "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("breaks off", "WeightSyncError: the object store is full"),
        pytest.param("hangs", WAITS, marks=pytest.mark.long),
        pytest.param("loop ended", "ArpoError: rollout does not run", marks=pytest.mark.long),
        pytest.param("no rollout", f"{WAITS}for iteration 0", marks=pytest.mark.long),
        pytest.param("gathering stands still", WAITS, marks=pytest.mark.long),
    ],
)
def test_every_rank_hears_what_went_wrong_on_rank_0(tiny_model, tmp_path, case, words, forks):
    """The other rank's timeout is a minute."""
    from tests.callbacks.two_ranks import train_on_two  # which takes this module's engine

    forks.call(train_on_two, str(tiny_model), str(tmp_path / "out"), case)
    first, second = ((tmp_path / f"out.{rank}").read_text() for rank in range(2))
    assert first.startswith(words)
    if case == "gathering stands still":  # rank 0 says so and ends, and no word reaches the other
        assert "Connection closed by peer" in second
    else:
        assert second == "ArpoError: " + first.partition(": ")[2]
