"""A desktop in memory: tiny tasks that can be learned from pixels, and a script that solves them."""

import io
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from PIL import Image, ImageDraw, ImageFont

from arpo.agent.actions import Action, Call, Click, Fail, Finished, TypeText
from arpo.agent.functions import Function, refusal
from arpo.bounds import NotNegativeInt, checked
from arpo.envs.protocol import KnownDesktop, StepResult
from arpo.errors import ConfigError, EnvError, TaskFormatError
from arpo.types import Observation, Task

log = logging.getLogger(__name__)

Kind = Literal["click", "sequence", "type", "infeasible"]

COLORS = {"red": (220, 40, 40), "green": (40, 170, 70), "blue": (50, 80, 220), "yellow": (240, 200, 40)}
WORDS = ("cat", "sun", "map", "key", "box", "tea")
COLUMNS, ROWS = 4, 3
"""Buttons stand in cells of a grid, one cell a button, each a little off its centre."""
DONE_COLOR = (170, 170, 170)
FUNCTIONS = (
    Function("fake.press", {"label": "str"}, "Press the button of this colour."),
    Function("fake.fill", {"text": "str"}, "Make this the text of the field."),
)


@dataclass(frozen=True, slots=True)
class Button:
    """A coloured square; its pixels, both ends included."""

    color: str
    left: int
    top: int
    right: int
    bottom: int

    @property
    def center(self) -> tuple[int, int]:
        """Its pixel in the middle."""
        return (self.left + self.right) // 2, (self.top + self.bottom) // 2

    def holds(self, x: float, y: float) -> bool:
        """Return whether a point lies on the button."""
        return self.left <= x <= self.right and self.top <= y <= self.bottom


@dataclass(frozen=True, slots=True)
class Scene:
    """The screen of one task, and its solution."""

    kind: Kind
    instruction: str
    buttons: tuple[Button, ...]
    field: Button | None
    order: tuple[str, ...]
    """Colours to click, in order."""
    text: str
    """The text that the field has to hold."""


@dataclass(slots=True)
class EpisodeState:
    """The progress of the agent in the running episode."""

    clicked: list[str] = field(default_factory=list)
    focused: bool = False
    text: str = ""
    last: Action | None = None
    pointer: tuple[float, float] | None = None
    over: bool = False


@checked
def fake_tasks(
    count: NotNegativeInt, seed: int = 0, kinds: Sequence[Kind] = ("click", "sequence", "type")
) -> list[Task]:
    """Return `count` different tasks, the kinds in turn; the same for the same arguments."""
    if not kinds:
        raise ConfigError(f"kinds must be some of {', '.join(get_args(Kind))}, got none")
    first = seed * 1_000_000  # seeds of two calls with different seeds never meet
    tasks = []
    for index in range(count):
        kind, number = kinds[index % len(kinds)], first + index
        instruction, config = make_scene(kind, number).instruction, {"kind": kind, "seed": number}
        infeasible = kind == "infeasible"
        tasks.append(Task(f"fake/{kind}/{number}", instruction, f"fake-{kind}", config, infeasible=infeasible))
    return tasks


def fake_functions() -> tuple[Function, ...]:
    """Return the functions of a desktop that has some, for the prompt."""
    return FUNCTIONS


def make_scene(kind: Kind, seed: int, width: int = 112, height: int = 84) -> Scene:
    """Lay out the screen of one task; colours, words and cells follow from kind and seed, pixels from the size."""
    generator = random.Random(f"{kind}/{seed}")
    colors = generator.sample(sorted(COLORS), 3)
    cells = generator.sample(range(COLUMNS * ROWS), 4)
    boxes = [_place(generator, cell, width, height) for cell in cells]
    buttons = tuple(Button(color, *box) for color, box in zip(colors, boxes, strict=False))
    first, second = colors[0], colors[1]
    if kind == "click":
        return Scene(kind, f"click {first}", buttons, None, (first,), "")
    if kind == "sequence":
        return Scene(kind, f"click {first} then {second}", buttons, None, (first, second), "")
    if kind == "infeasible":
        (absent,) = set(COLORS) - set(colors)
        return Scene(kind, f"click {absent}", buttons, None, (), "")
    word = generator.choice(WORDS)
    return Scene(kind, f"type {word}", buttons, Button("white", *boxes[3]), (), word)


def _place(generator: random.Random, cell: int, width: int, height: int) -> tuple[int, int, int, int]:
    """Return a box of two thirds of a grid cell, somewhere inside of it."""
    cell_width, cell_height = width // COLUMNS, height // ROWS
    box_width, box_height = 2 * cell_width // 3, 2 * cell_height // 3
    left = cell % COLUMNS * cell_width + generator.randint(1, cell_width - box_width - 1)
    top = cell // COLUMNS * cell_height + generator.randint(1, cell_height - box_height - 1)
    return left, top, left + box_width - 1, top + box_height - 1


def draw(scene: Scene, state: EpisodeState, width: int, height: int) -> bytes:
    """Draw the screen as PNG: buttons that were clicked are grey, a focused field has a dark frame."""
    image = Image.new("RGB", (width, height), (245, 245, 245))
    canvas = ImageDraw.Draw(image)
    for button in scene.buttons:
        color = DONE_COLOR if button.color in state.clicked else COLORS[button.color]
        canvas.rectangle((button.left, button.top, button.right, button.bottom), fill=color)
    if scene.field is not None:
        box = scene.field
        frame = (0, 0, 0) if state.focused else DONE_COLOR
        canvas.rectangle((box.left, box.top, box.right, box.bottom), fill=(255, 255, 255), outline=frame)
        # the bitmap font is the same on every machine; it knows Latin-1 alone, and a policy types what it likes
        text = state.text.encode("latin-1", errors="replace")
        canvas.text((box.left + 1, box.top + 2), text, fill=(0, 0, 0), font=ImageFont.load_default_imagefont())
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


class FakeDesktop(KnownDesktop):
    """A `DesktopEnv` and `SolvableEnv` without a desktop.

    A click on a wrong button ends the episode without success, a completed click task ends it with success. The text
    task is judged by what the field holds, the infeasible one by whether the agent said so.

    With `functions` the agent may call `FUNCTIONS`, which mean a click and a text; the solutions call them then.
    """

    example_tasks = "fake"

    def __init__(self, width: int = 112, height: int = 84, *, functions: bool = False) -> None:
        if width < 16 * COLUMNS or height < 16 * ROWS:
            raise ConfigError(f"the screen must be at least {16 * COLUMNS}x{16 * ROWS}, got {width}x{height}")
        self._width = width
        self._height = height
        self._functions = FUNCTIONS if functions else ()
        self._scene: Scene | None = None
        self._state = EpisodeState()
        self._closed = False

    def reset(self, task: Task) -> Observation:
        """Show the screen of a task."""
        if self._closed:
            raise EnvError("reset", "the environment is closed; build a new one")
        self._state = EpisodeState()
        self._scene = make_scene(*_read_config(task), self._width, self._height)
        return self._observe("" if task.instruction else self._scene.instruction)

    def step(self, action: Action) -> StepResult:
        """Perform one action; what is no click, text or call, and does not end the episode, changes nothing."""
        scene, state = self._running("step"), self._state
        if state.over:
            raise EnvError("step", "the episode has terminated; reset the environment first")
        state.last = action = action.begun_at(state.pointer)
        state.pointer = action.pointer_after(state.pointer)
        match action:
            case Click(x, y, "left", 1) if x is not None and y is not None:
                self._click(scene, x, y)
            case TypeText(text) if state.focused:
                state.text += text
            case Call():
                self._call(scene, action)
        return StepResult(self._observe(), terminated=state.over)

    def evaluate(self) -> float:
        """Return 1.0 if the task is done, else 0.0."""
        scene, state = self._running("evaluate"), self._state
        if scene.kind == "infeasible":
            return float(isinstance(state.last, Fail))
        if scene.kind == "type":
            return float(state.text == scene.text)
        return float(tuple(state.clicked) == scene.order)

    def close(self) -> None:
        """Forget the task, and accept no other."""
        self._scene = None
        self._closed = True

    def solve(self) -> Iterator[Action]:
        """Yield the shortest solution, ending with the action that says so where the desktop does not end it."""
        scene = self._running("step")
        if scene.kind == "infeasible":
            yield Fail()
            return
        centers = {button.color: button.center for button in scene.buttons}
        for color in scene.order:
            yield Call("fake.press", {"label": color}) if self._functions else Click(*centers[color])
        if scene.field is None:
            return
        if self._functions:
            yield Call("fake.fill", {"text": scene.text})
        else:
            yield Click(*scene.field.center)
            yield TypeText(scene.text)
        yield Finished()

    def _running(self, call: str) -> Scene:
        if self._scene is None:
            raise EnvError(call, f"{call} was called before reset")
        return self._scene

    def _click(self, scene: Scene, x: float, y: float) -> None:
        state = self._state
        state.focused = scene.field is not None and scene.field.holds(x, y)
        hit = next((button.color for button in scene.buttons if button.holds(x, y)), None)
        if hit is None:
            return
        state.clicked.append(hit)
        done = tuple(state.clicked)
        state.over = done == scene.order or done != scene.order[: len(done)]

    def _call(self, scene: Scene, call: Call) -> None:
        """Do what mouse and keyboard would do; a call that is refused does nothing."""
        refused = refusal(call, self._functions)
        target, text = None, call.arguments.get("text")
        if not refused and call.function == "fake.press":
            target = next((button for button in scene.buttons if button.color == call.arguments["label"]), None)
        elif not refused:
            target = scene.field
        if target is None:
            log.info("a call was refused: %s", refused or f"{call.function} finds nothing of that kind on the screen")
            return
        self._click(scene, *target.center)
        if isinstance(text, str):
            self._state.text = text

    def _observe(self, instruction: str = "") -> Observation:
        scene = self._running("step")
        png = draw(scene, self._state, self._width, self._height)
        return Observation(png, self._width, self._height, instruction)


def _read_config(task: Task) -> tuple[Kind, int]:
    seed = task.config.get("seed")
    kind: Kind | None = next((kind for kind in get_args(Kind) if kind == task.config.get("kind")), None)
    if kind is None or not isinstance(seed, int):
        raise TaskFormatError(
            f"task {task.id!r} needs config.kind, one of {get_args(Kind)}, and an integer config.seed; "
            f"got {dict(task.config)}"
        )
    return kind, seed
