"""The paper's studies in small: the arms that they share, what is measured of a run, and the paper's own numbers."""

from collections.abc import Callable, Sequence
from typing import Any

from arpo.apps.comparison import arms as compared_arms
from arpo.apps.comparison.measures import Measure, Of, evaluated, final, mean_of, minutes
from arpo.apps.comparison.runs import SUCCESS
from experiments.study import Arm, scores

SMALL = "miniwob_small"
GRPO = Arm("GRPO", SMALL, ("replay=off",))
ARPO = Arm("ARPO", SMALL)
BASE = Arm("base", "base_rollouts")
"""The policy that all arms start from: its runs play, learn nothing, and are evaluated as the others are."""
LISTS = {
    "subset": "the 32 tasks",
    "others": "96 other tasks",
    "held_out": "held-out seeds",
    "held_out_pages": "held-out pages",
}
"""What a policy is evaluated on, with the words for it: the 32 tasks of `conf/tasks/miniwob_subset32.yaml` first."""
OF_THE_SUBSET = ("1000", "1001")
"""The seeds of `conf/tasks/miniwob_subset32.yaml`, as task ids end with them."""
TRAINED = Measure("trained", "success of the last 5 iterations", final(SUCCESS))
ALL_FAILED = Measure("all_failed", "groups that failed as a whole", mean_of("group/all_failed"))
MINUTES = Measure("minutes", "minutes of a run", minutes, digits=1)
COLUMNS = {"success": SUCCESS, "all_failed": "group/all_failed", "injected": "replay/injected"}


# --- scores of single tasks and pages -------------------------------------------------------------------------------


def success(found: Sequence[dict[str, Any]]) -> float | None:
    """Return the success rate over all episodes of some scores; None where there is none."""
    episodes = sum(score["episodes"] for score in found)
    return sum(score["successes"] for score in found) / episodes if episodes else None


def evaluated_where(listed: str, belongs: Callable[[str], bool]) -> Of:
    """Return the measure of the success on those tasks of a list whose id belongs to some."""
    return lambda run: success([score for score in scores(run, run.budget, listed, "tasks") if belongs(score["name"])])


def is_of_the_subset(task: str) -> bool:
    """Whether a task of the list of 128 is one of the 32."""
    return task.rpartition("/")[2] in OF_THE_SUBSET


EVALUATED = tuple(
    Measure(name, f"success on {LISTS[name]}", of, is_compared=True)
    for name, of in {
        "subset": evaluated_where("in_domain", is_of_the_subset),
        "others": evaluated_where("in_domain", lambda task: not is_of_the_subset(task)),
        "held_out": evaluated("held_out"),
        "held_out_pages": evaluated("held_out_pages"),
    }.items()
)
"""The success after the last update on each of the lists."""


def by_page(arm: compared_arms.Arm, listed: str) -> dict[str, float | None]:
    """Return the success on each page of a task list, over all episodes of an arm's runs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in arm.runs.values():
        for score in scores(run, run.budget, listed, "domains"):
            found.setdefault(score["name"], []).append(score)
    return {page: success(of_page) for page, of_page in found.items()}
