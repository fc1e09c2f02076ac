"""What stands around a fit."""

from types import SimpleNamespace

from omegaconf import OmegaConf

from arpo.callbacks.checkpoint import AtomicCheckpointIO
from arpo.callbacks.graceful_stop import GracefulStop
from arpo.run.train import build_trainer, exit_code


def test_a_run_that_a_signal_ended_says_so_to_the_shell():
    stop = GracefulStop()
    trainer = SimpleNamespace(callbacks=[stop])
    assert exit_code(trainer) == 0
    stop.received = 15
    assert exit_code(trainer) == 143


def test_callbacks_that_are_switched_off_are_left_out_and_the_others_keep_their_order(tmp_path):
    cfg = OmegaConf.create(
        {
            "callbacks": {
                "stop": {"_target_": "arpo.callbacks.graceful_stop.GracefulStop"},
                "replay": {"_target_": None, "buffer": {}},
                "nothing": None,
                "timer": {"_target_": "lightning.pytorch.callbacks.Timer"},
            },
            "logger": None,
            "paths": {"run_dir": str(tmp_path)},
            "trainer": {"_target_": "lightning.Trainer", "enable_checkpointing": False, "enable_progress_bar": False},
        }
    )
    trainer = build_trainer(cfg, None)
    names = [type(callback).__name__ for callback in trainer.callbacks]
    assert names[:2] == ["GracefulStop", "Timer"]
    assert "ReplayInjection" not in names
    assert isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO)
