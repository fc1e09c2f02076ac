"""Prepare this clone: a virtual environment with the pinned requirements, and Chromium.

`make setup` runs it, and so do `make train` and `make test`. It needs a Python with venv and pip; uv, which it fetches
first, does the rest. A second call sees its stamp and ends in a fraction of a second.

    python3 tools/setup.py            # make the environment, or complete it
    python3 tools/setup.py lock       # write requirements/cpu.lock anew from requirements.txt

ARPO_DEVICE=cpu or =cuda overrules what `nvidia-smi` says, for a login node without the GPUs of its cluster.
"""

import ast
import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

log = logging.getLogger("setup")

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements.txt"
CPU_LOCK = ROOT / "requirements" / "cpu.lock"
SHIM = ROOT / "tools" / "cpu_torch_shim.py"
NOT_ON_CPU = ("triton", "torchaudio", "torchcodec")
"""Nothing on a CPU runs them, and triton alone is 1 GB."""
MUST_IMPORT = "torch, torchvision, transformers, lightning, ray, vllm, tensorboard"

CHROMIUM_PACKAGES = ("chromium-headless-shell", "chromium")
"""The first that the distribution has: the headless shell needs half the time and memory of the whole browser."""
FONT_PACKAGES = ("fonts-dejavu-core", "fonts-liberation")  # pages without fonts are empty boxes

UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_OFFLINE",  # nothing but the wheels of `find-links`
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""The names that uv has for options of pip."""
PROGRESS_S = 5.0

CPU_INDEX_HINT = """
torch's CPU wheels are not on the package index that pip is configured with. Name PyTorch's CPU wheel index
(its address is on pytorch.org/get-started) and call again:
    PIP_EXTRA_INDEX_URL=<that index> make setup"""


class SetupError(Exception):
    """Raised when this machine cannot be prepared; the message says what to do."""


def device_of_this_machine() -> str:
    """Return `cuda` where an NVIDIA driver answers, else `cpu`."""
    asked = os.environ.get("ARPO_DEVICE", "")
    if asked not in ("", "cpu", "cuda"):
        raise SetupError(f"ARPO_DEVICE is {asked!r}; it may be cpu or cuda, or unset to ask nvidia-smi")
    if asked:
        return asked
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, encoding="utf-8", check=False)
    return "cuda" if listed.returncode == 0 and "GPU" in listed.stdout else "cpu"


def requirement_lines(text: str, device: str) -> list[str]:
    """Return the requirements of one device in a requirements file, without comments and without the device marker."""
    lines = []
    for line in text.splitlines():
        requirement, _, marker = line.split("#")[0].partition(";")
        only = re.fullmatch(r'extra (==|!=) "cuda"', marker.strip())
        if requirement.strip() and (only is None or (only[1] == "==") == (device == "cuda")):
            lines.append(requirement.strip())
    return lines


def uv_settings(listing: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that leads uv where pip looks for packages: uv does not read pip's configuration.

    Args:
        listing: What `pip config list` prints: `global.index-url='…'`, or `:env:.` for a variable.
        environment: That of the caller; what it tells uv itself stays.
    """
    told = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip does: the best version of all indexes
    for section in ("global", "install", ":env:"):
        for line in listing.splitlines():
            name, _, value = line.removeprefix(f"{section}.").partition("=")
            if line.startswith(f"{section}.") and name in UV_NAMES:
                separator = "," if name == "find-links" else " "
                told[UV_NAMES[name]] = separator.join(ast.literal_eval(value).split())
    return {**told, **environment}


def call(log_path: Path, what: str, *command: str | Path, environment: Mapping[str, str] = os.environ) -> None:
    """Run a command in the root of this clone, its output in a log, and say every few seconds how far it is.

    Raises:
        SetupError: If it fails, with the end of its output.
    """
    started = time.monotonic()
    log.info("setup: %s", what)
    with log_path.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=PROGRESS_S)
                except subprocess.TimeoutExpired:
                    said = log_path.read_text(errors="replace", encoding="utf-8").splitlines()[-1:]
                    log.info("setup: %s, %.0f s  %s", what, time.monotonic() - started, "".join(said).strip())
        finally:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        end = "\n".join(log_path.read_text(errors="replace", encoding="utf-8").splitlines()[-12:])
        hint = CPU_INDEX_HINT if re.search(r"there is no version of torch==|torch was not found", end) else ""
        raise SetupError(f"{what} failed; the whole output is in {log_path}, it ends with\n{end}{hint}")


class Environment:
    """A virtual environment that is made once; a stamp says that it is whole."""

    def __init__(self, path: Path, device: str, inputs: Sequence[Path]) -> None:
        """Belongs to one device; `inputs` are the files that decide what is installed."""
        self.path = path
        self.device = device
        self.inputs = inputs
        self.python = path / "bin" / "python"
        self.stamp = path / "setup.stamp"
        self.log_path = path / "setup.log"

    def fingerprint(self) -> str:
        """Return the device, and a digest of whatever else decides what is installed."""
        digest = hashlib.sha256()
        for file in (self.path / "pyvenv.cfg", *self.inputs, Path(__file__)):
            digest.update(file.read_bytes())
        return f"{self.device} {digest.hexdigest()}"

    def is_complete(self) -> bool:
        """Return whether an earlier call ended well and nothing that it depends on has changed."""
        return (
            self.python.exists()
            and self.stamp.exists()
            and self.stamp.read_text(encoding="utf-8") == self.fingerprint()
        )

    def ensure(self, install: Callable[["Environment"], None]) -> None:
        """Let `install` put in what is missing and try it, and write the stamp last."""
        if self.is_complete():
            return
        started = time.monotonic()
        self.create()
        install(self)
        self.stamp.write_text(self.fingerprint(), encoding="utf-8")
        log.info("setup: %s is ready after %.0f s", self.path, time.monotonic() - started)

    def create(self) -> None:
        """Make the environment, unless a whole one for this device is there: an interrupted call leaves no stamp."""
        whole = (
            self.python.exists()
            and self.stamp.exists()
            and self.stamp.read_text(encoding="utf-8").startswith(f"{self.device} ")
        )
        self.stamp.unlink(missing_ok=True)
        if whole:
            return
        command = (sys.executable, "-m", "venv", "--clear", self.path)
        made = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        if made.returncode != 0:
            raise SetupError(
                f"{sys.executable} cannot make a virtual environment:\n{made.stdout}{made.stderr}"
                "On Debian and Ubuntu: sudo apt-get install python3-venv"
            )

    def uv(self, what: str, *arguments: str | Path) -> None:
        """Run a command of `uv pip` for this environment, with pip's configuration."""
        pip: list[str | Path] = [self.python, "-m", "pip", "--no-input", "--disable-pip-version-check"]
        (uv,) = [
            line
            for line in requirement_lines(REQUIREMENTS.read_text(encoding="utf-8"), "cpu")
            if line.startswith("uv==")
        ]
        call(self.log_path, "fetching uv", *pip, "install", uv)
        listing = subprocess.run([*pip, "config", "list"], capture_output=True, encoding="utf-8", check=True).stdout
        command = (self.path / "bin" / "uv", "pip", *arguments, "--python", self.python)
        call(self.log_path, what, *command, environment=uv_settings(listing, os.environ))

    def lock(self, requirements: Path, lock: Path, *options: str) -> None:
        """Resolve requirements into a lock; versions that it has already stay where they fit."""
        if not self.python.exists():
            self.create()
        self.uv("resolving", "compile", requirements, "--output-file", lock, "--no-header", "--no-annotate", *options)
        log.info("setup: wrote %s", lock)


def install(environment: Environment) -> None:
    """Install everything that ARPO imports: the lock or, for CUDA, what uv resolves. Import what is heavy once."""
    if environment.device == "cpu":
        environment.uv("installing the CPU set", "install", "--no-deps", "--requirements", CPU_LOCK)
    else:
        wanted = requirement_lines(REQUIREMENTS.read_text(encoding="utf-8"), "cuda")
        environment.uv("installing the CUDA set", "install", *wanted)
    (site_packages,) = environment.path.glob("lib/python3.*/site-packages")
    shutil.copy(SHIM, site_packages / SHIM.name)  # it acts only where torch is a CPU build
    (site_packages / f"{SHIM.stem}.pth").write_text(f"import {SHIM.stem}\n", encoding="utf-8")
    test = (environment.python, "-I", "-c", f"import {MUST_IMPORT}")
    call(environment.log_path, "importing the heavy packages once", *test)


def ensure_chromium(log_path: Path) -> None:
    """Look for the Chromium that MiniWoB++ will find; where there is none, install it if we may, else say how."""
    sys.path.insert(0, str(ROOT))
    from arpo.envs.web import find_chromium  # it imports the standard library only
    from arpo.errors import ConfigError

    try:
        find_chromium()
    except ConfigError as absence:
        if os.geteuid() != 0 or not shutil.which("apt-get") or os.environ.get("ARPO_CHROMIUM"):
            log.warning("setup: %s; MiniWoB++ needs it, everything else runs without", absence)
            return
        install = f"apt-get install -y -qq --no-install-recommends {' '.join(FONT_PACKAGES)}"
        script = "apt-get update -qq; " + " || ".join(f"{install} {package}" for package in CHROMIUM_PACKAGES)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        try:
            call(log_path, "installing Chromium", "sh", "-c", script, environment=environment)
        except SetupError as error:
            log.warning("setup: %s", error)


def run(*, lock: bool) -> None:
    """Make the environment that ARPO runs in, with Chromium, or write its lock."""
    environment = Environment(ROOT / ".venv", device_of_this_machine(), (REQUIREMENTS, CPU_LOCK, SHIM))
    if lock:
        environment.lock(REQUIREMENTS, CPU_LOCK, *(f"--no-emit-package={name}" for name in NOT_ON_CPU))
    else:
        environment.ensure(install)
        ensure_chromium(environment.log_path)


def check_call(arguments: Sequence[str]) -> None:
    """Refuse another system, an old Python and unknown arguments."""
    if sys.platform != "linux" or sys.version_info < (3, 11):
        raise SetupError(f"ARPO needs Linux and Python 3.11 or newer; this is {sys.platform}, Python {sys.version}")
    if list(arguments) not in ([], ["lock"]):
        raise SetupError(f"unknown arguments {' '.join(arguments)!r}; allowed is nothing, or: lock")


def main(run: Callable[..., None], arguments: Sequence[str]) -> int:
    """Do what the command line asks, alone in this clone, and return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        check_call(arguments)
        with Path(__file__).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # two `make` calls in one clone must not install into each other
            run(lock=bool(arguments))
    except SetupError as error:
        log.error("setup: %s", error)  # noqa: TRY400  a person reads this; a traceback would not help them
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(run, sys.argv[1:]))
