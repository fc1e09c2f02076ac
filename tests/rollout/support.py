"""An agent that can see, and an engine that dawdles: what the tests of rollouts share."""

import asyncio
import io
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from arpo.agent.actions import Action, Click, TypeText, Wait
from arpo.agent.ui_tars import render_response
from arpo.envs.fake import COLORS, FakeDesktop, fake_tasks
from arpo.envs.protocol import DesktopEnv, Execution, StepResult
from arpo.errors import EnvError
from arpo.inference.engine import GenerateRequest
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.sampler import TaskRequest, TaskStatistics
from arpo.rollout.stream import ResumeState, RolloutCollector
from arpo.types import Observation, RolloutBatch, Task
from tests.inference.scripted import ScriptedEngine

Respond = Callable[[GenerateRequest], str]


def red_clicker(chat: ChatTokenizer) -> Respond:
    """Click the button whose colour the instruction names last; find it on the last screenshot."""

    def respond(request: GenerateRequest) -> str:
        words = chat.decode(request.prompt_ids).replace("\n", " ").split()
        wanted = [word for word in words if word in COLORS][-1]
        return render_response(click_on(wanted, request.images[-1], chat))

    return respond


def solver(chat: ChatTokenizer) -> ScriptedEngine:
    return ScriptedEngine(chat, red_clicker(chat))


def click_on(color: str, png: bytes, chat: ChatTokenizer) -> Action:
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    rows, columns = np.nonzero((pixels == COLORS[color]).all(axis=-1))
    height, width = pixels.shape[:2]
    frame = chat.frame(width, height)
    return frame.to_model(Click(float(columns.mean()), float(rows.mean())))


def moody_clicker(chat: ChatTokenizer) -> Respond:
    """Click right, look again, or talk nonsense, as the seed of the request wants it."""
    click = red_clicker(chat)

    def respond(request: GenerateRequest) -> str:
        mood = request.sampling.seed % 8
        if mood == 0:
            return "I would rather not."
        return "Action: wait()" if mood < 4 else click(request)

    return respond


async def dawdle(request: GenerateRequest) -> None:
    """Hold a request for a time drawn anew in every run, so that episodes overtake each other."""
    await asyncio.sleep(random.SystemRandom().random() * 0.01)


TASKS = fake_tasks(4, kinds=["click", "sequence"])


class PickyDesktop(FakeDesktop):
    """Cannot evaluate the second of `TASKS`."""

    def evaluate(self) -> float:
        if self._scene.instruction == TASKS[1].instruction:
            raise EnvError("evaluate", "the checker is broken")
        return super().evaluate()


class Programs(FakeDesktop):
    """A desktop that runs those programs that click, write or wait by pyautogui."""

    def execute(self, command, *, shell):
        point, text = re.search(r"click\((\d+), (\d+)", command[2]), re.search(r"write\('(.*)',", command[2])
        self.step(Click(*map(float, point.groups())) if point else TypeText(text[1]) if text else Wait())
        return Execution("")


class DirectEnv:
    """An environment as a lease shows it, without a pool; remembers the actions."""

    def __init__(self, env: DesktopEnv) -> None:
        self._env = env
        self.actions: list[Action] = []

    async def reset(self, task: Task) -> Observation:
        return self._env.reset(task)

    async def step(self, action: Action) -> StepResult:
        self.actions.append(action)
        return self._env.step(action)

    async def evaluate(self) -> float:
        return self._env.evaluate()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(4000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came true")


@contextmanager
def interrupted(after_s: float = 0.3) -> Iterator[None]:
    """Press Ctrl-C while the block runs, and expect it to be interrupted."""
    press = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the block is the caller's
        press.start()
        yield
    press.join()


class ListedTasks:
    """The same groups in every iteration, from a list; a bare task is asked for with the run's own settings."""

    def __init__(self, tasks: Sequence[Task | TaskRequest]) -> None:
        self._requests = [task if isinstance(task, TaskRequest) else TaskRequest(task) for task in tasks]
        self.tasks = {request.task.id: request.task for request in self._requests}
        self.tasks_per_iteration = len(tasks)
        self.asked = 0

    def next(self, statistics: TaskStatistics) -> TaskRequest:
        self.asked += 1
        return self._requests[(self.asked - 1) % len(self._requests)]

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


class ListedCollector(RolloutCollector):
    """A collector that can be asked for single iterations of named tasks."""

    def submit(self, iteration: int, tasks: Sequence[Task | TaskRequest], *, version: int = 0, iterations: int = 1):
        """Begin with an iteration of these tasks, and let no more than so many follow one another."""
        self.begin(ListedTasks(tasks), ResumeState(iteration, version, len(tasks), last=iteration + iterations))

    def collect(self, tasks: Sequence[Task | TaskRequest], policy_version: int, iteration: int) -> RolloutBatch:
        self.submit(iteration, tasks, version=policy_version)
        return self.take(iteration, policy_version)
