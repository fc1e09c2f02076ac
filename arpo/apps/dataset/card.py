"""The columns of a dataset of episodes, a row each with pictures inside, and the data card that explains them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from arpo.algorithms.rewards import is_success
from arpo.evaluation.card import made_by, table
from arpo.rollout.old_records import in_todays_shape
from arpo.types import Trajectory, screenshot_key

TEXT, WHOLE, REAL, TRUTH = ({"dtype": name, "_type": "Value"} for name in ("string", "int64", "float64", "bool"))
PICTURE = {"_type": "Image"}
"""A PNG, which `datasets` decodes when it is asked for."""

STEP: dict[str, tuple[Any, str]] = {
    "screenshot": (PICTURE, "the screen that was answered"),
    "width": (WHOLE, "of the screen, in pixels"),
    "height": (WHOLE, "of the screen, in pixels"),
    "response": (TEXT, "the response of the policy"),
    "action": (TEXT, "the action, in pixels of the screen; empty where the response was none"),
    "parse_error": (TEXT, "the reason why the response was no action; empty where it was one"),
    "reward": (REAL, "of the environment, beside the verdict; 0 unless it gives one"),
    "patch": (TEXT, "an expert's answer, which later responses read in the place of this one; empty where it stayed"),
    "exchange": (WHOLE, "the number of the exchange whose response it is; null where no engine was asked"),
}
EXCHANGE: dict[str, tuple[Any, str]] = {
    "parent": (WHOLE, "the earlier exchange that it goes on from; null where `added_ids` are its whole context"),
    "added_ids": ([WHOLE], "token ids of the context behind the parent's and its response, one id for each picture"),
    "pictures": ([{"key": TEXT, "width": WHOLE, "height": WHOLE}], "SHA-256 and size of each of those pictures"),
    "response_ids": ([WHOLE], "token ids that were sampled"),
    "sampler_logprobs": ([REAL], "log-probability of each of them, of the engine that sampled it"),
    "policy_version": (WHOLE, "updates that the weights had seen which sampled it"),
    "finish": (TEXT, "`stop` or `length`; empty where it was not noted"),
    "trained": (TRUTH, "whether an update may learn from it"),
    "delivered": (WHOLE, "response ids that the agent was given; null: all"),
}
TRAJECTORY: dict[str, tuple[Any, str]] = {
    "id": (TEXT, "`<iteration>/<group>/<member>`; `<split>-<iteration>/…` in another split than `train`"),
    "task_id": (TEXT, "the task, with the seed of its page where it has one"),
    "domain": (TEXT, "the web page or application"),
    "instruction": (TEXT, "the goal as text"),
    "outcome": (TEXT, "how the episode ended"),
    "task_reward": (REAL, "the checker's verdict, from 0 to 1"),
    "format_reward": (REAL, "0, or -1 where a response was no action"),
    "steps": ([{name: feature for name, (feature, _) in STEP.items()}], "what was done on the desktop, in order"),
    "exchanges": ([{name: feature for name, (feature, _) in EXCHANGE.items()}], "requests to the engine, a tree"),
    "pictures": ([PICTURE], "what exchanges show beside the screens of steps"),
    "last_screenshot": (PICTURE, "the screen after the last action; null where it was not taken"),
    "seed": (WHOLE, "of the episode"),
    "image_window": (WHOLE, "screenshots that a response saw; null where it saw all"),
    "sampling": (TEXT, "fingerprint of the settings that it was sampled with"),
    "duration_s": (REAL, "seconds that the episode took"),
}
"""Feature, as `datasets` writes it in JSON, and meaning of each column, and of those of its steps and exchanges."""
FEATURES = {name: feature for name, (feature, _) in TRAJECTORY.items()}


def row(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory, with its screenshots, as a row.

    Text that UTF-8 has no bytes for, such as half of a surrogate pair, becomes question marks.
    """
    pictures = {key: {"bytes": png, "path": f"{key}.png"} for key, png in trajectory.screenshots.items()}
    made = _in_utf_8(msgspec.to_builtins(replace(trajectory, screenshots={})))
    steps = [{**step, "screenshot": pictures[step["screenshot"]]} for step in made["steps"]]
    screens = {trajectory.last_screenshot, *(step.screenshot for step in trajectory.steps)}
    others = [picture for key, picture in pictures.items() if key not in screens]
    made |= {"steps": steps, "pictures": others, "last_screenshot": pictures.get(trajectory.last_screenshot)}
    return {name: made[name] for name in TRAJECTORY}


def trajectory_of(row: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of a row, with its pictures by their bytes; columns of later versions may lack.

    Raises:
        ValueError: If the row lacks a column, or one holds something else than `row` writes; TypeError of a picture.
    """
    screenshots: dict[str, bytes] = {}

    def kept(picture: Mapping[str, Any] | None) -> str:
        if picture is None:
            return ""
        screenshots[key := screenshot_key(picture["bytes"])] = picture["bytes"]
        return key

    steps = [{**step, "screenshot": kept(step["screenshot"])} for step in row["steps"]]
    others = [kept(picture) for picture in row.get("pictures") or ()]
    record = {**row, "steps": steps, "last_screenshot": kept(row["last_screenshot"]), "pictures": others}
    return replace(msgspec.convert(in_todays_shape(record), Trajectory), screenshots=screenshots)


def _in_utf_8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {name: _in_utf_8(inner) for name, inner in value.items()}
    return [_in_utf_8(inner) for inner in value] if isinstance(value, list | tuple) else value


SUCCESS = 0.5
"""An episode counts as a success in the card when its task reward lies above this."""


@dataclass(slots=True)
class Census:
    """The numbers of one split, counted episode by episode."""

    episodes: int = 0
    steps: int = 0
    successes: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    tasks: set[str] = field(default_factory=set)
    domains: set[str] = field(default_factory=set)

    def add(self, trajectory: Trajectory) -> None:
        """Count one episode."""
        self.episodes += 1
        self.steps += len(trajectory.steps)
        self.successes += is_success(trajectory, threshold=SUCCESS)
        self.outcomes[trajectory.outcome.value] += 1
        self.tasks.add(trajectory.task_id)
        self.domains.add(trajectory.domain)


def data_card(name: str, censuses: Mapping[str, Census], origin: Path) -> str:
    """Return the text of the card, with the header by which `datasets` finds the files.

    The `run.json` in the folder of the run (`origin`), where there is one, names the command that made the episodes.
    """

    def meanings(kind: str, columns: Mapping[str, tuple[Any, str]]) -> str:
        return table([kind, "meaning"], [(f"`{name}`", meaning) for name, (_, meaning) in columns.items()], "---")

    files = "".join(f"  - split: {split}\n    path: data/{split}.parquet\n" for split in censuses)
    header = f"configs:\n- config_name: default\n  data_files:\n{files}tags:\n- gui-agent\n- reinforcement-learning\n"
    shown = "train" if "train" in censuses else next(iter(censuses))
    rows = [
        (
            split,
            census.episodes,
            census.steps,
            f"{census.successes / census.episodes:.1%}",
            len(census.tasks),
            len(census.domains),
            ", ".join(f"{outcome} {count}" for outcome, count in census.outcomes.most_common()),
        )
        for split, census in censuses.items()
    ]
    parts = [
        f"---\n{header}---",
        f"# {name}",
        "Episodes of a GUI agent that were stored by ARPO (arXiv 2505.16282): screenshots, responses with the exact "
        "token ids and log-probabilities, actions and rewards. A row is an episode.",
        "Those of the split `demonstration` are a script's: they have no exchanges." * ("demonstration" in censuses),
        "Those of the split `pool` are successes that were there before the run. Ids that were not sampled have a "
        "log-probability of 0." * ("pool" in censuses),
        f'```python\nfrom datasets import load_dataset\n\nepisodes = load_dataset("FOLDER")["{shown}"]\n```',
        made_by(origin),
        table(["split", "episodes", "steps", "success", "tasks", "domains", "outcomes"], rows),
        f"Success is the share of episodes with a task reward above {SUCCESS}.",
        "## Columns",
        meanings("column", TRAJECTORY),
        *("Each of `steps` has:", meanings("field", STEP), "Each of `exchanges` has:", meanings("field", EXCHANGE)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
