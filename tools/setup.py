"""Prepare this clone: a virtual environment with the pinned requirements, and Chromium.

`make setup` runs it, and so do `make train` and `make test`. It needs the standard library only. A second call sees
its stamp and ends in a fraction of a second; an interrupted call is taken up where it ended.

    python3 tools/setup.py            # make the environment, or complete it
    python3 tools/setup.py lock       # write requirements/cpu.lock anew from requirements.txt

ARPO_DEVICE=cpu or =cuda overrules what `nvidia-smi` says, for a login node without the GPUs of its cluster.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("setup")

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements.txt"
CPU_LOCK = ROOT / "requirements" / "cpu.lock"
SHIM = ROOT / "tools" / "cpu_torch_shim.py"

CHROMIUM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM_PACKAGES = ("chromium-headless-shell", "chromium")
"""The first that the distribution has: the headless shell needs half the time and memory of the whole browser."""
FONT_PACKAGES = ("fonts-dejavu-core", "fonts-liberation")  # pages without fonts are empty boxes

FILES_ONLY = ("miniwob", "ui-tars")
"""Installed without their dependencies: of the first we read the pages, of the second one parser in a test."""
NOT_IN_LOCK = ("pip", "wheel", "triton", "torchaudio", "torchcodec")
"""Nothing on a CPU runs them, and triton alone is 1 GB."""
MUST_IMPORT = "torch, torchvision, transformers, lightning, ray, vllm, tensorboard"

CPU_INDEX_HINT = """\
torch's CPU wheels are not on the default package index. Name PyTorch's CPU wheel index
(its address is on pytorch.org/get-started) and call again:
    PIP_EXTRA_INDEX_URL=<that index> make setup"""
CHROMIUM_HINT = """\
Chromium was not found; MiniWoB++ needs it, everything else runs without. Install it:
    sudo apt-get install chromium-headless-shell
or name an executable: export ARPO_CHROMIUM=/path/to/chrome"""


class SetupError(Exception):
    """Raised when this machine cannot be prepared; the message says what to do."""


def device_of_this_machine() -> str:
    """`cuda` where an NVIDIA driver answers, else `cpu`."""
    asked = os.environ.get("ARPO_DEVICE", "")
    if asked not in ("", "cpu", "cuda"):
        raise SetupError(f"ARPO_DEVICE is {asked!r}; it may be cpu or cuda, or unset to ask nvidia-smi")
    if asked:
        return asked
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "cuda" if listed.returncode == 0 and "GPU" in listed.stdout else "cpu"


def requirement_lines(text: str, device: str) -> list[str]:
    """The requirements of one device in a requirements file, without comments and without the device marker."""
    lines = []
    for line in text.splitlines():
        requirement, _, marker = line.split("#")[0].partition(";")
        only = re.fullmatch(r'extra (==|!=) "cuda"', marker.strip())
        if requirement.strip() and (only is None or (only[1] == "==") == (device == "cuda")):
            lines.append(requirement.strip())
    return lines


def package_of(requirement: str) -> str:
    """The normalised name of the package that a requirement line asks for."""
    name = re.split(r"[\[=<>!~ ;]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


class Environment:
    """One virtual environment: what is in it, and how to get it to what it should be."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self.device = device
        self.python = path / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where packages lie."""
        return next(self.path.glob("lib/python3.*/site-packages"))

    def fingerprint(self) -> str:
        """Changes with anything that decides what is installed: requirements, this script, device and Python."""
        digest = hashlib.sha256(f"{self.device} {(self.path / 'pyvenv.cfg').read_text()}".encode())
        for file in (REQUIREMENTS, CPU_LOCK, SHIM, Path(__file__)):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def is_complete(self) -> bool:
        """Whether an earlier call ended well and nothing that it depends on has changed."""
        stamp = self.path / "setup.stamp"
        return self.python.exists() and stamp.exists() and stamp.read_text() == self.fingerprint()

    def ensure(self) -> None:
        """Install what is missing and write the stamp last."""
        if self.is_complete():
            return
        started = time.monotonic()
        log.info("setup: %s requirements into %s", self.device, self.path)
        (self.path / "setup.stamp").unlink(missing_ok=True)
        self.create()
        forget_interrupted_installs(self.site_packages)
        if self.device == "cuda":
            self.install_resolved(requirement_lines(REQUIREMENTS.read_text(), "cuda"))
        else:
            self.pip("install", "--no-deps", "-r", str(CPU_LOCK), total=len(CPU_LOCK.read_text().splitlines()))
        self.install_shim()
        self.verify()
        partial = self.path / "setup.stamp.tmp"
        partial.write_text(self.fingerprint())
        partial.replace(self.path / "setup.stamp")
        log.info("setup: done in %.0f s", time.monotonic() - started)

    def create(self) -> None:
        """Make the environment, unless a usable one for the same device is there."""
        device_file = self.path / "setup.device"
        if device_file.exists() and device_file.read_text() == self.device and self.has_pip():
            return
        made = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(self.path)], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise SetupError(
                f"{sys.executable} cannot make a virtual environment:\n{made.stdout}{made.stderr}"
                "On Debian and Ubuntu: sudo apt-get install python3-venv"
            )
        device_file.write_text(self.device)

    def has_pip(self) -> bool:
        """Whether the environment's Python starts and finds pip."""
        if not self.python.exists():
            return False
        return subprocess.run([self.python, "-m", "pip", "-V"], capture_output=True, check=False).returncode == 0

    def install_resolved(self, requirements: Sequence[str]) -> None:
        """Let pip resolve the requirements."""
        alone = [line for line in requirements if package_of(line) in FILES_ONLY]
        self.pip("install", *(line for line in requirements if line not in alone), total=190)
        self.pip("install", "--no-deps", *alone, total=190)

    def pip(self, *arguments: str, total: int) -> None:
        """Run pip, its output in `setup.log`, a line of progress every few seconds.

        Raises:
            SetupError: With the end of pip's output.
        """
        log_path = self.path / "setup.log"
        with log_path.open("w") as log_file:
            command = [str(self.python), "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]
            process = subprocess.Popen(command, stdout=log_file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                self.report_until_done(process, log_path, total)
            finally:
                process.terminate()
                process.wait()
        if process.returncode != 0:
            lines = log_path.read_text(errors="replace").splitlines()
            tail = "\n".join(
                [line for line in lines if not line.startswith(("Requirement al", "WARNING: Loc", "Looking"))][-8:]
            )
            hint = f"\n{CPU_INDEX_HINT}" if "No matching distribution found for torch" in tail else ""
            raise SetupError(f"pip failed; the whole output is in {log_path}, it ends with\n{tail}{hint}")

    def report_until_done(self, process: subprocess.Popen[bytes], log_path: Path, total: int) -> None:
        """Say how far pip is: it fetches everything first and then installs everything."""
        started = time.monotonic()
        while True:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                fetched = len(re.findall(r"^(?:Collecting|Processing|Requirement al)", log_path.read_text(), re.M))
                installed = len(list(self.site_packages.glob("*.dist-info")))
                elapsed = time.monotonic() - started
                log.info("setup: %3d fetched, %3d installed of about %d (%.0f s)", fetched, installed, total, elapsed)
            else:
                return

    def install_shim(self) -> None:
        """Put the torchvision fix beside the packages; it acts only where torch is a CPU build."""
        shutil.copy(SHIM, self.site_packages / SHIM.name)
        (self.site_packages / f"{SHIM.stem}.pth").write_text(f"import {SHIM.stem}\n")

    def verify(self) -> None:
        """Import what is heavy once, so that a broken environment shows here and not in a run."""
        log.info("setup: importing the heavy packages once")
        check = subprocess.run(
            [self.python, "-c", f"import {MUST_IMPORT}"], capture_output=True, text=True, check=False, cwd=self.path
        )
        if check.returncode != 0:
            raise SetupError(f"the packages are installed but do not import:\n{check.stderr[-2000:]}")


def forget_interrupted_installs(site_packages: Path) -> None:
    """Remove the metadata of packages whose installation was killed, so that pip installs them again.

    pip writes RECORD last; until then it would take the half-copied package for an installed one.
    """
    for metadata in site_packages.glob("*.dist-info"):
        if not (metadata / "RECORD").exists():
            log.info("setup: %s was interrupted, installing it again", metadata.name)
            shutil.rmtree(metadata)


def find_chromium() -> str | None:
    """The Chromium that MiniWoB++ will use, or None."""
    named = os.environ.get("ARPO_CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


def ensure_chromium() -> None:
    """Find Chromium, else install it where we may, else say how."""
    if find_chromium() is not None:
        return
    if os.geteuid() == 0 and shutil.which("apt-get") and not os.environ.get("ARPO_CHROMIUM"):
        log.info("setup: installing Chromium")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *FONT_PACKAGES]
        subprocess.run(["apt-get", "update", "-qq"], env=environment, stdin=subprocess.DEVNULL, check=False)
        for package in CHROMIUM_PACKAGES:
            subprocess.run([*install, package], env=environment, stdin=subprocess.DEVNULL, check=False)
            if find_chromium() is not None:
                return
    if find_chromium() is None:
        log.warning("%s", CHROMIUM_HINT)


def write_lock() -> None:
    """Resolve requirements.txt in an environment of its own and write what came out to requirements/cpu.lock."""
    environment = Environment(ROOT / ".venv-lock", "cpu")
    environment.create()
    environment.install_resolved(requirement_lines(REQUIREMENTS.read_text(), "cpu"))
    frozen = subprocess.run(
        [environment.python, "-m", "pip", "freeze", "--all"], capture_output=True, text=True, check=True
    ).stdout
    CPU_LOCK.write_text(lock_text(frozen))
    shutil.rmtree(environment.path)
    log.info("setup: wrote %s", CPU_LOCK)


def lock_text(frozen: str) -> str:
    """The lock file for the output of `pip freeze --all`: exact versions, sorted, nothing of this machine."""
    lines = [line.strip() for line in frozen.splitlines() if re.fullmatch(r"[\w.\-]+==[\w.\-+!]+", line.strip())]
    kept = [line for line in lines if package_of(line) not in NOT_IN_LOCK]
    return "".join(f"{line}\n" for line in sorted(kept, key=str.lower))


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock on this file: two `make` calls in one clone must not install into each other."""
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(arguments: Sequence[str]) -> None:
    """Do what the command line asks.

    Raises:
        SetupError: If it cannot be done here.
    """
    if sys.platform != "linux" or sys.version_info < (3, 11):
        raise SetupError(f"ARPO needs Linux and Python 3.11 or newer; this is {sys.platform}, Python {sys.version}")
    if list(arguments) not in ([], ["lock"]):
        raise SetupError(f"unknown arguments {' '.join(arguments)!r}; allowed is nothing, or: lock")
    with one_at_a_time():
        if arguments:
            write_lock()
        else:
            Environment(ROOT / ".venv", device_of_this_machine()).ensure()
            ensure_chromium()


def main() -> int:
    """Run the command line; the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        run(sys.argv[1:])
    except SetupError as error:
        log.error("setup: %s", error)  # noqa: TRY400  a person reads this; a traceback would not help them
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
