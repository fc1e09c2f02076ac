"""Model pixels and screen pixels: the size at which the model sees a screen, and the way between the two."""

import math
from dataclasses import dataclass

from arpo.agent.actions import Action, moved
from arpo.errors import ConfigError

MAX_RATIO = 200
"""How many times longer than the other a side of an image may be: the limit of the image processors."""


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return the (height, width) at which a model sees an image.

    Both sides become multiples of `factor` (patch times merge), the area stays in [`min_pixels`, `max_pixels`], the
    aspect ratio nearly as it was. Sides round half to even, as in the image processor that makes the pixels: other
    rounding puts every click of a 1522x1022 screen a few per cent off.

    The numbers have no defaults: they must be the ones of the image processor, or clicks land elsewhere.
    """
    if min(height, width, factor, min_pixels) < 1 or max_pixels < max(min_pixels, factor * factor):
        raise ConfigError(
            f"sides and limits must be positive, max_pixels at least min_pixels and factor², got {height=}, {width=}, "
            f"{factor=}, {min_pixels=}, {max_pixels=}"
        )
    if max(height, width) > MAX_RATIO * min(height, width):
        raise ConfigError(f"an image may be at most {MAX_RATIO} times longer than wide, got {height=}, {width=}")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return new_height, new_width


@dataclass(frozen=True, slots=True)
class CoordinateFrame:
    """One screen and the image of it that the model sees: takes actions from one to the other."""

    screen_width: int
    screen_height: int
    model_width: int
    model_height: int

    def __post_init__(self) -> None:
        if min(self.screen_width, self.screen_height, self.model_width, self.model_height) < 1:
            raise ConfigError(f"every side of a screen and of its image must be at least 1 pixel, got {self}")

    def to_screen(self, action: Action) -> Action:
        """Return the action in whole screen pixels, clamped to the screen."""
        return _rescaled(action, (self.model_width, self.model_height), (self.screen_width, self.screen_height))

    def to_model(self, action: Action) -> Action:
        """Return the action in whole model pixels, clamped to the model's image."""
        return _rescaled(action, (self.screen_width, self.screen_height), (self.model_width, self.model_height))


def _rescaled(action: Action, source: tuple[int, int], target: tuple[int, int]) -> Action:
    return moved(action, lambda x, y: (_scaled(x, source[0], target[0]), _scaled(y, source[1], target[1])))


def _scaled(value: float, source: int, target: int) -> float:
    return float(min(max(round(value * target / source), 0), target - 1))
