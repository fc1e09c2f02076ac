"""The kit for a rented GPU, played whole with a tiny model, and what it leaves of phases that go wrong."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from arpo.host.processes import count_processes
from benchmarks.gpu_session import play, prepare, screens, stand_ins

ROOT = Path(__file__).parents[1]


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.engine
@pytest.mark.ray
@pytest.mark.timeout(1600)
def test_every_phase_ends_well_with_a_tiny_model_and_leaves_what_a_session_is_for(tmp_path):
    """With the vLLM and the Ray that are installed here."""
    if torch.cuda.is_available():
        pytest.skip("the kit's own commands play it on a GPU")
    command = [sys.executable, "-m", "benchmarks.gpu_session", "play", "--smoke", "--out", tmp_path]
    subprocess.run([*command, "--seconds", "1500"], cwd=ROOT, check=True, capture_output=True)
    played = lines(tmp_path)
    ends = {line["phase"]: line.get("ended", line) for line in played if "ended" in line or "error" in line}
    assert ends == dict.fromkeys(play.LIMITS, "well")

    def of(phase: str, figure: str) -> list[Any]:
        return [line[figure] for line in played if line["phase"] == phase and figure in line]

    (gap,), (rate,) = of("engine", "gap"), of("engine", "tokens_per_s")
    assert gap < 1e-4  # float32 on both sides
    assert rate > 0
    for loop in ("lora", "one_copy", "two_copies", "all"):
        iterations = of(loop, "metrics")
        assert [metrics["rollout/env_steps"] for metrics in iterations] == [4 * 2] * 2  # each as long as it may be
        assert max(metrics.get("engine/logprob_gap_mean", 0) for metrics in iterations) < 1e-4
        assert any(metrics.get("train/grad_norm", 0) > 0 for metrics in iterations)
    moved = [[metrics["engine/moved_bytes"] for metrics in of(loop, "metrics")] for loop in ("one_copy", "two_copies")]
    assert moved[0] == moved[1] > [0, 0]  # the adapter
    # a sync before the first iteration and after each, in four loops; in two of them asleep in each iteration
    assert len(of("engine: load", "seconds")) == 4 * 3
    assert len(of("engine: sleep", "seconds")) == 2 * 2
    assert len(of("trace", "ms")) == 25


def test_a_phase_that_raises_leaves_its_last_words_and_none_begins_when_the_time_is_over(tmp_path):
    assert not play.run(play.Phase("broken", [sys.executable, "-c", "raise ValueError('no such GPU')"], 60), tmp_path)
    (line,) = lines(tmp_path)
    assert line.pop("seconds") > 0
    assert line == {"phase": "broken", "error": "exit status 1", "said": "ValueError: no such GPU"}
    none = tmp_path / "none"
    none.mkdir()
    assert play.play(none, None, smoke=False, seconds=0) == 0
    assert [line["error"] for line in lines(none)] == ["not begun: 0 s are left"] * len(play.LIMITS)


def test_a_phase_that_hangs_is_ended_with_its_children(tmp_path, monkeypatch):
    """Also with those that are deaf to everything but a kill."""
    monkeypatch.setattr(play, "LEAST_S", 0)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {deaf!r}])"
    mark = {"ARPO_TEST_OF_THE_KIT": str(tmp_path)}
    assert not play.run(play.Phase("hung", [sys.executable, "-c", code], 3, mark), tmp_path)
    assert lines(tmp_path)[0]["error"] == "not done after 3 s"
    assert count_processes(str(tmp_path), variable="ARPO_TEST_OF_THE_KIT") == 0


def test_the_first_phase_that_failed_is_played_again_with_the_older_runner(tmp_path, monkeypatch):
    command = [sys.executable, "-c", "import os, sys; sys.exit('VLLM_USE_V2_MODEL_RUNNER' not in os.environ)"]
    monkeypatch.setattr(play, "phase_of", lambda name, out, deadline, smoke: play.Phase(name, command, 60))
    play.play(tmp_path, ["weights", "engine", "lora", "trace"], smoke=False, seconds=60)
    ends = [("weights", None), ("engine", None), ("lora", None), ("engine, older runner", "well")]
    assert [(line["phase"], line.get("ended")) for line in lines(tmp_path)] == ends


def test_screenshots_of_a_run_are_what_the_loops_show(tmp_path, monkeypatch):
    run, part, site = tmp_path / "run", tmp_path / "part", tmp_path / "site" / "packages"
    for number in range(3):
        _, png = screens.desktop(number, "windows")
        (run / "screens" / str(number)).mkdir(parents=True)
        (run / "screens" / str(number) / f"{number}.png").write_bytes(png)
    part.mkdir()
    monkeypatch.setattr(prepare, "SCREENS_MIB", 2 * len(png) * 1.2 / 2**20)
    prepare.pack_screens(run, part / "screens.txz")
    monkeypatch.setattr(play, "SITE", site)
    monkeypatch.setattr(play, "SCREENS", tmp_path / "shown")
    monkeypatch.setattr(stand_ins, "SCREENS", tmp_path / "shown")
    assert play.unpack(part) == 0
    shown = {stand_ins.drawn(seed).screenshot for seed in range(9)}
    assert shown == {screens.desktop(number, "windows")[1] for number in (0, 1)}  # the third found no room


def test_parts_come_out_as_they_went_in(tmp_path, monkeypatch):
    source, part, site = tmp_path / "source", tmp_path / "part", tmp_path / "site" / "packages"
    for name, text in {"vllm/kernel.so": "K" * 1000, "vllm/__init__.py": "x = 1", "ray/jars/a.jar": "J"}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    part.mkdir()
    prepare.squeeze(source, "vllm/kernel.so", part)
    prepare.pack(source, part / "rest.txz", lambda name: name.endswith(".py"))
    before = (part / "rest.txz").read_bytes()
    os.utime(source / "vllm" / "__init__.py", (time.time() + 60, time.time() + 60))
    prepare.pack(source, part / "rest.txz", lambda name: name.endswith(".py"))
    assert (part / "rest.txz").read_bytes() == before
    monkeypatch.setattr(play, "SITE", site)
    assert play.unpack(part) == 0
    found = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*") if path.is_file()}
    assert found == {"vllm/kernel.so": "K" * 1000, "vllm/__init__.py": "x = 1"}
