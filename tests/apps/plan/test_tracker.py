"""Bytes of real tensors, summed by hand; a float32 has 4."""

import torch
from torch import nn

from arpo.apps.plan.tracker import MemoryTracker

K = 1024


def test_the_peak_is_the_largest_sum_without_views_and_what_was_given_back():
    with MemoryTracker(vocabulary=7) as tracker:
        first = torch.empty(2 * K)
        del first
        second = torch.empty(3 * K)
        views = [second[:3], second.view(K, 3).T]
        assert sum(tracker.now.values()) == 4 * 3 * K
        del second, views
        assert sum(tracker.now.values()) == 0
        gathered = torch.empty(K)
        gathered.untyped_storage().resize_(0)  # in place
        assert sum(tracker.now.values()) == 0
        gathered.untyped_storage().resize_(8 * K)
        assert sum(tracker.now.values()) == 8 * K
    assert sum(tracker.peak.values()) == 4 * 3 * K


def test_what_a_tensor_is_for_is_told_by_when_and_how_it_is_made():
    # A layer of K x K on K rows: 4 K² bytes each for weight, its gradient, input and output.
    layer = nn.Linear(K, K, bias=False)
    layer.weight.grad = torch.zeros_like(layer.weight)
    with MemoryTracker(vocabulary=7) as tracker:
        tracker.mark([layer.weight], "parameters")
        tracker.mark([layer.weight.grad], "gradients")
        output = layer(torch.ones(K, K))
        assert tracker.now == {"parameters": 4 * K * K, "gradients": 4 * K * K, "activations": 8 * K * K}
        output.backward(torch.ones_like(output))
    # At the peak the new gradient, a temporary, stands beside the old one.
    assert tracker.peak["temporaries"] == 4 * K * K
    assert tracker.peak["gradients"] == 4 * K * K


def test_a_cast_of_a_parameter_logits_and_the_host_are_counted_apart():
    weight = nn.Parameter(torch.zeros(K, K))
    with MemoryTracker(vocabulary=K + 1) as tracker, torch.no_grad():
        tracker.mark([weight], "parameters")
        cast = weight.bfloat16()
        logits = torch.zeros(3, K + 1)
    assert cast.dtype == torch.bfloat16
    assert logits.shape == (3, K + 1)
    assert tracker.now["gathered"] == 2 * K * K
    assert tracker.now["logits"] == 4 * 3 * (K + 1)
    with MemoryTracker(vocabulary=7) as tracker:
        kept = torch.empty(2 * K)
        away = torch.empty_like(kept, device="meta")
        tracker.mark([away], "optimizer")  # it stays where it is
        assert tracker.now == {"activations": 4 * 2 * K, "host": 4 * 2 * K}
        del away
    assert tracker.now["host"] == 0
    assert tracker.host_peak == 4 * 2 * K
    assert sum(tracker.peak.values()) == 4 * 2 * K
