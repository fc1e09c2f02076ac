"""Trajectories that others have published, as demonstrations: files of AgentNet, of AGUVIS and of UI-TARS.

`agentnet` (OpenCUA, arXiv 2508.09123): a line an episode, whose steps have a picture's name and pyautogui source.
`aguvis` (arXiv 2412.04454, stage 2): a list of steps; those whose pictures differ in their last number alone, and
whose instruction is the same, are an episode. `ui_tars` (bytedance/UI-TARS, `data/`): an episode is a list of
messages, a file `.json` or a line of another one, with pictures as parts of the type `image_url`. Responses without a
picture of their own before them, such as the history of old steps, are left out.
"""

import base64
import hashlib
import io
import json
import logging
import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from PIL import Image

from arpo.agent.actions import Action, CoordinateFrame, Finished, Terminal
from arpo.agent.prompt import GRAMMARS, thought_of
from arpo.agent.pyautogui_source import read_pyautogui
from arpo.agent.response import ParseErrorKind
from arpo.agent.ui_tars import parse_response
from arpo.bounds import checked
from arpo.datamodules.collecting import Collector
from arpo.envs.screenshot import check_screenshot
from arpo.errors import ActionParseError, ConfigError, EnvError, TaskFormatError, first_of
from arpo.types import Observation, Outcome, Step, Task, Trajectory, screenshot_key

log = logging.getLogger(__name__)

Form = Literal["agentnet", "aguvis", "ui_tars"]
_NUMBERED = re.compile(r"(.*?)[_-]?(\d{1,99})\.\w+")
_GOAL = re.compile(r"Instruction:\s*(.+?)\s*(?:Previous actions:|\Z)", re.DOTALL)
_HEADING = "## User Instruction"
"""Stands before the instruction in UI-TARS's first message."""


def published_tasks(file: str, form: Form, images: str | None = None) -> list[Task]:
    """Return the episodes of a file, each as a task that holds what was done; pictures lie in `images`, or beside it.

    Raises:
        ConfigError: If it is not of the form; the message names the file, the line or record, and the field.
    """
    read = {"agentnet": _agentnet, "aguvis": _aguvis, "ui_tars": _ui_tars}[form]
    whole, tasks = file.endswith(".json"), dict[str, Task]()
    known = {"form": form, "images": str(images or Path(file).parent)}
    try:
        with Path(file).open("rb") as lines:
            for number, text in enumerate([lines.read()] if whole else lines, start=1):
                where = file if whole else f"{file}, line {number}"
                for task in read(where, _parsed(where, text)) if text.strip() else ():
                    if task.id in tasks:
                        raise ConfigError(f"{where}: the episode {task.id} is there twice; remove one of them")
                    tasks[task.id] = replace(task, domain=form, config={**task.config, **known})
    except OSError as error:
        raise ConfigError(f"source={file} cannot be read: {error.strerror}; name a file of the form {form}") from error
    if not tasks:
        raise ConfigError(f"{file} holds no episodes")
    return list(tasks.values())


@checked
@dataclass(slots=True, kw_only=True)
class PublishedCollector(Collector):
    """A collector that plays nothing: the tasks of `published_tasks` say what was done."""

    demonstrator: ClassVar[str] = "published"

    def collect(self, tasks: Sequence[Task], per_task: int, *, first: int = 0) -> Generator[list[Trajectory]]:
        """Yield the demonstration of each task; none where it cannot be one of ours."""
        if per_task != 1:
            raise ConfigError(f"datamodule.per_task={per_task}: a file has one demonstration a task, so set it to 1")
        left_out: Counter[str] = Counter()
        for place, task in enumerate(tasks[first:], start=first):
            try:
                yield [self._trajectory(task, place)]
            except TaskFormatError as error:
                left_out[str(error)] += 1
                yield []
        if left_out:
            reasons = first_of([f"{number} for {reason}" for reason, number in left_out.most_common()])
            log.warning("%d published episodes are left out: %s", left_out.total(), reasons)

    def _trajectory(self, task: Task, place: int) -> Trajectory:
        if len(task.config["steps"]) > self.max_steps:
            raise TaskFormatError(f"more than max_steps={self.max_steps} steps")
        steps: list[Step] = []
        screenshots: dict[str, bytes] = {}
        actions: tuple[Action, ...] = ()
        for where, shown, name, thought, text in task.config["steps"]:
            seen = _seen(shown, Path(task.config["images"]), name)
            actions = _performed(where, task.config["form"], text, seen)
            said, *others = map(self.frame(seen).to_model, actions)
            response = GRAMMARS[self.grammar].answer(said, thought, *others)
            key, done = screenshot_key(seen.screenshot), "\n".join(action.describe() for action in actions)
            steps.append(Step(key, seen.width, seen.height, response, action=done))
            screenshots[key] = seen.screenshot
        ended = Outcome.FINISHED if isinstance(actions[-1], Finished) else Outcome.GAVE_UP
        outcome = ended if isinstance(actions[-1], Terminal) else Outcome.MAX_STEPS
        identity = (f"demonstration-0/{place}/0", task.id, task.domain, task.instruction, 0)
        reward = float(task.config.get("succeeded", True))
        return Trajectory(*identity, tuple(steps), outcome, reward, format_reward=0.0, screenshots=screenshots)


def _seen(where: str, images: Path, name: str) -> Observation:
    """Return a picture as PNG, by its name in a folder or as the address that holds its bytes."""
    inside = name.partition(";base64,")[2] if name.startswith("data:") else None
    # Links may lead out of the folder: the user has laid them, and the file has not.
    if inside is None and (Path(name).is_absolute() or ".." in Path(name).parts):
        raise ConfigError(f"{where}: the picture {name[:80]!r} cannot be used: it is not in {images}")
    try:
        found = (images / name).read_bytes() if inside is None else base64.b64decode(inside, validate=True)
        with Image.open(io.BytesIO(found), formats=("PNG", "JPEG", "WEBP")) as picture:
            size = picture.size
            if (picture.format, picture.mode) != ("PNG", "RGB"):
                picture.convert("RGB").save(again := io.BytesIO(), "PNG")
                found = again.getvalue()
        check_screenshot(observation := Observation(found, *size))
    except (OSError, ValueError, EnvError, Image.DecompressionBombError) as error:
        raise ConfigError(f"{where}: the picture {name[:80]!r} cannot be used: {error}") from error
    return observation


def _performed(where: str, form: Form, text: str, seen: Observation) -> tuple[Action, ...]:
    """Return the actions of a step, in whole pixels of its screen."""
    size = seen.width, seen.height
    try:
        if form == "ui_tars":  # in thousandths of the screen
            return tuple(map(CoordinateFrame(*size, 1000, 1000).to_screen, parse_response(text).actions))
        return tuple(map(CoordinateFrame(*size, *size).to_screen, read_pyautogui(text, *size)))
    except ActionParseError as error:
        if error.kind == ParseErrorKind.UNKNOWN_ACTION:
            raise TaskFormatError(str(error)) from error
        raise ConfigError(f"{where}: {error}") from error


def _parsed(where: str, text: bytes) -> Any:
    try:
        record = json.loads(text)
        json.dumps(record, ensure_ascii=False).encode()  # no half letters
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON: {error}") from error
    return record


def _field(where: str, record: Any, key: str, kind: type = str) -> Any:
    """Return a field of a record, which must be of a kind and not empty."""
    found = record.get(key) if isinstance(record, dict) else None
    if not isinstance(found, kind) or not found:
        raise ConfigError(f"{where}.{key} must be a {kind.__name__} that is not empty, got {str(found)[:80]!r}")
    return found


def _listed(where: str, found: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of a list with their places."""
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{where} must be a list that is not empty, got {str(found)[:80]!r}")
    return ((f"{where}[{number}]", each) for number, each in enumerate(found))


def _agentnet(where: str, record: Any) -> Iterator[Task]:
    steps = []
    for at, step in _listed(f"{where}: traj", _field(f"{where}: ", record, "traj", list)):
        value = _field(at, step, "value", dict)
        code = _field(f"{at}.value", value, "code")
        picture, thought = _field(at, step, "image"), str(value.get("thought") or "")
        steps.append((f"{at}.value.code", f"{at}.image", picture, thought, code))
    identity = (_field(f"{where}: ", record, "task_id"), _field(f"{where}: ", record, "instruction"))
    yield Task(*identity, config={"steps": steps, "succeeded": record.get("task_completed") is not False})


def _aguvis(where: str, records: Any) -> Iterator[Task]:
    found: dict[tuple[str, str], list[tuple[int, tuple[str, ...]]]] = {}
    for at, record in _listed(where, records):
        image, turns = _field(at, record, "image"), _field(at, record, "conversations", list)
        said = [(_field(place, turn, "from"), _field(place, turn, "value")) for place, turn in _listed(at, turns)]
        goals = [goal[1] for role, value in said if role == "human" and (goal := _GOAL.search(value))]
        if not goals or said[-1][0] != "gpt":
            raise ConfigError(f"{at}.conversations must be a turn of human with `Instruction: …`, and end with gpt")
        name = _NUMBERED.fullmatch(image)
        step = (f"{at}.conversations[-1].value", f"{at}.image", image, "", said[-1][1])
        key = (name[1] if name else image, goals[0])
        found.setdefault(key, []).append((int(name[2]) if name else 0, step))
    for (pictures, instruction), steps in found.items():
        digest = hashlib.sha256(instruction.encode(errors="replace")).hexdigest()[:8]
        yield Task(f"{pictures}/{digest}", instruction, config={"steps": [step for _, step in sorted(steps)]})


def _ui_tars(where: str, messages: Any) -> Iterator[Task]:
    instruction, picture, steps = "", tuple[str, ...](), list[tuple[str, ...]]()
    for at, message in _listed(where, messages):
        role, content = _field(at, message, "role"), _field(at, message, "content", object)
        if isinstance(content, str) and "<|image_pad|>" in content:
            raise ConfigError(f"{at}.content stands for a picture that is not in the file: give it as an `image_url`")
        for place, part in _listed(at, [{"text": content}] if isinstance(content, str) else content):
            if role == "user" and isinstance(part, dict) and part.get("type") == "image_url":
                url = _field(f"{place}.image_url", _field(place, part, "image_url", dict), "url")
                picture = f"{place}.image_url.url", url
                continue
            text = _field(place, part, "text")
            if role == "user":
                instruction = instruction or text.rpartition(_HEADING)[2].strip()
            elif role == "assistant" and picture:
                steps.append((f"{at}.content", *picture, thought_of(text), text))
                picture = ()
    if not instruction or not steps:
        raise ConfigError(f"{where}: messages must have an instruction, and a response behind an `image_url`")
    digest = hashlib.sha256(repr(steps).encode(errors="replace")).hexdigest()[:16]
    yield Task(digest, instruction, config={"steps": steps})
