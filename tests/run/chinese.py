"""Tasks of the desktop in memory whose instructions are in Chinese."""

from dataclasses import replace

from arpo.envs.fake import fake_tasks
from arpo.types import Task

PREFIX = "请点击“保存”，é："


def chinese_tasks(count: int, seed: int) -> list[Task]:
    return [replace(task, instruction=PREFIX + task.instruction) for task in fake_tasks(count, seed)]
