"""MiniWoB++ as a desktop: real web pages in headless Chromium.

Pages stay loaded and are restarted with the next seed, which is several times cheaper than loading. The environments
of a process share them.
"""

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from arpo.agent.actions import Action, Click, Drag, Hotkey, Press, Scroll, TypeText, Wait
from arpo.bounds import AtLeastOne, Positive, checked
from arpo.envs.miniwob.chromium import ChromiumError
from arpo.envs.miniwob.tab import Geometry, Tab
from arpo.envs.miniwob.tabs import LoadedTabs, loaded_tabs
from arpo.envs.miniwob.tasks import known_pages
from arpo.envs.protocol import KnownDesktop, StepResult
from arpo.envs.web import find_chromium, pages_directory
from arpo.errors import BlamedError, ConfigError, EnvError, TaskFormatError, env_boundary
from arpo.types import Observation, Task

if TYPE_CHECKING:
    from arpo.envs.miniwob.devtools import DevTools

log = logging.getLogger(__name__)

STEP_MS = 500
"""Virtual time that passes after an action: the longest delay of a page, an autocompletion, is 300 ms."""
WAIT_MS = 1000
SUCCESS = 0.99
"""Raw reward from which a task counts as solved; many pages give fractions for half a solution."""

FIRST_SCREENS: OrderedDict[str, bytes] = OrderedDict()
"""First screenshots of this process by page, seed and geometry, the longest unused first: a page is a function of its
seed, so the members of a group start from the same pixels. Each operation on it is atomic: threads need no lock."""
MAX_FIRST_SCREENS = 1024


@checked
class MiniWobEnv(KnownDesktop):
    """A MiniWoB++ page on a screen. Environments of one process share a browser; each may live in its own thread.

    Args:
        screen: Width and height of the screenshots; pixels around the page show a plain desktop.
        viewport: Width and height of the browser window in page pixels, at least 160 x 210.
        scale: Screen pixels per page pixel.
        executable: Chromium; by default `ARPO_CHROMIUM` or the first one in PATH.
        renderers: Renderer processes that the tabs of this process share.
        tabs: Pages that stay loaded for each environment of this process; a tab takes some 10 MB.
        reset_timeout_s: How long a page may take to load and start.
        step_timeout_s: How long an action and its screenshot may take.

    Attributes:
        raw_reward: The last reward of the page itself, in [-1, 1]; many pages give fractions for half a solution.
    """

    example_tasks = "miniwob_16"

    def __init__(
        self,
        *,
        screen: tuple[int, int] = (168, 210),
        viewport: tuple[int, int] = (168, 210),
        scale: Positive = 1.0,
        executable: str | None = None,
        renderers: AtLeastOne = 1,
        tabs: AtLeastOne = 1,
        reset_timeout_s: Positive = 30.0,
        step_timeout_s: Positive = 15.0,
    ) -> None:
        self._geometry = Geometry((screen[0], screen[1]), (viewport[0], viewport[1]), scale)
        pages_directory()
        self._reset_timeout_s = reset_timeout_s
        self._step_timeout_s = step_timeout_s
        kind = find_chromium(executable), self._geometry, renderers
        self._tabs = loaded_tabs(*kind)
        self._own_tabs = cache(partial(LoadedTabs, *kind))
        self._tabs.join(tabs)
        self._share = tabs
        self._lender = self._tabs  # of the episode's tab
        self._devtools: DevTools | None = None
        self._tab: Tab | None = None
        self._sound = False  # whether the last call on the tab came to its end
        self._episode: tuple[Tab, Observation] | None = None  # with what is to be seen now
        self._done, self.raw_reward = False, 0.0
        self._closed = False

    @property
    def browser_pid(self) -> int:
        """Process (and process group) of the browser behind this environment; 0 before the first reset."""
        return self._episode[0].browser.pid if self._episode is not None else 0

    def reset(self, task: Task) -> Observation:
        """Start the task's page with its seed and return the first observation, which carries the instruction."""
        page, seed = _page_and_seed(task)
        if self._closed:
            raise EnvError("reset", "the environment is closed")
        self._let_go()
        self._task = task
        return self._begin(self._tabs, page, seed)

    def devtools(self) -> str:
        """Begin the task again in a browser of its own, for an agent that speaks DevTools, and return their address.

        There the page's time goes on by itself. The page's reward is a variable that a script can set: an agent must
        not run scripts of the policy.
        """
        from arpo.envs.miniwob.devtools import DevTools  # with a server of WebSockets, which other episodes do without

        self._running("reset")
        self._let_go()
        self._begin(self._own_tabs(), *_page_and_seed(self._task))
        tab, _ = self._running("reset")
        with env_boundary("reset", f"{tab.page}: DevTools"):
            deadline = time.monotonic() + self._step_timeout_s
            tab.close_others(deadline)
            tab.evaluate("arpo.flow()", deadline, object)
            self._devtools = DevTools(tab.browser)
        return self._devtools.address

    def _begin(self, tabs: LoadedTabs, page: str, seed: int) -> Observation:
        self._lender = tabs
        with env_boundary("reset", f"{page} {seed}"):
            tab = self._tab = tabs.take(page, self._reset_timeout_s)
            deadline = time.monotonic() + self._reset_timeout_s
            width, height = self._geometry.viewport  # the far corner: nothing that was hovered before may be now
            tab.dispatch(tab.devices.release(width - 1.0, height - 1.0), deadline)
            instruction = tab.evaluate(f"arpo.start({json.dumps(seed)})", deadline, str)
            key = f"{page} {seed} {self._geometry}"
            png = FIRST_SCREENS.pop(key, None) or tab.screenshot(deadline)
            FIRST_SCREENS[key] = png
            if len(FIRST_SCREENS) > MAX_FIRST_SCREENS:
                FIRST_SCREENS.popitem(last=False)
        self._done, self.raw_reward, self._sound = False, 0.0, True
        first = Observation(png, *self._geometry.screen, instruction)
        self._episode = tab, first
        return first

    def step(self, action: Action) -> StepResult:
        """Perform one action, in screen pixels; an ended page keeps the screenshot from before the last action."""
        tab, shown = self._running("step")
        if self._done:
            raise EnvError("step", "the episode has ended")
        deadline = time.monotonic() + self._step_timeout_s
        self._sound = False
        with env_boundary("step", f"{tab.page}: {action}"):
            placed = self._geometry.to_page(action)
            if placed is not None:
                tab.dispatch(tab.devices.events(placed), deadline)
            passing = WAIT_MS if isinstance(action, Wait) else STEP_MS
            self._done, self.raw_reward = tab.evaluate(f"arpo.advance({passing})", deadline, tuple[bool, float])
            if not self._done:
                shown = Observation(tab.screenshot(deadline), *self._geometry.screen)
        self._episode, self._sound = (tab, shown), True
        return StepResult(shown, terminated=self._done)

    def evaluate(self) -> float:
        """Return 1 if the page says that its task is solved, else 0."""
        tab, _ = self._running("evaluate")
        if self._devtools is not None:
            try:
                deadline = time.monotonic() + self._step_timeout_s
                _, self.raw_reward = tab.evaluate("arpo.advance(0)", deadline, tuple[bool, float])
            except (EnvError, ChromiumError) as error:  # with DevTools, an agent can break its browser
                raise BlamedError("destroyed", f"the agent's browser does not answer: {error}") from error
        return 1.0 if self.raw_reward >= SUCCESS else 0.0

    def solve(self) -> Iterator[Action]:
        """Yield, closed loop, the next right action of the current episode, read off the page."""
        page = self._running("step")[0].page
        scripted = self.look_up("arpo.solvable", list[str])
        if page not in scripted:
            raise ConfigError(f"no scripted solution for {page!r}; there is one for {', '.join(scripted)}")
        return self._solution(page)

    def distractors(self) -> tuple[Action, ...]:
        """Return clicks on everything clickable that is not the next right thing to click."""
        page = self._running("step")[0].page
        points = self.look_up(f"arpo.distractors({json.dumps(page)})", list[tuple[float, float]])
        return tuple(Click(*self._geometry.to_screen(x, y)) for x, y in points)

    def look_up(self, expression: str, kind: Any = Any) -> Any:
        """Return the value of a JavaScript expression in the page: for tests and new solution scripts."""
        tab, _ = self._running("step")
        with env_boundary("step", f"{tab.page}: {expression}"):
            return tab.evaluate(expression, time.monotonic() + self._step_timeout_s, kind)

    def close(self) -> None:
        """Close the tab; idempotent."""
        if not self._closed:
            self._closed, self._sound = True, False  # its answer is not waited for
            self._let_go()
            self._tabs.leave(self._share)

    def _let_go(self) -> None:
        """End the episode: its tab is for others, or is closed where it may show anything."""
        tab, self._tab, self._episode = self._tab, None, None
        if self._devtools is not None:
            self._devtools.close()
            self._devtools, self._sound = None, False
        if tab is not None and self._sound:
            self._lender.give(tab)
        elif tab is not None:
            self._lender.close(tab)
        self._sound = False

    def _running(self, kind: str) -> tuple[Tab, Observation]:
        if self._episode is None:
            raise EnvError(kind, "there is no episode: reset first")
        return self._episode

    def _solution(self, page: str) -> Iterator[Action]:
        place, ask = self._geometry.to_screen, f"arpo.solve({json.dumps(page)})"
        while not self._done and (move := self.look_up(ask, list[Any] | None)) is not None:
            match move:
                case ["click", *point]:
                    yield Click(*place(*point))
                case ["drag", x, y, to_x, to_y]:
                    yield Drag(*place(x, y), *place(to_x, to_y))
                case ["scroll", direction, *point]:
                    yield Scroll(direction, *place(*point))
                case ["type", text]:
                    yield TypeText(text)
                case ["press", key]:
                    yield Press(key)
                case ["hotkey", *keys]:
                    yield Hotkey(tuple(keys))
                case _:
                    raise ConfigError(f"solutions.js gave an unknown action {move!r}")


def _page_and_seed(task: Task) -> tuple[str, int]:
    page, seed = task.config.get("page"), task.config.get("seed")
    if page not in known_pages() or not isinstance(seed, int):
        raise TaskFormatError(
            f"task {task.id!r}: config needs a page of MiniWoB++ and an integer seed, got {page=}, {seed=}"
        )
    return page, seed
