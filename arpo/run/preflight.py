"""The check of what a run needs and this machine lacks, before anything starts."""

import logging
import os
import re
import shutil
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from configparser import Error as SettingsError
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

from arpo.errors import ConfigError, EnvError
from arpo.host.containers import ask_engine
from arpo.host.environment import cluster_address
from arpo.host.machine import SLOW, Budget, Resources, kvm_trouble

log = logging.getLogger(__name__)

ENGINE_TIMEOUT_S = 3.0
"""For each of the three questions that an engine is asked: a refusal comes within ten seconds."""
LAPTOP = "On a laptop, `python train.py experiment=arpo_miniwob` trains a tiny policy on real web pages."
SILENT = ("offline", "disabled", "dryrun")
"""Values of WANDB_MODE with which nothing is sent."""
CREDENTIALS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_DISABLED")
WANDB = "https://api.wandb.ai"
DRIVER = Path("/proc/driver/nvidia/version")
LEAST_DRIVER = {"12": 525, "13": 580}
"""The oldest driver for each major version of CUDA."""


def preflight(requires: Mapping[str, object], model_path: str | Path | None) -> None:
    """Check what `requires` names; say everything that is missing at once.

    Args:
        requires: `gpus` (at least so many), `docker` (an engine that answers) with an `image`, `kvm` (that runs a
            virtual machine), `budget` (of `arpo.host.machine.Budget`), `files` (paths by what they are), and
            `node_files` (those that desktops need). In a Ray cluster (`RAY_ADDRESS`), what desktops need is the
            business of other nodes.
        model_path: Directory of the checkpoint; empty where nobody said; None where the run writes it itself.
    """
    missing = missing_here(requires, model_path)
    if missing:
        lines = "\n".join(f"  - {line}" for line in missing)
        raise ConfigError(f"this run cannot start here:\n{lines}\n{LAPTOP}")


def missing_here(requires: Mapping[str, object], model_path: str | Path | None) -> list[str]:
    """Return a line for each thing that a run needs and this machine lacks; the arguments are those of `preflight`."""
    with ThreadPoolExecutor() as threads:  # engine and KVM answer late when they are ill
        on_nodes = [threads.submit(check, requires) for check in (_missing_desktops, _missing_kvm)]
        return [
            *_missing_gpus(requires),
            *(line for lines in on_nodes for line in lines.result()),
            *_missing_files(requires, "files"),
            *_missing_files(requires, "node_files"),
            *_missing_model(model_path),
        ]


def _missing_gpus(requires: Mapping[str, object]) -> list[str]:
    wanted = int(str(requires.get("gpus", 0)))
    if not wanted:
        return []
    found = count_gpus()
    trouble = _driver_trouble(found)
    if trouble is None and found < wanted:
        trouble = "use a machine with more of them, or look at CUDA_VISIBLE_DEVICES"
    lines = [f"it needs {wanted} NVIDIA GPU(s), and torch sees {found}: {trouble}"] if trouble else []
    return [*lines, *missing_compiler()]


def _driver_trouble(found: int) -> str | None:
    """Return why torch computes on none of the GPUs that it has found: it counts them all, because the driver does."""
    try:
        driver = re.search(r"\s(\d{3,})\.[\d.]+\s", DRIVER.read_text(encoding="utf-8"))
    except OSError:
        driver = None
    if driver is None:
        return None if found else "use a GPU machine and the CUDA requirements"
    import torch

    if torch.version.cuda is None:
        return "its torch is built for CPUs, run `make setup` on this machine"
    least = LEAST_DRIVER.get(torch.version.cuda.partition(".")[0], 0)
    if int(driver[1]) >= least:
        return None
    return f"torch's CUDA {torch.version.cuda} needs the driver {least} or newer, and this one is {driver[0].strip()}"


def missing_compiler() -> list[str]:
    """Return what the compilers of kernels lack, of vLLM and torch: they find it out minutes after the start."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    compiler = any(map(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "clang")))
    lines = {
        "it needs a C compiler, by which kernels are built, and finds none: install gcc": compiler,
        f"it needs Python's headers, and there is no {headers}: install python3-dev": headers.exists(),
    }
    return [line for line, there in lines.items() if not there]


def count_gpus() -> int:
    """Return how many GPUs torch can use; where there is no driver, torch need not be imported to know."""
    if shutil.which("nvidia-smi") is None and not Path("/proc/driver/nvidia").exists():
        return 0
    import torch

    return torch.cuda.device_count()


def smallest_gpu_gib() -> float | None:
    """Return the memory of the smallest GPU here in GiB, None where there is none."""
    count = count_gpus()
    if count == 0:
        return None
    import torch

    return min(torch.cuda.get_device_properties(index).total_memory for index in range(count)) / 2**30


def _missing_desktops(requires: Mapping[str, object]) -> list[str]:
    """Ask the engine, then look for room on the disk that it names."""
    if _desktops_elsewhere():
        return []
    directory, missing = Path("/"), []
    if requires.get("docker"):
        image = str(requires.get("image") or "")
        try:
            engine = ask_engine(image, ENGINE_TIMEOUT_S)
        except EnvError as error:
            missing.append(f"it needs a Docker engine: {error}; install or start one, and let this user talk to it")
        else:
            directory = engine.directory
            missing += [] if engine.labels is not None or not image else [_missing_image(image)]
    return missing + _missing_room(requires.get("budget"), directory)


def _missing_image(image: str) -> str:
    where = f"docker/build_image.sh builds ours, `docker pull {image}` gets others"
    return f"it needs the image {image}, which the Docker engine does not have: {where}"


def _missing_room(numbers: object, engine_directory: Path) -> list[str]:
    if not isinstance(numbers, Mapping):
        return []
    budget, here = Budget(**numbers), Resources.here(engine_directory)
    log.info("%s", budget.table(here))
    return budget.trouble(here)


def _missing_kvm(requires: Mapping[str, object]) -> list[str]:
    if not requires.get("kvm") or _desktops_elsewhere():
        return []
    trouble = kvm_trouble()
    return [f"it needs KVM, and {trouble}; {SLOW}"] if trouble else []


def _desktops_elsewhere() -> bool:
    """Return whether the desktops run on the nodes of a cluster, which this machine need not be one of."""
    return bool(cluster_address())


def _missing_files(requires: Mapping[str, object], key: str) -> list[str]:
    files = requires.get(key) or {}
    assert isinstance(files, Mapping)
    elsewhere = key == "node_files" and _desktops_elsewhere()
    return [
        f"it needs {what}" + ("" if path is None else f", and there is nothing at {path}")
        for what, path in files.items()
        if path is None or not (elsewhere or Path(str(path)).exists())
    ]


def _missing_model(path: str | Path | None) -> list[str]:
    if path is None or (Path(path) / "config.json").exists():
        return []
    problem = f"{path} has no config.json" if str(path) else "nobody said where"
    return [
        f"it needs a checkpoint, and {problem}: set model.path to the directory of one, such as a download "
        "of UI-TARS-1.5-7B, or `policy` in the folder of a warm start (experiment=warmstart_miniwob)"
    ]


def missing_login(environ: Mapping[str, str], home: Path, folder: Path) -> str | None:
    """Return the host of Weights & Biases at which nobody is logged in; None where somebody is, or nothing is sent.

    wandb itself finds out after the warm start. The places are those where wandb 0.31 looks: variables, its settings,
    and the netrc file that `wandb login` writes.

    Args:
        environ: The variables.
        home: The person's folder.
        folder: The one where the run is started.
    """
    settings = _settings(Path(environ.get("WANDB_CONFIG_DIR") or home / ".config" / "wandb"), folder / "wandb")
    mode = environ.get("WANDB_MODE") or settings.get("mode")
    if mode in SILENT or any(environ.get(name) for name in CREDENTIALS) or "api_key" in settings:
        return None
    host = urlsplit(environ.get("WANDB_BASE_URL") or settings.get("base_url") or WANDB).netloc
    known = _logins(environ, home)
    return None if host in known or "default" in known else host


def _settings(*folders: Path) -> dict[str, str]:
    parser = ConfigParser(interpolation=None)
    try:
        parser.read([folder / "settings" for folder in folders])
    except (SettingsError, UnicodeDecodeError):
        return {}
    return dict(parser["default"]) if "default" in parser else {}


def _logins(environ: Mapping[str, str], home: Path) -> frozenset[str]:
    named = environ.get("NETRC")
    for path in [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]:
        try:
            return frozenset(netrc(str(path)).hosts)
        except FileNotFoundError:
            continue
        except (OSError, NetrcParseError):
            break
    return frozenset()
