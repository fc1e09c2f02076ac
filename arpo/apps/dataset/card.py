"""The data card: where the episodes come from, what they are, and what each column means."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arpo.algorithms.rewards import is_success
from arpo.apps.dataset.columns import STEP, TRAJECTORY
from arpo.evaluation.card import made_by, table
from arpo.types import Trajectory

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

    Args:
        name: The title.
        censuses: By split.
        origin: The folder of the run: its `run.json`, where there is one, says what made the episodes.
    """
    files = "".join(f"  - split: {split}\n    path: data/{split}.parquet\n" for split in censuses)
    header = f"configs:\n- config_name: default\n  data_files:\n{files}tags:\n- gui-agent\n- reinforcement-learning\n"
    shown = "train" if "train" in censuses else next(iter(censuses))
    parts = [
        f"---\n{header}---",
        f"# {name}",
        "Episodes of a GUI agent that were stored by ARPO (arXiv 2505.16282): screenshots, responses with the exact "
        "token ids and log-probabilities, actions and rewards. A row is an episode.",
        "Those of the split `demonstration` are a script's: they have no token ids and no log-probabilities."
        * ("demonstration" in censuses),
        "Those of the split `pool` are successes that were there before the run. Ids that were not sampled have a "
        "log-probability of 0." * ("pool" in censuses),
        f'```python\nfrom datasets import load_dataset\n\nepisodes = load_dataset("FOLDER")["{shown}"]\n```',
        made_by(origin),
        table(["split", "episodes", "steps", "success", "tasks", "domains", "outcomes"], _rows(censuses)),
        f"Success is the share of episodes with a task reward above {SUCCESS}.",
        "## Columns",
        table(["column", "meaning"], [(f"`{name}`", meaning) for name, (_, meaning) in TRAJECTORY.items()], "---"),
        "Each of `steps` has:",
        table(["field", "meaning"], [(f"`{name}`", meaning) for name, (_, meaning) in STEP.items()], "---"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(censuses: Mapping[str, Census]) -> list[tuple[object, ...]]:
    return [
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
