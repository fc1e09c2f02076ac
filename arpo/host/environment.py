"""The heritage of this process: an encoding, which is always UTF-8, and the variables that can change a run."""

import gc
import io
import os
import re
import socket
import sys
from collections.abc import Mapping

from arpo.errors import ConfigError

NAMES = re.compile(
    r"(?:ARPO|ATEN|CUBLAS|CUDA|DNNL|DOCKER|GLOO|GOTO|HF|HYDRA|KMP|LC|LIGHTNING|MALLOC|MASTER|MKL|NCCL|NUMEXPR|NVIDIA"
    r"|OMP|ONEDNN|OPENBLAS|PL|PYTHON|PYTORCH|RAY|SAFETENSORS|SLURM|TOKENIZERS|TORCH|TORCHELASTIC|TORCHINDUCTOR"
    r"|TRANSFORMERS|TRITON|VLLM|WANDB)_?[A-Za-z0-9_]*"
    r"|LANG|LANGUAGE|LD_LIBRARY_PATH|LD_PRELOAD|LOCAL_RANK|NODE_RANK|RANK|TMPDIR|TZ|WORLD_SIZE"
    r"|(?:ALL|FTP|HTTP|HTTPS|NO)_PROXY|(?:all|ftp|http|https|no)_proxy"
)
"""Variables that libraries of ours read: threads, devices, kernels, caches, seeds of hashes, the locale, the zone,
proxies and the cluster."""
SECRET = re.compile(r"TOKEN(?!IZERS)|KEY|SECRET|PASS|PWD|AUTH|CREDENTIAL|COOKIE", re.IGNORECASE)
"""Parts of the names of variables whose values are shown nowhere."""
ASSIGNED = re.compile(rf"(?:{SECRET.pattern})\w*[\"']?\s*[=:]", re.IGNORECASE)
"""A secret by its name inside of a value: the query of an address, a mapping in JSON."""
ISSUED = re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|xox[a-z]-|AKIA|eyJ)[A-Za-z0-9_.-]{12,}")
"""Tokens that are known by how they begin: of Hugging Face, OpenAI, GitHub, Slack, AWS, and any JSON web token."""
HIDDEN = "(hidden)"
CONNECT_S = 3.0
OBJECTS = 20_000
"""New objects at which garbage is collected. At Python's 700, imports of millions are searched in vain for seconds."""
OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder of this code."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can change a run, sorted; values that are secrets are hidden."""
    return {name: _shown(name, environ[name]) for name in sorted(environ) if NAMES.fullmatch(name)}


def _shown(name: str, value: str) -> str:
    """Return a value without its secrets: a token, or all before the last `@`, but for the scheme of an address."""
    if SECRET.search(name) or ASSIGNED.search(value) or ISSUED.search(value):
        return HIDDEN
    before, at, after = value.rpartition("@")
    scheme = re.match(r"[a-z0-9+]*://|", before, re.IGNORECASE)
    return f"{scheme[0] if scheme else ''}{HIDDEN}@{after}" if at else value


def cluster_address() -> str:
    """Return the cluster that `RAY_ADDRESS` names; empty where this process starts a Ray of its own."""
    address = os.environ.get("RAY_ADDRESS", "").strip()
    return "" if address == "local" else address


def check_cluster(timeout_s: float = CONNECT_S) -> None:
    """Check that something listens where `RAY_ADDRESS` says that a cluster is; Ray itself would try for minutes."""
    address = cluster_address()
    if address in ("", "auto"):  # Ray knows by a file of this machine whether there is one
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    problem = "is no HOST:PORT"
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except (OSError, OverflowError, UnicodeError) as error:
            problem = f"leads to no Ray cluster: {error}"
        else:
            return
    raise ConfigError(
        f"the variable RAY_ADDRESS={address} {problem}; start the cluster, mend the variable, or `unset RAY_ADDRESS` "
        "for a Ray of this run's own"
    )


def set_up_process() -> None:
    """Set, at the start of a program, what the host must not decide; children inherit it.

    Our own files name their encoding. The names of files, the command line, standard output and what libraries read
    have that of the locale: without UTF-8, a Chinese word would become another one, or an error.
    """
    gc.set_threshold(OBJECTS)
    spare_loopback()
    find_package()
    os.environ["PYTHONUTF8"] = "1"
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def find_package() -> None:
    """Find modules in the folder that a program starts in, behind all others; where it has a `conf/`, children do too.

    So an environment, a method or an agent of its own is imported from there, here and in workers, as in our folder.
    Children look there before all else, and so only where no file such as `types.py` would hide a module of Python.
    """
    here = os.path.abspath(os.curdir) if os.path.isdir(os.curdir) else OURS
    if here == OURS:
        return
    if here not in sys.path:
        sys.path.append(here)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    python = {f"{name}.py" for name in sys.stdlib_module_names}
    if os.path.isdir(os.path.join(here, "conf")) and here not in known and python.isdisjoint(os.listdir(here)):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*known, here)))


def spare_loopback() -> None:
    """Let no proxy stand between this machine and itself: a Docker engine, a guest, a server that a test starts."""
    exempt = f"{os.environ.get('no_proxy', '')},{os.environ.get('NO_PROXY', '')}"  # some read one, some the other
    hosts = list(dict.fromkeys(host.strip() for host in exempt.split(",") if host.strip()))
    missing = [] if "*" in hosts else [host for host in LOOPBACK if host not in hosts]
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join([*hosts, *missing])
