"""The schedules in numbers: `python experiments/scheduling/collect.py [outputs/scheduling.jsonl] --write`.

Of lines about the same setting, the last one counts.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.words import percent, table  # noqa: E402
from experiments.study import ROOT, write_block  # noqa: E402

SETTING = ("command", "world", "schedule", "environments", "groups", "lag", "order", "update_s", "measured", "speed")
FIGURES = (
    "leased",
    "acting",
    "waiting",
    "actions_a_minute",
    "engine_busy",
    "trainer_busy",
    "iteration_s",
    "bound_by",
    "bound_s",
    "mean_lag",
    "steps_an_episode",
    "driver_ms_an_action",
    "driver_cores",
    "driver_cores_here",
    "predicted_speedup",
    "measured_speedup",
)
ORIGIN = ("commit", "day", "load")
OLDER = {
    0: ("28.0 %", "16.0 %", "256"),
    1: ("52.6 %", "29.9 %", "478"),
    2: ("71.8 %", "41.1 %", "653"),
    4: ("84.6 %", "48.3 %", "778"),
}
"""Leased, acting and actions a minute of whole runs at commit 630b491, by lag."""

Line = Mapping[str, Any]


def read(path: Path) -> list[dict[str, Any]]:
    """The last line of every setting, in the order in which they were measured first."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    latest = {tuple(line.get(name) for name in SETTING[:8]): line for line in lines}
    return list(latest.values())


def name(line: Line) -> str:
    if not line["lag"]:
        return str(line["schedule"])
    return f"{line['schedule']}, lag {line['lag']}, order {line['order']}"


def use(line: Line) -> list[str]:
    """What every table says of a setting."""
    shares = [percent(line[key]) for key in ("leased", "acting", "engine_busy", "trainer_busy")]
    return [*shares[:2], f"{line['actions_a_minute']:.0f}", *shares[2:], f"{line['driver_cores']:.3f}"]


USE = ("leased", "acting", "actions a minute", "engine busy", "trainer busy", "driver, cores")


def schedules(lines: Iterable[Line]) -> str:
    rows = [
        [name(line), str(line["groups"]), *use(line), f"{line['bound_by']}: {percent(line['share_of_bound'])}"]
        for line in lines
    ]
    return table(("schedule", "groups an iteration", *USE, "of the bound that binds"), rows)


def reference(lines: Iterable[Line]) -> str:
    rows = []
    for line in lines:
        whole = line["whole_run"]
        now = [percent(whole["leased"]), percent(whole["acting"]), f"{whole['actions_a_minute']:.0f}"]
        steady = [percent(line["leased"]), percent(line["acting"]), f"{line['actions_a_minute']:.0f}"]
        rows.append([name(line), *OLDER[line["lag"]], *now, *steady])
    columns = [f"{kind} ({when})" for when in ("630b491", "whole run", "steady") for kind in USE[:3]]
    return table(("schedule", *columns), rows)


def law(lines: Sequence[Line]) -> str:
    rows = []
    for line in lines:
        if line.get("predicted_speedup") is None:
            continue
        predicted, measured = line["predicted_speedup"], line["measured_speedup"]
        error = f"{100 * (predicted / measured - 1):+.1f} %"
        rows.append([line["world"], str(line["lag"]), line["bound_by"], f"{predicted:.2f}", f"{measured:.2f}", error])
    return table(("setting", "lag", "bound by", "predicted", "measured", "error"), rows)


def sizes(lines: Iterable[Line]) -> str:
    rows = [
        [str(line["environments"]), name(line), *use(line), f"{line['bound_by']}: {percent(line['share_of_bound'])}"]
        for line in lines
    ]
    return table(("environments", "schedule", *USE, "of the bound that binds"), rows)


TABLES = {"schedules": schedules, "reference": reference, "law": law, "environments": sizes}


def block(command: str, lines: Sequence[Line]) -> str:
    """The table of a command and the line that says where it comes from."""
    loads = [line["load"] for line in lines]
    commits, days = (", ".join(sorted({line[key] for line in lines})) for key in ("commit", "day"))
    load = f"at a load of {min(loads):.1f} to {max(loads):.1f}"
    origin = f"Commit {commits}; {lines[0]['cores']} cores, no GPU, {load}; {days}."
    return f"{TABLES[command](lines)}\n\n{origin}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=ROOT / "outputs" / "scheduling.jsonl")
    parser.add_argument("--write", action="store_true", help="also rewrite results.csv and the measured blocks")
    options = parser.parse_args()
    results = read(options.results)
    for command in TABLES:
        lines = [line for line in results if line["command"] == command]
        if not lines:
            continue
        text = block(command, lines)
        print(f"{command}\n\n{text}\n")
        if options.write:
            write_block(HERE / "README.md", text, name=command)
            if command == "law":
                write_block(ROOT / "docs" / "decoupling.md", text, name=command)
    if options.write:
        with (HERE / "results.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, (*SETTING, *FIGURES, *ORIGIN), extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(results)


if __name__ == "__main__":
    main()
