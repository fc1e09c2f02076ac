"""Updates of Qwen2.5-VL-7B with random weights on one GPU: tokens a second, MFU, and memory beside the plan's figure.

    python benchmarks/update_gpu.py --plan            # what `arpo plan` computes; needs the pinned torch and no GPU
    python benchmarks/update_gpu.py                   # every setting, on the GPU
    python benchmarks/update_gpu.py --trained lora --tokens 65536 --ways ours --kernels default cudnn
    python benchmarks/update_gpu.py --smoke --out /tmp/smoke      # a tiny model on the CPU, in seconds
    python benchmarks/update_gpu.py --smoke --ways ours --tokens 16384 --micro-batches 1 --checkpointing full selective

An update is what `GRPOModule` does with a minibatch: for each sequence a forward, the loss and a backward, then the
clipping and AdamW. `plain` is the same update of the same batch with transformers' own forward: the logits of all
tokens, a vision tower that loops over its windows and sees the pictures in every forward. It computes no entropies.
`compiled` is ours with compiled decoder layers; the update that is not timed compiles them.
Weights are made up on the GPU, so nothing is downloaded; neither vLLM nor Ray is needed. All weights on one GPU are
trained with AdamW's moments on the host, without which they need 124 GiB before the first activation.

Each setting has a process of its own; one that runs out of memory is a row of the table. In the directory --out:
`results.jsonl` (a row a setting, appended), `table.md` of all of them, and `runs.jsonl` (command, seed, commit and
hardware of each run, appended).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

LENGTHS = (8192, 16384, 32768, 65536)
TFLOPS = {"H100": 989, "H200": 989, "A100": 312}
"""Dense bfloat16 of the SXM parts, in 10^12 a second, as their makers state it."""
SMALL: dict[str, Any] = {"max_pixels": 112 * 140, "max_steps": 4, "response": 16, "dtype": "float32"}
"""What differs with --smoke: in float32, so that both ways give the same numbers."""
SMALL_LENGTHS = (256,)
ARCHITECTURE = ROOT / "arpo" / "models" / "shapes" / "qwen2_5_vl_7b.json"
SMALL_ARCHITECTURE = ROOT / "benchmarks" / "small_architecture.yaml"
COLUMNS = (
    "way | trained | tokens | offloaded | checkpointing | kernel | s an update | tokens/s | MFU | "
    "MFU, attention unmasked | GiB allocated | GiB reserved | GiB planned | remark"
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / ("plan.jsonl" if options.plan else "results.jsonl")
    facts = {"command": [sys.executable, *sys.argv], "seed": options.seed, **surroundings(options.commit)}
    if not options.plan:
        append(facts, options.out / "runs.jsonl")
    for setting in settings(options):
        row = {**setting, **figures(setting, options)}
        append(row, results)
        print(json.dumps(row), flush=True)
    if not options.plan:
        written = table(read(results), planned(options.plans), peak_tflops(options.peak_tflops, str(facts["gpu"])))
        (options.out / "table.md").write_text(written, encoding="utf-8")
        print(written)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a tiny model, short sequences")
    parser.add_argument("--plan", action="store_true", help="compute what the plan says, and measure nothing")
    parser.add_argument("--ways", nargs="+", choices=("ours", "compiled", "plain"), default=["ours", "plain"])
    parser.add_argument("--trained", nargs="+", choices=("lora", "all"), default=["lora", "all"])
    parser.add_argument("--tokens", nargs="+", type=int, help=f"of a sequence; default {LENGTHS}")
    parser.add_argument("--offload", choices=("none", "moments", "both"), help="default: none with lora, else moments")
    parser.add_argument("--checkpointing", nargs="+", choices=("full", "selective"), default=["full"])
    parser.add_argument("--kernels", nargs="+", choices=("default", "cudnn"), default=["default"])
    parser.add_argument("--micro-batches", type=int, default=2, help="sequences of an optimizer step")
    parser.add_argument("--updates", type=int, help="that are timed, after one that is not; default 2, a small one 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=300, help="seconds of a setting")
    parser.add_argument("--out", type=Path, default=ROOT / "experiments" / "gpu")
    parser.add_argument("--plans", type=Path, default=ROOT / "experiments" / "gpu" / "plan.jsonl")
    parser.add_argument("--peak-tflops", type=float, help="of the GPU, dense bfloat16, where its name does not tell")
    parser.add_argument("--commit", help="where there is no git checkout to ask")
    return parser.parse_args(arguments)


def settings(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the settings, those that matter most first: a run may be cut off."""
    lengths = options.tokens or (SMALL_LENGTHS if options.smoke else LENGTHS)
    for way in options.ways:
        if options.plan and way != "ours":
            continue  # the plan is of what we do
        for trained in options.trained:
            for tokens in sorted(lengths, reverse=way != "plain"):
                for checkpointing, kernel in product(options.checkpointing, options.kernels):
                    yield {
                        "way": way,
                        "trained": trained,
                        "tokens": tokens,
                        "offload": options.offload or ("none" if trained == "lora" else "moments"),
                        "checkpointing": checkpointing,
                        "kernel": kernel,
                        "micro_batches": options.micro_batches,
                        "updates": options.updates or (1 if options.smoke else 2),
                        "seed": options.seed,
                        **(SMALL if options.smoke else {}),
                    }


def figures(setting: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a setting from a process of its own, or what became of it."""
    architecture = str(SMALL_ARCHITECTURE if options.smoke else ARCHITECTURE)
    request = json.dumps({"setting": setting, "plan": options.plan, "architecture": architecture})
    command = [sys.executable, "-c", "import sys, update_ways; print(update_ways.answer(sys.argv[1]))", request]
    path = os.pathsep.join(filter(None, (str(ROOT / "benchmarks"), str(ROOT), os.environ.get("PYTHONPATH"))))
    return outcome(command, os.environ | {"PYTHONPATH": path}, options.timeout)


def outcome(command: Sequence[str], environment: dict[str, str], timeout: float) -> dict[str, Any]:
    """Return the figures that a process prints last, as JSON, or the way in which it ended without."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", timeout=timeout, check=False, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {timeout:.0f} s"}
    if done.returncode < 0:
        return {"error": f"killed by signal {-done.returncode}"}  # 9: the host's memory was used up
    if done.returncode:
        return {"error": f"exit status {done.returncode}", "detail": "".join(done.stderr.splitlines()[-1:])}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def planned(path: Path) -> dict[tuple[Any, ...], float]:
    """Return the GiB that the plan computed before, by setting; empty where it computed nothing."""
    return {_key(row): row["plan_gib"] for row in read(path) if "plan_gib" in row}


def append(row: dict[str, Any], path: Path) -> None:
    """Write a row at the end of a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    checkpointing = row.get("checkpointing", "full")  # the only one that there was
    return row["trained"], row["tokens"], row["offload"], checkpointing, row["micro_batches"], row.get("max_pixels")


def table(rows: Sequence[dict[str, Any]], plans: dict[tuple[Any, ...], float], peak: float | None) -> str:
    """Return the rows as a Markdown table."""
    lines = [f"| {COLUMNS} |", "|" + "---|" * len(COLUMNS.split("|"))]
    for row in rows:
        found = [row["way"], row["trained"], f"{row['tokens']:,}", row["offload"], row.get("checkpointing", "full")]
        found.append(row["kernel"])
        lines.append("| " + " | ".join([*found, *_cells(row, plans, peak)]) + " |")
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any], plans: dict[tuple[Any, ...], float], peak: float | None) -> list[str]:
    memory = [_number(row.get(name), ".1f") for name in ("allocated_gib", "reserved_gib")]
    plan = _number(plans.get(_key(row)) if row["way"] == "ours" else None, ".1f")
    if "error" in row:
        return ["", "", "", "", *memory, plan, row["error"]]
    seconds = min(row["seconds"])
    rates = [row[name] / seconds / peak / 1e12 if peak else None for name in ("flops", "flops_unmasked")]
    speed = row["tokens"] * row["micro_batches"] / seconds
    remark = f"mean log-prob {row['first_logprob']:.4f}"
    return [f"{seconds:.2f}", f"{speed:,.0f}", *(_number(rate, ".1%") for rate in rates), *memory, plan, remark]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def peak_tflops(given: float | None, gpu: str) -> float | None:
    """Return the peak of a GPU by its name, unless it is given; None where nobody knows."""
    return given or next((peak for name, peak in TFLOPS.items() if name in gpu), None)


def surroundings(commit: str | None) -> dict[str, Any]:
    """Return the commit and what the figures were measured on."""
    from importlib.metadata import version

    gpu = _said("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return {
        "commit": commit or _said("git", "describe", "--always", "--dirty", "--abbrev=12") or "unknown",
        "gpu": gpu or "none",
        "cpu_cores": len(os.sched_getaffinity(0)),
        "machine": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "lightning", "peft")},
    }


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
