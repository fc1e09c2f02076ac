"""A small run to look at, its chunks read back, and a page in a real browser."""

import base64
import io
import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from arpo.apps.viewer.command import make_server
from arpo.apps.viewer.site import Site
from arpo.envs.miniwob.chromium import Browser
from arpo.rollout.storage import TrajectoryStore, UpdatedGroup, UpdateRecord, write_update
from arpo.types import Outcome, Step, Trajectory, screenshot_key
from tests.exchanges import in_turn
from tests.rollout.trajectories import make_trajectory

PATIENCE_S = 30.0
WATCH = """
window.seen = [];
window.asked = [];  // what elements of the page have loaded
new MutationObserver((changes) => changes.flatMap((change) => [...change.addedNodes]).forEach((added) => {
  if (added.src || added.href) window.asked.push(String(added.src || added.href));
  if (added.querySelectorAll) added.querySelectorAll("[src]").forEach((node) => window.asked.push(String(node.src)));
})).observe(document, {childList: true, subtree: true});
window.alert = (text) => window.seen.push("alert " + text);
addEventListener("error", (event) => { if (event.message) window.seen.push("error " + event.message); }, true);
addEventListener("unhandledrejection", (event) => window.seen.push("rejected " + event.reason));
document.addEventListener("securitypolicyviolation", (event) => window.seen.push("refused " + event.blockedURI));
"""


def make_png(shade: int, size: tuple[int, int] = (168, 210)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade % 256, 200, 255 - shade % 256)).save(buffer, "PNG")
    return buffer.getvalue()


def make_episode(
    id: str = "0/0/0",
    *,
    task_id: str = "page/one/1",
    actions: Sequence[str] = ("click(start_box='(10,20)')", "finished()"),
    response: str = "Thought: I look.\nAction: {action}",
    version: int = 0,
    size: tuple[int, int] = (168, 210),
    **facts: Any,
) -> Trajectory:
    pngs = [make_png(len(action) + 7 * number, size) for number, action in enumerate(["", *actions])]
    keys = [screenshot_key(png) for png in pngs]
    steps = [
        Step(key, *size, response.replace("{action}", action), action)
        for key, action in zip(keys, actions, strict=False)
    ]
    turns = [((5, 6, 7), (8, 9, 10 + number), (-0.1 - number, -0.2, -1e-9), version) for number in range(len(actions))]
    usual = {"instruction": "Press the button.", "seed": 2**62 + 1, "screenshots": dict(zip(keys, pngs, strict=True))}
    made = make_trajectory(id, task_id=task_id, domain=task_id.split("/", maxsplit=1)[0])
    return replace(made, last_screenshot=keys[-1], **(in_turn(steps, *turns) | usual | facts))


def make_group(iteration: int, number: int, *rewards: float, **facts: Any) -> list[Trajectory]:
    """Episodes of one task; each failure takes another second action."""
    return [
        make_episode(
            f"{iteration}/{number}/{member}",
            task_reward=reward,
            version=iteration,
            seed=1000 * number + member,
            actions=("click(start_box='(10,20)')", "finished()" if reward else f"click(start_box='({member},9)')"),
            outcome=Outcome.FINISHED if reward else Outcome.TERMINATED,
            **facts,
        )
        for member, reward in enumerate(rewards)
    ]


def write_run(run: Path, episodes: Iterable[Trajectory]) -> TrajectoryStore:
    store = TrajectoryStore(run / "trajectories")
    for episode in episodes:
        store.write(episode)
    return store


def write_numbers(
    store: TrajectoryStore, iteration: int, groups: Sequence[Sequence[Trajectory]], **injected: int
) -> UpdateRecord:
    """The record of an update: `g0=1` says that in group 0 the member 1 was injected."""
    members = [trajectory for group in groups for trajectory in group]
    offsets = np.cumsum([0, *(trajectory.action_tokens for trajectory in members)], dtype=np.int64)
    count = int(offsets[-1])
    old = -np.linspace(0.01, 3, count, dtype=np.float32)
    record = UpdateRecord(
        iteration=iteration,
        policy_version=iteration,
        groups=tuple(
            UpdatedGroup(
                group[0].task_id,
                tuple(trajectory.id for trajectory in group),
                (injected[f"g{number}"],) if f"g{number}" in injected else (),
            )
            for number, group in enumerate(groups)
        ),
        left_out=(),
        advantages=np.array([trajectory.task_reward - 0.25 for trajectory in members], dtype=np.float32),
        offsets=offsets,
        numbers={
            "old_logprobs": old,
            "logprobs": (old + np.float32(0.01) * np.sin(np.arange(count, dtype=np.float32))).astype(np.float32),
            "old_entropy": np.linspace(0, 2, count, dtype=np.float32),
            "entropy": np.linspace(0, 1, count, dtype=np.float32),
        },
    )
    write_update(store.root, record)
    return record


def small_run(run: Path) -> TrajectoryStore:
    """Two iterations of two groups; in the second a whole group fails, and replay puts a success of the first in."""
    first = [make_group(0, 0, 1.0, 0.0, 0.0, 1.0), make_group(0, 1, 0.0, 1.0, task_id="other/two/1")]
    second = [make_group(1, 0, 0.0, 0.0, 0.0, 0.0), make_group(1, 1, 1.0, 1.0, task_id="other/two/1")]
    store = write_run(run, [episode for group in [*first, *second] for episode in group])
    write_numbers(store, 0, first)
    write_numbers(store, 1, [[second[0][0], first[0][3], *second[0][2:]], second[1]], g0=1)
    for name in ("eval-0", "eval-2"):
        for member in range(2):
            store.write(replace(make_episode(task_reward=float(member)), id=f"{name}/held_out/0/{member}"))
    return store


def read_script(path: Path) -> Any:
    """The value that a script hands to the page."""
    text = path.read_text()
    assert text.startswith("arpoData(")
    assert text.endswith(");\n")
    assert text.isascii()
    _, value = json.loads(f"[{text.removeprefix('arpoData(').removesuffix(');' + chr(10))}]")
    return value


def index_of(out: Path, letter: str = "a") -> dict[str, Any]:
    return read_script(out / "data" / letter / "index.js")


def chunk_of(out: Path, key: str, letter: str = "a") -> dict[str, Any]:
    groups = index_of(out, letter)["groups"]
    return read_script(out / "data" / letter / "g" / f"{groups['file'][groups['key'].index(key)]}.js")


def numbers_of(member: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(base64.b64decode(packed), "<f4") for name, packed in member["numbers"]}


def address(out, hash=""):
    return (out / "index.html").as_uri() + hash


@contextmanager
def served(site: Site) -> Iterator[str]:
    """The address of a viewer that is written and served."""
    site.write()
    with make_server(site, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Page:
    """One page of a browser, used as a person does."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.expected: list[str] = []
        """What the last document of a test has `seen`."""
        self._session = ""
        target = self.send("Target.createTarget", {"url": "about:blank", "newWindow": True})
        attach = {"targetId": target["targetId"], "flatten": True}
        self._session = self.send("Target.attachToTarget", attach)["sessionId"]
        size = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Page.enable", {})
        self.send("Emulation.setDeviceMetricsOverride", size)
        self.send("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})

    def send(self, method: str, params: dict[str, Any]) -> Any:
        return json.loads(bytes(self.browser.call(method, params, self._session, timeout_s=PATIENCE_S)))

    def open(self, address: str) -> None:
        """Open an address from scratch and wait for the page."""
        self.send("Page.navigate", {"url": "about:blank"})
        self.send("Page.navigate", {"url": address})
        self.until("document.documentElement.dataset.opened")

    def show(self, out: Path, runs: Sequence[Path], hash: str = "") -> None:
        """Write a viewer and open it."""
        Site(runs, out).write()
        self.open(address(out, hash))

    def reload(self) -> None:
        self.value("document.documentElement.removeAttribute('data-opened')")
        self.send("Page.reload", {})
        self.until("document.documentElement.dataset.opened")

    def value(self, expression: str) -> Any:
        settings = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.send("Runtime.evaluate", settings)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            settings = {"expression": f"Boolean({expression})", "returnByValue": True}
            if self.send("Runtime.evaluate", settings)["result"].get("value") is True:
                return
            time.sleep(0.05)
        raise AssertionError(f"never came true: {expression}; the page says {self.text('body')[:500]!r}")

    def text(self, selector: str) -> str:
        return self.value(f"(document.querySelector({json.dumps(selector)}) || {{}}).innerText || ''")

    def texts(self, selector: str) -> list[str]:
        return self.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.innerText)")

    def count(self, selector: str) -> int:
        return self.value(f"document.querySelectorAll({json.dumps(selector)}).length")

    def click(self, selector: str) -> None:
        """Click on the middle of an element, with a mouse."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.until(f"Boolean({find})")
        self.value(f"{find}.scrollIntoView({{block: 'center'}})")
        box = self.value(
            f"(({{left, top, width, height}}) => [left + width / 2, top + height / 2])({find}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", {"type": kind} | where)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", {"type": kind, "key": name, "code": name})

    def choose(self, field: str, value: str) -> None:
        """Set a field of the filters as if it was typed."""
        event = "change" if field in ("split", "task", "domain", "outcome", "result", "replayed") else "input"
        self.value(
            f"(() => {{ const field = document.querySelector('[name={field}]'); field.value = {json.dumps(value)};"
            f" field.dispatchEvent(new Event('{event}', {{bubbles: true}})); }})()"
        )

    @property
    def hash(self) -> str:
        return self.value("location.hash")

    @property
    def seen(self) -> list[str]:
        """Errors, refusals of the content security policy, and alerts."""
        return self.value("window.seen")
