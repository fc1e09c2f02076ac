"""Pictures of episodes: a screenshot with the action drawn on it, and a whole episode as a film strip."""

import functools
import importlib.util
import io
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from PIL.Image import Resampling

from arpo.agent import actions
from arpo.agent.actions import Action, moved
from arpo.agent.parser import parse_actions
from arpo.agent.render import render
from arpo.algorithms.rewards import is_success
from arpo.types import Step, Trajectory

Point = tuple[float, float]
Color = tuple[int, int, int]

ACTION: Color = (230, 0, 126)  # magenta: rare in user interfaces
HALO: Color = (255, 255, 255)
ERROR: Color = (215, 25, 28)
GOOD: Color = (22, 135, 58)
INK: Color = (25, 25, 25)
FAINT: Color = (110, 110, 110)
PAPER: Color = (250, 250, 248)

GAP = 10
TEXT_SIZE = 12
LINE_HEIGHT = 17
CAPTION_LINES = 3


def draw_action(screenshot: Image.Image, action: Action) -> Image.Image:
    """Return a copy of a screenshot with an action drawn on it; strokes grow with the picture.

    Args:
        screenshot: The picture that the agent saw.
        action: In pixels of `screenshot`.
    """
    pen = _Pen(screenshot)
    match action:
        case actions.Click(x, y):
            pen.target((x, y), rings=1)
        case actions.DoubleClick(x, y):
            pen.target((x, y), rings=2)
        case actions.RightClick(x, y):
            pen.target((x, y), rings=1)
            pen.tag("right", (x, y))
        case actions.Hover(x, y):
            pen.ring((x, y), 1.0)
            pen.tag("hover", (x, y))
        case actions.Drag(x, y, to_x, to_y):
            pen.ring((x, y), 0.6)
            pen.arrow((x, y), (to_x, to_y))
        case actions.Scroll(direction, x, y):
            pen.scroll(direction, None if x is None or y is None else (x, y))
        case _:
            pen.label(render(action), ACTION)
    return pen.picture


def draw_parse_error(screenshot: Image.Image, kind: str) -> Image.Image:
    """Return a copy of a screenshot in a red frame with the reason why the response was no action."""
    pen = _Pen(screenshot)
    pen.frame()
    pen.label(f"parse error: {kind}", ERROR)
    return pen.picture


def step_picture(step: Step, png: bytes, *, width: int = 400) -> Image.Image:
    """Return the screenshot of a step about `width` pixels wide, with its actions.

    Small screens grow by a whole factor, so that their pixels stay sharp; the action is drawn after scaling, so that
    it can be read on every screen.
    """
    picture = _scaled(Image.open(io.BytesIO(png)).convert("RGB"), width)
    if step.parse_error:
        return draw_parse_error(picture, step.parse_error)
    if not step.action:
        return picture
    factor = picture.width / step.width
    for action in parse_actions(step.action):  # the middle of a pixel stays in its middle
        picture = draw_action(picture, moved(action, lambda x, y: ((x + 0.5) * factor, (y + 0.5) * factor)))
    return picture


def film_strip(
    trajectory: Trajectory, *, success_threshold: float, columns: int = 5, rows: int = 2, width: int = 400
) -> Image.Image:
    """Return an episode as one picture: the instruction, every step with its action, and the ending.

    An episode with more steps than the strip has room for shows its beginning and its end.

    Args:
        trajectory: With its screenshots.
        success_threshold: The task reward above which the ending is green, and not red.
        columns: Pictures side by side.
        rows: Rows of pictures at most.
        width: Of one picture, in pixels, about.
    """
    cells = _cells(trajectory, room=columns * rows, width=width)
    cell_width = max(picture.width for picture, _, _ in cells)
    cell_height = max(picture.height for picture, _, _ in cells) + CAPTION_LINES * LINE_HEIGHT + GAP
    columns = min(columns, len(cells))
    strip_width = GAP + columns * (cell_width + GAP)
    heading = _wrapped(trajectory.instruction or trajectory.task_id, strip_width - 2 * GAP, lines=2)
    top = GAP + (len(heading) + 1) * LINE_HEIGHT + GAP
    height = top + -(-len(cells) // columns) * cell_height
    strip = Image.new("RGB", (strip_width, height), PAPER)
    draw = ImageDraw.Draw(strip)
    color = GOOD if is_success(trajectory, threshold=success_threshold) else ERROR
    _write(draw, (GAP, GAP), heading, INK)
    _write(draw, (GAP, GAP + len(heading) * LINE_HEIGHT), [ending(trajectory)], color)
    for index, (picture, caption, ink) in enumerate(cells):
        left = GAP + index % columns * (cell_width + GAP)
        upper = top + index // columns * cell_height
        strip.paste(picture, (left, upper))
        draw.rectangle((left - 1, upper - 1, left + picture.width, upper + picture.height), outline=FAINT)
        lines = _wrapped(caption, cell_width, lines=CAPTION_LINES)
        _write(draw, (left, upper + picture.height + 3), lines, ink)
    return strip


def ending(trajectory: Trajectory) -> str:
    """Return one line that says how an episode ended and what it was worth."""
    steps = len(trajectory.steps)
    return (
        f"{trajectory.task_id}: task reward {trajectory.task_reward:g}, format reward {trajectory.format_reward:g}, "
        f"{trajectory.outcome.value} after {steps} step{'s' * (steps != 1)}"
    )


def _cells(trajectory: Trajectory, *, room: int, width: int) -> list[tuple[Image.Image, str, Color]]:
    """Return pictures with their captions, no more than there is room for."""
    room -= bool(trajectory.last_screenshot)
    steps = list(enumerate(trajectory.steps, start=1))
    left_out = max(0, len(steps) - room)
    shown = steps if not left_out else [*steps[: room - room // 2], *steps[len(steps) - room // 2 :]]
    cells = []
    for number, step in shown:
        said = f"parse error, {step.parse_error}: {step.response}" if step.parse_error else step.action
        gap = f" (after {left_out} more)" if left_out and number == len(steps) - room // 2 + 1 else ""
        picture = step_picture(step, trajectory.screenshots[step.screenshot], width=width)
        cells.append((picture, f"{number}{gap}  {said}", ERROR if step.parse_error else INK))
    if trajectory.last_screenshot and trajectory.last_screenshot in trajectory.screenshots:
        last = Image.open(io.BytesIO(trajectory.screenshots[trajectory.last_screenshot])).convert("RGB")
        cells.append((_scaled(last, width), f"after the last action: {trajectory.outcome.value}", FAINT))
    return cells


def _scaled(picture: Image.Image, width: int) -> Image.Image:
    if picture.width <= width:
        factor = max(1, round(width / picture.width))
        return picture.resize((picture.width * factor, picture.height * factor), Resampling.NEAREST)
    return picture.resize((width, round(picture.height * width / picture.width)), Resampling.LANCZOS)


@functools.cache
def _font(size: float) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which matplotlib ships: Pillow's own font has no letters beyond ASCII."""
    found = importlib.util.find_spec("matplotlib")  # where it lies; importing it would take a second
    assert found is not None
    assert found.origin is not None
    return ImageFont.truetype(Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf", size)


def _wrapped(text: str, width: int, *, lines: int) -> list[str]:
    """Return text in at most `lines` lines of `width` pixels; what does not fit becomes an ellipsis."""
    characters = max(8, int(width / (TEXT_SIZE * 0.56)))
    return textwrap.wrap(" ".join(text.split()), characters, max_lines=lines, placeholder=" …") or [""]


def _write(draw: ImageDraw.ImageDraw, at: Point, lines: list[str], color: Color) -> None:
    for index, line in enumerate(lines):
        draw.text((at[0], at[1] + index * LINE_HEIGHT), line, fill=color, font=_font(TEXT_SIZE))


class _Pen:
    """A pen whose marks have a white halo, so that they can be seen on any colour."""

    def __init__(self, screenshot: Image.Image) -> None:
        self.picture = screenshot.convert("RGB")  # always a copy
        self._draw = ImageDraw.Draw(self.picture)
        self._unit = max(1.0, max(self.picture.size) / 400)

    @property
    def _radius(self) -> float:
        return 9 * self._unit

    def target(self, at: Point, *, rings: int) -> None:
        """Draw a cross in as many rings as there are clicks."""
        for ring in range(rings):
            self.ring(at, 1 + 0.55 * ring)
        arm = 0.75 * self._radius
        (x, y) = at
        self._lines([(x - arm, y), (x + arm, y)], [(x, y - arm), (x, y + arm)])

    def ring(self, at: Point, size: float) -> None:
        """Draw a circle."""
        for color, width in self._strokes():
            self._draw.circle(at, size * self._radius + width / 2, outline=color, width=round(width))

    def arrow(self, start: Point, end: Point) -> None:
        """Draw an arrow from one point to another."""
        away = complex(end[0] - start[0], end[1] - start[1])
        direction = away / abs(away) if away else 1 + 0j
        head = 1.2 * self._radius
        barbs = [complex(*end) - head * direction * turn for turn in (1 + 0.55j, 1 - 0.55j)]
        self._lines([start, end], [(barbs[0].real, barbs[0].imag), end, (barbs[1].real, barbs[1].imag)])

    def scroll(self, direction: str, at: Point | None) -> None:
        """Draw an arrow the way the wheel turns, at a point or in the middle."""
        x, y = at or (self.picture.width / 2, self.picture.height / 2)
        along_x, along_y = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[direction]
        reach = 2.2 * self._radius
        self.arrow((x - along_x * reach, y - along_y * reach), (x + along_x * reach, y + along_y * reach))
        self.tag("scroll", (x, y))

    def tag(self, text: str, at: Point) -> None:
        """Write a small word beside a point, inside the picture."""
        font = _font(11 * self._unit)
        width = self._draw.textlength(text, font=font)
        x = at[0] + 1.6 * self._radius
        if x + width + 3 * self._unit > self.picture.width:
            x = at[0] - 1.6 * self._radius - width
        y = min(max(at[1] - 1.9 * self._radius, 0), self.picture.height - 14 * self._unit)
        self._draw.text((x, y), text, fill=ACTION, font=font, stroke_width=round(1.5 * self._unit), stroke_fill=HALO)

    def label(self, text: str, color: Color) -> None:
        """Write a line in the lower left corner, no wider than it needs to be: it hides a part of the screen."""
        size = 12 * self._unit
        pad = 3 * self._unit
        font = _font(size)
        text = " ".join(text.split())[: int(self.picture.width / size * 4)]  # no letter is narrower than a quarter
        while text and self._draw.textlength(text, font=font) > self.picture.width - 2 * pad:
            text = text.removesuffix("…")[:-1] + "…"
        top = self.picture.height - size - 2.5 * pad
        right = self._draw.textlength(text, font=font) + 2 * pad
        self._draw.rectangle((0, top, right, self.picture.height), fill=color)
        self._draw.text((pad, top + pad / 2), text, fill=HALO, font=font)

    def frame(self) -> None:
        """Draw a thick red frame."""
        box = (0, 0, self.picture.width - 1, self.picture.height - 1)
        self._draw.rectangle(box, outline=ERROR, width=round(4 * self._unit))

    def _strokes(self) -> list[tuple[Color, float]]:
        return [(HALO, 5 * self._unit), (ACTION, 2.4 * self._unit)]

    def _lines(self, *lines: list[Point]) -> None:
        for color, width in self._strokes():  # every halo before the first stroke
            for points in lines:
                self._draw.line(points, fill=color, width=round(width), joint="curve")
