"""The benchmark of updates on a GPU, run with a tiny model where everything is missing that its machine may lack."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import update_gpu  # noqa: E402
import update_ways  # noqa: E402

MISSING = ("ray", "vllm", "docker", "tenacity", "hydra", "omegaconf", "httpx", "playwright", "beartype")
BLOCK = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
"""


pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # five processes that each import everything


@pytest.mark.slow
def test_all_ways_compute_the_same_batch_where_vllm_and_ray_are_not_installed_and_a_table_shows_them(tmp_path):
    """A run of all settings with the small model."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    command = [sys.executable, "benchmarks/update_gpu.py", "--smoke", "--out", tmp_path]
    command += ["--plans", tmp_path / "plan.jsonl", "--peak-tflops", "1"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    for extra in (["--plan", "--trained", "lora"], [], ["--ways", "compiled", "--trained", "lora"]):
        done = subprocess.run(
            [*command, *extra], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["way"], row["trained"], row.get("error")) for row in rows] == [
        ("ours", "lora", None),
        ("ours", "all", None),
        ("plain", "lora", None),
        ("plain", "all", None),
        ("compiled", "lora", None),
    ]
    # One of two sequences of 256 tokens: 4 screenshots of 20 tokens, 16 sampled after each.
    assert {(row["sampled_tokens"], row["pictures"]) for row in rows} == {(2 * 4 * 16, 2 * 4)}
    assert all(row["allocated_gib"] > 0 for row in rows)
    first = [row["first_logprob"] for row in rows]
    assert first == pytest.approx([first[0]] * len(rows), abs=1e-5)
    assert first[0] < -1
    header, _, *lines = (tmp_path / "table.md").read_text().splitlines()
    columns = [name.strip() for name in header.strip("|").split("|")]
    cells = [dict(zip(columns, (cell.strip() for cell in line.strip("|").split("|")), strict=True)) for line in lines]
    plan = json.loads((tmp_path / "plan.jsonl").read_text())
    assert [each["GiB planned"] for each in cells] == [f"{plan['plan_gib']:.1f}", "", "", "", ""]
    assert all(float(each["MFU"].rstrip("%")) > 0 and float(each["s an update"]) > 0 for each in cells)


@pytest.mark.parametrize(
    ("code", "timeout", "expected"),
    [
        ("import os; os.kill(os.getpid(), 9)", 60, {"error": "killed by signal 9"}),
        ("raise SystemExit('no such thing')", 60, {"error": "exit status 1", "detail": "no such thing"}),
        ("import time; time.sleep(60)", 1, {"error": "not done after 1 s"}),
        ("print('a word'); print('{\"seconds\": [1.5]}')", 60, {"seconds": [1.5]}),
    ],
)
def test_a_process_that_ends_without_figures_is_a_row(code, timeout, expected):
    assert update_gpu.outcome([sys.executable, "-c", code], dict(os.environ), timeout=timeout) == expected


SETTING = {"way": "ours", "trained": "lora", "tokens": 65536, "offload": "none", "kernel": "default"}


def test_out_of_memory_is_a_row(monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has a total of 79 GiB")

    monkeypatch.setattr(update_ways, "measure", fails)
    setting = SETTING | {"way": "plain"}
    found = json.loads(update_ways.answer(json.dumps({"setting": setting, "plan": False, "architecture": ""})))
    assert found["error"] == "out of memory"
    assert found["detail"] == "CUDA out of memory. Tried to allocate 18.55 GiB"
    (line,) = update_gpu.table([{**setting, "micro_batches": 2, **found}], {}, 989).splitlines()[2:]
    assert line.endswith("out of memory |")


def test_figures_of_a_row_are_the_fastest_updates():
    row = SETTING | {"micro_batches": 2, "seconds": [25.0, 20.0], "flops": 8e15, "flops_unmasked": 12e15}
    row |= {"first_logprob": -9.0, "allocated_gib": 50.0, "reserved_gib": 55.0}
    plans = {("lora", 65536, "none", "full", 2, None): 47.26}
    (line,) = update_gpu.table([row], plans, 1000).splitlines()[2:]
    # 131,072 tokens in 20 s; 8e15 and 12e15 operations in 20 s of 1e15 a second
    figures = "20.00 | 6,554 | 40.0% | 60.0% | 50.0 | 55.0 | 47.3 | mean log-prob -9.0000"
    assert line == f"| ours | lora | 65,536 | none | full | default | {figures} |"
