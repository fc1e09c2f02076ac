"""The check of a whole run: who makes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from arpo.apps.plan import fit
from arpo.apps.plan.fit import check_memory
from arpo.errors import ConfigError
from arpo.rollout.storage import TrajectoryStore
from arpo.run.arguments import check_arguments
from arpo.run.build import check_update, compose
from arpo.run.check import (
    check_callbacks,
    check_examples,
    check_method,
    check_pool,
    check_step_rewards,
    check_tasks,
    check_training,
    place_callbacks,
)
from tests.rollout.trajectories import make_trajectory


@pytest.mark.parametrize(
    ("preset", "replay", "key"),
    [("official", "adapr", "trigger"), ("dart_code", "adapr", "choice"), ("dart_code", "relevance", "choice")],
)
def test_a_key_that_a_preset_sets_for_another_choice_is_refused_by_the_name_of_the_preset(preset, replay, key):
    cfg = compose("train", ["experiment=smoke", f"preset={preset}", f"replay={replay}", "paths.run_dir=run"])
    with pytest.raises(ConfigError, match=f"replay.buffer.{key}: .*; preset={preset} sets it: leave out the preset"):
        check_arguments(cfg, ("arpo.rollout.curation.",))
    cfg = compose("train", ["experiment=smoke", "preset=official", "+replay.buffer.speed=2", "paths.run_dir=run"])
    with pytest.raises(ConfigError, match=r"replay\.buffer\.speed: (?!.*preset)"):
        check_arguments(cfg, ("arpo.replay.",))


PLACES = [("first", "replay"), ("second", "replay"), ("early", "iteration_axis")]


def test_a_callback_of_one_s_own_has_a_place_by_name() -> None:
    mine = [
        f"+callbacks.{name}={{_target_:arpo.callbacks.progress.Progress,before:{place}}}" for name, place in PLACES
    ]
    cfg = compose("train", ["experiment=smoke", "paths.run_dir=run", *mine])
    usual = [name for name in cfg.callbacks if name not in dict(PLACES)]
    place_callbacks(cfg)
    assert [name for name in cfg.callbacks if name not in dict(PLACES)] == usual
    names = list(cfg.callbacks)
    assert names[names.index("replay") - 2 : names.index("replay") + 1] == ["first", "second", "replay"]
    assert names[0] == "early"
    assert cfg.callbacks.first == {"_target_": "arpo.callbacks.progress.Progress"}
    assert cfg.callbacks.replay == cfg.replay
    wrong = compose("train", ["experiment=smoke", "+callbacks.mine={_target_:some.Callback,before:repaly}"])
    with pytest.raises(ConfigError, match=r"callbacks\.mine\.before=repaly: there is replay; choose iteration_axis, "):
        place_callbacks(wrong)


def test_of_the_processes_of_a_node_only_the_first_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cfg = compose("train", ["experiment=smoke", "iterations=0", f"paths.run_dir={tmp_path}/run"])
    monkeypatch.setenv("LOCAL_RANK", "1")
    check_training(cfg)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ConfigError, match="iterations must be a whole number of at least 1, got 0"):
        check_training(cfg)


def test_an_environment_without_tasks_to_recommend_is_told_what_it_cannot_run() -> None:
    words = ["experiment=smoke", "env.make_env._target_=arpo.envs.mine.env.MyDesktop"]
    with pytest.raises(ConfigError, match=r"the environment mine cannot run: choose tasks for it, or env=fake"):
        check_tasks(compose("train", words))


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (
            ["tasks=recorded"],
            "are tasks of recorded, which the environment fake cannot run: .* such as tasks=fake, or env",
        ),
        (
            ["env=recorded"],
            "are tasks of fake, which the environment recorded cannot run: .* such as tasks=recorded, or",
        ),
    ],
)
def test_recordings_and_the_tasks_of_another_desktop_do_not_go_together(words, refusal):
    check_tasks(compose("train", ["env=recorded", "tasks=recorded"]))
    with pytest.raises(ConfigError, match=refusal):
        check_tasks(compose("train", words))


@pytest.mark.parametrize("experiment", ["arpo_miniwob", "offline_rs", "offline_dpo"])
def test_a_run_that_asks_its_engine_anything_sends_it_the_policy(experiment: str) -> None:
    check_callbacks(compose("train", [f"experiment={experiment}"]))
    with pytest.raises(ConfigError, match=r"no callback sends the policy to the engine, .* callbacks\.weight_sync"):
        check_callbacks(compose("train", [f"experiment={experiment}", "~callbacks.weight_sync"]))


@pytest.mark.parametrize(
    "words",
    [
        ["arpo_desktop32", "datamodule.sampler.tasks_per_iteration=1"],  # one group makes one minibatch
        ["smoke", "module.minibatches=9"],
        ["dart_osworld"],
        ["smoke", "rollout.settings.temperature=0.7"],
        ["smoke", "rollout.settings.group_size=1", "module.objective.imitation=0.5"],
        ["smoke", "rollout.settings.group_size=1", "method=ppo"],
        ["smoke", "rollout.settings.group_size=1", "module.optimizer.lr=0"],
        ["smoke", "rollout.settings.group_size=1", "replay.buffer.replaced=none"],
        ["warmstart_miniwob", "trainer=ddp"],
        ["smoke", "trainer=fsdp"],
        ["offline_kto", "trainer=fsdp"],
    ],
)
def test_an_update_that_can_learn_is_not_refused(words: list[str]) -> None:
    check_update(compose("train", [f"experiment={words[0]}", *words[1:]]))


def test_a_group_of_one_is_refused_where_episodes_are_compared() -> None:
    with pytest.raises(ConfigError, match="group_size=1 leaves nothing to compare an episode with"):
        check_update(compose("train", ["experiment=smoke", "rollout.settings.group_size=1"]))


def test_a_critic_that_would_be_cut_into_shards_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ppo\.PPO needs a critic, which trainer=fsdp does not cut into shards"):
        check_update(compose("train", ["experiment=smoke", "method=ppo", "trainer=fsdp"]))


@pytest.mark.parametrize(("iterations", "refused"), [(4, True), (5, False)])
def test_a_run_that_ends_while_its_critic_learns_alone_is_refused(iterations: int, refused: bool) -> None:
    cfg = compose("train", ["experiment=smoke", "method=ui_tars2", f"iterations={iterations}"])
    if not refused:
        check_update(cfg)
        return
    with pytest.raises(ConfigError, match=r"module\.critic_warmup=4 leaves none of iterations=4 to the policy: raise"):
        check_update(cfg)


@pytest.mark.parametrize("env", ["fake", "fake_functions", "desktop", "miniwob", "osworld"])
def test_a_method_that_learns_from_rewards_of_steps_alone_is_refused_where_there_are_none(env: str) -> None:
    for method in ("ui_s1", "mobile_r1"):
        with pytest.raises(ConfigError, match=r"UIS1 learns from the rewards of steps, .* take env=recorded tasks="):
            check_step_rewards(compose("train", [f"env={env}", f"method={method}"]))
    check_step_rewards(compose("train", [f"env={env}", "method=gigpo"]))


@pytest.mark.parametrize(
    "words",
    [
        ["env=recorded", "tasks=recorded", "method=mobile_r1"],
        ["method=ui_s1", "env.make_env._target_=arpo.envs.mine.env.MyDesktop"],  # which may reward steps
        ["experiment=offline_dpo"],
    ],
)
def test_a_method_is_not_refused_where_steps_may_be_rewarded_or_need_not_be(words: list[str]) -> None:
    check_step_rewards(compose("train", words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["offline_rs", "module=grpo"], "module=grpo learns from rollouts, and datamodule=trajectories has none"),
        (["smoke", "method=gigpo", "preset=official"], r"preset=official has .*GRPO, and this run learns by .*GiGPO"),
        (["dart_miniwob", "method=ppo"], r"preset=dart_paper has numbers for .*GRPO, and .*PPO: leave out the preset"),
        (
            ["offline_dpo", "preset=dart_code"],
            r"preset=dart_code has numbers for .*, and this run learns by .*DPOModule",
        ),
        (["offline_rs", "entropulse=on"], "entropulse acts on rollouts, of which this run has none: leave it out"),
        (["offline_dpo", "replay=adapr"], "replay acts on rollouts"),
        (["offline_kto", "judge=own"], "judge acts on rollouts"),
        (["warmstart_fake", "entropulse=on"], "entropulse acts on rollouts"),
        (["warmstart_fake", "replay=adapr"], "replay acts on rollouts"),
        (["smoke", "module=dpo"], r"dpo\.DPOModule learns from stored episodes, not from rollouts: take experiment="),
        (
            ["offline_dpo", "module=sft"],
            r"examples\.pairs is not what this module learns from: take .*\.successes, or exp",
        ),
        (["offline_kto", "module=dpo"], r"every_episode is not what this module learns from: take .*\.pairs"),
        (
            ["offline_kto", "datamodule.batch_size=1"],
            r"with another one of its batch: datamodule\.batch_size=2 or more",
        ),
    ],
)
def test_a_module_that_cannot_learn_from_what_it_gets_is_refused(words: list[str], said: str) -> None:
    cfg = compose("train", [f"experiment={words[0]}", *words[1:]])
    with pytest.raises(ConfigError, match=said):
        check_method(cfg)


@pytest.mark.parametrize(
    "experiment", ["smoke", "arpo_miniwob", "warmstart_fake", "offline_rs", "offline_dpo", "offline_kto"]
)
def test_what_an_experiment_learns_from_is_what_it_gets(experiment: str) -> None:
    check_method(compose("train", [f"experiment={experiment}"]))


def test_stored_episodes_that_teach_nothing_are_refused_before_a_warm_start(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "trajectories")
    store.write(make_trajectory("0/0/0", task_reward=0.0))
    cfg = compose("train", ["experiment=offline_rs", f"source={tmp_path}"])
    with pytest.raises(ConfigError, match=r"nothing can be learned from 1 episodes of .*, of which 0 succeed"):
        check_examples(cfg)
    store.write(make_trajectory("0/0/1", task_reward=1.0))
    check_examples(cfg)


def test_one_episode_is_too_few_to_compare_and_no_larger_batch_is_asked_for(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "trajectories")
    for number in range(2):  # which say the same
        store.write(make_trajectory(f"0/0/{number}", task_reward=float(number)))
        cfg = compose("train", ["experiment=offline_kto", f"source={tmp_path}"])
        with pytest.raises(ConfigError, match=r"say 1 different things, and 2 are needed") as refused:
            check_examples(cfg)
        assert "batch_size" not in str(refused.value)
    third = make_trajectory("0/0/2")
    store.write(replace(third, steps=(replace(third.steps[0], response="Action: finished()\n"),)))
    check_examples(cfg)


@pytest.mark.parametrize("key", ["steps", "batch_size", "first"])
@pytest.mark.parametrize("experiment", ["offline_rs", "offline_kto"])
def test_a_number_of_an_offline_run_that_is_none_is_named(tmp_path: Path, experiment: str, key: str) -> None:
    store = TrajectoryStore(tmp_path / "trajectories")
    store.write(make_trajectory("0/0/0", task_reward=1.0))
    words = [
        f"experiment={experiment}",
        f"source={tmp_path}",
        f"paths.run_dir={tmp_path}/run",
        f"datamodule.{key}=all",
    ]
    with pytest.raises(ConfigError, match=rf"datamodule\.{key}=all should be a valid integer"):
        check_training(compose("train", words))


def test_a_run_that_does_not_fit_the_gpus_here_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fit, "smallest_gpu_gib", lambda: 0.01)
    words = ["experiment=smoke", "+requires.gpus=1", f"paths.run_dir={tmp_path}/run"]
    with pytest.raises(ConfigError, match=r"(?s)this run does not fit the GPUs here:\n  - .* says what helps"):
        check_memory(compose("train", words))


@pytest.mark.parametrize(("resume", "begun"), [(None, True), ("auto", False), ("auto", True)])
def test_a_pool_may_be_gone_for_a_run_that_goes_on_alone(tmp_path: Path, resume: str | None, begun: bool) -> None:
    """It has copies of its own."""
    if begun:
        (tmp_path / "iteration_000001.ckpt").touch()
    words = ["experiment=smoke", "replay=pool", f"experience=[{tmp_path}/gone]", f"paths.checkpoints={tmp_path}"]
    cfg = compose("train", [*words, "module.replayed_old_logprobs=recompute"])
    cfg.resume = resume
    if resume and begun:
        check_pool(cfg)
        return
    with pytest.raises(ConfigError, match=r"experience: .*gone holds no trajectories"):
        check_pool(cfg)


def test_a_run_for_gpus_names_how_many_of_them_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("arpo.run.preflight.count_gpus", lambda: 3)
    with pytest.raises(ConfigError, match=r"it needs 8 NVIDIA GPU\(s\), and torch sees 3"):
        check_training(compose("train", ["experiment=arpo_subset32", f"paths.run_dir={tmp_path}/run"]))
