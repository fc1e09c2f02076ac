"""One tab with a MiniWoB++ page in it, and where the page lies on the screen."""

import base64
import contextlib
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from PIL import Image

from arpo.agent.actions import Action
from arpo.envs.answers import decoded
from arpo.envs.miniwob.chromium import Browser, ChromiumError
from arpo.envs.miniwob.input import Event, InputDevices
from arpo.envs.web import pages_directory
from arpo.errors import ConfigError, EnvError

_T = TypeVar("_T")

PAGE_SIZE = (160, 210)
"""Every MiniWoB++ page is drawn in a box of this size, at the top left of its window."""
DESKTOP_COLOUR = (58, 110, 165)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A window of page pixels, enlarged, in the middle of a screen."""

    screen: tuple[int, int]
    viewport: tuple[int, int]
    scale: float

    def __post_init__(self) -> None:
        if self.viewport[0] < PAGE_SIZE[0] or self.viewport[1] < PAGE_SIZE[1]:
            raise ConfigError(f"viewport must be at least {PAGE_SIZE}, the size of a MiniWoB++ page: {self.viewport}")
        if self.window[0] > self.screen[0] or self.window[1] > self.screen[1]:
            raise ConfigError(
                f"a viewport of {self.viewport} at scale {self.scale} needs a screen of at least {self.window}, "
                f"got {self.screen}"
            )

    @property
    def window(self) -> tuple[int, int]:
        """Size of the page's window in screen pixels."""
        return round(self.viewport[0] * self.scale), round(self.viewport[1] * self.scale)

    @property
    def origin(self) -> tuple[int, int]:
        """Screen position of the window's top left corner."""
        return (self.screen[0] - self.window[0]) // 2, (self.screen[1] - self.window[1]) // 2

    def to_page(self, action: Action) -> Action | None:
        """Return the action in page pixels, or None where it meets the empty desktop."""
        if not action.points:
            return action
        x, y = self._point_to_page(*action.points[0])
        if not (0 <= x < self.viewport[0] and 0 <= y < self.viewport[1]):
            return None
        return action.moved(self._point_to_page)

    def to_screen(self, x: float, y: float) -> tuple[float, float]:
        """Return a point of the page as whole pixels inside the screen."""
        left, top = self.origin
        across, down = round(x * self.scale + left), round(y * self.scale + top)
        return float(min(max(0, across), self.screen[0] - 1)), float(min(max(0, down), self.screen[1] - 1))

    def frame(self, png: bytes) -> bytes:
        """Return the window's picture with the desktop around it."""
        if self.window == self.screen:
            return png
        picture = Image.new("RGB", self.screen, DESKTOP_COLOUR)
        with Image.open(io.BytesIO(png)) as window:
            picture.paste(window.convert("RGB"), self.origin)
        out = io.BytesIO()
        picture.save(out, "PNG", compress_level=1)
        return out.getvalue()

    def _point_to_page(self, x: float, y: float) -> tuple[float, float]:
        return (x - self.origin[0]) / self.scale, (y - self.origin[1]) / self.scale


class _Remote(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw(b"null")
    description: str = ""


class _Thrown(msgspec.Struct):
    text: str = ""
    exception: _Remote = msgspec.field(default_factory=_Remote)


class _Answer(msgspec.Struct):
    """All that is read of the answers to commands; the names are DevTools'."""

    errorText: str = ""  # noqa: N815
    targetId: str = ""  # noqa: N815
    sessionId: str = ""  # noqa: N815
    data: str = ""
    result: _Remote = msgspec.field(default_factory=_Remote)
    exceptionDetails: _Thrown | None = None  # noqa: N815


class _Target(msgspec.Struct):
    targetId: str  # noqa: N815
    type: str


class _Targets(msgspec.Struct):
    targetInfos: list[_Target]  # noqa: N815


class Tab:
    """One tab of a browser. Calls take a deadline in `time.monotonic` seconds."""

    def __init__(self, browser: Browser, geometry: Geometry, deadline: float) -> None:
        self.page = ""
        self.devices = InputDevices()
        self._geometry = geometry
        self.browser = browser
        self._target = self._session = ""
        try:
            self._open(deadline)
        except (EnvError, ChromiumError):
            self.close()
            raise

    def load(self, page: str, deadline: float) -> None:
        """Load a page from scratch and wait until it is complete."""
        self.page = ""
        loaded = self.browser.event(self._session, "Page.loadEventFired")
        url = (pages_directory() / f"{page}.html").as_uri()
        answer = self._call("Page.navigate", {"url": url}, deadline)
        if answer.errorText:
            raise ChromiumError(f"loading {url}: {answer.errorText}")
        self.browser.wait([loaded], deadline, f"loading {page}")
        self.page = page

    def evaluate(self, expression: str, deadline: float, kind: type[_T]) -> _T:
        """Return the value of a JavaScript expression, which must be of this kind; a promise is awaited."""
        settings = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self._call("Runtime.evaluate", settings, deadline)
        thrown = answer.exceptionDetails
        if thrown is not None:
            raise ChromiumError(f"{self.page}: {thrown.exception.description or thrown.text}")
        return decoded(answer.result.value, kind, expression, fault="step")

    def dispatch(self, events: Sequence[Event], deadline: float) -> None:
        """Send input events in order, and wait until the page has handled them."""
        futures = [self.browser.send(method, params, self._session) for method, params in events]
        self.browser.wait(futures, deadline, f"{self.page}: input")

    def screenshot(self, deadline: float) -> bytes:
        """Return the screen as PNG."""
        answer = self._call("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True}, deadline)
        return self._geometry.frame(base64.b64decode(answer.data))

    def close_others(self, deadline: float) -> None:
        """Close all tabs of the browser but this one, such as the empty one that it starts with."""
        answer = self.browser.call("Target.getTargets", timeout_s=max(0.0, deadline - time.monotonic()))
        for target in decoded(answer, _Targets, "Target.getTargets", fault="step").targetInfos:
            if target.type == "page" and target.targetId != self._target:
                self.browser.send("Target.closeTarget", {"targetId": target.targetId})

    def close(self) -> None:
        """Close the tab; never raises."""
        if self.browser.alive and self._target:
            with contextlib.suppress(EnvError):
                self.browser.send("Target.closeTarget", {"targetId": self._target})

    def _open(self, deadline: float) -> None:
        # A window of its own: full Chromium does not paint a tab in the background.
        self._target = self._call("Target.createTarget", {"url": "about:blank", "newWindow": True}, deadline).targetId
        to = {"targetId": self._target, "flatten": True}
        self._session = self._call("Target.attachToTarget", to, deadline).sessionId
        width, height = self._geometry.viewport
        metrics = {"width": width, "height": height, "deviceScaleFactor": self._geometry.scale, "mobile": False}
        commands: list[Event] = [
            ("Page.enable", {}),
            ("Inspector.enable", {}),
            ("Emulation.setDeviceMetricsOverride", metrics),
            ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            ("Page.addScriptToEvaluateOnNewDocument", {"source": _scripts()}),
        ]
        self.dispatch(commands, deadline)

    def _call(self, method: str, params: dict[str, Any], deadline: float) -> _Answer:
        left_s = max(0.0, deadline - time.monotonic())
        answer = self.browser.call(method, params, self._session, timeout_s=left_s)
        return decoded(answer, _Answer, method, fault="step")


@cache
def _scripts() -> str:
    return "\n".join(
        Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8") for name in ("page", "solutions")
    )
