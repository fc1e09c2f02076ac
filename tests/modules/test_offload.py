"""Moments on the host change no number; on shards and in their checkpoints: `tests/invariant/test_resuming.py`."""

import mmap

import pytest
import torch
from torch import nn

from arpo.modules.offload import OffloadedAdamW, _in_pages


def train(optimizer: type[torch.optim.AdamW], steps: int = 3) -> tuple[nn.Module, torch.optim.AdamW]:
    """A small model after some steps; its second layer gets no gradient in the first of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = optimizer(model.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(steps):
        layer = model if step else model[0]
        layer(torch.full((5, 3), step + 1.0)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def states(optimizer: torch.optim.AdamW) -> list[torch.Tensor]:
    return [value for state in optimizer.state_dict()["state"].values() for value in state.values()]


def test_weights_and_moments_are_those_of_adamw_bit_for_bit():
    (plain, plainly), (model, optimizer) = train(torch.optim.AdamW), train(OffloadedAdamW)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert len(states(optimizer)) == 4 * 3  # a count of steps and two moments of each parameter
    assert all(torch.equal(a, b) for a, b in zip(states(plainly), states(optimizer), strict=True))
    assert len(train(OffloadedAdamW, steps=1)[1].state) == 2  # the second layer has had no gradient yet


def test_one_parameter_at_a_time_has_moments_on_the_device(monkeypatch):
    model, optimizer = train(OffloadedAdamW)
    waiting = {id(value) for value in states(optimizer)}
    seen = []
    step = torch.optim.AdamW.step

    def watched(optimizer):
        (parameter,) = optimizer.param_groups[0]["params"]
        moved = [state for state in states_of_all(optimizer) if any(id(value) not in waiting for value in state)]
        seen.append((len(moved), any(moved[0][1] is value for value in optimizer.state[parameter].values())))
        step(optimizer)

    def states_of_all(optimizer):
        return [list(state.values()) for state in optimizer.state.values()]

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    assert seen == [(1, True)] * 4
    assert {id(value) for value in states(optimizer)} == waiting  # each is back in its old place


def test_it_goes_on_from_the_moments_of_adamw_and_adamw_from_its_own():
    ends = []
    plain, offloaded = torch.optim.AdamW, OffloadedAdamW
    for first, then in ((plain, plain), (plain, offloaded), (offloaded, plain)):
        model, optimizer = train(first)
        other = then(model.parameters(), lr=0.1, weight_decay=0.1)
        other.load_state_dict(optimizer.state_dict())
        model(torch.ones(5, 3)).square().sum().backward()
        other.step()
        ends.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_a_closure_is_called_once_with_gradients():
    model, optimizer = train(OffloadedAdamW)
    called = []

    def closure():
        called.append(torch.is_grad_enabled())
        loss = model(torch.ones(5, 3)).sum()
        loss.backward()
        return loss

    assert isinstance(optimizer.step(closure), torch.Tensor)
    assert called == [True]


def test_a_step_that_fails_leaves_the_groups_as_they_were():
    _, optimizer = train(OffloadedAdamW)
    groups = optimizer.param_groups
    groups[0]["params"][1].grad = torch.zeros(4).to_sparse()
    groups[0]["params"][0].grad = torch.zeros(4, 3)
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert optimizer.param_groups is groups


def test_pages_of_a_tensors_own_begin_where_a_page_does():
    first, second = (_in_pages(torch.empty(3, 5, dtype=torch.bfloat16)) for _ in range(2))
    assert first.data_ptr() % mmap.PAGESIZE == second.data_ptr() % mmap.PAGESIZE == 0
    assert first.shape == (3, 5)
    first.fill_(1.0)
    second.fill_(2.0)
    assert first.sum() == 15.0
