"""Screenshots that do not decode end an episode, which is played again, and never a training."""

from dataclasses import replace
from functools import partial

import torch

from arpo.envs.fake import FakeDesktop
from arpo.envs.faults import Fault, Faults
from tests.integration.parts import GROUP_SIZE, SETTINGS, TASKS, MoodyEngine, train


def learn(model, directory, make_env):
    engine = partial(MoodyEngine, mood=lambda version, seed: "solve" if seed % 2 else "fail")
    settings = replace(SETTINGS, max_attempts=GROUP_SIZE + 2)  # one episode may meet all the faults of its task
    return train(model, directory, engine, replay=False, iterations=2, make_env=make_env, settings=settings)


def test_a_training_goes_on_and_learns_what_it_would_have_learned(tiny_model, tmp_path):
    (tmp_path / "ledger").mkdir()
    plan = [Fault("undecodable", "reset", attempts=GROUP_SIZE + 1)]  # of each task: first attempts, and one repeated
    bad = partial(FakeDesktop, faults=Faults(plan, ledger=str(tmp_path / "ledger")))
    healthy = learn(tiny_model, tmp_path / "healthy", FakeDesktop)
    run = learn(tiny_model, tmp_path / "bad", bad)
    assert run.metrics[0]["env/fault_screenshot"] == len(TASKS) * (GROUP_SIZE + 1)
    assert len(run.weights) == len(healthy.weights) == 2
    assert [line["rollout/dropped_episodes"] for line in run.metrics] == [0, 0]
    assert healthy.changed(1)  # there was something to learn
    for ours, theirs in zip(run.weights, healthy.weights, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
