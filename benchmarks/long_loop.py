"""The whole loop in bfloat16 at real length: rollout, update and sync with fifteen screenshots of 1080p.

    python benchmarks/long_loop.py [--screenshots 15] [--iterations 4] [--family qwen3_vl]

A policy 64 wide with windowed vision, vLLM on the same cores, conversations of 41,000 tokens. An engine that is sound
passes every check; the others end the run, and the table says at which update.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import lightning as L

from arpo.errors import WeightSyncError
from tests.integration import long

ENGINES = ("LongEngine", "OldEyes", "OneBehind")
COLUMNS = {
    "steps": "rollout/steps",
    "rollout s": "time/rollout",
    "update s": "time/update",
    "sync s": "time/sync",
    "gap, mean": "engine/logprob_gap_mean",
    "gap, largest": "engine/logprob_gap_max",
}


class Table(long.Recorder):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        values = (f"{self.metrics[-1].get(metric, float('nan')):.3g}" for metric in COLUMNS.values())
        print(" | ".join([self.name, str(len(self.metrics)), *values]), flush=True)


def main(
    model: Path | None,
    family: str,
    screenshots: int,
    iterations: int,
    engines: list[str],
    group_size: int,
    rate: float,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = model or long.write_talker(Path(directory), family)
        print(" | ".join(["engine", "update", *COLUMNS]), flush=True)
        for name in engines:
            start = time.perf_counter()
            seen = Table(name)
            try:
                long.learn(
                    model,
                    Path(directory) / name,
                    vars(long)[name],
                    screenshots=screenshots,
                    iterations=iterations,
                    group_size=group_size,
                    rate=rate,
                    recorder=seen,
                )
                end = "passed every check"
            except WeightSyncError as error:
                end = f"ended at update {len(seen.metrics) + 1}: {error}"
            print(f"{name} {end}; {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--screenshots", type=int, default=15)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--rate", type=float, default=long.RATE)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--family", choices=list(long.MAKES), default="qwen2_5_vl")
    parser.add_argument("--model", type=Path, help="what write_talker has written; otherwise it does")
    main(**vars(parser.parse_args()))
