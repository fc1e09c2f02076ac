"""One copy of the weights against two: the memory that a policy adds to vLLM in its process, and a sync.

    python benchmarks/one_copy.py

makes a model of 300 million parameters in a temporary directory, measures each way in a process of its own, and prints
a table. Memory is what the process has resident, over the bytes of the weights; each weight has been read or changed.
Seconds are those of a sync, and of falling asleep before the update, where the engine does.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from arpo.inference.vllm import VllmEngine
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.policy import LoraSettings, Policy

CORPUS = ["Action: click(start_box='(10,20)')", "Click on the Save button."] * 40
LORA_RANK = 8


def resident() -> int:
    """Return the bytes that this process has in memory, its own and those of files that it has mapped."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def measure(path: Path, dtype: str, *, one_copy: bool, lora: bool) -> dict[str, float]:
    """Start an engine, add the policy, and update the engine once."""
    rank = LORA_RANK if lora else None
    engine = VllmEngine(
        path, dtype=dtype, max_model_len=512, max_images=2, kv_cache_gb=0.125, lora_rank=rank, one_copy=one_copy
    )
    before = resident()
    shared = asyncio.run(engine.weights())
    settings = LoraSettings(rank=LORA_RANK) if lora else None
    policy = Policy(path, dtype=dtype, lora=settings, train_vision=not lora, shared=shared)
    began = time.perf_counter()
    if policy.shares_trained:
        asyncio.run(engine.sleep())
    seconds = time.perf_counter() - began
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.add_(1e-3)
            assert weight.isfinite().all()
    added = resident() - before
    began = time.perf_counter()
    asyncio.run(engine.update_weights(policy.checkpoint_tensors(), 1))
    seconds += time.perf_counter() - began
    weights = sum(parameter.numel() for parameter in policy.parameters()) * policy.dtype.itemsize
    moved = engine.counters().get("engine/moved_bytes", 0.0)
    asyncio.run(engine.close())
    return {"weights": weights, "added": added, "moved": moved, "sync_s": seconds}


def main() -> None:
    """Measure all ways, or in a process of its own one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024, help="width of the language model")
    parser.add_argument("--layers", type=int, default=24, help="its depth")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way is not None:
        way = json.loads(arguments.way)
        sys.stdout.write(json.dumps(measure(Path(way.pop("path")), **way)) + "\n")
        return
    with tempfile.TemporaryDirectory() as directory:
        path = make_tiny(directory, corpus=CORPUS, hidden=arguments.hidden, layers=arguments.layers)
        sys.stdout.write("weights       copies  added GB  of weights  moved GB  sync s\n")
        for dtype, lora in (("float32", False), ("float32", True), ("bfloat16", True)):
            for one_copy in (False, True):
                way = {"path": str(path), "dtype": dtype, "one_copy": one_copy, "lora": lora}
                command = [sys.executable, __file__, "--way", json.dumps(way)]
                done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
                said = json.loads(done.stdout.splitlines()[-1])
                name = f"{dtype}{', LoRA' * lora}"
                sys.stdout.write(
                    f"{name:15} {2 - one_copy:4} {said['added'] / 1e9:9.3f} {said['added'] / said['weights']:10.1%} "
                    f"{said['moved'] / 1e9:9.3f} {said['sync_s']:7.2f}\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
