"""A policy of its engine's weights, through Trainer.fit: the same numbers, and a word where there are two copies."""

from functools import partial

import lightning as L
import pytest
import torch

from arpo.models.checkpoint import CheckpointWeights
from arpo.models.policy import Policy
from tests.integration.parts import MoodyEngine, train


def always_some(version: int, seed: int) -> str:
    """Every group has successes and failures."""
    return ("solve", "fail", "babble")[seed % 3]


class LendingEngine(MoodyEngine):
    """Has the weights of a checkpoint in memory, for a policy to be views of, and answers nothing while asleep."""

    def __init__(self, chat, *, lends=True):
        super().__init__(chat, always_some)
        read = CheckpointWeights(chat.path)
        self.held = {name: read[name] for name in read.shapes}
        self.lends = lends

    async def generate(self, request):
        assert not self.asleep, "it was asked while its weights may change"
        return await super().generate(request)

    async def weights(self):
        return self.held if self.lends else {}


class Kept(L.Callback):
    """Writes a checkpoint after each iteration, and keeps what the engine holds at the beginning of the first."""

    def __init__(self, directory):
        self.directory = directory
        self.first = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        held = trainer.datamodule.runtime.engine.held
        self.first = self.first or {name: each.clone() for name, each in held.items()}

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.save_checkpoint(self.directory / f"{trainer.current_epoch}.ckpt")


@pytest.fixture
def run(tiny_model, tmp_path):
    def go(name, *, lends=True, iterations=2, policy=None, resume=None):
        engines, kept = [], Kept(tmp_path / name)

        def make(chat):
            engines.append(LendingEngine(chat, lends=lends))
            return engines[-1]

        policy = policy or partial(Policy, tiny_model)
        said = train(
            tiny_model,
            kept.directory,
            make,
            replay=False,
            iterations=iterations,
            policy=policy,
            callbacks=[kept],
            resume=resume,
        )
        return said, engines[-1], kept

    return go


def engine_names(chat, weights):
    """A policy's weights by their names in the checkpoint."""
    named = chat.family.checkpoint_name
    return {named(name.removeprefix("policy.model.")): each for name, each in weights.items()}


def test_the_engine_holds_what_the_policy_learns_and_both_learn_as_two_do(run, tiny_model):
    shared, engine, _ = run("one")
    apart, other, _ = run("two", lends=False)
    for ours, theirs in zip(shared.weights, apart.weights, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(each, theirs[name]) for name, each in ours.items())
    last = engine_names(engine._chat, shared.weights[-1])
    assert last.keys() == engine.held.keys()
    assert all(torch.equal(each, engine.held[name]) for name, each in last.items())
    read = CheckpointWeights(tiny_model)
    assert all(torch.equal(each, read[name]) for name, each in other.held.items())  # its own copy


def test_a_resumed_run_goes_on_in_the_engine_s_memory(run, tmp_path):
    whole, _, _ = run("whole")
    run("begun", iterations=1)
    resumed, engine, kept = run("begun", resume=tmp_path / "begun" / "0.ckpt")
    began = engine_names(engine._chat, whole.weights[0])
    assert all(torch.equal(each, kept.first[name]) for name, each in began.items())  # before an update
    assert all(torch.equal(each, resumed.weights[-1][name]) for name, each in whole.weights[-1].items())


def test_a_policy_that_is_fitted_again_says_that_the_next_engine_has_a_copy(run, tiny_model, caplog):
    first = []

    def once(**options):
        first.append(first[0] if first else Policy(tiny_model, **options))
        return first[-1]

    run("first", iterations=1, policy=once)
    assert "in memory twice" not in caplog.text
    run("second", iterations=1, policy=once)
    assert "in memory twice" in caplog.text
