"""Time of the training process for the pictures of an update: decoded there, or ahead by worker processes.

    python benchmarks/prepare_update.py [trajectories]

An update of two optimizer steps on trajectories of 15 distinct screenshots of 1080p: the second half is forwarded for
its old log-probabilities, then each half for its gradient. As it was: every forward normalizes, and a cache of a
gigabyte for 64 trajectories (here as much smaller as the update is) decodes everything again that comes a second time.
A forward of the device is a pause of the training thread, in which it computes nothing; so it is on a GPU. Target: at
least 5 times less.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from screens import WORDS, desktop

from arpo.models.images import ImageProcessor, normalized_films
from arpo.models.tiny import make_tiny

STEPS, WHOLE_UPDATE, CACHE_MB = 15, 64, 1024
Shots = list[dict[str, bytes]]


class Clock:
    """Seconds and seconds of CPU of the training thread."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.thread_time()

    def __exit__(self, *error: object) -> None:
        self.wall += time.perf_counter() - self._start[0]
        self.cpu += time.thread_time() - self._start[1]


def forwards(shots: Shots) -> Shots:
    half = len(shots) // 2
    return [*shots[half:], *shots]


def as_it_was(images: ImageProcessor, shots: Shots, pause: float) -> Clock:
    clock = Clock()
    for trajectory in forwards(shots):
        with clock:
            pixels = torch.cat([images.packed(key, png).pixels for key, png in trajectory.items()])
            normalized_films(pixels, images.mean, images.std, images.frames)
        time.sleep(pause)
    return clock


def ahead(images: ImageProcessor, shots: Shots, pause: float) -> Clock:
    clock = Clock()
    with clock:
        images.prepare({key: png for trajectory in forwards(shots) for key, png in trajectory.items()}, processes=2)
    for trajectory in forwards(shots):
        with clock:
            torch.cat([images.packed(key, png).pixels for key, png in trajectory.items()])
        time.sleep(pause)
    images.close()
    return clock


def main(trajectories: int) -> None:
    torch.set_num_threads(1)
    shots = [dict(desktop(STEPS * n + step, "windows") for step in range(STEPS)) for n in range(trajectories)]
    print(f"{trajectories} trajectories of {STEPS} screenshots; in the training thread, start of two workers included")
    print(f"{'':<14} {'a forward of':>12} {'CPU s':>8} {'CPU and waiting s':>18}")
    with tempfile.TemporaryDirectory() as directory:
        make_tiny(directory, corpus=WORDS * 4, words=3000, max_pixels=2_116_800)
        for pause in (0.0, 5.0):
            small = ImageProcessor(directory, cache_mb=CACHE_MB * trajectories / WHOLE_UPDATE)
            for name, clock in (
                ("as it was", as_it_was(small, shots, 0.0)),
                ("ahead", ahead(ImageProcessor(directory), shots, pause)),
            ):
                print(f"{name:<14} {pause:>10.0f} s {clock.cpu:>8.2f} {clock.wall:>18.2f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
