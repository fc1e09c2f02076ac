"""Weight sync: when the engine gets weights, what it is asked afterwards, and that a forgotten cache is caught."""

import asyncio
from functools import partial

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from arpo.callbacks.weight_sync import WeightSync
from arpo.datamodules.rollouts import RolloutDataModule
from arpo.envs.fake import fake_tasks
from arpo.errors import RolloutError, WeightSyncError
from arpo.inference.engine import GenerateRequest, Sampling
from arpo.inference.probe import picture
from arpo.inference.scripted import ScriptedEngine
from arpo.rollout.sampler import ShuffledTasks
from arpo.types import RolloutBatch
from tests.callbacks.support import IdleModule


def wait(request):
    return "Action: wait()"


class LoggedEngine(ScriptedEngine):
    """Writes down what it was asked for, and by which version it answered."""

    def __init__(self, chat, **options):
        super().__init__(chat, wait, **options)
        self.events = []

    async def generate(self, request):
        what = "probe" if request.images == (picture(),) else "rollout"
        self.events.append((what, self.policy_version))
        return await super().generate(request)

    async def update_weights(self, tensors, version, examine=None):
        self.events.append(("update", version))
        await super().update_weights(tensors, version, examine)

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


class Fleet:
    """Engines as the members of a fleet, of which rollouts ask the first one only."""

    def __init__(self, *engines):
        self.replicas = engines
        self.generate = engines[0].generate

    async def update_weights(self, tensors, version, examine=None):
        read = list(tensors)
        for number, engine in enumerate(self.replicas):
            await engine.update_weights(read, version, examine and partial(self.examined, number, examine))

    @staticmethod
    async def examined(number, examine, _, engine):
        await examine(number, engine)

    @property
    def oldest_version(self):
        return min(engine.oldest_version for engine in self.replicas)

    def counters(self):
        return {"engine/replica_0/requests": float(len(self.replicas[0].requests))}

    async def close(self):
        """Nothing to free."""


class SyncedModule(IdleModule):
    """Knows the made-up log-probabilities of a healthy engine, as a trainer knows the true ones."""

    def __init__(self, chat, error=0.0):
        super().__init__()
        self.policy = Policy(chat)
        self.error = error
        self.temperature = 0.7
        self.frozen = False

    def sampled_logprobs(self, trajectories):
        return [self.opinion(trajectory) for trajectory in trajectories]

    def opinion(self, trajectory):
        healthy = ScriptedEngine(self.policy.chat, wait)
        healthy.policy_version = 0 if self.frozen else self.policy_version
        (step,) = trajectory.steps
        png = trajectory.screenshots[step.screenshot]
        request = GenerateRequest(step.prompt_ids, (png,), Sampling(max_tokens=len(step.response_ids)))
        response = asyncio.run(healthy.generate(request))
        assert response.token_ids == step.response_ids
        return [logprob + self.error for logprob in response.logprobs]


@pytest.fixture
def run(chat, make_collector):
    def train(*, engine=None, module=None, error=0.0, lost=None, iterations=2, sync=None, stall_s=900.0, **options):
        engine = engine or LoggedEngine(chat)
        module = module or SyncedModule(chat, error)
        module.policy.error = lost
        collector = make_collector(engine=engine, start=False, group_size=2, stall_s=stall_s)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=iterations,
            callbacks=[sync or WeightSync(**options)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(module, RolloutDataModule(collector, ShuffledTasks(fake_tasks(2), 2, seed=0)))
        return engine, module, trainer

    return train


def test_the_engine_is_in_sync_before_the_first_rollout_and_after_every_update(run):
    engine, module, _ = run()
    assert engine.story() == [
        ("update", 0),
        ("probe", 0),
        ("rollout", 0),
        ("update", 1),
        ("probe", 1),
        ("rollout", 1),
        ("update", 2),
        ("probe", 2),
    ]
    assert module.policy.read == 3


def test_the_gap_and_the_time_of_a_sync_are_logged(run):
    _, _, trainer = run(error=1e-5)
    assert trainer.callback_metrics["engine/probe_gap"].item() == pytest.approx(1e-5, rel=1e-3)
    assert trainer.callback_metrics["engine/probe_gap_max"].item() == pytest.approx(1e-5, rel=1e-3)
    assert trainer.callback_metrics["engine/probe_evidence"].item() > 6
    assert trainer.callback_metrics["engine/probe_unjudged"].item() == 0
    assert trainer.callback_metrics["time/sync"].item() > 0


@pytest.mark.parametrize("error", [None, 0.003])
def test_what_an_adapter_loses_on_its_way_is_logged(run, error):
    _, _, trainer = run(lost=error, iterations=1)
    logged = trainer.callback_metrics.get("engine/update_error")
    assert logged == error if error is None else logged.item() == pytest.approx(error)


def test_a_cache_from_before_the_update_is_caught_at_the_first_sync_after_it(run, chat):
    engine = LoggedEngine(chat, sticky_cache=True)
    with pytest.raises(WeightSyncError, match=r"cache"):
        run(engine=engine)
    assert engine.story()[-2:] == [("update", 1), ("probe", 1)]


class OneBehind(LoggedEngine):
    """Tells every version and answers with the one before it."""

    def _logprobs(self, request, ids, version):
        return super()._logprobs(request, ids, max(version - 1, 0))


def test_an_engine_that_is_one_version_behind_is_caught_where_the_tolerance_lets_it_pass(run, chat):
    engine = OneBehind(chat)
    with pytest.raises(WeightSyncError, match=r"nearer to the trainer's old weights"):
        run(engine=engine, tolerance=10.0)
    assert engine.story()[-2:] == [("update", 1), ("probe", 1)]


class EndedAtTwo(LoggedEngine):
    """Answers at version 0 as the end of a training of two iterations did."""

    def _logprobs(self, request, ids, version):
        return super()._logprobs(request, ids, version or 2)


def test_a_second_training_is_not_compared_with_the_first(run, chat):
    """With the same callback, as in a notebook."""
    sync = WeightSync(tolerance=10.0)
    run(sync=sync)
    run(sync=sync, engine=EndedAtTwo(chat), iterations=1)


def test_the_tolerance_is_the_gap_that_is_still_accepted(run):
    run(error=0.05, tolerance=0.06, iterations=1)
    with pytest.raises(WeightSyncError, match=r"by 0\.05, allowed is 0\.04"):
        run(error=0.05, tolerance=0.04, iterations=1)


def test_without_a_tolerance_it_is_that_of_the_policy_s_format(run, chat):
    with pytest.raises(WeightSyncError, match=r"by 0\.01, allowed is 0\.0001"):
        run(error=0.01)
    sync = WeightSync()
    module = SyncedModule(chat, 0.01)
    module.policy.dtype = torch.bfloat16
    run(module=module, sync=sync, iterations=1)


class Still(LoggedEngine):
    """Answers for ever as at first."""

    def _logprobs(self, request, ids, version):
        return super()._logprobs(request, ids, 0)


def test_updates_that_cannot_be_judged_are_counted(run, chat):
    """No log-probability has changed at all."""
    module = SyncedModule(chat)
    module.frozen = True
    _, _, trainer = run(engine=Still(chat), module=module, iterations=3)
    assert trainer.callback_metrics["engine/probe_evidence"].item() == 0
    assert trainer.callback_metrics["engine/probe_unjudged"].item() == 3


def test_every_replica_is_probed_and_the_stale_one_is_named(run, chat):
    healthy, stale = LoggedEngine(chat), LoggedEngine(chat, sticky_cache=True)
    with pytest.raises(WeightSyncError, match=r"engine 1 of the fleet's log-probabilities differ"):
        run(engine=Fleet(healthy, stale))
    assert healthy.story()[-2:] == stale.story()[-2:] == [("update", 1), ("probe", 1)]


def test_the_worst_of_the_replicas_is_logged(run, chat):
    fleet = Fleet(LoggedEngine(chat), SlightlyOff(chat))
    _, _, trainer = run(engine=fleet, tolerance=0.1)
    assert trainer.callback_metrics["engine/probe_gap"].item() == pytest.approx(0.01, rel=1e-2)


class Hanging(LoggedEngine):
    """Takes the first weights, and hangs in its next update or in the examination after it."""

    def __init__(self, chat, where):
        super().__init__(chat)
        self.where = where

    async def generate(self, request):
        if self.policy_version and self.where == "exam":
            await asyncio.Event().wait()
        return await super().generate(request)

    async def update_weights(self, tensors, version, examine=None):
        if version and self.where == "update":
            await asyncio.Event().wait()
        await super().update_weights(tensors, version, examine)


@pytest.mark.parametrize(
    ("where", "probe_every", "waits"),
    [
        ("update", 0, "until the engine serves policy version 1"),
        ("update", 1, "for the answers to the probe of policy version 1"),
        ("exam", 1, "for the answers to the probe of policy version 1"),
    ],
)
def test_an_engine_that_hangs_in_its_update_or_its_exam_is_named(run, chat, where, probe_every, waits):
    with pytest.raises(RolloutError, match=f"the trainer waits {waits}, .* the engine has not taken the new weights"):
        run(engine=Hanging(chat, where), probe_every=probe_every, stall_s=1.0)


class SlightlyOff(LoggedEngine):
    """Rounds as another implementation would."""

    def _logprobs(self, request, ids, version):
        return tuple(logprob - 0.01 for logprob in super()._logprobs(request, ids, version))


def test_beside_the_trainer_the_engine_sleeps_from_the_end_of_a_rollout_to_the_next_sync(run):
    engine, _, _ = run(colocated=True)
    assert engine.story() == [
        ("update", 0),
        ("probe", 0),
        ("rollout", 0),
        ("sleep", 0),
        ("update", 1),
        ("probe", 1),
        ("rollout", 1),
        ("sleep", 1),
        ("update", 2),
        ("probe", 2),
    ]


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
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=[WeightSync(colocated=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(SyncedModule(chat), Offline(make_collector(engine=engine, start=False).runtime))
    first, second, third = ([("update", version), ("probe", version)] for version in (0, 3, 6))
    assert engine.story() == [*first, ("sleep", 0), *second, ("sleep", 3), *third]
    assert [engine.events.count(("sleep", version)) for version in (0, 3)] == [1, 1]  # not before every step


@pytest.mark.parametrize(("every", "probed"), [(0, []), (1, [0, 1, 2, 3]), (2, [0, 2])])
def test_probe_every_n_probes_every_nth_policy_version(run, every, probed):
    engine, _, _ = run(probe_every=every, iterations=3)
    assert [version for what, version in engine.story() if what == "probe"] == probed
    assert engine.updates == 4  # the sync itself is never left out


def test_probe_tokens_is_how_long_the_answer_may_be(run):
    engine, _, _ = run(probe_tokens=3, iterations=1)
    probes = [request for request in engine.requests if request.images == (picture(),)]
    assert {request.sampling.max_tokens for request in probes} == {3}
    assert len({(request.prompt_ids, request.sampling) for request in probes}) == 32  # the same questions every time
    assert len(probes) == 2 * 32


def test_the_probe_is_sampled_at_the_temperature_that_the_trainer_reads_it_at(run):
    engine, module, _ = run(iterations=1)
    probes = [request for request in engine.requests if request.images == (picture(),)]
    assert {request.sampling.temperature for request in probes} == {module.temperature}


@pytest.mark.parametrize(
    "options", [{"tolerance": 0.0}, {"probe_tokens": 0}, {"probe_every": -1}], ids=lambda given: next(iter(given))
)
def test_impossible_numbers_are_refused(options):
    with pytest.raises(ValueError, match=f"got .*{next(iter(options.values()))}"):
        WeightSync(**options)
