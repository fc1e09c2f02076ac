"""How near the simulated memory of an update is to that of a real process, for models of several widths and lengths.

    python benchmarks/plan_accuracy.py                                  # three widths x three lengths
    python benchmarks/plan_accuracy.py --hidden 128 --tokens 4096       # one of them, as JSON
    python benchmarks/plan_accuracy.py --selective                      # all, with what attention computed kept

Measured is the largest sum of what PyTorch's own allocator gave out (the profiler's memory events) while the same
module takes a step and adds the gradient of one micro-batch with real numbers, in a process of its own. What kernels
take and give back inside of one operation is in it; the simulation cannot see that.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.profiler import ProfilerActivity, profile
from update_ways import largest

from arpo.apps.plan.fake import WeightlessPolicy
from arpo.apps.plan.longest import BlankScreens, WorstCaseTrajectory
from arpo.apps.plan.tracker import MemoryTracker
from arpo.apps.plan.update import accumulate, attach, simulate, step
from arpo.methods.grpo import GRPO
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.policy import Checkpointing, Policy
from arpo.modules.grpo import GRPOModule

WIDTHS = (64, 128, 256)
LENGTHS = (2048, 4096, 8192)
SCREEN = (448, 448)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--selective", action="store_true", help="checkpointing keeps what attention computed")
    options = parser.parse_args()
    checkpointing: Checkpointing = "selective" if options.selective else True
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    if options.hidden:
        print(json.dumps(compare(options.hidden, options.tokens, options.dtype, checkpointing)))
        return
    print("width  tokens  simulated MiB  measured MiB  simulated / measured")
    for hidden in WIDTHS:
        for tokens in LENGTHS:
            command = [sys.executable, __file__, "--dtype", options.dtype, *["--selective"] * options.selective]
            done = subprocess.run(
                [*command, "--hidden", str(hidden), "--tokens", str(tokens)],
                capture_output=True,
                check=True,
                encoding="utf-8",
            )
            found = json.loads(done.stdout.splitlines()[-1])
            simulated, measured = found["simulated"] / 2**20, found["measured"] / 2**20
            print(f"{hidden:5} {tokens:7} {simulated:14.1f} {measured:13.1f} {simulated / measured:21.3f}", flush=True)


def compare(hidden: int, tokens: int, dtype: str, checkpointing: Checkpointing) -> dict[str, int]:
    """Return the bytes of an update of the tiny model, simulated and measured."""
    with tempfile.TemporaryDirectory() as directory:
        path = make_tiny(directory, corpus=(), hidden=hidden, words=1000, max_pixels=SCREEN[0] * SCREEN[1])
        longest = WorstCaseTrajectory(tokens, 8, 32, SCREEN, image_tokens=256)
        weightless, real = (module(kind, path, dtype, checkpointing) for kind in (WeightlessPolicy, Policy))
        simulated = simulate(weightless, longest, strategy="single", ranks=1)
        return {"simulated": sum(simulated.peak.values()), "measured": measure(real, longest)}


def module(policy: type[Policy], path: Path, dtype: str, checkpointing: Checkpointing) -> GRPOModule:
    make = partial(policy, path, dtype=dtype, gradient_checkpointing=checkpointing)
    return GRPOModule(make, partial(torch.optim.AdamW, lr=1e-6), GRPO(), micro_batch_tokens=1)


def measure(real: GRPOModule, longest: WorstCaseTrajectory) -> int:
    """Return the largest number of bytes that tensors of a real update take at once."""
    real.configure_model()
    real.policy.images = BlankScreens(real.policy.images, longest.screen)
    names = MemoryTracker(vocabulary=0)  # only to name tensors: outside of its block it sees nothing else
    tensors = [*real.policy.parameters(), *real.policy.buffers()]
    storages = {storage.data_ptr(): storage.size() for tensor in tensors for storage in get_untyped_storages(tensor)}
    attach(real, iterations=1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(real, names, foreach=True)
        accumulate(real, names, longest)
    return sum(storages.values()) + largest(profiler)


if __name__ == "__main__":
    main()
