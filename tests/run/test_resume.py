from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from arpo.errors import ConfigError
from arpo.run.build import compose
from arpo.run.resume import differences, the_folder_holds_the_same_run
from arpo.run.rules import check_rules

LORA = "+model.policy.lora={_target_:arpo.models.policy.LoraSettings,rank:%d}"


def check_same_run(cfg: DictConfig) -> None:
    check_rules(cfg, [the_folder_holds_the_same_run])


@cache
def composition(words: tuple[str, ...]) -> DictConfig:
    return compose("train", words)


@pytest.fixture
def run(tmp_path):
    """Composes a run as Hydra would, and leaves what its first start leaves."""

    def composed(*words: str, resume: str | None = "auto", folder: str = "run"):
        cfg = composition(words).copy()
        cfg.paths.output = str(tmp_path)
        cfg.paths.run_dir = str(tmp_path / folder)
        cfg.resume = resume
        return cfg

    def write(*words: str, checkpoint: bool = True, folder: str = "run") -> None:
        cfg = composed(*words, folder=folder)
        Path(cfg.paths.checkpoints).mkdir(parents=True)
        Path(cfg.paths.run_dir, "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True), encoding="utf-8")
        if checkpoint:
            Path(cfg.paths.checkpoints, "iteration_000001.ckpt").touch()

    composed.write = write
    return composed


@pytest.mark.parametrize(
    ("before", "now", "key"),
    [
        ([], [LORA % 4], "model.policy.lora"),
        ([LORA % 4], [], "model.policy.lora"),
        ([LORA % 4], [LORA % 8], "model.policy.lora.rank: 4 there, 8 now"),
        ([], ["+model.policy.train_vision=false"], "model.policy.train_vision: True there, False now"),
        ([], ["module.optimizer._target_=arpo.modules.muon.MuonWithAdamW"], "module.optimizer._target_"),
        ([], ["trainer=ddp"], "trainer.strategy: auto there"),
        (["trainer=fsdp"], ["trainer=ddp"], "trainer.strategy._target_"),
        ([], ["replay=off"], "replay._target_"),
        ([], ["model.path=/x/m"], "model.path"),
        ([], ["seed=1"], "seed: 0 there, 1 now"),
        ([], ["rollout.settings.group_size=2"], "rollout.settings.group_size: 4 there, 2 now"),
        ([], ["tasks.train.count=3"], "tasks.train.count"),
        ([], ["+trainer.gradient_clip_val=1.0"], "trainer.gradient_clip_val: None there, 1.0 now"),
        ([], ["+trainer.accumulate_grad_batches=2"], "trainer.accumulate_grad_batches: 1 there, 2 now"),
        ([], ["+trainer.precision=bf16-true"], "trainer.precision: None there, bf16-true now"),
    ],
)
def test_another_configuration_is_refused_with_what_differs(run, before, now, key):
    run.write("experiment=smoke", *before)
    with pytest.raises(ConfigError, match=r"holds a run of another configuration") as raised:
        check_same_run(run("experiment=smoke", *now))
    assert key in str(raised.value)


@pytest.mark.parametrize(
    "now",
    [
        ["iterations=100"],
        ["logger=csv"],
        ["threads=2", "env.size=2", "env.step_timeout_s=99"],
        ["+model.policy.attention=eager", "rollout.settings.max_attempts=9"],
        ["+model.policy.mlp_chunk=512", "+model.policy.logits_chunk=64"],
        ["engine=hf"],
        ["callbacks.checkpoint.every_n_iterations=1", "evaluation.rollouts_per_task=2"],
        ["module.micro_batch_tokens=1024", "+model.policy.gradient_checkpointing=selective"],
        ["+model.policy.train_vision=true"],  # the constructor's default, in words
    ],
)
def test_a_run_may_go_on_for_longer_elsewhere_and_with_other_logs(run, now):
    run.write("experiment=smoke")
    check_same_run(run("experiment=smoke", *now))


def test_a_run_that_was_moved_or_has_other_devices_is_the_same(run, tmp_path):
    full = ("experiment=arpo_full", "model.path=/data/m")
    run.write(*full, "gpus=8", folder="run")
    (tmp_path / "run").rename(tmp_path / "moved")
    check_same_run(run(*full, "gpus=4", folder="moved"))


def test_where_no_checkpoint_is_nothing_is_gone_on_with(run):
    run.write("experiment=smoke", checkpoint=False)
    check_same_run(run("experiment=smoke", "seed=1"))
    check_same_run(run("experiment=smoke", "seed=1", resume=None))


def test_an_option_that_an_older_version_did_not_know_or_named_otherwise_makes_no_other_run():
    old = {"module": {"_target_": "gone.from.Here", "lr": 1}, "tasks": {"train": 3}}
    new = {"module": {"_target_": "arpo.modules.grpo.GRPOModule", "lr": 2}, "tasks": {"train": 3, "new": 4}}
    assert list(differences(old, new)) == []
    former, now = ({"_target_": name} for name in ("arpo.modules.objective.Objective", "arpo.methods.grpo.GRPO"))
    assert list(differences({"a": former}, {"a": now})) == []
    assert list(differences({"a": former}, {"a": {"_target_": "arpo.replay.ReplayBuffer"}}))
    given = list(differences({"a": former | {"clip_low": 0.1}}, {"a": now | {"clip_low": 0.2}}))
    assert given == [("a.clip_low", 0.1, 0.2)]


def test_only_the_first_differences_are_listed(run):
    run.write("experiment=smoke")
    words = [f"module.{name}" for name in ("minibatches=4", "epochs=3", "warmup_steps=9", "decay=true")]
    with pytest.raises(ConfigError, match="- and 6 more"):
        check_same_run(run("experiment=smoke", "seed=7", "rollout.settings.max_steps=2", *words))


def test_the_iterations_of_a_run_from_stored_episodes_share_out_its_steps(run):
    offline = ("experiment=offline_dpo", r"source='a \${b} c'")  # a text that looks like an interpolation
    run.write(*offline)
    with pytest.raises(ConfigError, match=r"iterations: \d+ there, 5 now"):
        check_same_run(run(*offline, "iterations=5"))
    check_same_run(run(*offline))


@pytest.mark.parametrize("text", ["", "- 1", "words", "paths: 1", "a: [", "a: \udc80"])
def test_a_stored_configuration_that_is_damaged_is_named(run, text):
    run.write("experiment=smoke")
    cfg = run("experiment=smoke")
    Path(cfg.paths.run_dir, "config.yaml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read, and it says what the run was"):
        check_same_run(cfg)
