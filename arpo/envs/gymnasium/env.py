"""Environments that are registered with Gymnasium as desktops: what they draw is the screen."""

import math
from collections.abc import Mapping
from contextlib import suppress
from threading import get_ident
from typing import Any, Literal

from arpo.agent.actions import Action, Point
from arpo.bounds import Positive, checked
from arpo.envs.gymnasium.browsergym import BROWSER, Pages
from arpo.envs.gymnasium.drawn import Drawn
from arpo.envs.gymnasium.tasks import BROWSERGYM
from arpo.envs.protocol import KnownDesktop, StepResult
from arpo.errors import ConfigError, EnvError, TaskFormatError, env_boundary
from arpo.types import Observation, Task


@checked
class GymnasiumEnv(KnownDesktop):
    """A `DesktopEnv` around what is registered with Gymnasium: a task is a name and a seed.

    Args:
        id: The registered name of tasks that have none.
        actions: Keys and clicks as actions of a space, see `Drawn`; BrowserGym's are known.
        options: Arguments for `gymnasium.make`, such as `max_episode_steps`, or those of BrowserGym's `BrowserEnv`.
        verdict: What the task reward is made of, and steps are left without: `last`, the reward of the terminal step;
            `sum`, all rewards, of an episode that the agent has cut short only where `between` begins at 0 or above.
            Of BrowserGym's MiniWoB++, whose `last` is 1 for any raw reward above 0, also `raw`, that reward itself,
            and `full`, 1 where it is 0.99 or more, as `env=miniwob` judges.
        between: The rewards that are a task reward of 0 and of 1.
        viewport: Width and height of BrowserGym's window in page pixels; None: the task's own.
        scale: Screen pixels per page pixel in that window.
    """

    example_tasks = "browsergym"
    steps_are_rewarded = True

    def __init__(
        self,
        *,
        id: str | None = None,
        actions: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        verdict: Literal["last", "sum", "raw", "full"] = "last",
        between: tuple[float, float] = (0.0, 1.0),
        viewport: tuple[int, int] | None = None,
        scale: Positive = 1.0,
    ) -> None:
        self._low, self._high = between
        if not -math.inf < self._low < self._high < math.inf:
            raise ConfigError(f"between must be a lower and a higher reward, got {self._low} and {self._high}")
        self._id, self._actions, self._options = id, actions or {}, options or {}
        self._verdict, self._viewport, self._scale = verdict, viewport, scale
        self._world: Drawn | Pages | None = None
        self._name = ""  # of that world
        self._shown: Observation | None = None
        self._pointer: Point = (0.0, 0.0)
        self._terminated = self._over = self._closed = False
        self._earned, self._thread = 0.0, get_ident()
        if id is not None:
            self._enter(id)

    def reset(self, task: Task) -> Observation:
        """Reset the task's environment with its seed and return its picture, with the goal where it says one."""
        name, seed = task.config.get("id", self._id), task.config.get("seed")
        if not isinstance(name, str) or not isinstance(seed, int) or seed < 0:
            needed = "needs a registered id and an integer seed from 0"
            raise TaskFormatError(f"task {task.id!r} {needed}, got {name=}, {seed=}")
        if self._closed:
            raise EnvError("reset", "the environment is closed; build a new one")
        self._shown = None
        with env_boundary("reset", f"{name} {seed}"):
            world = self._enter(name)
            seen, _ = world.env.reset(seed=seed)
            said = seen if isinstance(seen, Mapping) and not task.instruction else {}
            first = Observation(*world.screenshot(seen), str(said.get("goal") or said.get("mission") or ""))
        self._pointer, self._shown, self._earned = (0.0, 0.0), first, 0.0
        self._terminated = self._over = False
        return first

    def step(self, action: Action) -> StepResult:
        """Perform what an action is in the environment; one that is nothing there changes nothing."""
        world, shown = self._running("step")
        if self._over:
            raise EnvError("step", "the episode has ended; reset the environment first")
        action = action.begun_at(self._pointer)
        self._pointer = action.pointer_after(self._pointer) or self._pointer
        with env_boundary("step", f"{self._name}: {action}"):
            own = world.translate(action, self._pointer)
            if own is None:
                return StepResult(shown)
            seen, reward, terminated, truncated, info = world.env.step(own)
            reward = float(reward)
            shown = self._shown = Observation(*world.screenshot(seen))
        self._terminated, self._over = bool(terminated), bool(terminated or truncated)
        judged = self._terminated or self._verdict == "sum"
        if judged:
            raw = info["task_info"].get("RAW_REWARD_GLOBAL", 0.0) if self._verdict in ("raw", "full") else reward
            # From 0.99 on, `env=miniwob` counts a page as solved.
            self._earned += float(raw >= 0.99) if self._verdict == "full" else float(raw)
        if not math.isfinite(reward + self._earned):
            raise EnvError("step", f"{self._name} gave a reward of {reward}")
        return StepResult(shown, self._terminated, bool(truncated), 0.0 if judged else reward)

    def evaluate(self) -> float:
        """Return the verdict between the rewards of 0 and of 1, and 0 where there is none."""
        self._running("evaluate")
        counts = self._over or self._low >= 0 if self._verdict == "sum" else self._terminated
        return min(max((self._earned - self._low) / (self._high - self._low), 0.0), 1.0) if counts else 0.0

    def interrupt(self) -> None:
        """End the browser of a call that hangs."""
        BROWSER.end(self._thread)

    def close(self) -> None:
        """Close the environment, and with the last one of its thread the browser; idempotent."""
        self._closed, self._shown = True, None
        self._leave()

    def _enter(self, name: str) -> Drawn | Pages:
        """Return the world of this name: the one that is open, or a new one in its place."""
        if self._world is not None and self._name == name:
            return self._world
        if self._verdict in ("raw", "full") and not name.startswith(f"{BROWSERGYM}miniwob."):
            raise ConfigError(f"verdict={self._verdict} is for BrowserGym's MiniWoB++, not {name}: take last or sum")
        if name.startswith(BROWSERGYM):
            world: Drawn | Pages = Pages(name, self._options, self._viewport, self._scale)
        else:
            world = Drawn(name, self._actions, self._options)
        self._leave()  # only now, so that the browser of this thread stays open
        self._world, self._name = world, name
        return world

    def _leave(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            with suppress(EnvError), env_boundary("crash", "close"):
                world.env.close()
        if isinstance(world, Pages):
            with suppress(EnvError), env_boundary("crash", "close"):
                BROWSER.leave()

    def _running(self, call: str) -> tuple[Drawn | Pages, Observation]:
        if self._world is None or self._shown is None:
            raise EnvError(call, f"{call} was called before reset")
        return self._world, self._shown
