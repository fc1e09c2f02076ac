"""Set up and grade OSWorld's tasks in containers of the full image, untouched: `python benchmarks/osworld_sweep.py`.

An untouched task should score 0, and giving up on an infeasible one 1. With files from `python -m arpo tasks fetch`:
`--needs nothing files package`. Where they cannot be fetched, `--stand-ins` puts some file of its kind in the place of
each: set-up and grader run, and scores mean nothing. Each task is a line of --out, as JSON: seconds of its reset,
scores, or the error.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from arpo.agent.actions import Fail, Finished
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.machine import container
from arpo.envs.osworld.needs import Need, need_of
from arpo.envs.osworld.tasks import read_tasks
from arpo.errors import ArpoError
from arpo.types import Task
from tests.envs.osworld.standins.building import build

ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="osworld_369", help="a list of arpo/envs/osworld/lists")
    parser.add_argument("--needs", nargs="+", choices=[need.name.lower() for need in Need], default=["nothing"])
    parser.add_argument("--only", nargs="+", default=[""], help="how the ids of the tasks begin")
    parser.add_argument("--image", default="arpo/desktop:full")
    parser.add_argument("--graders", type=Path, default=ROOT / ".venv-osworld" / "bin" / "python")
    parser.add_argument("--cache", type=Path, default=ROOT / "outputs" / "osworld_cache")
    parser.add_argument("--stand-ins", action="store_true", help="make files in --cache, an empty folder then")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    tasks = [
        task
        for task in read_tasks(os.environ.get("ARPO_OSWORLD_TASKS"), f"{asked.tasks}.json")
        if need_of(task).name.lower() in asked.needs and task.id.startswith(tuple(asked.only))
    ]
    if asked.stand_ins:
        build(tasks, asked.cache)
    env = OSWorldEnv(container(asked.image), cache=asked.cache, grader_python=asked.graders, guarded=True)
    try:
        with asked.out.open("w", buffering=1, encoding="utf-8") as file:
            for number, task in enumerate(tasks, start=1):
                found = {"task": task.id, "domain": task.domain, **play(env, task)}
                file.write(json.dumps(found) + "\n")
                print(f"{number}/{len(tasks)}", found, flush=True)
    finally:
        env.close()


def play(env: OSWorldEnv, task: Task) -> dict[str, Any]:
    """Return the scores of a task that nobody works on, and that of giving up on an infeasible one."""
    try:
        began = time.monotonic()
        env.reset(task)
        reset_s = time.monotonic() - began
        env.step(Finished())
        found = {"reset_s": round(reset_s, 2), "untouched": env.evaluate()}
        if task.infeasible:
            env.reset(task)
            env.step(Fail())
            found["gave_up"] = env.evaluate()
    except ArpoError as error:
        return {"error": str(error)}
    return found


if __name__ == "__main__":
    main()
