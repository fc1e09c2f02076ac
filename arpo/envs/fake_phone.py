"""A phone in memory: apps on the pages of its home screen, which a swipe turns, and a script that solves its tasks."""

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from PIL import Image, ImageDraw, ImageFont

from arpo.agent.actions import Action, Click, Drag, Finished, TypeText
from arpo.agent.phone import Back, Home, OpenApp, Swipe
from arpo.bounds import NotNegativeInt, checked
from arpo.envs.fake import COLORS, WORDS, Button
from arpo.envs.protocol import KnownDesktop, StepResult
from arpo.errors import EnvError, TaskFormatError
from arpo.types import Observation, Task

WIDTH, HEIGHT, ICON = 84, 112, 24
PLACES = ((8, 12), (50, 12), (8, 56), (50, 56))
"""Left and top of the icons of a page."""


@dataclass(slots=True)
class Phone:
    """One task, what the phone shows, and what its apps keep. An app has the name of its colour."""

    instruction: str
    icons: tuple[tuple[int, Button], ...]
    """The icons of the home screen, each with its page."""
    wanted: str
    word: str
    """What the wanted app has to keep; none where opening it is all."""
    app: str
    """The app that is open; none on the home screen."""
    page: int = 0
    draft: str = ""
    notes: dict[str, str] = field(default_factory=dict)
    over: bool = False

    def open(self, app: str) -> None:
        """Show an app; a wrong one ends the episode, as does the right one where opening it is all."""
        self.app, self.draft = app, ""
        self.over = not self.word or app != self.wanted


@checked
def fake_phone_tasks(count: NotNegativeInt, seed: int = 0) -> list[Task]:
    """Return `count` different tasks; the same for the same arguments."""
    numbers = range(seed * 1_000_000, seed * 1_000_000 + count)
    return [Task(f"fake_phone/{n}", make_phone(n).instruction, "fake_phone", {"seed": n}) for n in numbers]


def make_phone(seed: int) -> Phone:
    """Lay out one task: two pages of two apps; every second one needs a word, and two of four begin in a wrong app."""
    generator = random.Random(seed)
    wanted, *others = colors = generator.sample(sorted(COLORS), 4)
    generator.shuffle(colors)
    places = [*generator.sample(PLACES, 2), *generator.sample(PLACES, 2)]
    boxes = [Button(color, x, y, x + ICON - 1, y + ICON - 1) for color, (x, y) in zip(colors, places, strict=True)]
    word = generator.choice(WORDS) if seed % 2 else ""
    said = f"write {word} in {wanted}" if word else f"open {wanted}"
    return Phone(said, tuple(zip((0, 0, 1, 1), boxes, strict=True)), wanted, word, others[0] if seed % 4 > 1 else "")


def draw(phone: Phone) -> bytes:
    """Draw the screen as PNG: a page of icons with a dot for each page, or an app in its colour with its draft."""
    image = Image.new("RGB", (WIDTH, HEIGHT), (245, 245, 245))
    canvas = ImageDraw.Draw(image)
    if phone.app:
        canvas.rectangle((0, 0, WIDTH, 27), fill=COLORS[phone.app])
        text = phone.draft.encode("latin-1", errors="replace")  # as on the desktop in memory
        canvas.text((8, 40), text, fill=(0, 0, 0), font=ImageFont.load_default_imagefont())
    else:
        for icon in (icon for page, icon in phone.icons if page == phone.page):
            canvas.rectangle((icon.left, icon.top, icon.right, icon.bottom), fill=COLORS[icon.color])
        for page in (0, 1):
            canvas.ellipse((30 + 16 * page, 98, 38 + 16 * page, 106), fill="black" if page == phone.page else "silver")
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


class FakePhone(KnownDesktop):
    """A `DesktopEnv` and `SolvableEnv` without a phone: an app keeps its draft when it is left by back alone."""

    example_tasks = "fake_phone"

    def __init__(self) -> None:
        self._phone: Phone | None = None
        self._closed = False

    def reset(self, task: Task) -> Observation:
        """Show the first screen of a task."""
        if self._closed:
            raise EnvError("reset", "the environment is closed; build a new one")
        if not isinstance(seed := task.config.get("seed"), int):
            raise TaskFormatError(f"task {task.id!r} needs an integer config.seed, got {dict(task.config)}")
        self._phone = make_phone(seed)
        return Observation(draw(self._phone), WIDTH, HEIGHT, "" if task.instruction else self._phone.instruction)

    def step(self, action: Action) -> StepResult:
        """Perform one action; what no finger does on the present screen changes nothing."""
        phone = self._running("step")
        if phone.over:
            raise EnvError("step", "the episode has terminated; reset the environment first")
        match action:
            case Drag(x, _, to_x) if not phone.app and x is not None and abs(to_x - x) >= WIDTH / 4:
                phone.page = int(to_x < x)
            case Click(x, y, "left", 1) if not phone.app and x is not None and y is not None:
                for page, icon in phone.icons:
                    if page == phone.page and icon.holds(x, y):
                        phone.open(icon.color)
            case OpenApp(app) if app in COLORS:
                phone.open(app)
            case TypeText(text) if phone.app:
                phone.draft += text
            case Back() if phone.app:
                phone.notes |= {phone.app: phone.draft} if phone.draft else {}
                phone.app = ""
            case Home():
                phone.app, phone.page = "", 0
        return StepResult(Observation(draw(phone), WIDTH, HEIGHT), terminated=phone.over)

    def evaluate(self) -> float:
        """Return 1.0 if the task is done, else 0.0."""
        phone = self._running("evaluate")
        return float(phone.notes == {phone.wanted: phone.word} if phone.word else phone.app == phone.wanted)

    def close(self) -> None:
        """Forget the task, and accept no other."""
        self._phone, self._closed = None, True

    def solve(self) -> Iterator[Action]:
        """Yield the shortest solution by touch, and the end of it where the phone does not end the episode."""
        phone = self._running("step")
        if phone.app:
            yield Home()
        page, icon = next((page, icon) for page, icon in phone.icons if icon.color == phone.wanted)
        if page:
            yield Swipe(WIDTH - 14, HEIGHT / 2, 14, HEIGHT / 2)
        yield Click(*icon.center)
        if phone.word:
            yield TypeText(phone.word)
            yield Back()
            yield Finished()

    def _running(self, call: str) -> Phone:
        if self._phone is None:
            raise EnvError(call, f"{call} was called before reset")
        return self._phone
