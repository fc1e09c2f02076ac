"""The parts in which vLLM, a slim Ray and the published tokenizer reach a rented GPU that has no network.

The machine has Python 3.12 with torch 2.11 for CUDA 13, transformers 5 and Lightning: vLLM 0.26.0 is the newest
release that asks for this torch. Of its compiled code a Hopper needs `_C_stable_libtorch` and FA3 alone.
"""

import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from arpo.apps.plan.command import compose, estimate
from benchmarks.gpu_session.phases import ARCHITECTURE, LOOPS
from benchmarks.gpu_session.published import write_companions

ROOT = Path(__file__).parents[2]
MOST_MIB = 56
"""Of a part: a call carries 64 MiB, and the repository's own files take up to 8 of them."""
SCREENS_MIB = 8
"""Of screenshots: some hundred of our desktops."""
VLLM, RAY = "vllm==0.26.0", "ray==2.60.0"
LEVEL = 5
"""Of xz: 9 saves a hundredth, and takes thrice the time."""
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in (31, 28, 27, 26, 24, 17)), "manylinux2014_x86_64", "any")
NOT_OF_VLLM = (
    "_vllm_fa",
    "_C_stable",
    "_moe_C",
    "_flashmla",
    "_qutlass",
    "vllm-rs",
    "third_party/deep_gemm",
    "fmha_sm100",
)
"""Parts of paths: kernels of other GPUs and of mixtures of experts, and what goes as a file of its own."""
NOT_OF_RAY = tuple(
    f"ray/{name}/" for name in ("jars", "rllib", "serve", "tune", "train", "llm", "data", "cpp", "dashboard/client")
)
OTHER_VERSIONS = {"distro": "1.9.0", "openai-harmony": "0.0.8"}
"""What ours does not want. All others are of `requirements/cpu.lock`, apache-tvm-ffi too, which vLLM 0.26.0 pins to a
version that our xgrammar refuses, for kernels that are not in the parts."""
WHEELS = Path(__file__).parent / "wheels.txt"
SOURCE_ONLY = ("antlr4-python3-runtime",)


def prepare(parts: Path, scratch: Path, screens: Path | None = None) -> int:
    """Make the parts, print their sizes, and return 0 if each can be carried.

    Args:
        parts: Gets the folders `part1` to `part3`; what is there is replaced.
        scratch: Downloads of 380 MB stay here for the next time, and what is in them, 1.0 GB.
        screens: The trajectories of a run, whose screenshots the loops show; None draws desktops.
    """
    vllm, ray = (wheel(name, scratch) for name in (VLLM, RAY))
    shutil.rmtree(parts, ignore_errors=True)
    first, second, third = (parts / f"part{number}" for number in (1, 2, 3))
    for part in (first, second / "wheels", third):
        part.mkdir(parents=True)
    with ThreadPoolExecutor() as threads:  # compression takes longest, and lets go of the interpreter
        jobs = [
            threads.submit(squeeze, vllm, "vllm/_C_stable_libtorch.abi3.so", first),
            threads.submit(squeeze, vllm, "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", third),
            threads.submit(
                pack, vllm, second / "vllm.txz", lambda path: not any(word in path for word in NOT_OF_VLLM)
            ),
            threads.submit(pack, ray, third / "ray.txz", lambda path: not path.startswith(NOT_OF_RAY)),
        ]
        fetch_wheels(second / "wheels")
        if screens is not None:
            pack_screens(screens, third / "screens.txz")
        pack(write_companions(scratch / "companions", architecture()), second / "companions.txz")
        (third / "plan.json").write_text(json.dumps(planned(), indent=1), encoding="utf-8")
        for job in jobs:
            job.result()
    sizes = {part.name: mebibytes(part) for part in (first, second, third)}
    for name, size in sizes.items():
        print(f"{name}: {size:.1f} MiB of {MOST_MIB}")
    return int(max(sizes.values()) > MOST_MIB)


def architecture() -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load(ARCHITECTURE.read_text(encoding="utf-8"))
    return found


def download(directory: Path, *requirements: str) -> None:
    """Get wheels for the machine's Python."""
    directory.mkdir(parents=True, exist_ok=True)
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    python = ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "abi3", "--abi", "none"]
    pip("download", "--no-deps", "--only-binary=:all:", *python, *platforms, "-d", str(directory), *requirements)


def fetch_wheels(directory: Path) -> None:
    locked = (
        dict(
            line.split(";")[0].strip().split("==")
            for line in (ROOT / "requirements" / "cpu.lock").read_text(encoding="utf-8").splitlines()
            if "==" in line and not line.startswith("#")
        )
        | OTHER_VERSIONS
    )
    names = [line for line in WHEELS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    download(directory, *(f"{name}=={locked[name]}" for name in names if name not in SOURCE_ONLY))
    for name in SOURCE_ONLY:
        pip("wheel", "--no-deps", "-w", str(directory), f"{name}=={locked[name]}")


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True)


def wheel(requirement: str, scratch: Path) -> Path:
    """Return the folder with the content of a wheel, which is downloaded unless it is there."""
    name = requirement.partition("==")[0]
    if not (found := list(scratch.glob(f"{name}-*.whl"))):
        download(scratch, requirement)
        found = list(scratch.glob(f"{name}-*.whl"))
    directory = scratch / name
    shutil.rmtree(directory, ignore_errors=True)
    with zipfile.ZipFile(found[0]) as archive:
        archive.extractall(directory)
    return directory


def squeeze(directory: Path, name: str, part: Path) -> None:
    """Compress one file; in the part it has its place for a name, with signs that a name may have."""
    target = part / (name.replace("/", "+") + ".xz")
    with (directory / name).open("rb") as source, lzma.open(target, "wb", preset=LEVEL) as file:
        shutil.copyfileobj(source, file, 2**20)


def pack(directory: Path, target: Path, wanted: Callable[[str], bool] = bool) -> None:
    """Archive the wanted files below a directory, always alike; all may be executed, as some of Ray's must."""
    with tarfile.open(target, "w:xz", preset=LEVEL) as archive:
        for path in files(directory):
            name = path.relative_to(directory).as_posix()
            if wanted(name):
                archive.add(path, name, filter=anonymous)


def pack_screens(trajectories: Path, target: Path) -> None:
    """Archive the first screenshots of a run, by their names, up to `SCREENS_MIB`."""
    room = SCREENS_MIB * 2**20
    with tarfile.open(target, "w:xz", preset=0) as archive:
        for path in sorted(trajectories.rglob("*.png")):
            room -= path.stat().st_size
            if room < 0:
                break
            archive.add(path, path.name, filter=anonymous)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755
    return member


def files(directory: Path) -> Iterable[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def mebibytes(directory: Path) -> float:
    return sum(path.stat().st_size for path in files(directory)) / 2**20


def planned() -> dict[str, dict[str, str]]:
    """Return what `arpo plan` says of the loops, by the loop and the GPU: the machine's torch cannot compute it."""
    found = {}
    for name, words in LOOPS.items():
        for gpu in ("h100-80", "h200-141"):
            plan = estimate(compose([*words, f"gpu={gpu}"]))
            found[f"{name} on {gpu}"] = {what: figure for what, figure, _ in plan.rows()[1:]} | {
                "verdict": plan.verdict()
            }
    return found
