"""One policy whole and one cut over two ranks, side by side: `python -m tests.models.sharded MODEL DIRECTORY`."""

import os
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing import assert_close

from arpo.callbacks.checkpoint import export_policy
from arpo.models import policy as policies
from arpo.models.placement import full
from arpo.models.policy import LoraSettings, Policy
from tests.invariant.processes import on_ranks
from tests.models.test_policy import mixed_batch

ADAPTERS: dict[str, Any] = {"lora": LoraSettings(rank=4, alpha=8.0), "train_vision": False}
KINDS: tuple[dict[str, Any], ...] = (
    {"gradient_checkpointing": True},
    {"gradient_checkpointing": "selective"},
    {**ADAPTERS, "dtype": "bfloat16"},
)


class Reader:
    """Reads a checkpoint, and notes how many bytes of it have been in memory at once."""

    def __init__(self, read: Any) -> None:
        self.read, self.held, self.most = read, 0, 0

    def __call__(self, *arguments: Any) -> torch.Tensor:
        tensor = self.read(*arguments)
        self.held += tensor.nbytes
        self.most = max(self.most, self.held)
        weakref.finalize(tensor.untyped_storage(), self.let_go, tensor.nbytes)
        return tensor

    def let_go(self, size: int) -> None:
        self.held -= size


def compare(model: str, directory: str) -> None:
    """Compare everything that a policy gives, on two ranks that compute the same batch."""
    os.environ |= {"RANK": os.environ["LOCAL_RANK"], "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    for options in KINDS:
        same(Policy(model, **options), Policy(model, mesh=mesh, **options))
    half = Policy(model, mesh=mesh, dtype="bfloat16")
    half.action_logprobs(mixed_batch(half)).logprobs.sum().backward()
    for name, parameter in half.named_parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32, name
    reader = policies._initial = Reader(policies._initial)
    loaded = Policy(model, mesh=mesh)
    whole = sum(parameter.numel() * 4 for parameter in loaded.parameters())
    assert reader.most < whole / 2, (reader.most, whole)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.mul_(1.5)
    export_policy(loaded, Path(directory), writes=dist.get_rank() == 0)
    dist.destroy_process_group()


def same(whole: Policy, cut: Policy) -> None:
    """Compare log-probabilities, gradients, weights, and what is sent to an engine."""
    outputs = [policy.train().action_logprobs(mixed_batch(policy)) for policy in (whole, cut)]
    assert_close(outputs[1].logprobs, outputs[0].logprobs, rtol=0, atol=1e-6)
    for output in outputs:
        output.logprobs.sum().backward()
    parameters = dict(whole.named_parameters())
    assert parameters.keys() == dict(cut.named_parameters()).keys()
    for name, parameter in cut.named_parameters():
        assert torch.equal(full(parameter.detach()), parameters[name].detach()), name
        assert parameter.to_local().numel() < parameters[name].numel(), name
        gradient, expected = parameter.grad, parameters[name].grad
        assert (gradient is None) == (expected is None), name
        if gradient is not None:
            assert_close(full(gradient), expected, rtol=1e-4, atol=1e-6, msg=name)
    sent, expected_sent = dict(cut.checkpoint_tensors()), dict(whole.checkpoint_tensors())
    assert sent.keys() == expected_sent.keys()
    for name, tensor in sent.items():
        assert torch.equal(tensor, expected_sent[name]), name


if __name__ == "__main__":
    on_ranks(2, compare, *sys.argv[1:])
