"""CPU seconds of the first job in two checkouts, in turn: trainer, Ray's processes and Chromium together.

    python benchmarks/job_cost.py ../before . iterations=2      # further words are overrides of the job

Both checkouts run `experiment=arpo_miniwob` with this Python, one after the other, and the order turns round after
every pair (`ROUNDS`, 2), because a machine that others use counts more seconds for the same work. The seconds are
those of all processes that the job starts, read from /proc four times a second. Numbers of the log that are no times
are compared, and the names of those that differ are printed: engine steps, and log-probabilities by 1e-6, depend on
which requests meet, and differ between two runs of one checkout as well. Two cores, 2 to 3 minutes a run.
"""

import json
import os
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import psutil

ROUNDS = int(os.environ.get("ROUNDS", "2"))
MARK = "ARPO_JOB_COST"
"""A variable that the whole tree of processes inherits, also those that Ray lets go. Chromium's renderers write their
titles over it: they are known by their parents."""


def kind(process: psutil.Process) -> str:
    """Name the part of the job that a process belongs to; of one that has just ended, nothing."""
    words = " ".join(process.cmdline())
    if not words:
        return ""
    named = {"train.py": "trainer", "chrom": "chromium", "ray::EnvWorker": "workers"}
    return next((name for word, name in named.items() if word in words), "rest")


def cost(checkout: Path, output: Path, overrides: list[str]) -> Counter[str]:
    """Run the job once and return its CPU seconds by part."""
    mark = uuid.uuid4().hex
    environment = {"OMP_NUM_THREADS": "1", **os.environ, MARK: mark}
    command = [sys.executable, "train.py", "experiment=arpo_miniwob", f"paths.output={output}", *overrides]
    log = tempfile.TemporaryFile()  # noqa: SIM115 - gone with the job
    job = Popen(command, cwd=checkout, env=environment, stdout=log, stderr=log)
    ours: set[psutil.Process | None] = set()
    spent: dict[psutil.Process, tuple[str, float]] = {}
    while job.poll() is None:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process in ours or process.parent() in ours or process.environ().get(MARK) == mark:
                    ours.add(process)
                    times = process.cpu_times()
                    part = kind(process) or spent.get(process, ("rest", 0))[0]
                    spent[process] = part, times.user + times.system
        time.sleep(0.25)
    if job.returncode:
        log.seek(0)
        said = log.read().decode(errors="replace")[-2000:]
        raise SystemExit(f"the job in {checkout} ended with {job.returncode}:\n{said}")
    parts: Counter[str] = Counter()
    for part, seconds in spent.values():
        parts[part] += seconds  # type: ignore[assignment]  # floats too
    return parts


def metrics(output: Path) -> dict[tuple[int, str], float]:
    """Read every number of the run's log that is no time."""
    (log,) = output.glob("*/*/metrics.jsonl")
    rows = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    timed = ("time/", "env/busy", "env/leased", "env/acting")
    named = ((number, name, value) for number, row in enumerate(rows) for name, value in row.items())
    return {
        (number, name): value
        for number, name, value in named
        if not name.startswith(timed) and not name.endswith("_s")
    }


def main() -> None:
    """Measure the pairs and print the ratio."""
    before, after = (Path(word).resolve() for word in sys.argv[1:3])
    total: Counter[str] = Counter()
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as directory:
            found = {}
            for name, checkout in sorted({"before": before, "after": after}.items(), reverse=number % 2 == 0):
                output = Path(directory) / name
                parts = cost(checkout, output, sys.argv[3:])
                total[name] += parts.total()
                found[name] = metrics(output)
                print(name, f"{parts.total():.0f} s:", {part: round(seconds) for part, seconds in parts.most_common()})
            first, second = found["before"], found["after"]
            different = {key[1] for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
            print("differ:", ", ".join(sorted(different)) or "none")
    print(f"after / before: {total['after'] / total['before']:.2f}")


if __name__ == "__main__":
    main()
