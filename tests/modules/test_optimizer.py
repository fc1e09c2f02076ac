import io
import logging
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from arpo.errors import ArpoError
from arpo.modules.optimizer import GradientGuard, MasterWeightAdamW, warmup_factor


def weights(dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in ((3, 4), (5,))]


def set_gradients(parameters: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def run(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], steps: range) -> list[Tensor]:
    for step in steps:
        set_gradients(parameters, step)
        optimizer.step()
    return [parameter.detach().clone() for parameter in parameters]


def masters(optimizer: MasterWeightAdamW) -> list[Tensor]:
    return [master for master in optimizer.state_dict()["masters"] if master is not None]


def reloaded(state: object) -> object:
    """The state as it comes out of a checkpoint file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_in_float32_it_is_torch_s_adamw_to_the_bit():
    settings = {"lr": 3e-4, "betas": (0.9, 0.98), "eps": 1e-7, "weight_decay": 0.1}
    ours, theirs = weights(torch.float32), weights(torch.float32)
    for mine, his in zip(
        run(MasterWeightAdamW(ours, **settings), ours, range(7)),
        run(torch.optim.AdamW(theirs, **settings), theirs, range(7)),
        strict=True,
    ):
        assert torch.equal(mine, his)


def test_a_float32_parameter_is_its_own_master_and_costs_no_copy():
    parameters = weights(torch.float32)
    assert masters(MasterWeightAdamW(parameters)) == []


def test_at_a_rate_of_1e_6_the_master_of_a_bfloat16_weight_moves_where_the_weight_alone_would_not():
    # Between 1 and 2 bfloat16 has steps of 2^-7 = 0.0078; the first steps of AdamW are lr = 1e-6 each.
    ours, theirs = nn.Parameter(torch.ones(4, dtype=torch.bfloat16)), nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    with_masters = MasterWeightAdamW([ours], lr=1e-6, weight_decay=0.0)
    without = torch.optim.AdamW([theirs], lr=1e-6, weight_decay=0.0)
    for _ in range(10):
        ours.grad, theirs.grad = torch.ones_like(ours), torch.ones_like(theirs)
        with_masters.step()
        without.step()
    (master,) = masters(with_masters)
    assert master.dtype == torch.float32
    assert_close(master, torch.full((4,), 1 - 10 * 1e-6))
    assert torch.equal(theirs, torch.ones_like(theirs))


def test_small_updates_add_up_until_the_bfloat16_weight_shows_them():
    # 1 - 2^-8 is the next bfloat16 below 1. Each step is 1e-4, so half of that gap is crossed after 20 steps:
    # 2^-9 / 1e-4 = 19.5.
    parameter = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = MasterWeightAdamW([parameter], lr=1e-4, weight_decay=0.0)
    seen = []
    for _ in range(20):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        seen.append(parameter.item())
    assert seen[18] == 1.0
    assert seen[19] == 1 - 2**-8


def test_a_bfloat16_weight_is_always_the_rounding_of_its_master():
    parameters = weights(torch.bfloat16)
    optimizer = MasterWeightAdamW(parameters, lr=1e-2)
    for parameter, master in zip(run(optimizer, parameters, range(5)), masters(optimizer), strict=True):
        assert torch.equal(parameter, master.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_run_that_was_saved_and_loaded_goes_on_to_the_bit(dtype):
    whole = weights(dtype)
    expected = run(MasterWeightAdamW(whole, lr=1e-3), whole, range(6))
    first = weights(dtype)
    optimizer = MasterWeightAdamW(first, lr=1e-3)
    run(optimizer, first, range(3))
    state = reloaded(optimizer.state_dict())
    second = [nn.Parameter(parameter.detach().clone()) for parameter in first]
    resumed = MasterWeightAdamW(second, lr=7.0)
    resumed.load_state_dict(state)
    assert resumed.param_groups[0]["lr"] == 1e-3
    for mine, his in zip(run(resumed, second, range(3, 6)), expected, strict=True):
        assert torch.equal(mine, his)


def test_a_scheduler_changes_the_rate_of_the_inner_optimizer():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = MasterWeightAdamW([parameter], lr=1.0, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (0.5, 0.0)[step])
    values = [0.0]
    for _ in range(2):
        parameter.grad = torch.ones(1)
        optimizer.step()
        schedule.step() if len(values) == 1 else None
        values.append(parameter.item())
    # AdamW's step with an unchanging gradient is the rate: 0.5, then 0
    assert_close(torch.tensor(values), torch.tensor([0.0, -0.5, -0.5]))


def test_parameter_groups_keep_their_own_rates():
    slow, fast = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = [{"params": [slow], "lr": 0.1}, {"params": [fast]}]
    optimizer = MasterWeightAdamW(groups, lr=0.2, weight_decay=0.0)
    slow.grad, fast.grad = torch.ones(1), torch.ones(1)
    optimizer.step()
    assert_close(torch.cat([slow, fast]).detach(), torch.tensor([-0.1, -0.2]))


def test_a_parameter_without_a_gradient_stays_as_it_is():
    for dtype in (torch.float32, torch.bfloat16):
        parameter = nn.Parameter(torch.ones(2, dtype=dtype))
        optimizer = MasterWeightAdamW([parameter], lr=1.0)
        optimizer.step()
        assert torch.equal(parameter, torch.ones_like(parameter))


def test_a_gradient_of_an_earlier_step_is_not_used_again():
    parameter = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = MasterWeightAdamW([parameter], lr=0.5, weight_decay=0.0)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    after = parameter.detach().clone()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(parameter, after)


def test_a_rate_of_0_is_a_rate():
    """It is where a schedule may begin or end, and it changes nothing."""
    parameter = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = MasterWeightAdamW([parameter], lr=0.0)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert parameter.item() == 1.0


def test_a_negative_rate_is_refused():
    with pytest.raises(ValueError, match=r"lr must not be negative, got -1"):
        MasterWeightAdamW([nn.Parameter(torch.ones(1))], lr=-1)


@pytest.mark.parametrize(
    ("step", "warmup_steps", "factor"),
    [(0, 0, 1.0), (5, 0, 1.0), (0, 3, 0.25), (1, 3, 0.5), (2, 3, 0.75), (3, 3, 1.0), (100, 3, 1.0)],
)
def test_the_warm_up_rises_by_equal_steps_to_one(step, warmup_steps, factor):
    assert warmup_factor(step, warmup_steps) == factor


def test_the_first_step_never_has_rate_zero_as_it_has_in_the_official_code():
    factors = [warmup_factor(step, 24) for step in range(30)]
    assert factors[0] == 1 / 25
    assert all(later >= earlier for earlier, later in pairwise(factors))


def test_bad_gradients_are_left_out_and_the_third_in_a_row_ends_the_run(caplog):
    guard = GradientGuard()
    with caplog.at_level(logging.WARNING):
        assert [guard.accepts(norm) for norm in (1.0, float("nan"), float("inf"))] == [True, False, False]
        assert guard.accepts(2.0)  # a good one between them starts the count again
        assert [guard.accepts(float("nan")) for _ in range(2)] == [False, False]
        with pytest.raises(ArpoError, match=r"3 times in a row.*smaller learning rate"):
            guard.accepts(float("-inf"))
    assert caplog.text.count("left out") == 5
