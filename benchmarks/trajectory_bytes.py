"""Bytes of a stored trajectory against the float32 pixels that ARPO's official replay buffer holds.

    python benchmarks/trajectory_bytes.py

Fifteen distinct 1080p screenshots, responses of a hundred tokens. The target is a fiftieth, on desktops of windows.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from screens import desktop

from arpo.rollout.storage import TrajectoryStore
from arpo.types import Outcome, Step, Trajectory

STEPS = 15
RESPONSE_TOKENS = 100
PATCHES, FEATURES = 78 * 138, 1176
"""A 1080p screenshot as `pixel_values`: 1092 x 1932 pixels in patches of 14, each twice (frames), three channels."""


def episode(content: str) -> Trajectory:
    shots = [desktop(seed, content) for seed in range(STEPS)]
    text = "Thought: I see the window, so I click the button to save the file.\nAction: click(start_box='(960,540)')"
    steps = tuple(
        Step(
            screenshot=key,
            width=1920,
            height=1080,
            prompt_ids=tuple(range(151_640, 151_652)),
            response_ids=tuple(range(100_000, 100_000 + RESPONSE_TOKENS)),
            sampler_logprobs=tuple(-1 / (3 + index) for index in range(RESPONSE_TOKENS)),
            policy_version=1,
            response=text,
            action="click(start_box='(960,540)')",
        )
        for key, _ in shots
    )
    return Trajectory(
        id="0/0/0",
        task_id="task",
        domain="os",
        instruction="Save the file.",
        seed=0,
        steps=steps,
        outcome=Outcome.FINISHED,
        task_reward=1.0,
        format_reward=0.0,
        screenshots=dict(shots),
    )


def main() -> None:
    floats = STEPS * PATCHES * FEATURES * 4
    print(f"{STEPS} steps as float32 pixel_values: {floats / 2**20:.0f} MiB")
    print(f"{'content':<10} {'stored MiB':>10} {'a step KiB':>10} {'JSON KiB':>9} {'floats / stored':>16}")
    ratios = {}
    for content in ("document", "windows", "photo"):
        with tempfile.TemporaryDirectory() as directory:
            TrajectoryStore(directory).write(episode(content))
            sizes = {path: path.stat().st_size for path in Path(directory).rglob("*") if path.is_file()}
        total = sum(sizes.values())
        json_bytes = sum(size for path, size in sizes.items() if path.suffix == ".jsonl")
        ratios[content] = floats / total
        print(
            f"{content:<10} {total / 2**20:>10.2f} {total / STEPS / 2**10:>10.0f} {json_bytes / 2**10:>9.1f} "
            f"{ratios[content]:>15.0f}x"
        )
    print("photo is the worst case: a wallpaper with grain, which PNG keeps byte for byte.")
    print(f"ratio {min(ratios['document'], ratios['windows']):.0f}x (target: at least 50x on desktops of windows)")


if __name__ == "__main__":
    main()
