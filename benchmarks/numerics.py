"""What bfloat16 loses, before and after: LoRA on its way to the engine, the output layer, sums of gradients.

    python benchmarks/numerics.py

The table of docs/numerics.md; a minute on one core. "Before" is what the code did up to commit 6108dcb.
"""

import math
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from screens import WORDS, desktop
from torch import Tensor, nn

from arpo.models.collate import TokenBatch, collate
from arpo.models.logprobs import Float32Head, chosen_logprobs
from arpo.models.policy import Policy
from arpo.models.tiny import make_tiny
from arpo.models.tokenization import TokenizedTrajectory

OUTPUTS, INPUTS, RANK, SCALE = 1024, 3584, 32, 2.0
"""Rows of a weight as wide as the 7B's; the adapter of conf/model/qwen2_5_vl_7b.yaml."""
WORDS_IN_HEAD, WIDTH, ROWS = 152_064, 256, 64


def lora(rate: float, steps: int) -> tuple[float, float]:
    """Return the relative error of the update that an engine applies, merged in bfloat16 and sent as an adapter.

    The gradient has one sign an entry in all steps, the best case for rounding: AdamW then moves B by the rate a step.
    """
    generator = torch.Generator().manual_seed(0)
    base = (0.02 * torch.randn(OUTPUTS, INPUTS, generator=generator)).bfloat16()
    a = (2 * torch.rand(RANK, INPUTS, generator=generator) - 1) / math.sqrt(INPUTS)
    b = SCALE * rate * steps * torch.randn(OUTPUTS, RANK, generator=generator).sign()
    update = b @ a
    merged = (base + update.bfloat16()).float() - base.float()
    adapter = b.bfloat16().float() @ a.bfloat16().float()
    return tuple(((applied - update).norm() / update.norm()).item() for applied in (merged, adapter))


def head(size: float) -> list[Tensor]:
    """Return the distances of log-probabilities from those in float64, with a bfloat16 head and with a float32 one.

    Args:
        size: Standard deviation of the logits.
    """
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(WIDTH, WORDS_IN_HEAD, bias=False, dtype=torch.bfloat16)
    layer.weight.data = torch.randn(WORDS_IN_HEAD, WIDTH, generator=generator).mul_(size / math.sqrt(WIDTH)).bfloat16()
    hidden = torch.randn(ROWS, WIDTH, generator=generator).bfloat16()
    layer.requires_grad_(requires_grad=False)
    exact = (hidden.double() @ layer.weight.double().T).log_softmax(-1)
    ids = torch.multinomial(exact.exp(), 1, generator=generator)[:, 0]
    exact = exact.gather(1, ids[:, None])[:, 0]
    none = torch.tensor([], dtype=torch.int64)
    return [
        (chosen_logprobs(hidden, ids, way, none, temperature=1.0, chunk=64, with_entropy=False)[0] - exact).abs()
        for way in (lambda rows: layer(rows).float(), Float32Head(layer, torch.bfloat16))
    ]


def batches(policy: Policy, count: int) -> list[TokenBatch]:
    """Return micro-batches of one sequence with a screenshot and sixteen actions each."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        key, png = desktop(number % 4, "windows")
        ids = torch.randint(300, 500, (96,), generator=generator)
        ids[4 : 4 + policy.chat.image_tokens(1920, 1080)] = policy.chat.image_token_id
        acted = torch.arange(96) >= 80
        image = ids == policy.chat.image_token_id
        tokens = TokenizedTrajectory(ids, acted, image, (key,), torch.zeros(16), (16,))
        made.append(collate([tokens], {key: png}, policy.images))
    return made


def gradients(directory: str, count: int, before: bool) -> float:
    """Return the relative error of a gradient that was added up over micro-batches, against the sum in float64."""
    policy = Policy(directory, dtype="bfloat16", train_vision=False)
    if before:
        policy.bfloat16()
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    exact = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in trained]
    for batch in batches(policy, count):
        loss = policy.action_logprobs(batch).logprobs.sum() / count
        for summed, part in zip(exact, torch.autograd.grad(loss, trained, retain_graph=True), strict=True):
            summed.add_(part)
        loss.backward()
    error = sum((parameter.grad - total).square().sum() for parameter, total in zip(trained, exact, strict=True))
    return (error / sum(total.square().sum() for total in exact)).sqrt().item()


def main() -> None:
    torch.set_num_threads(1)
    print("4. LoRA, rank 32, 3,584 wide: relative error of the engine's update")
    for rate, steps in ((1e-6, 1), (1e-6, 16), (1e-6, 100), (1e-5, 1), (1e-5, 16), (1e-4, 16)):
        merged, adapter = lora(rate, steps)
        print(f"   rate {rate:.0e}, {steps:>3} steps: merged in bfloat16 {merged:.3f}, adapter {adapter:.4f}")
    print(f"6. output layer of {WORDS_IN_HEAD} words: distance of log-probabilities from float64")
    for size in (2.0, 4.0):
        old, new = head(size)
        print(
            f"   logits of standard deviation {size:.0f}: bfloat16 mean {old.mean():.4f}, largest {old.max():.4f}; "
            f"float32 mean {new.mean():.1e}, largest {new.max():.1e}"
        )
    print("7. gradient: relative error of its sum over micro-batches")
    with tempfile.TemporaryDirectory() as directory:
        make_tiny(directory, corpus=WORDS * 4)
        for count in (4, 64):
            old, new = (gradients(directory, count, before) for before in (True, False))
            print(f"   {count:>2} micro-batches: in bfloat16 {old:.4f}, in float32 {new:.1e}")


if __name__ == "__main__":
    main()
