"""The traces of a rehearsed run on disk, and whether they are those of a run that went well."""

import json
from pathlib import Path
from typing import Any

from arpo.apps.rehearsal.harness import RehearsalError
from arpo.callbacks.checkpoint import checkpoints, is_valid, iteration_of

GAP = "engine/logprob_gap_mean"


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics of every iteration that is on disk, from iteration 0; a line in the making is left out."""
    path = run_dir / "metrics.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def iterations_on_disk(run_dir: Path) -> int:
    """Return how many iterations a run has completed."""
    return max((line["step"] for line in lines_of(run_dir)), default=0)


def checkpoint_to_resume_from(run_dir: Path) -> Path:
    """Return the newest checkpoint of a run that was killed."""
    found = [path for path in checkpoints(run_dir / "checkpoints") if is_valid(path)]
    if not found:
        raise RehearsalError(
            f"the run was killed after {iterations_on_disk(run_dir)} iterations and has no checkpoint to go on from: "
            "put callbacks.checkpoint back"
        )
    return found[-1]


def check_end(run_dir: Path, iterations: int) -> None:
    """Check what a run left that was killed and came to its end in a second start.

    Args:
        run_dir: The folder of the run.
        iterations: Of the whole run.
    """
    lines = [line for line in lines_of(run_dir) if line["step"] > 0]
    wrong = []
    if [line["step"] for line in lines] != list(range(1, iterations + 1)):
        counted = ", ".join(str(line["step"]) for line in lines) or "none"
        wrong.append(f"metrics.jsonl must have each of {iterations} iterations once, and has {counted}")
    if not any("train/grad_norm" in line for line in lines):
        wrong.append("no iteration took an optimizer step")
    written = checkpoints(run_dir / "checkpoints")
    wrong += [f"checkpoint {path} is damaged" for path in written if not is_valid(path)]
    if not written or iteration_of(written[-1]) != iterations:
        wrong.append(f"the newest checkpoint is {written[-1].name if written else 'none'}, not of the last iteration")
    if wrong:
        raise RehearsalError("; ".join(wrong))


def summary(run_dir: Path) -> str:
    """Return what happened, in one sentence."""
    lines = [line for line in lines_of(run_dir) if line["step"] > 0]
    episodes = sum(int(line.get("rollout/episodes", 0)) for line in lines)
    steps = sum(int(line.get("rollout/env_steps", 0)) for line in lines)
    replayed = sum(int(line.get("replay/injected", 0)) for line in lines)
    gaps = [line[GAP] for line in lines if line.get(GAP) is not None]
    gap = f"a gap of {max(gaps):.2g} at most" if gaps else "no gap known"
    return f"{len(lines)} iterations, {episodes} episodes of {steps} steps, {replayed} replayed, {gap}"
