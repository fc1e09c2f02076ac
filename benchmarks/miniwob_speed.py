"""The speed of MiniWoB++ on this machine: `python benchmarks/miniwob_speed.py --envs 32 --processes 2`.

An episode is a reset and three clicks; every environment keeps its page, as under the pool's affinity. Prints
episodes and steps a second, processor milliseconds an episode, and the memory (PSS) of everything that was started.
"""

import argparse
import multiprocessing
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

from omegaconf import OmegaConf

sys.path.insert(0, str(Path(__file__).parents[1]))

from arpo.agent.actions import Click
from arpo.envs.miniwob.env import MiniWobEnv
from arpo.envs.miniwob.executable import find_chromium
from arpo.envs.miniwob.tasks import miniwob_task

ROOT = Path(__file__).resolve().parents[1]
PAGES = tuple(OmegaConf.load(ROOT / "conf/tasks/miniwob_16.yaml").pages)
STEPS = 3


def episode(env: MiniWobEnv, page: str, chance: random.Random) -> int:
    env.reset(miniwob_task(page, chance.randrange(4)))
    for step in range(1, STEPS + 1):
        if env.step(Click(chance.randrange(160), chance.randrange(52, 210))).terminated:
            return step
    return STEPS


def work(first: int, envs: int, episodes: int, barrier: Barrier, results: "multiprocessing.Queue[int]") -> None:
    def run(number: int, count: int) -> int:
        chance = random.Random(number)
        return sum(episode(desktops[number], PAGES[(first + number) % len(PAGES)], chance) for _ in range(count))

    desktops = [MiniWobEnv() for _ in range(envs)]
    with ThreadPoolExecutor(envs) as threads:
        list(threads.map(run, range(envs), [4] * envs))
        barrier.wait()
        results.put(sum(threads.map(run, range(envs), [episodes] * envs)))
    barrier.wait()
    barrier.wait()  # the parent has measured
    for desktop in desktops:
        desktop.close()


def tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    threads = [entry.name for entry in Path(f"/proc/{pid}/task").iterdir() if entry.name != str(pid)]
    for thread in threads:
        children += Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="utf-8").split()
    return [pid, *(other for child in children for other in tree(int(child)))]


def processor_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def megabytes(pids: list[int]) -> float:
    lines = [
        line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    ]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=10, help="per environment")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(options.processes + 1), context.Queue()
    share = options.envs // options.processes
    workers = [
        context.Process(target=work, args=(i * share, share, options.episodes, barrier, results))
        for i in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    barrier.wait()
    before, started = processor_seconds(tree(os.getpid())), time.perf_counter()
    barrier.wait()
    wall = time.perf_counter() - started
    pids = tree(os.getpid())
    spent, memory = processor_seconds(pids) - before, megabytes(pids)
    steps, episodes = sum(results.get() for _ in workers), share * options.processes * options.episodes
    barrier.wait()
    print(
        f"{find_chromium()}: {share * options.processes} environments in {options.processes} processes: "
        f"{episodes / wall:.1f} episodes/s, {steps / wall:.1f} steps/s, "
        f"{1000 * spent / episodes:.1f} processor ms an episode, {memory:.0f} MB"
    )
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
