"""How long the viewer takes to be written and to be opened, and what it costs a run.

    python benchmarks/viewer.py outputs/arpo_miniwob/default    # that run
    python benchmarks/viewer.py --episodes 15000                # made up: groups of 8, 3 steps, small screenshots

Opening is measured in headless Chromium from the disk, from the navigation to the drawn page; the best of five.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arpo.apps.viewer.site import Site
from arpo.envs.miniwob import chromium
from arpo.envs.miniwob.executable import find_chromium
from tests.apps.viewer.support import Page, index_of, make_episode, write_run

TIMES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--episodes", type=int, default=15_000)
    asked = parser.parse_args()
    chromium.FLAGS = tuple(flag for flag in chromium.FLAGS if not flag.startswith("--allow-file"))
    with tempfile.TemporaryDirectory() as scratch:
        run = asked.run or made_up(Path(scratch) / "run", asked.episodes)
        out = Path(scratch) / "view"
        for what in ("written", "written again"):
            started, working = time.monotonic(), time.process_time()
            Site([run], out).write()
            passed, worked = time.monotonic() - started, time.process_time() - working
            print(f"{what} in {passed:.2f} s, {worked:.2f} s of it on a core")
        print(f"{sum(path.stat().st_size for path in out.rglob('*') if path.is_file()) / 1e6:.1f} MB")
        measure(out)


def measure(out: Path) -> None:
    browser = chromium.Browser(find_chromium())
    try:
        page = Page(browser)
        address = (out / "index.html").as_uri()
        page.open(address)  # the browser itself is started
        episodes = page.value("document.querySelector('.fact b').innerText")
        print(f"{episodes} episodes; the run's page opens in {min(opened(page, address) for _ in range(TIMES)):.2f} s")
        group = page.value("document.querySelector('a.cell').hash")
        print(f"a group opens in {min(opened(page, address + group) for _ in range(TIMES)):.2f} s")
        print(
            f"the list of episodes opens in {min(opened(page, address + '#/a/episodes') for _ in range(TIMES)):.2f} s"
        )
        print(f"its page of 64 episodes loads {loaded(out) / 1e6:.2f} MB")
    finally:
        browser.close()


def opened(page: Page, address: str) -> float:
    """Seconds from the navigation to two frames after the page was filled."""
    page.send("Page.navigate", {"url": "about:blank"})
    started = time.monotonic()
    page.send("Page.navigate", {"url": address})
    page.until("document.documentElement.dataset.opened")
    page.value("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    return time.monotonic() - started


def loaded(out: Path) -> int:
    """Bytes of all that a list of 64 episodes shows: the page, the index, and the chunks of their groups."""
    index = index_of(out)
    groups = sorted(set(index["episodes"]["group"][:64]))
    chunks = [out / "data" / "a" / "g" / f"{index['groups']['file'][group]}.js" for group in groups]
    app = [path for path in out.iterdir() if path.is_file()]
    return sum(path.stat().st_size for path in [*app, out / "data" / "a" / "index.js", *chunks])


def made_up(run: Path, episodes: int) -> Path:
    """A run of many episodes, written by hand: the store would write one file after the other for hours."""
    actions = [f"click(start_box='({number},20)')" for number in range(3)]
    store = write_run(run, [make_episode(actions=actions)])
    train = store.root / "train"
    line = json.loads((train / "iteration_000000.jsonl").read_text(encoding="utf-8"))
    shutil.rmtree(train)
    train.mkdir()
    for iteration in range(-(-episodes // 64)):
        lines = [
            {
                **line,
                "id": f"{iteration}/{number // 8}/{number % 8}",
                "task_id": f"page/{(8 * iteration + number // 8) % 128}",
                "task_reward": float((number * 7 + iteration) % 3 == 0),
            }
            for number in range(min(64, episodes - 64 * iteration))
        ]
        (train / f"iteration_{iteration:06d}.jsonl").write_text(
            "".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8"
        )
    return run


if __name__ == "__main__":
    main()
