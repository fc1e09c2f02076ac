"""Evaluate a policy: `python evaluate.py experiment=arpo_miniwob checkpoint=...`; see conf/evaluate.yaml."""

import os
import sys

from arpo.host.environment import set_up_process

if __name__ == "__main__":
    set_up_process()

# before torch is imported: two OpenMP pools on the same cores run ten times slower than one thread each
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # vLLM's kernels warn of what they mean to do

import hydra
from omegaconf import DictConfig

from arpo.run.build import register_resolvers
from arpo.run.check import check_evaluation
from arpo.run.entry import explained, start

register_resolvers()


@hydra.main(version_base="1.3", config_path="conf", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Compose, check, run, and leave with an exit code."""
    with explained(cfg):
        check_evaluation(cfg)
        from arpo.run.evaluate import evaluate  # after the check, because it imports torch and Lightning

        if code := evaluate(cfg):
            sys.exit(code)


if __name__ == "__main__":
    start(main)
