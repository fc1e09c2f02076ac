"""What the record of an update costs a run: `python benchmarks/update_log.py outputs/arpo_miniwob/default`.

Updates the policy that the run started from with the episodes of one iteration, five times, and counts processor
seconds: those of the whole update, those in which its record is collected and written, and those of the forward after
it. The shares are of the update, and of a whole iteration of the run, of which its metrics.jsonl knows the length: the
iterations of a run with other work beside it are too long. It takes some fifteen seconds of a core.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

# before torch is imported, as in train.py: two OpenMP pools on the same cores wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning as L
import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arpo.apps.run_files import read_files
from arpo.apps.viewer.facts import settings_of
from arpo.methods.grpo import GRPO
from arpo.models.policy import Policy
from arpo.modules.grpo import GRPOModule
from arpo.modules.metrics import UpdateMeter
from arpo.rollout.storage import TrajectoryStore
from arpo.rollout.updates import write_update
from arpo.types import Group, RolloutBatch, Task

TIMES = 5
SPENT: Counter[str] = Counter()


def counted(name, work):
    def wrapped(*args, **kwargs):
        started = time.process_time()
        try:
            return work(*args, **kwargs)
        finally:
            SPENT[name] += time.process_time() - started

    return wrapped


def batch_of(run: Path, iteration: int) -> RolloutBatch:
    store = TrajectoryStore(run / "trajectories")
    groups: dict[str, list] = {}
    for trajectory in store.read("train", iteration):
        groups.setdefault(trajectory.id.rpartition("/")[0], []).append(store.load_screenshots(trajectory))
    made = [Group(Task(members[0].task_id, ""), tuple(members)) for members in groups.values()]
    return RolloutBatch(iteration, iteration, made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--iteration", type=int, default=10)
    asked = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    files = read_files(asked.run)
    model = settings_of(files.config, asked.run).model
    if model is None:
        parser.error(f"the policy that {asked.run} started from is not where its config.yaml says")
    torch.set_num_threads(files.config["threads"])
    iteration_s = statistics.median(line["time/iteration"] for line in files.metrics if line.get("time/iteration"))
    batch = batch_of(asked.run, asked.iteration)
    UpdateMeter.note = counted("record", UpdateMeter.note)
    UpdateMeter.read = counted("record", UpdateMeter.read)
    UpdateMeter.record = counted("record", UpdateMeter.record)
    GRPOModule._measure_after = counted("after", GRPOModule._measure_after)
    GRPOModule.training_step = counted("update", GRPOModule.training_step)
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(TIMES):
            module = GRPOModule(lambda: Policy(model), partial(torch.optim.AdamW, lr=3e-4), GRPO())
            module.measures_after = True
            trainer = L.Trainer(
                accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False,
                enable_model_summary=False, enable_checkpointing=False,
            )  # fmt: skip
            trainer.fit(module, DataLoader([batch], batch_size=None))
            write = counted("write", lambda made: write_update(Path(scratch), made.last_update))
            write(module)
    spent = {name: seconds / TIMES for name, seconds in SPENT.items()}
    always, after = spent["record"] + spent["write"], spent["after"]
    update = spent["update"] - after
    print(f"an update takes {update:.3f} s of processor time, an iteration of the run took {iteration_s:.2f} s")
    for what, seconds, times in (
        ("record and file", always, 1),
        ("the forward after it, every tenth time", after, 10),
    ):
        shares = f"{seconds / times / update:.1%} of an update, {seconds / times / iteration_s:.2%} of an iteration"
        print(f"{what}: {1000 * seconds:.1f} ms, {shares}")


if __name__ == "__main__":
    main()
