"""BrowserGym's tasks by their screenshots alone: no trees are extracted, and one browser serves a whole thread."""

import base64
import logging
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil

from arpo.agent import actions
from arpo.agent.actions import Action, Point
from arpo.agent.keys import typeable
from arpo.envs.gymnasium.tasks import registered
from arpo.envs.web import find_chromium

WHEEL = {"left": (-100, 0), "right": (100, 0), "up": (0, -100), "down": (0, 100)}
"""Pixels of a notch, as Chromium has them."""
KEYS = {"esc": "Escape", "pageup": "PageUp", "pagedown": "PageDown", "ctrl": "Control", "win": "Meta"}
KEYS |= {way: f"Arrow{way.capitalize()}" for way in WHEEL} | {f"f{number}": f"F{number}" for number in range(1, 13)}
ALIKE = ("enter", "tab", "space", "backspace", "delete", "insert", "home", "end", "alt", "shift")
KEYS |= {key: key.capitalize() for key in ALIKE}
"""Playwright's names of keys with more than a character."""
LONGEST_TYPED = 200
"""Characters of a text whose keys are pressed; a longer one, that would outlast a step's deadline, comes at once."""


def calls_of(action: Action, pointer: Point) -> str | None:
    """Return an action as calls of BrowserGym's high-level action set, in pixels of the screen."""
    call: str | None = None
    match action:
        case actions.Click(x, y, button, count):
            call = f"{'mouse_click' if count == 1 else 'mouse_dblclick'}({x}, {y}, {button!r})"
        case actions.Hover(x, y):
            call = f"mouse_move({x}, {y})"
        case actions.Drag(x, y, to_x, to_y):
            call = f"mouse_drag_and_drop({x}, {y}, {to_x}, {to_y})"
        case actions.Scroll(direction):
            call = "scroll_at({}, {}, {}, {})".format(*pointer, *WHEEL[direction])
        case actions.Hotkey(keys):
            call = _keyboard("press", *keys)
        case actions.Press(key) | actions.KeyDown(key) | actions.KeyUp(key):
            call = _keyboard(action.NAME.removeprefix("key"), key)
        case actions.TypeText(text) if len(text) > LONGEST_TYPED:
            call = f"keyboard_insert_text({typeable(text)!r})"
        case actions.TypeText(text):
            parts = filter(None, re.split("(\t)", typeable(text)))  # a tab is a key, as on a keyboard
            call = "\n".join("keyboard_press('Tab')" if part == "\t" else f"keyboard_type({part!r})" for part in parts)
        case actions.Wait():
            call = "noop(1000)"
        case actions.Finished(content):
            call = f"send_msg_to_user({typeable(content)!r})"
        case actions.Fail():
            call = "report_infeasible('The agent says that nothing solves the task.')"
    return call or None


def _keyboard(verb: str, *keys: str) -> str | None:
    names = [KEYS.get(key, key) for key in keys]
    known = all(len(key) == 1 or key in KEYS for key in keys)
    return f"keyboard_{verb}({'+'.join(names)!r})" if names and known else None


class Pages:
    """A task of BrowserGym in Chromium, with the arguments of `GymnasiumEnv`. All its calls come from one thread."""

    translate = staticmethod(calls_of)

    def __init__(self, name: str, options: Mapping[str, Any], viewport: tuple[int, int] | None, scale: float) -> None:
        spec = registered(name)
        import gymnasium

        ours = {
            "viewport": viewport and {"width": viewport[0], "height": viewport[1]},
            "use_raw_page_output": True,  # else the trees of a page take as long as the rest of a step
            "action_mapping": _to_python(),
            "pw_context_kwargs": {"device_scale_factor": scale},
        }
        self.env = gymnasium.make(spec, disable_env_checker=True, **{**ours, **options})
        self._scale = scale
        self._page: Any = None
        self._devtools: Any = None
        BROWSER.users += 1

    def screenshot(self, seen: Any) -> tuple[bytes, int, int]:
        """Return a picture of the page as PNG, its width and its height in screen pixels."""
        page = seen["page"]
        if page is not self._page:
            page._bgym_scale_factor = self._scale  # by which BrowserGym takes points to the page
            self._page, self._devtools = page, page.context.new_cdp_session(page)
        picture = self._devtools.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
        sides = (round(page.viewport_size[side] * self._scale) for side in ("width", "height"))
        return base64.b64decode(picture["data"]), *sides


@cache
def _to_python() -> Any:
    """Return the reader of calls: of mouse, keyboard, answer and refusal alone."""
    from browsergym import core
    from browsergym.core.action.highlevel import HighLevelActionSet

    core._set_global_playwright(BROWSER)
    logging.getLogger("browsergym.core.env").setLevel(logging.ERROR)  # else it warns of our viewport in each episode
    # Strict: no part of a text that is typed may be read as a call.
    return HighLevelActionSet(["chat", "infeas", "coord"], strict=True).to_python_code


class _Browser(threading.local):
    """The Playwright that BrowserGym uses, one for each thread, as its objects live in the thread that made them.

    BrowserGym starts two browsers in each episode, for the page and for its chat. Here they are contexts of one that
    stays open, which share no cookies and no storage either.
    """

    processes: ClassVar[dict[int, psutil.Process]] = {}
    starts = threading.Lock()  # event loops, as Ray has them, let one thread of a process at a time start another

    def __init__(self) -> None:
        self.chromium, self.users = self, 0
        self.running: Any = None
        self.browser: Any = None

    @property
    def selectors(self) -> Any:
        """Playwright's selectors, which BrowserGym looks at first: the process of Playwright starts."""
        if self.running is None:
            from playwright.sync_api import sync_playwright

            with self.starts:
                self.running = sync_playwright().start()
        return self.running.selectors

    def launch(self, **options: Any) -> SimpleNamespace:
        """Lend the browser, which the first call starts with its options; BrowserGym closes contexts itself."""
        if self.browser is None or not self.browser.is_connected():
            self.browser = self.running.chromium.launch(**{"executable_path": find_chromium(), **options})
            processes = self.browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
            pid = next(each["id"] for each in processes if each["type"] == "browser")
            self.processes[threading.get_ident()] = psutil.Process(pid)
        return SimpleNamespace(new_context=self.browser.new_context, close=lambda: None)

    def leave(self) -> None:
        """Count one user less, and with the last one end the browser and Playwright's process."""
        self.users -= 1
        if self.users == 0 and self.running is not None:
            running, self.running, self.browser = self.running, None, None
            self.processes.pop(threading.get_ident(), None)
            running.stop()

    def end(self, thread: int) -> None:
        """End the browser of a thread that hangs in it, so that its call fails."""
        with suppress(KeyError, psutil.NoSuchProcess):  # it may be gone, and its number another process's
            self.processes[thread].kill()


BROWSER = _Browser()
