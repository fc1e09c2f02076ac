"""Put the policy of a warm start into the code: `python experiments/warmstarts/pack.py outputs/NAME/default`."""

import argparse
import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.host.files import atomically  # noqa: E402
from arpo.run.warmstart import MADE, WEIGHTS  # noqa: E402


def pack(run: Path, directory: Path) -> None:
    """Round the policy of a finished warm start to float16, and write beside it how it was made.

    Raises:
        ValueError: If it has not ended, was made by code that no commit has, or by other words than its experiment.
    """
    if run.resolve().name != "default":
        raise ValueError(f"{run} has overrides: what comes with the code is made by the experiment as it stands")
    start = json.loads((run / "run.json").read_text(encoding="utf-8"))["starts"][-1]
    if start["status"] != "finished" or start["git"]["dirty"]:
        raise ValueError(
            f"{run} is {start['status']}, of a tree that is {'not ' * (not start['git']['dirty'])}changed"
        )
    with atomically(directory) as partial:
        shutil.copytree(run / "policy", partial)
        half = {name: tensor.half() for name, tensor in load_file(partial / WEIGHTS).items()}
        save_file(half, partial / WEIGHTS, {"format": "pt"})
        made = {"command": " ".join(start["command"]), "commit": start["git"]["commit"], "machine": start["machine"]}
        (partial / MADE).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of its results")
    run = parser.parse_args().run
    to = HERE / run.resolve().parent.name
    try:
        pack(run, to)
    except (OSError, ValueError, LookupError) as error:
        parser.error(f"nothing was packed: {error}")
    print(f"{to} has the policy of {run}")
