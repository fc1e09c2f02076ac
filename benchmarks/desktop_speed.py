"""How fast Docker desktops are: start, reset, screenshot, and steps a second with and without our pool and Ray.

    python benchmarks/desktop_speed.py            # 8 desktops; --desktops N for others
    python benchmarks/desktop_speed.py --template calc/total-a-column   # resets and steps in the full image

A step is a click, eight keys and a screenshot at 1280x720, without waiting for the screen to come to rest. Three ways
are measured in turn, ten times each, because other work moves single ones by a tenth: containers alone, with every
screenshot checked as the pool does it, and in the pool. Targets on an idle machine: ready 1.5 s, reset in place 0.7 s
and fresh 1.6 s, screenshot 20 ms; in the pool at least 85 % of the steps a second of containers alone, in the median.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from arpo.agent.actions import Click, TypeText
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.desktop.templates.lists import named, template_task
from arpo.envs.pool.pool import EnvPool
from arpo.envs.screenshot import check_screenshot
from arpo.host.session import Session
from arpo.run.build import build, compose
from arpo.types import Observation, Task

STEPS = 20
TASK = Task(
    "speed",
    "",
    config={
        "config": [{"type": "launch", "parameters": {"command": ["mousepad"]}}],
        "windows": ["Mousepad"],
        "evaluator": {"func": "infeasible"},
    },
)
EMPTY = Task("empty", "", config={"evaluator": {"func": "infeasible"}})
ACTIONS = (Click(200, 200), TypeText("abcdefg "))


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def single(repetitions: int) -> None:
    times: dict[str, list[float]] = {"ready": [], "reset in place": [], "reset fresh": [], "screenshot": []}
    for _ in range(repetitions):
        began = time.perf_counter()
        env = DockerDesktop(quiet_s=0.1)
        env.reset(TASK)
        times["ready"].append(time.perf_counter() - began)
        times["reset in place"].append(timed(partial(env.reset, TASK)))
        env._quiet_s = 0.0
        shots = [timed(env._observe) for _ in range(20)]
        times["screenshot"].append(statistics.median(shots))
        env.close()
        fresh = DockerDesktop(quiet_s=0.1, reset="fresh")
        fresh.reset(TASK)
        times["reset fresh"].append(timed(partial(fresh.reset, TASK)))
        fresh.close()
    for name, values in times.items():
        print(f"{name:16s} median {statistics.median(values):6.3f} s   least {min(values):6.3f} s")


def of_a_template(name: str, rounds: int) -> None:
    """Play solutions in one desktop of the full image, as in training; after each a reset ends the application."""
    (template,) = named(name)
    env = build(compose("train", ["env=desktop_full"]).env.make_env)()
    times: dict[str, list[float]] = {"reset, its window too": [], "step": [], "reset of an open application": []}
    try:
        for seed in range(rounds):
            times["reset, its window too"].append(timed(partial(env.reset, template_task(template, seed))))
            times["step"] += [timed(partial(env.step, action)) for action in env.solve()]
            times["reset of an open application"].append(timed(partial(env.reset, EMPTY)))
    finally:
        env.close()
    for what, values in times.items():
        print(f"{what:30s} median {statistics.median(values):6.3f} s of {len(values)}")


def bare(desktops: list[DockerDesktop], look: Callable[[Observation], object]) -> float:
    def play(env: DockerDesktop) -> None:
        for _ in range(STEPS):
            for action in ACTIONS:
                look(env.step(action).observation)

    with ThreadPoolExecutor(len(desktops)) as threads:
        seconds = timed(lambda: list(threads.map(play, desktops)))
    return len(desktops) * STEPS * len(ACTIONS) / seconds


async def pooled(pool: EnvPool) -> float:
    gate = asyncio.Barrier(pool.size)

    async def play() -> float:
        async with pool.lease(TASK) as env:
            await env.reset(TASK)
            await gate.wait()
            began = time.perf_counter()
            for _ in range(STEPS):
                for action in ACTIONS:
                    await env.step(action)
            return time.perf_counter() - began

    seconds = max(await asyncio.gather(*(play() for _ in range(pool.size))))
    return pool.size * STEPS * len(ACTIONS) / seconds


async def compare(count: int, rounds: int) -> None:
    make = partial(DockerDesktop, quiet_s=0.0)
    pool = EnvPool(make, size=count, envs_per_worker=count, backend="ray")
    await pool.start()
    desktops = [make() for _ in range(count)]
    try:
        for env in desktops:
            env.reset(TASK)
        rates = [
            (
                await asyncio.to_thread(bare, desktops, id),
                await asyncio.to_thread(bare, desktops, check_screenshot),
                await pooled(pool),
            )
            for _ in range(rounds)
        ]
    finally:
        for env in desktops:
            env.close()
        await pool.close()
    for alone, checked, in_pool in rates:
        print(
            f"{count} desktops: {alone:6.1f} steps/s alone, {checked:6.1f} ({checked / alone:.0%}) checked, "
            f"{in_pool:6.1f} ({in_pool / alone:.0%}) in the pool"
        )
    checked, in_pool = (statistics.median(rate[way] / rate[0] for rate in rates) for way in (1, 2))
    print(f"median of {rounds}: {checked:.0%} checked, {in_pool:.0%} in the pool")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--desktops", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--template", help="such as calc/total-a-column")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with Session.start():
        if arguments.template:
            return of_a_template(arguments.template, arguments.rounds)
        single(3)
        asyncio.run(compare(arguments.desktops, arguments.rounds))


if __name__ == "__main__":
    main()
