"""Our DevTools client against Playwright, on the same pages, actions and browser, as ratios of one run.

    pip install playwright                        # into an environment of its own, put on PYTHONPATH
    python benchmarks/devtools_vs_playwright.py   # --episodes N for other than 30

An episode is a restart of a loaded MiniWoB++ page, its scripted solution and a screenshot after each action.
Playwright plays the same episodes through the same environment: its own `evaluate`, input as DevTools commands of its
session (its mouse and keyboard wait for an answer after every event), and a screenshot by the same command or by its
own method. Processor time and memory (proportional set size) are those of the whole process tree, with the browser,
and for Playwright its driver. The ways run in turn, three times each; medians.
"""

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from arpo.envs.miniwob import env as miniwob
from arpo.envs.miniwob.chromium import FLAGS, find_chromium
from arpo.envs.miniwob.tab import Geometry, _script
from arpo.envs.miniwob.tasks import pages_directory
from arpo.types import Task

WAYS = ("devtools", "playwright", "playwright's screenshot")
REPETITIONS = 3
PAGES = ("click-checkboxes", "click-tab-2", "drag-box", "enter-text", "login-user", "use-slider")


class PlaywrightTab:
    """A tab of the environment on Playwright instead of our client."""

    own_screenshot = False

    def __init__(self, executable: str, geometry: Geometry, *, renderers: int, deadline: float) -> None:
        from playwright.sync_api import sync_playwright

        self.page = ""
        self._driver = sync_playwright().start()
        flags = [flag for flag in FLAGS if flag not in ("--headless", "--remote-debugging-pipe")]
        arguments = [*flags, f"--renderer-process-limit={renderers}"]
        self._browser = self._driver.chromium.launch(executable_path=executable, args=arguments)
        width, height = geometry.viewport
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, device_scale_factor=geometry.scale
        )
        context.add_init_script("\n".join((_script("page.js"), _script("solutions.js"))))
        self._page = context.new_page()
        self._session = context.new_cdp_session(self._page)
        self.alive = True

    def load(self, page: str, deadline: float) -> None:
        self._page.goto((pages_directory() / f"{page}.html").as_uri())
        self.page = page

    def evaluate(self, expression: str, deadline: float) -> object:
        return self._page.evaluate(expression)

    def dispatch(self, events: list[tuple[str, dict[str, object]]], deadline: float) -> None:
        for method, parameters in events:
            self._session.send(method, parameters)

    def screenshot(self, deadline: float) -> bytes:
        if self.own_screenshot:
            return self._page.screenshot()
        answer = self._session.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
        return base64.b64decode(answer["data"])

    def close(self) -> None:
        self._browser.close()
        self._driver.stop()


def tree() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def processor_s() -> float:
    return sum(sum(process.cpu_times()[:2]) for process in tree())


def play(env: miniwob.MiniWobEnv, page: str, seed: int) -> int:
    env.reset(Task(page, "", config={"page": page, "seed": seed}))
    steps = 0
    for action in env.solve():
        env.step(action)
        steps += 1
    assert env.evaluate() == 1.0
    return steps


def measure(way: str, episodes: int) -> dict[str, float]:
    if way != "devtools":
        miniwob.Tab = PlaywrightTab  # type: ignore[misc]  # the same environment on another client
        PlaywrightTab.own_screenshot = way != "playwright"
    taken = {"steps": 0, "s": 0.0, "processor_s": 0.0}
    env = miniwob.MiniWobEnv(executable=find_chromium())
    for page in PAGES:
        play(env, page, 10_000)  # load
        used, began = processor_s(), time.perf_counter()
        taken["steps"] += sum(play(env, page, seed) for seed in range(episodes))
        taken["s"] += time.perf_counter() - began
        taken["processor_s"] += processor_s() - used
    memory = sum(process.memory_full_info().pss for process in tree())
    env.close()
    return {
        "steps a second": taken["steps"] / taken["s"],
        "processor ms an episode": 1000 * taken["processor_s"] / (episodes * len(PAGES)),
        "memory MiB": memory / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=30, help="of each of the six pages")
    parser.add_argument("--way", choices=WAYS, help="measure one way and print JSON")
    chosen = parser.parse_args()
    if chosen.way:
        print(json.dumps(measure(chosen.way, chosen.episodes)))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(REPETITIONS):
        for way in WAYS:
            command = [sys.executable, __file__, "--way", way, "--episodes", str(chosen.episodes)]
            done = subprocess.run(command, capture_output=True, check=True, encoding="utf-8")
            found[way].append(json.loads(done.stdout))
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}; {chosen.episodes} episodes of each of {len(PAGES)} pages")
    ours = {what: statistics.median(run[what] for run in found["devtools"]) for what in found["devtools"][0]}
    for way in WAYS:
        for what, reference in ours.items():
            value = statistics.median(run[what] for run in found[way])
            print(f"{way:24} {what:24} {value:8.1f}   {value / reference:5.2f} times ours")


if __name__ == "__main__":
    main()
