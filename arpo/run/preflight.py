"""The check of what a run needs and this machine lacks, before anything starts."""

import logging
import os
import re
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arpo.errors import ConfigError, EnvError
from arpo.host.containers import ask_engine
from arpo.host.environment import cluster_address
from arpo.host.machine import SLOW, Budget, Resources, kvm_trouble

log = logging.getLogger(__name__)

ENGINE_TIMEOUT_S = 3.0
"""For each of the three questions that an engine is asked: a refusal comes within ten seconds."""
LAPTOP = "On a laptop, `python train.py experiment=arpo_miniwob` trains a tiny policy on real web pages."
DRIVER = Path("/proc/driver/nvidia/version")
LEAST_DRIVER = {"12": 525, "13": 580}


def preflight(requires: Mapping[str, Any], model_path: str | Path | None) -> None:
    """Check what a run requires, and raise everything that is missing as one error; see `missing_here`."""
    if missing := [f"  - {line}" for line in missing_here(requires, model_path)]:
        raise ConfigError("\n".join(["this run cannot start here:", *missing, LAPTOP]))


def missing_here(requires: Mapping[str, Any], model_path: str | Path | None) -> list[str]:
    """Return a line for each thing that a run needs and this machine lacks.

    Args:
        requires: `gpus` (at least so many), `docker` (an engine that answers) with an `image`, `kvm` (that runs a
            virtual machine), `budget` (of `arpo.host.machine.Budget`), `files` (paths by what they are), and
            `node_files` (those that desktops need). In a Ray cluster (`RAY_ADDRESS`), what desktops need is the
            business of other nodes.
        model_path: Directory of the checkpoint; empty where none is set; None where the run writes it itself.
    """
    gpus = _missing_gpus(int(requires.get("gpus") or 0))
    return [*gpus, *_missing_desktops(requires), *_missing_files(requires, model_path)]


def _missing_gpus(wanted: int) -> Iterator[str]:
    if not wanted:
        return
    found = count_gpus()
    trouble = _driver_trouble(found)
    if trouble is None and found < wanted:
        trouble = "use a machine with more of them, or look at CUDA_VISIBLE_DEVICES"
    if trouble:
        yield f"it needs {wanted} NVIDIA GPU(s), and torch sees {found}: {trouble}"
    # The compilers of kernels, vLLM's and torch's, find out minutes after the start what they lack.
    if not any(map(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "clang"))):
        yield "it needs a C compiler, by which kernels are built, and finds none: install gcc"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.exists():
        yield f"it needs Python's headers, and there is no {headers}: install python3-dev"


def _driver_trouble(found: int) -> str | None:
    """Return the reason why torch computes on no GPU, if there is one: it counts those that the driver has."""
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


def count_gpus() -> int:
    """Count the GPUs that torch can use; where there is no driver, torch need not be imported to know."""
    if shutil.which("nvidia-smi") is None and not DRIVER.parent.exists():
        return 0
    import torch

    return torch.cuda.device_count()


def smallest_gpu_gib() -> float | None:
    """Return the memory of the smallest GPU here in GiB, None where there is none."""
    if not (count := count_gpus()):
        return None
    import torch

    return min(torch.cuda.get_device_properties(index).total_memory for index in range(count)) / 2**30


def _missing_desktops(requires: Mapping[str, Any]) -> Iterator[str]:
    """Ask the engine, then look for room on the disk that it names, and for KVM."""
    if cluster_address():
        return
    directory, image = Path("/"), str(requires.get("image") or "")
    if requires.get("docker"):
        try:
            engine = ask_engine(image, ENGINE_TIMEOUT_S)
        except EnvError as error:
            yield f"it needs a Docker engine: {error}; install or start one, and let this user talk to it"
        else:
            directory = engine.directory
            if image and engine.labels is None:
                yield (
                    f"it needs the image {image}, which the Docker engine does not have: docker/build_image.sh builds "
                    f"ours, `docker pull {image}` gets others"
                )
    if requires.get("budget"):
        budget, here = Budget(**requires["budget"]), Resources.here(directory)
        log.info("%s; free here: %s", budget.needs(), here)
        yield from budget.trouble(here)
    if requires.get("kvm") and (trouble := kvm_trouble()):
        yield f"it needs KVM, and {trouble}; {SLOW}"


def _missing_files(requires: Mapping[str, Any], model_path: str | Path | None) -> Iterator[str]:
    for key in ("files", "node_files"):
        elsewhere = key == "node_files" and cluster_address()
        for what, path in (requires.get(key) or {}).items():
            if path is None:
                yield f"it needs {what}"
            elif not elsewhere and not Path(str(path)).exists():
                yield f"it needs {what}, and there is nothing at {path}"
    if model_path is not None and not (Path(model_path) / "config.json").exists():
        problem = f"{model_path} has no config.json" if str(model_path) else "no path is set"
        yield (
            f"it needs a checkpoint, and {problem}: set model.path to the directory of one, such as a download of "
            "UI-TARS-1.5-7B, or `policy` in the folder of a warm start (experiment=warmstart_miniwob)"
        )
