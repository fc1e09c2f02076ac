"""Whether a reset in place gives back a fresh desktop, whatever an episode did to it.

    python benchmarks/sabotage.py --episodes 500        # --desktops 1, --seed 0

An episode does up to four things of `tests/envs/desktop/sabotage.py: LEAKS`, drawn from the seed, and the next one
begins after a reset in place: its first screenshot, and what it types, must be those of a fresh container. Prints each
one that differs, how many were the same, and how long resets took. Exit status 1 if any differed or failed.
"""

import argparse
import os
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from arpo.agent.actions import Hotkey, TypeText, Wait
from arpo.envs.desktop.env import IMAGE, DockerDesktop
from arpo.errors import ArpoError
from arpo.types import Task
from tests.envs.desktop.sabotage import LEAKS

TEXT = "yellow zebra <a> @x; {b} 'Q' \\ 12\n"
FILE = "~/typed.txt"
MOST_AT_ONCE = 4
TASK = Task(
    "sabotage",
    "",
    config={
        "config": [{"type": "launch", "parameters": {"command": f"mousepad {FILE}"}}],
        "windows": ["typed.txt"],
        "evaluator": {"func": "infeasible"},
    },
)


def new_desktop(image: str) -> DockerDesktop:
    return DockerDesktop(image=image, screen=(640, 480), quiet_s=0.15, settle_limit_s=6.0, wait_s=0.2)


def first_moments(env: DockerDesktop) -> tuple[bytes, bytes | None, float]:
    """Return an episode's first screenshot, what it has typed, and the seconds of its reset."""
    began = time.perf_counter()
    screen = env.reset(TASK).screenshot
    reset_s = time.perf_counter() - began
    env.step(TypeText(TEXT))
    env.step(Hotkey(("ctrl", "s")))
    env.step(Wait())
    return screen, env.machine.guest.file(FILE), reset_s


def sabotage(env: DockerDesktop, ways: list[str]) -> None:
    for way in ways:
        with suppress(ArpoError):  # one that ends the session: what is left of it shows in the next episode
            env.machine.guest.execute(LEAKS[way], shell=True, timeout_s=20)


def play(image: str, episodes: range, seed: int, wanted: tuple[bytes, bytes | None]) -> tuple[int, list[float]]:
    env, same, times = new_desktop(image), 0, []
    try:
        env.reset(TASK)
        for episode in episodes:
            draw = random.Random(f"{seed}/{episode}")
            ways = draw.sample(sorted(LEAKS), draw.randint(1, MOST_AT_ONCE))
            sabotage(env, ways)
            try:
                *found, reset_s = first_moments(env)
            except ArpoError as error:
                print(f"episode {episode}, after {ways}: {type(error).__name__}: {error}", flush=True)
                env.close()
                env = new_desktop(image)
                env.reset(TASK)
                continue
            times.append(reset_s)
            if episode % 50 == 0:
                print(f"episode {episode} has begun", flush=True)
            if tuple(found) == wanted:
                same += 1
                continue
            what = "another screen" if found[0] != wanted[0] else f"typed {found[1]!r}"
            print(f"episode {episode}, after {ways}: {what}", flush=True)
    finally:
        env.close()
    return same, times


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--desktops", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image", default=IMAGE)
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    fresh = new_desktop(arguments.image)
    *wanted, _ = first_moments(fresh)
    fresh.close()
    shares = [range(at, arguments.episodes, arguments.desktops) for at in range(arguments.desktops)]
    with ThreadPoolExecutor(arguments.desktops) as threads:
        played = list(threads.map(lambda share: play(arguments.image, share, arguments.seed, tuple(wanted)), shares))
    same = sum(each for each, _ in played)
    times = [seconds for _, each in played for seconds in each]
    print(f"{same} of {arguments.episodes} episodes began as on a fresh desktop", flush=True)
    print(f"reset with its task: median {statistics.median(times):.2f} s, most {max(times):.2f} s")
    print(f"load {os.getloadavg()[0]:.1f}")
    return int(same != arguments.episodes)


if __name__ == "__main__":
    sys.exit(main())
