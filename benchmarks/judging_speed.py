"""How long OSWorld's graders take for one task in a cell, by the kind of what they read, and how much memory at rest.

    python benchmarks/judging_speed.py [--repeats 20]

The guest is a server of this process, so that nothing but judging is measured; the files are those of the tests.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from arpo.envs.osworld.grader import Grader
from tests.envs.osworld.guest import HOME, running_guest
from tests.envs.osworld.support import PYTHON, cloud_file, doors, includes, said, vm_file
from tests.envs.osworld.test_grader import MAKE_FILES, TASKS


def main() -> None:
    """Print a table: the kind, the first judgement, and the median of the others, in seconds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    grader = Grader(PYTHON, timeout_s=60)
    with tempfile.TemporaryDirectory() as folder, running_guest() as guest:
        subprocess.run([PYTHON, "-I", "-c", MAKE_FILES, folder], check=True)
        evaluators = {kind: {"result": vm_file(f"mine.{kind}"), **evaluator} for kind, evaluator in TASKS}
        for kind, evaluator in evaluators.items():
            guest.files[f"{HOME}/mine.{kind}"] = Path(folder, f"right.{kind}").read_bytes()
            evaluator.setdefault("expected", cloud_file(f"gold.{kind}"))
        evaluators["program"] = {"func": "check_include_exclude", "result": said("a"), "expected": includes("a")}
        grader.wait_until_ready()
        print("| kind | first, s | median of the others, s |\n|---|--:|--:|")
        for kind, evaluator in evaluators.items():
            gold = Path(folder, f"right.{kind}")
            files = {f"gold.{kind}": gold} if gold.exists() else {}
            taken = []
            for _ in range(repeats):
                began = time.perf_counter()
                assert grader.grade(evaluator, doors(guest), files) == 1.0
                taken.append(time.perf_counter() - began)
            print(f"| {kind} | {taken[0]:.2f} | {statistics.median(taken[1:]):.3f} |")
        print(
            subprocess.check_output(["docker", "stats", "--no-stream", "--format", "{{.MemUsage}}"], encoding="utf-8")
        )
    grader.close()


if __name__ == "__main__":
    main()
