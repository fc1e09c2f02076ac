"""Makes the environments of the harnesses that are tried: `python -m tests.harnesses.make [NAME ...]`, all by default.

Each holds a harness as it is published on PyPI or npm, outside of the repository: in $ARPO_HARNESSES, or in the cache.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
OVERRIDES = Path(__file__).parent / "overrides.txt"
"""What no environment holds, though a package asks for it."""
CACHE = Path(os.environ.get("ARPO_HARNESSES") or Path.home() / ".cache" / "arpo" / "harnesses")


def requirement(name: str) -> Path:
    """Return the file with what an environment holds: packages of PyPI, or those of npm."""
    return next(REQUIREMENTS.glob(f"{name}.*"))


def environment(name: str) -> Path:
    """Return the place of an environment, which is another one for other requirements."""
    return CACHE / f"{name}-{hashlib.sha256(requirement(name).read_bytes()).hexdigest()[:8]}"


def make(name: str) -> None:
    """Make an environment where there is none; one that is begun has another name."""
    place, given = environment(name), requirement(name)
    if place.exists():
        return
    begun = place.with_suffix(".begun")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    if given.suffix == ".json":
        shutil.copy(given, begun / "package.json")
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=begun, check=True)
    else:
        uv = [sys.executable, "-m", "uv"]
        subprocess.run(
            [*uv, "venv", "--relocatable", "--allow-existing", "--python", sys.executable, begun], check=True
        )
        python = begun / "bin" / "python"
        install = [*uv, "pip", "install", "--python", python, "--override", OVERRIDES, "--requirement", given]
        subprocess.run(install, check=True)
    begun.rename(place)


if __name__ == "__main__":
    for each in sys.argv[1:] or sorted(path.stem for path in REQUIREMENTS.iterdir()):
        make(each)
