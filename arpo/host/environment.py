"""The heritage of this process: an encoding, which is always UTF-8, and the variables that can change a run."""

import io
import os
import re
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit

NAMES = re.compile(
    r"(?:ARPO|ATEN|CUBLAS|CUDA|DNNL|DOCKER|GLOO|GOTO|HF|HYDRA|KMP|LC|LIGHTNING|MALLOC|MASTER|MKL|NCCL|NUMEXPR|NVIDIA"
    r"|OMP|ONEDNN|OPENBLAS|PL|PYTHON|PYTORCH|RAY|SAFETENSORS|SLURM|TOKENIZERS|TORCH|TORCHELASTIC|TORCHINDUCTOR"
    r"|TRANSFORMERS|TRITON|VLLM|WANDB)_?[A-Za-z0-9_]*"
    r"|LANG|LANGUAGE|LD_LIBRARY_PATH|LD_PRELOAD|LOCAL_RANK|NODE_RANK|RANK|TMPDIR|TZ|WORLD_SIZE"
    r"|(?:ALL|FTP|HTTP|HTTPS|NO)_PROXY|(?:all|ftp|http|https|no)_proxy"
)
"""Variables that libraries of ours read: threads, devices, kernels, caches, seeds of hashes, the locale, the zone,
proxies and the cluster."""
SECRET = re.compile(r"TOKEN(?!IZERS)|KEY|SECRET|PASS|AUTH|CREDENTIAL", re.IGNORECASE)
"""Parts of the names of variables whose values are shown nowhere."""
HIDDEN = "(hidden)"


def recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can change a run, sorted; values that are secrets are hidden.

    >>> recorded({"OMP_NUM_THREADS": "1", "HOME": "/home/me", "HF_TOKEN": "hf_123"})
    {'HF_TOKEN': '(hidden)', 'OMP_NUM_THREADS': '1'}
    """
    return {name: _shown(name, environ[name]) for name in sorted(environ) if NAMES.fullmatch(name)}


def _shown(name: str, value: str) -> str:
    """Return a value without what nobody else may read: a token, or the password in an address."""
    if SECRET.search(name):
        return HIDDEN
    try:
        address = urlsplit(value)
    except ValueError:
        return HIDDEN if "@" in value else value
    if "@" not in address.netloc:
        return value
    return address._replace(netloc=f"{HIDDEN}@{address.netloc.rpartition('@')[2]}").geturl()


def speak_utf8() -> None:
    """Start this program again in Python's UTF-8 mode, unless the locale is UTF-8 already; children inherit it.

    Our own files name their encoding. The names of files, the words of the command line, standard output and what
    libraries read have that of the locale: without this, a Chinese word would become another one, or an error. What a
    terminal cannot show is escaped.
    """
    os.environ["PYTHONUTF8"] = "1"
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
