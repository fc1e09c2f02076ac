"""Registered environments that draw themselves, or whose observation is a picture, and a table of their actions."""

import io
from collections.abc import Mapping
from typing import Any

from PIL import Image

from arpo.agent.actions import CLICKS, Action, Click, Hotkey, Point, Press, Scroll, TypeText
from arpo.agent.keys import canonical_key
from arpo.envs.gymnasium.tasks import registered
from arpo.errors import ConfigError

NAMES = {*CLICKS.values(), *(f"scroll {way}" for way in ("up", "down", "left", "right"))}
NAMES |= {"hover", "drag", "wait", "finished", "error_env"}
"""What a line of a table may have in the place of keys."""


class Drawn:
    """An environment with a picture: what it renders as an array of colours, else its observation.

    Args:
        name: The registered name.
        actions: Actions of its space by those of the agent, such as `{left: 0, right: 1, ctrl r: 2, wait: 3}`. A line
            names a key, keys that are pressed together, or one of `NAMES`; an action without a line is nothing.
        options: Arguments for `gymnasium.make`.
    """

    def __init__(self, name: str, actions: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        spec = registered(name)
        import gymnasium

        settings: dict[str, Any] = {"disable_env_checker": True, **options}
        self._name, self.env = name, gymnasium.make(spec, **settings)
        if "render_mode" not in settings and "rgb_array" in (self.env.metadata.get("render_modes") or ()):
            self.env.close()
            self.env = gymnasium.make(spec, render_mode="rgb_array", **settings)
        if not actions:
            ask = "say in env.make_env.actions which key or click is which of its actions, such as {left: 0, right: 1}"
            raise ConfigError(f"{name} has the action space {self.env.action_space}: {ask}")
        self._actions = {str(line): self._in_space(str(line), value) for line, value in actions.items()}

    def translate(self, action: Action, pointer: Point) -> Any | None:
        """Return the action of its space for one of the agent, None where there is no line for it."""
        return self._actions.get(name_of(action))

    def screenshot(self, seen: Any) -> tuple[bytes, int, int]:
        """Return the picture as PNG, its width and its height."""
        pixels = self.env.render() if self.env.render_mode == "rgb_array" else seen
        try:
            picture = Image.fromarray(pixels).convert("RGB")
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._name} has no picture: no rgb_array, and {self.env.observation_space} is none ({error})"
            ) from error
        out = io.BytesIO()
        picture.save(out, "PNG", compress_level=1)
        return out.getvalue(), *picture.size

    def _in_space(self, line: str, value: Any) -> Any:
        from numpy import asarray

        space = self.env.action_space
        if line not in NAMES and not (line and all(canonical_key(key) == key for key in line.split())):
            raise ConfigError(f"make_env.actions: {line!r} is no key, and none of {', '.join(sorted(NAMES))}")
        try:
            own = asarray(value, dtype=space.dtype) if isinstance(value, list | tuple) else value
        except (TypeError, ValueError):
            own = None
        if not space.contains(own):
            raise ConfigError(f"make_env.actions.{line}={value!r} is not in the action space {space} of {self._name}")
        return own


def name_of(action: Action) -> str:
    """Return the name under which a table has an action; a text is the key that types it."""
    match action:
        case Press(key):
            return key
        case Hotkey(keys):
            return " ".join(keys)
        case TypeText(text):
            return text.strip()
        case Scroll(direction):
            return f"scroll {direction}"
        case Click():
            return CLICKS.get((action.button, action.count), "")
    return action.NAME
