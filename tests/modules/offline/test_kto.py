from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from arpo.errors import ConfigError
from arpo.methods.kto import mismatched, mismatches
from arpo.models.tokenization import tokenize
from arpo.modules.offline.kto import KTOModule
from tests.modules.conftest import fit, weights
from tests.modules.offline.conftest import NUMBERS, PLAIN_DESCENT, gradient, likelihoods, logged, moved


@pytest.fixture
def make_kto(make_policy):
    """A module that takes a step of plain gradient descent: the change of its weights is the gradient."""

    def make(**options):
        optimizer = options.pop("optimizer", PLAIN_DESCENT)
        module = KTOModule(make_policy, optimizer, make_policy, **NUMBERS | options)
        module.configure_model()
        return module

    return make


@pytest.mark.parametrize("micro_batch_tokens", [1, 65536])
def test_the_gradient_is_that_of_the_loss_computed_whole_whatever_the_micro_batches(
    make_kto, make_policy, judged, micro_batch_tokens
):
    batch = judged(1.0, 0.0, 0.0)
    policy, reference = moved(make_policy()), make_policy()
    crossed = [mismatched(batch[0], batch[2], policy.chat.next_prompt)]
    crossed += [
        mismatched(here, there, policy.chat.next_prompt) for here, there in zip(batch[1:], batch, strict=False)
    ]
    with torch.no_grad():
        baseline = (likelihoods(policy, crossed) - likelihoods(reference, crossed)).mean().clamp(min=0)
        start = likelihoods(reference, batch)
    gains = 0.5 * (likelihoods(policy, batch) - start - baseline)
    loss = (1 - gains[0].sigmoid() + 1.5 * (1 - (-gains[1:]).sigmoid()).sum()) / 3
    expected = gradient(policy, loss)

    module = make_kto(undesirable_weight=1.5, micro_batch_tokens=micro_batch_tokens)
    moved(module.policy)
    before = weights(module.policy)
    metrics = logged(fit(module, batch))
    assert metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["train/kl_baseline"] == pytest.approx(baseline.item(), rel=1e-3, abs=1e-6)
    assert_close(before - weights(module.policy), expected, rtol=1e-3, atol=1e-5)


def test_a_mismatched_trajectory_sees_what_one_saw_and_says_what_another_said(loaded_policy, judged):
    chat = loaded_policy.chat
    _, one, other = judged(1.0, 1.0, 1.0)  # two steps and three
    crossed = mismatched(one, other, chat.next_prompt)
    assert [step.screenshot for step in crossed.steps] == [step.screenshot for step in one.steps]
    assert [step.response_ids for step in crossed.steps] == [step.response_ids for step in other.steps[:2]]
    assert crossed.steps[0].prompt_ids == one.steps[0].prompt_ids
    assert crossed.steps[1].prompt_ids == chat.next_prompt(other.steps[0].response_ids)
    (tokens,) = tokenize(crossed, chat)
    assert int(tokens.action_mask.sum()) == sum(len(step.response_ids) for step in other.steps[:2])
    assert len(mismatched(other, one, chat.next_prompt).steps) == 2


def told(trajectory, *responses):
    """The trajectory, as if it had said this."""
    pairs = zip(trajectory.steps, responses, strict=True)
    return replace(trajectory, steps=tuple(replace(step, response_ids=(*ids,)) for step, ids in pairs))


def test_a_mismatch_is_the_nearest_one_before_that_said_something_else(judged):
    base = judged(1.0, 1.0)[1]  # of two steps
    a, b = told(base, (1,), (2,)), told(base, (1,), (3,))
    again = replace(a, id="stored again", task_reward=0.0)
    short = replace(a, steps=a.steps[:1])  # says what all say, as far as it goes
    for batch, expected in [
        ([a, b], [(a, b), (b, a)]),
        ([a, again, b], [(a, b), (again, b), (b, again)]),
        ([a, again], []),
        ([a, b, short], [(a, b), (b, a)]),
        ([short, short], []),
        ([a], []),
    ]:
        assert mismatches(batch) == expected


def test_a_batch_in_which_all_said_the_same_has_the_reference_point_of_the_start(make_kto, judged):
    module = make_kto()
    moved(module.policy)
    (one,) = judged(1.0)
    metrics = logged(fit(module, [one, replace(one, id="again", task_reward=0.0)]))
    assert metrics["train/kl_baseline"] == 0.0
    assert metrics["train/loss"] > 0


def test_a_lonely_trajectory_is_refused(make_kto, judged):
    with pytest.raises(ConfigError, match=r"there is a batch of 1: its data must give at least 2"):
        fit(make_kto(), judged(1.0))


@pytest.mark.parametrize("threshold", [1.0, -0.1, float("nan")])
def test_a_threshold_that_no_trajectory_or_every_one_passes_is_refused(make_kto, threshold):
    with pytest.raises(ConfigError, match=r"success_threshold must lie in \[0, 1\)"):
        make_kto(success_threshold=threshold)


@pytest.mark.parametrize("name", ["desirable_weight", "undesirable_weight", "beta"])
def test_a_number_that_is_not_positive_is_refused(make_kto, name):
    with pytest.raises(ConfigError, match=f"{name} must be above 0, got 0.0"):
        make_kto(**{name: 0.0})
