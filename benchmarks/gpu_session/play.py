"""Phases in processes of their own, each with its time; whatever becomes of one, the next one runs.

Imports nothing that has to be unpacked first.
"""

import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = Path("/tmp/arpo_gpu_session/site")
"""Where parts are unpacked; empty where vLLM is installed as usual."""
MODEL = Path("/dev/shm/arpo_gpu_session")
"""In memory: loading 16.6 GB from a rented disk would take the time of a phase."""
LIMITS = {"weights": 90, "engine": 150, "lora": 260, "one_copy": 200, "two_copies": 200, "trace": 100, "all": 260}
"""Seconds of each phase, in their order."""
SCREENS = SITE.parent / "screens"
"""Screenshots of a run on real desktops, where a part has brought some."""
LEAST_S = 20
"""No phase begins with less."""
DYING_S = 20
"""A killed process gives a GPU's memory back before it is gone, which may take a while."""
RETRIED = ("engine", "lora")
OLD_RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
WORDS = 300
"""Characters of an error's last line."""
RESULTS = "ARPO_GPU_SESSION_RESULTS"


@dataclass(frozen=True, slots=True)
class Phase:
    """A process with a limit."""

    name: str
    command: Sequence[str]
    limit_s: float
    variables: Mapping[str, str] = field(default_factory=dict)


def play(out: Path, phases: Sequence[str] | None, *, smoke: bool, seconds: float) -> int:
    """Play phases in their order, and that one again with vLLM's older runner which failed first.

    Args:
        out: Gets `results.jsonl`, a line a result, and `log.txt`, all that the processes say.
        phases: Names; None are all.
        smoke: Play with a tiny model.
        seconds: Of all phases together.
    """
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    failed = []
    for name in phases or LIMITS:
        phase = phase_of(name, out, deadline, smoke=smoke)
        if name == "trace" and failed:
            first = phase_of(failed[0], out, deadline, smoke=smoke)
            run(Phase(f"{first.name}, older runner", first.command, first.limit_s, OLD_RUNNER), out)
        elif not run(phase, out) and name in RETRIED:
            failed.append(name)
    return 0


def phase_of(name: str, out: Path, deadline: float, *, smoke: bool) -> Phase:
    command = [sys.executable, "-m", "benchmarks.gpu_session.phases", name, str(out), *(["--smoke"] if smoke else [])]
    left_s = deadline - time.monotonic()
    return Phase(name, command, left_s if smoke else min(LIMITS[name], left_s))  # a test's machine may be busy


def run(phase: Phase, out: Path) -> bool:
    """Run a phase to its end or its limit, note what became of it, and return whether it ended well."""
    results, began = out / "results.jsonl", time.monotonic()
    if phase.limit_s < LEAST_S:
        note(results, phase.name, error=f"not begun: {max(phase.limit_s, 0):.0f} s are left")
        return False
    with (out / "log.txt").open("ab") as log:
        log.write(f"\n=== {phase.name}\n".encode())
        log.flush()
        start = log.tell()
        error = outcome(phase, results, log.fileno())
    seconds = round(time.monotonic() - began, 1)
    if error is None:
        note(results, phase.name, ended="well", seconds=seconds)
    else:
        note(results, phase.name, error=error, seconds=seconds, said=last_line(out / "log.txt", start))
    return error is None


def outcome(phase: Phase, results: Path, log: int) -> str | None:
    """Run the process of a phase, end all that it started, and return in which way it failed."""
    path = [str(SITE), str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # as `train.py` has it
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # a GPU where it is missing ends vLLM's newer runner
        RESULTS: str(results.resolve()),
        **phase.variables,
    }
    process = subprocess.Popen(
        phase.command,
        cwd=ROOT,
        env=environment,
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = process.wait(phase.limit_s)
    except subprocess.TimeoutExpired:
        return f"not done after {phase.limit_s:.0f} s"
    finally:
        end_session(process.pid)
        process.wait()
    if status < 0:
        return f"killed by signal {-status}"  # 9: the host's memory was used up, or somebody wanted it
    return f"exit status {status}" if status else None


def end_session(leader: int) -> None:
    """Kill all processes of a session, and wait until they are gone, for the next phase needs what they hold.

    A server of Ray that has left the session dies with the process that started it.
    """
    deadline = time.monotonic() + DYING_S
    while (members := members_of(leader)) and time.monotonic() < deadline:
        for member in members:
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        time.sleep(0.01)


def members_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            text = (directory / "stat").read_text(encoding="utf-8", errors="replace")
            state, _, _, of = text.rpartition(") ")[2].split()[:4]
            if int(of) == session and state not in "ZX":
                found.append(int(directory.name))
    return found


def note(results: Path, phase: str, **figures: object) -> None:
    """Append a line to the results, and say it."""
    line = json.dumps({"phase": phase, **figures})
    with results.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line, flush=True)


def last_line(log: Path, start: int) -> str:
    """Return the last line of what a phase said."""
    said = log.read_bytes()[start:].decode(errors="replace").strip()
    return said.rpartition("\n")[2][:WORDS]


def unpack(part: Path) -> int:
    """Unpack a part beside those that came before it."""
    SITE.mkdir(parents=True, exist_ok=True)
    for file in sorted(part.iterdir()):
        if file.suffix == ".xz":
            target = SITE / file.name.removesuffix(".xz").replace("+", "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            with lzma.open(file, "rb") as source, target.open("wb") as whole:
                shutil.copyfileobj(source, whole, 2**20)
        elif file.suffix == ".txz":
            directory = {"companions.txz": MODEL, "screens.txz": SCREENS}.get(file.name, SITE)
            directory.mkdir(parents=True, exist_ok=True)
            with tarfile.open(file) as archive:
                archive.extractall(directory, filter="data")
        elif file.suffix == ".json":
            shutil.copy(file, SITE.parent)
    if wheels := sorted(map(str, part.glob("wheels/*.whl"))):
        words = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(SITE)]
        subprocess.run([sys.executable, "-m", "pip", *words, *wheels], check=True)
    return 0
