"""The columns of the dataset: one row a trajectory, its steps in a list, with pictures inside."""

from collections.abc import Mapping
from typing import Any

from arpo.types import Outcome, Step, Trajectory, screenshot_key

TEXT, WHOLE, REAL = ({"dtype": name, "_type": "Value"} for name in ("string", "int64", "float64"))
PICTURE = {"_type": "Image"}
"""A PNG, which `datasets` decodes when it is asked for."""

STEP: dict[str, tuple[Any, str]] = {
    "screenshot": (PICTURE, "the screen that was answered"),
    "width": (WHOLE, "of the screen, in pixels"),
    "height": (WHOLE, "of the screen, in pixels"),
    "response": (TEXT, "what the policy said"),
    "action": (TEXT, "what was done, in pixels of the screen; empty where the response was no action"),
    "parse_error": (TEXT, "why the response was no action; empty where it was one"),
    "reward": (REAL, "what the environment gave for it, beside the verdict; 0 unless it gives something"),
    "prompt_ids": ([WHOLE], "token ids appended to the context before the response, one id for the screenshot"),
    "response_ids": ([WHOLE], "token ids that were sampled"),
    "sampler_logprobs": ([REAL], "log-probability of each of them, of the engine that sampled it"),
    "policy_version": (WHOLE, "updates that the weights had seen which sampled it"),
    "patch": (TEXT, "what later responses read in the place of this one: an expert's answer; empty where it stayed"),
    "patch_ids": ([WHOLE], "token ids of that"),
}
"""Feature and meaning of each column of a step."""
TRAJECTORY: dict[str, tuple[Any, str]] = {
    "id": (TEXT, "`<iteration>/<group>/<member>`; `<split>-<iteration>/…` in another split than `train`"),
    "task_id": (TEXT, "the task, with the seed of its page where it has one"),
    "domain": (TEXT, "the web page or application"),
    "instruction": (TEXT, "the goal in words"),
    "outcome": (TEXT, "how the episode ended"),
    "task_reward": (REAL, "the checker's verdict, from 0 to 1"),
    "format_reward": (REAL, "0, or -1 where a response was no action"),
    "steps": ([{name: feature for name, (feature, _) in STEP.items()}], "what was seen and said, in order"),
    "last_screenshot": (PICTURE, "the screen after the last action; null where it was not taken"),
    "seed": (WHOLE, "of the episode"),
    "image_window": (WHOLE, "screenshots that a response saw; null where it saw all"),
    "sampling": (TEXT, "fingerprint of the settings that it was sampled with"),
    "duration_s": (REAL, "seconds that the episode took"),
}
"""Feature, as `datasets` writes it in JSON, and meaning of each column."""
FEATURES = {name: feature for name, (feature, _) in TRAJECTORY.items()}


def row(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory, with its screenshots, as a row.

    Text that UTF-8 has no bytes for, such as half of a surrogate pair, becomes question marks.
    """
    shown = trajectory.screenshots
    special = {
        "steps": [_fields(step, STEP, {"screenshot": _picture(step.screenshot, shown)}) for step in trajectory.steps],
        "last_screenshot": _picture(trajectory.last_screenshot, shown),
    }
    return _fields(trajectory, TRAJECTORY, special)


def trajectory_of(row: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of a row, with its screenshots by what their bytes say.

    Raises:
        KeyError: If the row lacks a column; other exceptions if one holds something else than `row` writes.
    """
    screenshots: dict[str, bytes] = {}

    def kept(picture: Mapping[str, Any] | None) -> str:
        if picture is None:
            return ""
        key = screenshot_key(picture["bytes"])
        screenshots[key] = picture["bytes"]
        return key

    steps = tuple(_step(step, kept(step["screenshot"])) for step in row["steps"])
    special = {"steps": steps, "last_screenshot": kept(row["last_screenshot"]), "outcome": Outcome(row["outcome"])}
    return Trajectory(**{name: row[name] for name in TRAJECTORY} | special, screenshots=screenshots)


def _step(row: Mapping[str, Any], screenshot: str) -> Step:
    known = {name: row[name] for name in STEP if name in row}  # a dataset from before there were patches has none
    tokens = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return Step(**known | tokens | {"screenshot": screenshot})


def _fields(record: Trajectory | Step, columns: Mapping[str, Any], special: Mapping[str, Any]) -> dict[str, Any]:
    return {name: special[name] if name in special else _plain(getattr(record, name)) for name in columns}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return list(value) if isinstance(value, tuple) else value


def _picture(key: str, screenshots: Mapping[str, bytes]) -> dict[str, Any] | None:
    return {"bytes": screenshots[key], "path": f"{key}.png"} if key else None
