"""Arms: runs that differ in nothing but their seed, and which arms may be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from arpo.apps.comparison.configuration import Tree, differing, fingerprint, settings, told_once
from arpo.apps.comparison.runs import Run

COMPARABLE = {
    "tasks": ("tasks.*", "env.make_env"),
    "warm starts": ("warmstart", "model.path"),
    "numbers of iterations": ("iterations",),
    "evaluation protocols": (
        "evaluation.*",
        "callbacks.evaluation.tasks.*",
        "callbacks.evaluation.settings.*",
        "rollout.settings.max_steps",
        "rollout.settings.success_threshold",
    ),
}
"""What two arms must have in common for their difference to mean anything, and the keys where it is set."""


@dataclass(frozen=True, slots=True)
class Arm:
    """All runs of one configuration, a seed each."""

    name: str
    runs: Mapping[int, Run]
    """By seed; none of an arm that was not run yet."""

    @property
    def commits(self) -> frozenset[str]:
        """The commits of its runs."""
        return frozenset(commit for run in self.runs.values() for commit in run.commits)


def group(runs: Sequence[Run]) -> tuple[list[Arm], list[str]]:
    """Return runs grouped by what differs in their configuration; each group is named by it.

    Returns:
        The arms, the one with the fewest overrides first; and the runs that were left out, each with the reason.
    """
    trees = {run.directory: tree for run, tree in zip(runs, settings(runs), strict=True)}
    found: dict[str, dict[int, Run]] = {}
    left_out = []
    for run in sorted(runs, key=_started):
        of_seeds = found.setdefault(fingerprint(trees[run.directory]), {})
        if run.seed in of_seeds:
            left_out.append(
                f"{of_seeds[run.seed].directory}: {run.directory} has the same configuration and seed and is younger"
            )
        of_seeds[run.seed] = run
    groups = [dict(sorted(of_seeds.items())) for of_seeds in found.values()]
    names = _names(groups, [trees[next(iter(of_seeds.values())).directory] for of_seeds in groups])
    arms = [Arm(name, of_seeds) for name, of_seeds in zip(names, groups, strict=True)]
    return sorted(arms, key=lambda arm: (arm.name.count("="), arm.name)), left_out


def _started(run: Run) -> tuple[str, str]:
    return (run.starts[0].started if run.starts else "", str(run.directory))


def _names(groups: Sequence[Mapping[int, Run]], trees: Sequence[Tree]) -> list[str]:
    """Name groups by their experiment where there are several, and by the overrides that not all of them have.

    Where a folder's name was cut, or a file of conf/ was changed between runs, by what differs.
    """
    overrides = [[run.overrides for run in of_seeds.values()] for of_seeds in groups]
    everywhere = [one or {} for of_arm in overrides for one in of_arm]
    experiments = [str(tree.get("name", "")) for tree in trees]
    keys = told_once(differing(trees))
    names = []
    for number, of_arm in enumerate(overrides):
        known = [one for one in of_arm if one is not None]
        if len(known) == len(of_arm):
            shared = [(key, value) for key, value in known[0].items() if all(one.get(key) == value for one in known)]
            own = [(key, value) for key, value in shared if any(one.get(key) != value for one in everywhere)]
        else:
            own = [(key, values[number]) for key, values in keys.items() if key != "name"]
        experiment = [experiments[number]] if len(set(experiments)) > 1 else []
        names.append(" ".join([*experiment, *(f"{key}={value}" for key, value in own)]) or "default")
    return _told_apart(names, trees)


def _told_apart(names: Sequence[str], trees: Sequence[Tree]) -> list[str]:
    told = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        alike = [number for number, other in enumerate(names) if other == name]
        keys = told_once(differing([trees[number] for number in alike]))
        for place, number in enumerate(alike):
            told[number] = f"{name} ({', '.join(f'{key}={values[place]}' for key, values in keys.items())})"
    return told


def obstacle(reference: Arm, other: Arm, *, subject: str = "") -> str:
    """Return why two arms cannot be compared; empty where they can.

    Args:
        reference: One of them.
        other: The other.
        subject: Patterns of keys by which the arms are meant to differ, such as `tasks.train.*`; blanks between them.
    """
    if not reference.runs or not other.runs:
        return "one of them has no run that has come to its end"
    mine, its = (next(iter(arm.runs.values())) for arm in (reference, other))
    keys = differing(settings([mine, its]))
    for what, places in COMPARABLE.items():
        for key, (before, after) in keys.items():
            if any(fnmatchcase(key, pattern) for pattern in subject.split()):
                continue
            if any(key == place.removesuffix(".*") or fnmatchcase(key, place) for place in places):
                return f"they have different {what} ({key}: {before} and {after})"
    return ""


def warnings(arms: Sequence[Arm]) -> list[str]:
    """Return what is to be kept in mind about the origin of runs."""
    commits = sorted({commit for arm in arms for commit in arm.commits})
    said = []
    if len(commits) > 1:
        whose = "; ".join(f"{arm.name}: {', '.join(sorted(arm.commits)) or 'not recorded'}" for arm in arms)
        said.append(f"The runs were made by different commits, which may be what makes the difference ({whose}).")
    if any("local changes" in commit for commit in commits):
        said.append("Some runs were made by code with local changes, which no commit has.")
    unknown = [run.directory.name for arm in arms for run in arm.runs.values() if not run.commits]
    if unknown:
        said.append(f"Nobody recorded the commit of {', '.join(unknown)}.")
    return said
