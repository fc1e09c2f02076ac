"""Every rule that the parts of a run keep together: overrides, and the sentence with which they are refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.apps.plan import fit
from arpo.apps.plan.fit import check_memory
from arpo.errors import ConfigError
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.rollout.storage import TrajectoryStore
from arpo.run import rules
from arpo.run.arguments import check_arguments
from arpo.run.build import compose
from arpo.run.check import check_checkpoint, check_training, place_callbacks
from arpo.run.rules import check_rules
from arpo.run.warmstart import policy_of
from tests.rollout.trajectories import make_trajectory

TASKS, CALLBACK, METHOD, DATA = (
    rules.tasks_suit_the_environment,
    rules.the_engine_gets_the_policy,
    rules.the_method_suits_the_run,
    rules.the_module_learns_from_its_data,
)
AGENT, FOREIGN = rules.a_foreign_agent_decides_for_itself, "harness=command harness.argv=[true]"
STORED, UPDATE, PLACE = rules.stored_data_is_there, rules.the_update_can_learn, rules.the_folder_is_its_own
WARMSTART, MODEL = rules.the_warm_start_writes_the_model, rules.conversations_fit_the_model
NUMBERS, POOL = rules.NUMBERS, rules.the_pool_has_successes
STORE, TEACHER = rules.weights_fit_the_store, rules.the_teacher_reads_what_the_policy_reads


def check(line: str, *chosen, **more) -> None:
    words = [word if "=" in word or word[0] in "~+" else f"experiment={word}" for word in line.split()]
    words += [f"{key}={value}" for key, value in more.items()]
    check_rules(compose("train", ["paths.run_dir=run", *words]), chosen)


NO_STEPS = r"UIS1 learns from the rewards of steps, .* take env=recorded tasks="
REFUSED = [
    (TASKS, "smoke env.make_env._target_=arpo.envs.mine.My", r"environment mine cannot run: choose tasks for it, or"),
    (TASKS, "tasks=recorded", "the environment fake cannot run: .* such as tasks=fake, or env"),
    (TASKS, "env=recorded", "the environment recorded cannot run: .* such as tasks=recorded, or"),
    (CALLBACK, "arpo_miniwob ~callbacks.weight_sync", "no callback sends the policy .*weight_sync"),
    (CALLBACK, "offline_rs ~callbacks.weight_sync", "no callback sends the policy .*weight_sync"),
    (CALLBACK, "offline_dpo ~callbacks.weight_sync", "no callback sends the policy .*weight_sync"),
    (METHOD, "smoke rollout.settings.group_size=1", "group_size=1 leaves nothing to compare an episode with"),
    (METHOD, "smoke method=ppo trainer=fsdp", r"ppo\.PPO needs a critic, which trainer=fsdp does"),
    (METHOD, "smoke method=gigpo preset=official", r"preset=official has .*GRPO, and .*GiGPO"),
    (METHOD, "dart_miniwob method=ppo", r"preset=dart_paper has numbers for .*GRPO, and .*PPO: leave"),
    (METHOD, "offline_dpo preset=dart_code", r"preset=dart_code has numbers for .*, and .*DPOModule"),
    *(
        (METHOD, f"env={env} method=ui_s1", NO_STEPS)
        for env in ("fake", "fake_functions", "desktop", "miniwob", "osworld")
    ),
    (METHOD, "env=fake method=mobile_r1", NO_STEPS),
    # 8 tasks, 4 episodes of each, 4 steps, 24 tokens
    (METHOD, "smoke method=c3po module.objective.budget=3073", "is above the 3072 sampled tokens of a batch: "),
    *((METHOD, f"smoke {FOREIGN} method={name}", "gives credit to steps, and a foreign") for name in ("gigpo", "ppo")),
    (METHOD, f"smoke {FOREIGN} module.objective.estimator=step_grpo", "GRPO gives credit to steps"),
    (AGENT, f"smoke {FOREIGN} harness.devtools=true", "harness.devtools=true is for environments with a browser"),
    (AGENT, f"smoke {FOREIGN} rollout.settings.image_window=2", "image_window is for harness=own"),
    (AGENT, f"smoke {FOREIGN} evaluation.protocol=standard", "take evaluation.protocol=hard"),
    (UPDATE, "smoke method=ui_tars2 iterations=4", r"critic_warmup=4 leaves none of iterations=4 to"),
    (DATA, "offline_rs module=grpo", "GRPOModule learns from rollouts, and datamodule=trajectories has none"),
    (DATA, "smoke module=dpo", "DPOModule learns from stored episodes, not from rollouts: take exp"),
    (DATA, "offline_dpo module=sft", r"pairs is not what this module learns from: take .*\.successes"),
    (DATA, "offline_kto module=dpo", r"every_episode is not what .* learns from: take .*\.pairs"),
    (DATA, "offline_kto datamodule.batch_size=1", "with others of its batch: datamodule.batch_size=2"),
    (STORED, "offline_rs entropulse=on", "entropulse acts on rollouts, of which this run has none"),
    (STORED, "offline_dpo replay=adapr", "replay acts on rollouts"),
    (STORED, "offline_kto judge=own", "judge acts on rollouts"),
    (STORED, "warmstart_fake entropulse=on", "entropulse acts on rollouts"),
    (STORED, "warmstart_fake replay=adapr", "replay acts on rollouts"),
    (WARMSTART, "smoke model.path=/nope", r"no checkpoint at model\.path=/nope, and experiment=warm"),
    (WARMSTART, "smoke warmstart=warmstart_fkae", "is no experiment that writes .*; choose one of warm"),
    (TEACHER, "smoke method=distillation teacher=/nowhere", "teacher=/nowhere holds no policy: name a"),
    (rules.values_are_finite, "smoke module.epochs=${gone}", r"'gone' not found \(configuration key: module\.epo"),
    (NUMBERS, "model=qwen3_vl_8b prompt=ui_tars", "grammar ui_tars, and .* in computer_use, .* leave prompt= out"),
    (NUMBERS, "model=qwen3_5_9b prompt=computer_use", r"in computer_use_xml, .* or set model\.grammar=computer_use"),
    (NUMBERS, "model=ui_tars_1_5_7b prompt=computer_use", "grammar computer_use, and .* in ui_tars"),
    (NUMBERS, "smoke model=qwen3_vl_4b warmstart=warmstart_fake", "warmstart=warmstart_fake makes a tiny"),
    (NUMBERS, "layout=colocated rollout.settings.max_policy_lag=1", "take layout=split, or max_policy_lag=0"),
    (NUMBERS, "layout=colocated judge=own", "take layout=split, or judge=off"),
    (NUMBERS, "layout=split gpus=2 engine.sync=rolling", "max_policy_lag to 1 or more, or engine.sync=global"),
    (NUMBERS, "layout=split gpus=1", r"serving_gpus=1 must .* leave some of the 1 GPU\(s\)"),
    (NUMBERS, "layout=split serving_gpus=0 gpus=2", "serving_gpus=0 must be at least 1"),
    (NUMBERS, "layout=split trainer.num_nodes=2 gpus=7", "gpus=7 must be a multiple of trainer.num_nodes=2"),
    (NUMBERS, "layout=colocated gpus=2 engine.replicas=3", r"engine.replicas=3 .* than the 2 GPUs"),
    (NUMBERS, "layout=colocated gpus=2 trainer.devices=3", r"trainer.devices=3 wants 3 GPUs of a node, .* are 2"),
    (NUMBERS, "layout=split gpus=2 trainer.devices=[0,1,2]", r"trainer.devices=\[0, 1, 2\] wants 3 GPUs"),
    (POOL, "dart_miniwob experience=null", "experience=None must be directories in"),
    (POOL, "dart_miniwob experience=3", "experience=3 must be directories in"),
    (POOL, "dart_miniwob experience=outputs/run", "experience=outputs/run must be directories in"),
    (
        POOL,
        "dart_miniwob module.replayed_old_logprobs=stored resume=auto",
        r"stored wants .* take module.replayed_old_logprobs=recompute, or rep",
    ),
    (POOL, "smoke preset=dart_paper", r"replay=pool, which preset=dart_paper chooses, begins with"),
    (POOL, "smoke replay=pool", "replay=pool begins with the successes in experience"),
]
ACCEPTED = [
    (TASKS, "env=recorded tasks=recorded"),
    *((CALLBACK, name) for name in ("arpo_miniwob", "offline_rs", "offline_dpo")),
    (METHOD, "smoke rollout.settings.group_size=1 module.objective.imitation=0.5"),
    (METHOD, "smoke rollout.settings.group_size=1 method=ppo"),
    (METHOD, "smoke rollout.settings.group_size=1 module.optimizer.lr=0"),
    (METHOD, "smoke rollout.settings.group_size=1 replay.buffer.replaced=none"),
    (METHOD, "smoke trainer=fsdp"),
    (METHOD, "offline_kto trainer=fsdp"),
    *((METHOD, f"env={env} method=gigpo") for env in ("fake", "desktop", "osworld")),
    (METHOD, "env=recorded tasks=recorded method=mobile_r1"),
    (METHOD, "method=ui_s1 env.make_env._target_=arpo.envs.mine.My"),  # which may reward steps
    (METHOD, "offline_dpo"),
    (METHOD, "smoke method=c3po module.objective.budget=3072"),
    (UPDATE, "smoke method=ui_tars2 iterations=5"),
    (UPDATE, "dart_osworld"),
    (UPDATE, "smoke rollout.settings.temperature=0.7"),
    (UPDATE, "warmstart_miniwob trainer=ddp"),
    *((DATA, name) for name in ("smoke", "warmstart_fake", "offline_rs", "offline_dpo", "offline_kto")),
    (STORED, "warmstart_fake"),
    (STORED, "smoke"),
    (WARMSTART, "smoke"),
    (WARMSTART, "smoke warmstart=null model.path=/nope"),
    *((STORE, f"smoke model.path=/nope engine={engine}") for engine in ("fleet", "hf", "vllm")),  # not there yet
]


@pytest.mark.parametrize(("rule", "line", "sentence"), REFUSED, ids=[line for _, line, _ in REFUSED])
def test_what_parts_do_not_agree_on_is_one_sentence(rule, line, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check(line, *(rule if isinstance(rule, tuple) else [rule]))


@pytest.mark.parametrize(("rule", "line"), ACCEPTED, ids=[f"{rule.__name__} {line}" for rule, line in ACCEPTED])
def test_what_parts_agree_on_is_not_refused(rule, line):
    check(line, rule)


def test_all_rules_that_are_broken_are_said_at_once_and_each_once():
    line = "smoke iterations=0 seed=-1 +trainer.max_steps=5 module.temperature=0.5 module.objective.imitation=nan"
    with pytest.raises(ConfigError) as refused:
        check(line, *rules.NUMBERS, *rules.TRAINING, *rules.TRAINING)
    first, *others = str(refused.value).split("\n  - ")
    assert first == "several things do not fit:"
    values = ["module.objective.imitation=nan", "module.temperature=0.5", "trainer.max_steps=5"]
    assert [each.partition(" ")[0] for each in others] == ["iterations", "trainer.max_epochs", "seed", *values]


# --- what the disk has ---


def test_a_folder_that_holds_a_run_is_not_written_over_and_only_its_own_checkpoint_is_resumed(tmp_path):
    for run in ("mine", "other"):
        (tmp_path / run / "checkpoints").mkdir(parents=True)
        (tmp_path / run / "checkpoints" / "iteration_000001.ckpt").touch()
    own = {"paths.run_dir": tmp_path / "mine", "paths.checkpoints": tmp_path / "mine" / "checkpoints"}
    checkpoint = tmp_path / "mine" / "checkpoints" / "iteration_000001.ckpt"
    (tmp_path / "mine" / "metrics.jsonl").touch()  # a run that ended before its first iteration leaves an empty file
    for resume in ("null", "auto", checkpoint):
        check("smoke", PLACE, **own, resume=resume)
    with pytest.raises(ConfigError, match=r"resume=.*gone\.ckpt: there is no such checkpoint; resume=auto"):
        check("smoke", PLACE, **own, resume=tmp_path / "gone.ckpt")
    with pytest.raises(ConfigError, match=r"belongs to another run than .*mine\. Continue there"):
        check("smoke", PLACE, **own, resume=tmp_path / "other" / "checkpoints" / "iteration_000001.ckpt")
    (tmp_path / "mine" / "metrics.jsonl").write_text("{}\n")
    check("smoke", PLACE, **own, resume="auto")
    with pytest.raises(ConfigError, match=r"already holds a run\. Continue it with resume=auto"):
        check("smoke", PLACE, **own)


def test_stored_episodes_that_teach_nothing_or_are_too_few_to_compare_are_refused_before_a_warm_start(tmp_path):
    store = TrajectoryStore(tmp_path / "trajectories")
    imitates, compares = (f"{name} source={tmp_path}" for name in ("offline_rs", "offline_kto"))
    store.write(make_trajectory("0/0/0", task_reward=0.0))
    with pytest.raises(ConfigError, match=r"nothing can be learned from 1 episodes of .*, of which 0 succeed"):
        check(imitates, rules.examples_are_enough)
    store.write(make_trajectory("0/0/1", task_reward=1.0))  # which says the same
    check(imitates, rules.examples_are_enough)
    with pytest.raises(ConfigError, match=r"say 1 different things, and 2 are needed") as refused:
        check(compares, rules.examples_are_enough)
    assert "batch_size" not in str(refused.value)
    third = make_trajectory("0/0/2")
    store.write(replace(third, steps=(replace(third.steps[0], response="Action: finished()\n"),)))
    check(compares, rules.examples_are_enough)


def test_a_pool_may_be_gone_for_a_run_that_goes_on_alone(tmp_path: Path) -> None:
    """It has copies of its own."""
    line = f"smoke replay=pool experience=[{tmp_path}/gone] paths.checkpoints={tmp_path}"
    line += " module.replayed_old_logprobs=recompute resume="
    for resume in ("auto", "null"):
        with pytest.raises(ConfigError, match=r"experience: .*gone holds no trajectories"):
            check(line + resume, POOL)
        (tmp_path / "iteration_000001.ckpt").touch()
    check(f"{line}auto", rules.the_pool_has_successes)


# --- what the checkpoint says ---


def test_conversations_are_at_most_as_long_as_the_model_was_made_for(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 100}))
    line = f"model.path={tmp_path} rollout.settings.max_context="
    check(f"smoke {line}100", MODEL)
    check(f"warmstart_fake {line}101", MODEL)  # it makes its own model
    with pytest.raises(ConfigError, match="max_context=101 is above the 100 tokens"):
        check(f"smoke {line}101", MODEL)
    check(f"smoke {line}100 warmstart=warmstart_fkae", WARMSTART)  # one that will not run may have any name
    assert policy_of(None, "out") == ""


def test_a_fleet_whose_weights_would_go_over_the_disk_is_refused(tiny_model, monkeypatch):
    smoke, tensors = f"smoke model.path={tiny_model} engine=", "engine.make_engine.engine_args.tensor_parallel_size"
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with monkeypatch.context() as disk:
        disk.setattr("arpo.host.ray.SHARED_MEMORY", Path("/proc"))  # which has room for nothing
        with pytest.raises(ConfigError, match="every weight sync goes over the disk"):
            check(f"{smoke}fleet engine.num_gpus=0", STORE)
        for engine in ("hf", "vllm"):  # in the trainer's process
            check(f"{smoke}{engine}", STORE)
    asked = []
    monkeypatch.setattr("arpo.host.ray.check_store", lambda weights, copies: asked.append(copies))
    check(f"{smoke}fleet engine.replicas=4", STORE)
    check(f"{smoke}fleet engine.replicas=4 +{tensors}=2", STORE)  # engines of several GPUs have files there too
    assert asked == [0, 4]


def test_a_teacher_that_reads_other_ids_or_pictures_than_the_policy_is_refused(tiny_model, tiny_qwen3, tmp_path):
    narrow = shutil.copytree(tiny_model, tmp_path / "narrow")
    for file in narrow.glob("*processor_config.json"):
        file.write_text(file.read_text().replace("15680", "12544"))
    smaller = make_tiny(tmp_path / "words", corpus=["one text"], words=500)
    line = f"smoke engine=hf method=distillation model.path={tiny_model}"
    check(f"{line} teacher={tiny_model}", TEACHER)
    for teacher, other in ((narrow, "image processor"), (smaller, "vocabulary"), (tiny_qwen3, "family")):
        with pytest.raises(ConfigError, match=f"has another {other} than the policy"):
            check(f"{line} teacher={teacher}", TEACHER)


def test_a_checkpoint_is_a_model_or_a_file_of_a_run_and_an_export_destroys_nothing(tmp_path):
    run, model = tmp_path / "run", tmp_path / "model"
    for path in (run / "checkpoints" / "iteration_000001.ckpt", run / "config.yaml", model / "config.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    checkpoint = run / "checkpoints" / "iteration_000001.ckpt"
    check_checkpoint(model, None)
    check_checkpoint(checkpoint, str(tmp_path / "new"))
    (tmp_path / "alone.ckpt").touch()
    for wrong in (tmp_path / "alone.ckpt", run / "checkpoints" / "gone.ckpt", run, run / "config.yaml"):
        with pytest.raises(ConfigError, match=r"is neither a Hugging Face directory nor a \.ckpt inside the folder"):
            check_checkpoint(wrong, None)
    with pytest.raises(ConfigError, match="exists and is not empty: name a new directory"):
        check_checkpoint(checkpoint, str(model))
    with pytest.raises(ConfigError, match="is a directory that engines load already: copy it instead"):
        check_checkpoint(model, str(tmp_path / "new"))


# --- the check of a whole run ---


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


def test_a_callback_of_one_s_own_has_a_place_by_name() -> None:
    places = {"first": "replay", "second": "replay", "early": "iteration_axis"}
    made = "{_target_:arpo.callbacks.progress.Progress,before:"
    mine = [f"+callbacks.{name}={made}{place}}}" for name, place in places.items()]
    cfg = compose("train", ["experiment=smoke", "paths.run_dir=run", *mine])
    usual = [name for name in cfg.callbacks if name not in places]
    place_callbacks(cfg)
    assert [name for name in cfg.callbacks if name not in places] == usual
    names = list(cfg.callbacks)
    assert names[names.index("replay") - 2 : names.index("replay") + 1] == ["first", "second", "replay"]
    assert names[0] == "early"
    assert cfg.callbacks.first == {"_target_": "arpo.callbacks.progress.Progress"}
    assert cfg.callbacks.replay == cfg.replay
    wrong = compose("train", ["experiment=smoke", "+callbacks.mine={_target_:some.Callback,before:repaly}"])
    with pytest.raises(ConfigError, match=r"callbacks\.mine\.before=repaly: there is replay; choose iteration_axis, "):
        place_callbacks(wrong)


def refuse(cfg):
    raise ConfigError(f"{cfg.name} is refused")


def test_of_the_processes_of_a_node_only_the_first_checks_and_a_check_of_one_s_own_is_called_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["experiment=smoke", "engine=hf", f"paths.run_dir={tmp_path}/run"]
    with pytest.raises(ConfigError, match="smoke is refused"):
        check_training(compose("train", [*words, "checks=[tests.run.test_rules.refuse]"]))
    check_training(compose("train", [*words, "checks=[]"]))
    wrong = compose("train", [*words, "iterations=0", "checks=[tests.run.test_rules.refuse]"])
    with pytest.raises(ConfigError, match="iterations must be a whole number of at least 1, got 0"):
        check_training(wrong)
    monkeypatch.setenv("LOCAL_RANK", "1")
    check_training(wrong)


@pytest.mark.parametrize("key", ["steps", "batch_size", "first"])
@pytest.mark.parametrize("experiment", ["offline_rs", "offline_kto"])
def test_a_number_of_an_offline_run_that_is_none_is_named(tmp_path: Path, experiment: str, key: str) -> None:
    TrajectoryStore(tmp_path / "trajectories").write(make_trajectory("0/0/0", task_reward=1.0))
    places = [f"source={tmp_path}", f"paths.run_dir={tmp_path}/run"]
    with pytest.raises(ConfigError, match=rf"datamodule\.{key}=all should be a valid integer"):
        check_training(compose("train", [f"experiment={experiment}", *places, f"datamodule.{key}=all"]))


def test_a_run_that_does_not_fit_the_gpus_here_or_needs_more_of_them_is_refused(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fit, "smallest_gpu_gib", lambda: 0.01)
    cfg = compose("train", ["experiment=smoke", "+requires.gpus=1", f"paths.run_dir={tmp_path}/run"])
    assert list(cfg.checks) == ["arpo.apps.plan.fit.check_memory"]  # which `train.py` imports by this name alone
    with pytest.raises(ConfigError, match=r"(?s)this run does not fit the GPUs here:\n  - .* says what helps"):
        check_memory(cfg)
    monkeypatch.setattr("arpo.run.preflight.count_gpus", lambda: 3)
    with pytest.raises(ConfigError, match=r"it needs 8 NVIDIA GPU\(s\), and torch sees 3"):
        check_training(compose("train", ["experiment=arpo_subset32", f"paths.run_dir={tmp_path}/run"]))
