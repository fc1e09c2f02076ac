"""The folder that opens in a browser: the page, and the data of one run or two."""

import json
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from arpo.apps.run_files import read_files
from arpo.apps.viewer.chunks import digest_of, file_of, group_chunk, script, texts_of
from arpo.apps.viewer.groups import ShownGroup, Updates, show_groups
from arpo.apps.viewer.index import index_of, settings_of
from arpo.apps.viewer.parts import Pictures, Words
from arpo.apps.viewer.records import Records
from arpo.errors import ConfigError
from arpo.host.files import write_atomically
from arpo.rollout.storage import store_of

log = logging.getLogger(__name__)

APP = Path(__file__).parent / "app"
LETTERS = "ab"
MARK = "viewer.css"
"""The file by which the folder of a viewer is known; it is written first, so that also half a one is known."""


class Site:
    """The viewer of one run, or of two side by side, in a folder of its own.

    Every file is replaced whole, the index after what it names, so that a page that is opened meanwhile shows either
    the old state or the new one.

    Args:
        runs: Their folders.
        out: The folder to write.
        live: Whether the page shall look for changes.
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
    """The data of one run in the viewer's folder.

    Args:
        run: The folder of the run.
        letter: Its name in the viewer.
        out: The viewer's folder.
    """

    def __init__(self, run: Path, letter: str, out: Path) -> None:
        self.run = run
        self.letter = letter
        self.store = store_of(run)
        self.groups: list[ShownGroup] = []
        self._out = out
        self._directory = out / "data" / letter
        self._state = self._directory / "state.json"
        self._records, self._updates = Records(self.store), Updates(self.store)
        self._records.refresh()
        if not self._records.episodes and not self._records.broken:
            raise ConfigError(_without_episodes(run))
        self._settings = settings_of(read_files(run).config, run)
        self._words, self._pictures = Words(self._settings.model), Pictures(self.store)
        self._digests = _read_state(self._state)
        self._shown: tuple[Any, ...] = ()

    def write(self) -> bool:
        """Write the chunks that have changed, then the index; return whether there was anything to write."""
        stamps = self._stamps()  # before the files are read: what comes meanwhile is then new at the next look
        self._records.refresh()
        self._updates.refresh()
        shown = (stamps, self._records.torn)
        if shown == self._shown:
            return False
        self._shown = shown
        self.groups = show_groups(self._records.episodes, self._updates.records)
        digests = [self._digest(group) for group in self.groups]
        found = zip(self.groups, digests, strict=True)
        stale = [
            group
            for group, digest in found
            if self._digests.get(group.key) != digest or not self._file(f"g/{file_of(group.key)}").exists()
        ]
        for group in stale:
            update = None if group.update is None else self._updates.whole(group.update)
            chunk = group_chunk(group, self._records, update, self._words, self._pictures)
            self._write(f"g/{file_of(group.key)}", chunk)
        self._write_texts(stale)
        self._write_index(digests)
        self._digests = {group.key: digest for group, digest in zip(self.groups, digests, strict=True)}
        write_atomically(self._state, json.dumps({"groups": self._digests}))
        return True

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.js"

    def _write(self, name: str, value: Any) -> None:
        write_atomically(self._file(name), script(f"{self.letter}/{name}", value))

    def _stamps(self) -> list[tuple[str, int, int]]:
        """Return name, time and size of every file that the viewer reads."""
        patterns = ("*/iteration_*.jsonl", "updates/*.safetensors")
        paths = [path for pattern in patterns for path in self.store.glob(pattern)]
        paths += [self.run / name for name in ("metrics.jsonl", "run.json", "results.json")]
        paths += (self.run / "eval").glob("*.json")
        found = []
        for path in sorted(paths):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            found.append((str(path), stat.st_mtime_ns, stat.st_size))
        return found

    def _digest(self, group: ShownGroup) -> str:
        stamp = None if group.update is None else self._updates.stamp(group.update)
        return digest_of(group, stamp, str(self._settings.model))

    def _write_texts(self, stale: Sequence[ShownGroup]) -> None:
        """Write what was said in each iteration of which something has changed."""
        places = {(group.first.split, group.first.iteration) for group in stale}
        texts: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
        for group in self.groups:
            place = group.first.split, group.first.iteration
            if place in places:
                texts[place] += texts_of(group, self._records)
        for (split, iteration), rows in texts.items():
            self._write(f"t/{split}-{iteration}", rows)

    def _write_index(self, digests: Sequence[str]) -> None:
        index = index_of(
            self.run,
            self.groups,
            digests,
            broken=[*self._records.broken, *self._updates.broken],
            torn=self._records.torn,
            success_threshold=self._settings.success_threshold,
            screens=quote(os.path.relpath(self.store.resolve() / "screens", self._out.resolve())),
            words_known=self._words.known,
        )
        self._write("index", index)


def _without_episodes(run: Path) -> str:
    """Return why a folder cannot be shown, and what to do."""
    if not run.is_dir():
        return f"there is no folder {run}: name that of a run, as outputs/arpo_miniwob/default"
    runs = sorted(path.parent for pattern in ("*/trajectories", "*/*/trajectories") for path in run.glob(pattern))
    if runs:
        return f"{run} holds no episodes of its own, but runs: name one of them, as {runs[0]}"
    if (run / "config.yaml").exists():
        return f"{run} holds no episodes: none has ended yet, or it is a run that plays none, such as a warm start"
    return f"{run} holds no episodes: name the folder of a run, as outputs/arpo_miniwob/default"


def _read_state(path: Path) -> dict[str, str]:
    """Return the digests of the chunks that an earlier call has written."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): str(digest) for key, digest in state["groups"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
