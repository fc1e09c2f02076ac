from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from arpo.errors import ConfigError
from arpo.modules.muon import MuonWithAdamW


class Words(torch.nn.Module):
    """An embedding, two matrices, a norm and a convolution."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = torch.nn.Embedding(12, 8)
        self.inside = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.patches = torch.nn.Conv1d(1, 2, 3)
        self.lm_head = torch.nn.Linear(8, 12, bias=False)

    def forward(self, words):
        hidden = self.norm(self.inside(self.embed_tokens(words)))
        return self.lm_head(hidden).logsumexp(-1).mean() + self.patches(hidden.mean(1)[:, None]).square().mean()


RATES = {"lr": 1e-3, "betas": (0.9, 0.98), "weight_decay": 0.01}
BOTH = partial(MuonWithAdamW, matrix_lr=2e-2, **RATES)


def train(model, *optimizers, steps=3, schedules=()):
    for seed in range(steps):
        words = torch.randint(12, (4, 5), generator=torch.Generator().manual_seed(seed))
        model(words).backward()
        for one in (*optimizers, *schedules):
            one.step()
        model.zero_grad()
    return model


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_matrices_inside_take_muons_steps_and_all_else_takes_adamws():
    together, apart = Words(), Words()
    rest = [parameter for name, parameter in apart.named_parameters() if name != "inside.weight"]
    muon = torch.optim.Muon([apart.inside.weight], lr=2e-2, weight_decay=0.01)
    train(together, BOTH(together.named_parameters()))
    train(apart, torch.optim.AdamW(rest, **RATES), muon)
    assert same(together, apart)


def test_a_schedule_scales_both_rates():
    scheduled, slower = Words(), Words()
    optimizer = BOTH(scheduled.named_parameters())
    half = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    train(scheduled, optimizer, schedules=[half])
    train(slower, MuonWithAdamW(slower.named_parameters(), **(RATES | {"lr": 5e-4}), matrix_lr=1e-2))
    assert same(scheduled, slower)


def test_it_goes_on_from_its_own_state():
    whole = Words()
    optimizer = BOTH(whole.named_parameters())
    train(whole, optimizer, steps=2)
    resumed = Words()
    resumed.load_state_dict(whole.state_dict())
    again = BOTH(resumed.named_parameters())
    again.load_state_dict(deepcopy(optimizer.state_dict()))
    train(whole, optimizer)
    train(resumed, again)
    assert same(whole, resumed)
    assert len(again.state) == 8


def test_a_group_that_is_added_learns_with_adamw_at_its_own_rate():
    model, more, alone = Words(), torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    alone.load_state_dict(more.state_dict())
    optimizer = BOTH(model.named_parameters())
    optimizer.add_param_group({"params": list(more.named_parameters()), "lr": 0.5, "weight_decay": 0.0})
    for layer, by in ((more, optimizer), (alone, torch.optim.AdamW(alone.parameters(), lr=0.5, weight_decay=0.0))):
        layer(torch.ones(2, 3)).sum().backward()
        by.step()
    assert torch.equal(more.weight, alone.weight)


@pytest.mark.parametrize("chosen", ["inside.weight", "norm.weight"])
def test_one_kind_alone_is_enough(chosen):
    model = Words()
    before = model.get_parameter(chosen).clone()
    train(model, BOTH([(chosen, model.get_parameter(chosen))]), steps=1)
    assert not torch.equal(before, model.get_parameter(chosen))


def test_shards_are_refused(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        matrix = distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (1,)), [Shard(0)])
        with pytest.raises(ConfigError, match="MuonWithAdamW needs whole matrices, and trainer=fsdp has a part"):
            BOTH([("inside.weight", torch.nn.Parameter(matrix))])
    finally:
        dist.destroy_process_group()
