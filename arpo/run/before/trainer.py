"""The check that no option of Lightning's trainer is set that a run ignores, or that ends it after its start."""

from omegaconf import DictConfig

from arpo.errors import ConfigError

_CLIP = "module.max_grad_norm bounds the norm of a gradient"
_LENGTH = "iterations says how long a run is, and datamodule what an iteration has"
_EVALUATION = "callbacks.evaluation.every_n_iterations says when a policy is evaluated, not by Lightning"
INSTEAD = {
    "gradient_clip_val": _CLIP,
    "gradient_clip_algorithm": _CLIP,
    "accumulate_grad_batches": "module.micro_batch_tokens bounds the memory of a forward, whose gradients add up, and "
    "module.minibatches, where there are rollouts, says how many optimizer steps an iteration has",
    **dict.fromkeys(("max_steps", "min_steps", "min_epochs", "limit_train_batches", "overfit_batches"), _LENGTH),
    "fast_dev_run": "iterations=1 is the shortest run, and `python -m arpo rehearse` makes a small one",
    "reload_dataloaders_every_n_epochs": "the data module goes on from where it was",
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch", "limit_val_batches"), _EVALUATION),
    **dict.fromkeys(("limit_test_batches", "limit_predict_batches"), _EVALUATION),
    "callbacks": "+callbacks.NAME={_target_: …} adds a callback",
    "logger": "+logger.NAME={_target_: …} adds a logger",
    "plugins": "a run brings its own",
    "default_root_dir": "paths.output and hydra.run.dir say where a run writes",
    "barebones": "a run has loggers and checkpoints",
    "sync_batchnorm": "no policy here has batch normalisation",
}
"""What there is in the place of an option, by its name: optimization is manual, and an epoch is an iteration."""
SCALED = ("16", "16-mixed")
"""Precisions whose losses are scaled, and whose gradients would be clipped at that scale."""


def check_trainer(cfg: DictConfig) -> None:
    """Check the options of Lightning's trainer."""
    for name, value in cfg.trainer.items_ex(resolve=False):
        usual = value is None or (not value and name != "logger" and not name.startswith("limit_"))
        if name in INSTEAD and not usual and (name, value) != ("accumulate_grad_batches", 1):
            raise ConfigError(f"trainer.{name}={value} has no place in a run: {INSTEAD[name]}; leave it out")
    if str(cfg.trainer.get("precision")) in SCALED:
        raise ConfigError(
            f"precision={cfg.trainer.precision} of the trainer scales gradients, and module.max_grad_norm would clip "
            "them at that scale: take bf16-mixed, or model.policy.dtype=bfloat16"
        )
