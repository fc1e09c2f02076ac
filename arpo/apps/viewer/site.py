"""The folder that opens in a browser: the page, and the index and the chunks of one run or two."""

import math
import os
import shlex
import shutil
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import quote

from arpo.apps.viewer.parts import (
    INJECTED,
    LEFT_OUT,
    PARSE_ERROR,
    Pictures,
    TokenTexts,
    chunk_name,
    group_chunk,
    script,
    texts_of,
)
from arpo.apps.viewer.records import Episode, Files, Member, Records, ShownGroup, Updates, show_groups
from arpo.errors import ConfigError
from arpo.evaluation.run_folder import Record, RunFolder, read_folder
from arpo.host.files import write_atomically
from arpo.rollout.storage import store_of

APP = Path(__file__).parent / "app"
LETTERS = "ab"
MARK = "viewer.css"
"""The file by which the folder of a viewer is known; it is written first, so that also half a one is known."""
CURVES = (
    "rollout/success_rate",
    "val/in_domain/success_rate",
    "val/held_out/success_rate",
    "group/all_failed",
    "group/all_succeeded",
    "replay/injected",
    "policy/entropy",
    "train/ratio_min",
    "train/ratio_max",
    "rollout/lag_mean",
)
"""The metrics that the page of a run draws."""
DEFAULT_THRESHOLD = 0.5

_Numbers = dict[Hashable, int]
"""The number of each value, in the order of first appearance."""


class Site:
    """The viewer of one run, or of two side by side, in a folder of its own.

    Every file is replaced whole, the index after what it names, so that a page that is opened meanwhile shows either
    the old state or the new one.
    """

    def __init__(self, runs: Sequence[Path], out: Path, *, live: bool = False) -> None:
        if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARK).exists())):
            raise ConfigError(f"{out} holds other files: name a new folder with --out")
        self.out = out
        self.live = live
        self.runs = [RunData(run, letter, out) for run, letter in zip(runs, LETTERS, strict=False)]
        self._serial = 0

    def write(self) -> bool:
        """Write what has changed since the last call, and return whether there was anything."""
        if not self._serial:
            self.out.mkdir(parents=True, exist_ok=True)
            for path in sorted(APP.iterdir(), key=lambda path: path.name != MARK):
                shutil.copyfile(path, self.out / path.name)
        changed = [run.write() for run in self.runs]
        if not any(changed) and self._serial:
            return False
        self._serial += 1
        site = {"runs": [run.letter for run in self.runs], "live": self.live, "serial": self._serial}
        write_atomically(self.out / "data" / "site.js", script("site", site))
        return True


class RunData:
    """The data of one run in the viewer's folder, under a letter."""

    def __init__(self, run: Path, letter: str, out: Path) -> None:
        self.run = run
        self.letter = letter
        self.store = store_of(run)
        self.groups: list[ShownGroup] = []
        self._out = out
        self._directory = out / "data" / letter
        self._records, self._updates = Records(self.store), Updates(self.store)
        self._records.refresh()
        if not self._records.episodes and not self._records.broken:
            raise ConfigError(_without_episodes(run))
        self._model = model_of(read_folder(run).config, run)
        self._words, self._pictures = TokenTexts(self._model), Pictures(self.store)
        self._named: set[str] = set()
        self._shown: tuple[Any, ...] = ()

    def write(self) -> bool:
        """Write the chunks that are not there yet, then the index; return whether there was anything to write."""
        stamps = self._stamps()  # before the files are read: what comes meanwhile is then new at the next look
        self._records.refresh()
        self._updates.refresh()
        shown = (stamps, self._records.torn)
        if shown == self._shown:
            return False
        self._shown = shown
        self.groups = show_groups(self._records.episodes, self._updates.records)
        names = [
            chunk_name(group, None if group.update is None else self._updates.stamp(group.update), str(self._model))
            for group in self.groups
        ]
        stale = [
            (group, name)
            for group, name in zip(self.groups, names, strict=True)
            if not self._file(f"g/{name}").exists()
        ]
        for group, name in stale:
            update = None if group.update is None else self._updates.whole(group.update)
            self._write(f"g/{name}", group_chunk(group, self._records, update, self._words, self._pictures))
        self._write_texts([group for group, _ in stale])
        self._write("index", self._index(names))
        for path in self._directory.glob("g/*.js"):
            if path.stem not in self._named.union(names):  # a page that was opened meanwhile has the index before this
                path.unlink()
        self._named = set(names)
        return True

    def _index(self, chunks: Sequence[str]) -> dict[str, Any]:
        """Return the index of the run, in which each group has the name of its chunk."""
        files, groups = read_folder(self.run), self.groups
        tasks: _Numbers = {}
        outcomes: _Numbers = {}
        rows = [(number, member) for number, group in enumerate(groups) for member in group.members]
        broken = [
            [each.file, each.line, each.reason, each.text] for each in self._records.broken + self._updates.broken
        ]
        return {
            "name": " / ".join(self.run.resolve().parts[-2:]),
            "origin": origin_of(files),
            "threshold": threshold_of(files.config),
            "screens": quote(os.path.relpath(self.store.resolve() / "screens", self._out.resolve())),
            "wordsKnown": self._words.known,
            "groups": {
                "key": [group.key for group in groups],
                "file": list(chunks),
                "split": [group.first.split for group in groups],
                "iteration": [group.first.iteration for group in groups],
                "task": [_number(tasks, _task(group.first)) for group in groups],
                "update": [None if group.update is None else group.update.iteration for group in groups],
                "version": [None if group.update is None else group.update.policy_version for group in groups],
            },
            "episodes": _episodes(rows, tasks, outcomes),
            "tasks": list(tasks),
            "outcomes": list(outcomes),
            "curves": list(curves_of(files).items()),
            "evaluations": evaluations_of(files),
            "broken": broken + [["", 0, reason, ""] for reason in files.broken],
            "torn": self._records.torn,
        }

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.js"

    def _write(self, name: str, value: Any) -> None:
        write_atomically(self._file(name), script(f"{self.letter}/{name}", value))

    def _stamps(self) -> object:
        """Return something that changes with the time or size of a file that the viewer reads."""
        patterns = ("*/iteration_*.jsonl", "updates/*.safetensors")
        paths = [path for pattern in patterns for path in self.store.glob(pattern)]
        paths += [self.run / name for name in ("metrics.jsonl", "run.json", "results.json")]
        paths += (self.run / "eval").glob("*.json")
        files = Files(lambda _: None)
        files.refresh(paths)
        return files.known

    def _write_texts(self, stale: Sequence[ShownGroup]) -> None:
        """Write the responses of each iteration of which something has changed."""
        places = {(group.first.split, group.first.iteration) for group in stale}
        texts: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
        for group in self.groups:
            place = group.first.split, group.first.iteration
            if place in places:
                texts[place] += texts_of(group, self._records)
        for (split, iteration), rows in texts.items():
            self._write(f"t/{split}-{iteration}", rows)


def _without_episodes(run: Path) -> str:
    """Return the reason why a folder cannot be shown, and the remedy."""
    if not run.is_dir():
        return f"there is no folder {run}: name that of a run, as outputs/arpo_miniwob/default"
    runs = sorted(path.parent for pattern in ("*/trajectories", "*/*/trajectories") for path in run.glob(pattern))
    if runs:
        return f"{run} holds no episodes of its own, but runs: name one of them, as {runs[0]}"
    if (run / "config.yaml").exists():
        return f"{run} holds no episodes: none has ended yet, or it is a run that plays none, such as a warm start"
    return f"{run} holds no episodes: name the folder of a run, as outputs/arpo_miniwob/default"


def _episodes(rows: Sequence[tuple[int, Member]], tasks: _Numbers, outcomes: _Numbers) -> dict[str, list[Any]]:
    def column(of: Callable[[Member], Any]) -> list[Any]:
        return [of(member) for _, member in rows]

    return {
        "group": [number for number, _ in rows],
        "id": column(lambda member: member.episode.id),
        "task": column(lambda member: _number(tasks, _task(member.episode))),
        "outcome": column(lambda member: _number(outcomes, member.episode.facts.outcome)),
        "taskReward": column(lambda member: member.episode.facts.task_reward),
        "formatReward": column(lambda member: member.episode.facts.format_reward),
        "steps": column(lambda member: member.episode.steps),
        "tokens": column(lambda member: member.episode.tokens),
        "oldest": column(lambda member: member.episode.oldest),
        "newest": column(lambda member: member.episode.newest),
        "advantage": column(lambda member: member.advantage if _is_number(member.advantage) else None),
        "flags": column(
            lambda member: (
                INJECTED * member.injected | LEFT_OUT * member.left_out | PARSE_ERROR * member.episode.parse_error
            )
        ),
        # JavaScript rounds integers of more than 53 bits.
        "seed": column(lambda member: str(member.episode.facts.seed)),
    }


def _number(known: _Numbers, value: Hashable) -> int:
    return known.setdefault(value, len(known))


def _task(episode: Episode) -> tuple[str, str, str]:
    return episode.facts.task_id, episode.facts.domain, episode.facts.instruction


def threshold_of(config: Record) -> float:
    """Return the task reward above which an episode of a run is a success."""
    threshold = _at(config, "rollout", "settings", "success_threshold")
    return float(threshold) if _is_number(threshold) else DEFAULT_THRESHOLD


def model_of(config: Record, run: Path) -> Path | None:
    """Return the checkpoint that a run started from, if it is still there, relative to where the run was started."""
    named = _at(config, "model", "path")
    if not isinstance(named, str):
        return None
    places = [Path(named), *(parent / named for parent in run.resolve().parents)]
    try:
        return next((place for place in places if (place / "tokenizer.json").is_file()), None)
    except OSError:  # a name that no file can have
        return None


def curves_of(files: RunFolder) -> dict[str, list[list[float]]]:
    """Return points [iteration, value] of each metric that is drawn; of two lines of an iteration the later counts."""
    points: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    for line in files.metrics:
        for name in CURVES:
            if line.get(name) is not None:
                points[name][line["step"]] = line[name]
    return {name: [[step, value] for step, value in sorted(found.items())] for name, found in points.items() if found}


def evaluations_of(files: RunFolder) -> list[list[Any]]:
    """Return a row for each evaluation of each list: iteration, list, success, its interval, episodes, lost ones."""
    rows = []
    for iteration, results in [*files.evaluations.items(), (0, files.results)]:
        for listed, result in results.items():
            overall = result["overall"]
            row = [overall.get(key) for key in ("success_rate", "interval_low", "interval_high", "episodes")]
            if all(map(_is_number, row)):
                rows.append([iteration, listed, *row, result.get("lost")])
    return rows


def origin_of(files: RunFolder) -> list[list[str]]:
    """Return pairs of a name and a fact of the last start of a run: command, commit, time and status."""
    last = files.starts[-1] if files.starts else {}
    command = last.get("command")
    found = {
        "command": shlex.join(["python", *map(str, command)]) if isinstance(command, list) else None,
        "commit": _at(last, "git", "commit"),
        "started": last.get("started"),
        "status": last.get("status"),
    }
    return [[word, str(fact)] for word, fact in found.items() if fact]


def _at(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _is_number(value: Any) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
