"""Folders of runs as `train.py` leaves them: small ones by hand, and those of a study from what it measured."""

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from tests.composed import composed

ROOT = Path(__file__).parent.parent.parent.parent
STUDY = ROOT / "experiments" / "replay_ablation"
START = {
    "started": "2026-01-01T00:00:00.000+00:00",
    "updated": "2026-01-01T00:01:40.000+00:00",  # 100 s
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "machine": {"system": "Linux", "cores": 2, "memory_gb": 8.0, "gpus": []},
    "status": "finished",
}


def write_run(root: Path, name: str, successes: Sequence[float], *, seed: int = 0, **options: Any) -> Path:
    """A run with one line for the evaluation before training, then one an iteration."""
    folder = root / name
    folder.mkdir(parents=True)
    config = {"seed": seed, "iterations": options.get("budget", len(successes)), **options.get("config", {})}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "run.json").write_text(json.dumps({"starts": options.get("starts", [START])}))
    lines = [{"step": 0, "val/in_domain/success_rate": 0.25, "time/evaluation": 4.0}]
    metrics = {"group/all_failed": 0.5, **options.get("metrics", {})}
    lines += [{"step": step, "rollout/success_rate": success, **metrics} for step, success in enumerate(successes, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for iteration, rates in options.get("evaluations", {}).items():
        write_evaluation(folder, iteration, rates)
    return folder


def write_evaluation(folder: Path, iteration: int, rates: dict[str, float]) -> None:
    (folder / "eval").mkdir(exist_ok=True)
    results = {list_name: {"overall": {"success_rate": rate}} for list_name, rate in rates.items()}
    (folder / "eval" / f"iteration_{iteration:06d}.json").write_text(json.dumps(results))


def compose(*words: str) -> DictConfig:
    return composed(*words, run_dir="???", model=None)


def resolved(cfg: DictConfig, folder: Path, seed: int) -> dict[str, Any]:
    """The configuration that `train.py` writes."""
    cfg.paths.run_dir, cfg.seed = str(folder), seed
    return OmegaConf.to_container(cfg, resolve=True)


def rebuild_replay_ablation(outputs: Path) -> Path:
    """The ten runs of experiments/replay_ablation, from its results.csv; evaluations and origin from summary.json."""
    summary = json.loads((STUDY / "summary.json").read_text())
    curves = defaultdict(list)
    with (STUDY / "results.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            curves[row["arm"], int(row["seed"])].append(row)
    configs = {arm: compose("experiment=replay_ablation", f"replay={word}") for arm, word in WORDS.items()}
    for run in summary["runs"]:
        arm, seed = run["arm"], run["seed"]
        folder = outputs / "replay_ablation" / f"replay={WORDS[arm]},seed={seed}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(resolved(configs[arm], folder, seed)))
        (folder / "run.json").write_text(json.dumps({"starts": [STUDY_START]}))
        lines = [line_of(row) for row in curves[arm, seed]]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        write_evaluation(folder, summary["budget_iterations"], {"in_domain": run["evaluated_success"]})
    return outputs / "replay_ablation"


WORDS = {"ARPO": "on", "GRPO": "off"}
STUDY_START = START | {
    "started": "2026-11-21T00:00:00.000+00:00",
    "updated": "2026-11-21T00:01:40.000+00:00",
    "git": {"commit": "4eb8cdc9bf" + 30 * "0", "dirty": False},
    "machine": {"system": "Linux", "cores": 2, "memory_gb": 23.5, "gpus": []},
}


def line_of(row: dict[str, str]) -> dict[str, Any]:
    line = {"step": int(row["iteration"]), "rollout/success_rate": float(row["success"])}
    line["group/all_failed"] = float(row["all_failed"])
    return line | ({"replay/injected": float(row["injected"])} if row["arm"] == "ARPO" else {})
