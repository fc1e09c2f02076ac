"""A judge of our own tasks, for a cell: `arpo/host/cell_main.py` calls `prepare`, and then `judge`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))  # it runs as a file, not as a module

from arpo.envs.desktop.tasks import read_task, run_checks
from arpo.envs.guest.client import Guest
from arpo.errors import DesktopDestroyedError, EnvError
from arpo.types import Task

PORT = 5000
"""Of the guest server, in the cell."""


def prepare(_: Mapping[str, Any]) -> None:
    """Do nothing: all checkers are there."""


def judge(request: Mapping[str, Any], *_: object) -> dict[str, Any]:
    """Return the score of a task, or the error that keeps it from one; see `arpo.envs.guest.blame`."""
    try:
        task = read_task(Task(request["id"], "", config=request["config"]))
        return {"score": run_checks(task, Guest(f"http://127.0.0.1:{PORT}", request["secret"]))}
    except DesktopDestroyedError as error:
        return {"error": "destroyed", "message": str(error)}
    except EnvError as error:
        return {"error": "guest", "message": str(error)}
    except Exception as error:  # noqa: BLE001 - a checker may raise anything on what an agent has made
        return {"error": "result", "message": f"{type(error).__name__}: {error}"[:500]}
