"""Several processes learn what one learns, each with all weights (DDP) or with its part of them (FSDP2)."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import lightning as L
import pytest
import torch
from torch.testing import assert_close

from arpo.types import Group, RolloutBatch, Task, Trajectory
from tests.invariant.ranks import CASES, on_ranks, train, train_each_way, ways
from tests.models import samples
from tests.modules.conftest import sampled_logprobs

in_cases = pytest.mark.parametrize(
    ("case", "ranks", "way"),
    [
        pytest.param(case, ranks, way, marks=[] if (case, ranks) == ("arpo", 2) else pytest.mark.long)
        for case in CASES
        for ranks in (2, 4)
        for way in ways(case)
    ],
)
"""One of them is trained in make test."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def batches(make_group):
    """Five iterations: many samples, few and none for some ranks, a task for replay, and nothing to learn at all."""
    return [
        RolloutBatch(
            0, 0, [make_group(1.0, 0.0, 0.0, 0.0, 1.0), make_group(0.0, 1.0, first=5), make_group(1.0, 0.0, first=7)]
        ),
        RolloutBatch(1, 1, [make_group(1.0, 0.0, 0.0, first=9), make_group(0.0, 0.0, first=9)]),
        RolloutBatch(2, 2, [make_group(0.0, 0.0, 0.0, first=5), make_group(0.0, 1.0, first=3)]),
        RolloutBatch(3, 3, [make_group(0.0, 0.0, first=13), make_group(1.0, 1.0, first=15)]),
        RolloutBatch(4, 4, [make_group(0.0, 1.0, 0.0, first=17), make_group(0.0, 0.0, first=9)]),
    ]


@pytest.fixture(scope="module")
def trained(batches, tiny_model, tmp_path_factory, forks):
    """Trains a case on one rank and on several, once; returns the end of each rank of a way to train."""
    directory = tmp_path_factory.mktemp("ranks")

    @cache
    def of(case, ranks):
        forks.call(train_each_way, tiny_model, batches, directory / "out", case, ranks)
        return {
            way: [torch.load(directory / f"out.{case}.{way}{number}.{rank}") for rank in range(number)]
            for way, number in (("one", 1), *((way, ranks) for way in ways(case)))
        }

    return of


@in_cases
def test_several_ranks_end_with_the_weights_of_one_and_log_and_record_of_every_token_what_it_does(
    trained, case, way, ranks
):
    (alone,), several = trained(case, ranks)["one"], trained(case, ranks)[way]
    assert {result["version"] for result in (alone, *several)} == {5}
    for result in several:
        assert result["weights"].keys() == alone["weights"].keys()
        for name, weight in alone["weights"].items():
            assert torch.equal(result["weights"][name], several[0]["weights"][name]), name
            assert_close(result["weights"][name], weight, rtol=0, atol=1e-6)
        for one, here, first in zip(alone["metrics"], result["metrics"], several[0]["metrics"], strict=True):
            assert without_time(here).items() <= without_time(first).items()  # replay is logged on rank 0 alone
            assert without_time(first) == pytest.approx(without_time(one), rel=1e-4, abs=1e-6)
    assert all("train/grad_norm" in metrics for metrics in alone["metrics"][:3])
    for number, (one, here) in enumerate(zip(alone["tokens"], several[0]["tokens"], strict=True)):
        assert here.keys() == one.keys()
        assert ("after_logprobs" in one) == ("logprobs" in one and number != 1)
        for name, values in one.items():
            assert_close(here[name], values, rtol=0, atol=2e-5, equal_nan=True)
    assert _moved(alone["tokens"][2])


def test_arpo_has_replay_and_a_term_of_kl(trained):
    metrics = trained("arpo", 2)["one"][0]["metrics"]
    assert metrics[2]["replay/injected"] == 1
    assert metrics[4]["train/kl_reference"] > 1e-6


@pytest.mark.long
def test_while_a_critic_learns_alone_the_policy_stays_as_it_is(trained):
    (warmup,) = trained("warmup", 2)["one"]
    assert [_moved(warmup["tokens"][iteration]) for iteration in (0, 2)] == [False, True]
    assert [each["train/grad_norm"] > 0 for each in warmup["metrics"]] == [False, False, True, True, True]
    assert warmup["weights"]["critic.weight"].any()


@pytest.mark.long
def test_the_other_cases_are_what_they_are_called(trained):
    """There was a term of KL, a skipped update, steps were left out, and a success of each of three tasks imitated."""
    cases = ("lora", "scarce", "dart", "pulse")
    lora, scarce, dart, pulse = (trained(case, 2)["one"][0]["metrics"] for case in cases)
    assert lora[4]["train/kl_reference"] > 1e-9
    assert "train/grad_norm" not in scarce[3]
    assert 0.5 < dart[0]["policy/trained_steps"] < 1
    assert [each["entropulse/imitated"] for each in pulse] == [0, 3, 0, 0, 0]


def _moved(numbers):
    """Whether an update has changed what the policy says of its tokens."""
    return not torch.equal(numbers["after_logprobs"].nan_to_num(), numbers["logprobs"].nan_to_num())


def without_time(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


class Forwards(L.Callback):
    """Writes how many forwards of the vision tower each update took, for how many screenshots, and then each probe."""

    def __init__(self, probe: list[Trajectory], out: str) -> None:
        self.probe, self.out = probe, out
        self.forwards = 0
        self.seen: list[dict[str, int]] = []

    def on_train_start(self, trainer, pl_module) -> None:
        policy = pl_module.policy
        policy.vision.blocks[0].register_forward_hook(self.count)
        see = policy.visual_tokens
        policy.visual_tokens = lambda pictures: self.note(pictures) or see(pictures)

    def count(self, *_) -> None:
        self.forwards += 1

    def note(self, pictures) -> None:
        self.pictures += len(pictures)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.forwards = self.pictures = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        update = {"update": self.forwards, "pictures": self.pictures}
        self.forwards = 0
        for trajectory in self.probe:
            sampled_logprobs(pl_module, trajectory)
        self.seen.append(update | {"probe": self.forwards})

    def on_train_end(self, trainer, pl_module) -> None:
        Path(f"{self.out}.{trainer.global_rank}").write_text(json.dumps(self.seen))


def learn_looking(model: str, batches: list[RolloutBatch], out: str) -> None:
    """Train as one of two ranks, each with half of the weights."""
    probe = list(batches[0].groups[0].trajectories)
    train(model, batches, out, "fsdp", 2, "lora", extra=[Forwards(probe, out)])


def seeing(chat, *episodes: tuple[tuple[int, ...], float]) -> Group:
    """A group of these screenshots and rewards."""
    trajectories = (replace(samples.trajectory(chat, seeds), task_reward=reward) for seeds, reward in episodes)
    return Group(Task("t", "Click."), tuple(trajectories))


@pytest.mark.long
def test_two_ranks_enter_a_frozen_tower_together_whatever_each_has_to_see(loaded_policy, tiny_model, tmp_path, forks):
    chat = loaded_policy.chat
    batches = [
        # Ten screenshots of 20 tokens are two forwards of at most 160; one screenshot is one.
        RolloutBatch(0, 0, [seeing(chat, (tuple(range(10)), 1.0), ((10,), 0.0))]),
        RolloutBatch(1, 1, [seeing(chat, ((11, 12), 1.0))]),  # one sample: the other rank has a filler
    ]
    forks.call(on_ranks, 2, learn_looking, tiny_model, batches, tmp_path / "out")
    ranks = [json.loads((tmp_path / f"out.{rank}").read_text()) for rank in range(2)]
    assert [[each["update"] for each in rank] for rank in ranks] == [[2, 1]] * 2
    assert sorted(rank[0]["pictures"] for rank in ranks) == [2, 10]  # the one screenshot is seen twice
    assert [[each["probe"] for each in rank] for rank in ranks] == [[2, 2]] * 2
