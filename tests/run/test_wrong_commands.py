"""Commands that cannot run, and what each of them says before anything starts: one for each kind of check."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Set
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from arpo.run.build import compose
from tests.forks import HEAVY, ROOT, Ended, Forks, environment

STARTS = {"ray", "vllm"}
"""What is imported once something starts."""

EARLY = [
    # the environment, the tasks, the model
    ("smoke rollout.settings.group_size=0", "group_size=0 should be at least 1"),
    ("arpo_miniwob model.path=/nope", "leave model.path out, or set it to a directory that"),
    ("arpo_miniwob env=desktop", "are tasks of miniwob, which the environment desktop cannot run"),
    (
        "smoke tasks.train._target_=arpo.evaluation.selection.listed_only "
        "+tasks.train.tasks={_target_:arpo.envs.osworld.tasks.osworld_tasks}",
        "tasks.train are tasks of osworld, which the environment fake cannot run",
    ),
    ("train.py", "it needs a checkpoint, and no path is set: set model.path"),
    # values
    ("smoke threads=none", "threads must be a whole number of at least 1, got none"),
    ("smoke rollout.settings.max_tokens=2048", "max_context=1024 must be above"),
    ("arpo_miniwob env.size=0", "env.size=0 should be at least 1"),
    ("arpo_miniwob env.make_env.tabs=0", "tabs=0 should be at least 1"),
    ("smoke env.backend=spark", "spark"),
    ("arpo_miniwob tasks.pages=[click-tset]", "click-tset"),
    ("warmstart_fake datamodule.collector.demonstrator.success_rate=2", "success_rate=2 should be"),
    ("smoke engine=vllm trainer=ddp", "choose engine=fleet"),
    ("smoke env=null", "env=null: this must be the name of a choice; choose one of desktop,"),
    ("offline_dpo source=nowhere", "source=nowhere holds no episodes to learn from: name the"),
    # numbers that fit no other, or none at all
    ("smoke engine=fleet engine.num_gpus=0 engine.replicas=0", "engine.replicas must be at least"),
    ("warmstart_miniwob trainer=fsdp", "MuonWithAdamW needs whole matrices, and trainer=fsdp has"),
    ("smoke module.optimizer.betas=[0.9,nan]", "module.optimizer.betas.1=nan must be a finite"),
    # keys
    ("smoke +env.make_env.speed=2", "env.make_env.speed: arpo.envs.fake.FakeDesktop has"),
    # options of Lightning's
    ("smoke engine=hf +trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches=2"),
    ("smoke +trainer.limit_train_batches=1", "iterations says how long a run is"),
    ("smoke +trainer.precision=16-mixed", "take bf16-mixed, or model.policy.dt"),
    # words without effect
    ("smoke experience=[/nowhere]", "[/nowhere]: nothing reads experience; replay=pool reads it"),
    ("smoke source=/nowhere", "source=/nowhere: nothing reads source; experiment=offline_rs, "),
    ("smoke gpus=8", "gpus=8: nothing reads gpus; layout=split and layout=colocated read it, or"),
    ("smoke +speed=2", "+speed=2: nothing reads speed; take choices that do, or leave it out"),
    ("smoke model.make.seed=4", "model.make.seed=4: nothing reads model.make.seed"),
    ("warmstart_fake engine=hf", "engine=hf: nothing reads engine"),
    ("arpo_miniwob callbacks.evaluation=null evaluation.protocol=standard", "nothing reads evaluation.protocol"),
    ("smoke 'module.reference=${model.policy}'", "set module.objective.kl_coefficient above 0"),
    ("smoke module.objective.kl=k1", "kl=k1: only the KL term reads it: set module.objective."),
    ("smoke replay=off module.replayed_old_logprobs=stored", "nothing is replayed: choose replay"),
    ("smoke module.objective.estimator=rloo module.objective.std=sample", "divides by no deviation: take grpo or"),
    ("smoke rollout.settings.order=finished", "set rollout.settings.max_policy_lag to 1 or more"),
    ("smoke engine=fleet engine.num_gpus=0 engine.max_unavailable=2", "set engine.sync=rolling"),
    ("smoke engine.max_num_seqs=8", "at a time: set deterministic=false"),
    ("smoke env=recorded tasks=recorded source=x env.make_env.patches=0 env.make_env.thought=recorded", "patches to"),
    ("warmstart_miniwob datamodule.collector.demonstrator.habit=0.3", "the script makes no mistakes: set datamodule."),
    (
        "warmstart_fake datamodule.collector.demonstrator.rules=true datamodule.collector.demonstrator.habit=0.3",
        "every mistake follows a rule: set",
    ),
    # words
    ("train.py -m experiment=smoke seed=0 replay=on)", "as in 'replay=\"on)\"'"),
    # files
    ("evaluate.py experiment=smoke", "no checkpoint is set: checkpoint="),
    ("evaluate.py experiment=smoke checkpoint={model} lists=train", "names in brackets, such as lists=[train,"),
    ("evaluate.py experiment=smoke checkpoint={model} lists=[]", "lists=[] must be names in brackets"),
    ("evaluate.py experiment=smoke checkpoint={model} lists=[nowhere]", "there is no list nowhere, there are train,"),
]
LATE = [
    ("smoke replay.buffer.capacity_per_task=0", "capacity_per_task=0 should be at least 1"),
    ("smoke method=digirl module.replayed_old_logprobs=stored module.objective.clip_low=0.1", "compares no old log"),
    ("smoke module/critic=two_layer", "critic=two_layer: the method of this run has no critic"),
    ("smoke module.critic_rate=1e-4", "critic_rate=1e-4: the method of this run has no critic"),
    ("smoke module.optimizer.betas=[0.9]", "module.optimizer.betas=[0.9] should be a list that"),
    ("smoke module.objective.clip_high=-1", "clip_high=-1 should be at least 0"),
    ("smoke module.objective.std=both", "should be 'sample' or 'population'"),
    ("smoke rollout.settings.max_context=65536", "is above the 32768 tokens that the model was"),
    ("smoke ~callbacks.weight_sync", "no callback sends the policy to the engine"),
]
TYPED_WRONG = [
    ("arpo_miniwop", "experiment=arpo_miniwop: there is arpo_miniwob; choose one of arpo_128_"),
    ("smoke modul.lr=1", "modul.lr: there is module; a run has name, seed, "),
    ("evaluate.py --config-name=select selektion.min_successes=3", "there is selection; a run has "),
    ("train.py -m experiment=smoke seed=1,2 replai=on", "replai: there is replay; a run has "),
]


@pytest.fixture
def model(tmp_path):
    """Looks like a checkpoint from outside."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes that have imported what says things early; Hydra alone takes most of a second."""
    modules = ("hydra", "arpo.run.check", "arpo.run.entry")
    with Forks(modules, tmp_path_factory.mktemp("light")) as forks:
        yield forks


def run(line: str, tmp_path: Path) -> Ended:
    """Run a command as a person does, every import included."""
    command = [sys.executable, *words_of(line, tmp_path)]
    env = environment() | {"PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=600.0)
    imported = set(re.findall(r"^import time: .*\| +(\w+)$", done.stderr, re.MULTILINE))
    assert "hydra" in imported
    return Ended(done.returncode, done.stdout + done.stderr, HEAVY & imported)


def words_of(line: str, tmp_path: Path) -> list[str]:
    program = "" if line.startswith(("train.py", "evaluate.py")) else "train.py experiment="
    return [*shlex.split(program + line), f"paths.output={tmp_path / 'outputs'}"]


def check_refusal(ended: Ended, words: str, tmp_path: Path, *, without: Set[str] = HEAVY) -> None:
    assert words in ended.said
    assert "Traceback" not in ended.said
    assert ended.code == 2
    assert not (tmp_path / "outputs").exists(), "something was written"
    assert not ended.heavy & without


@pytest.mark.parametrize(("line", "words"), EARLY, ids=[line for line, _ in EARLY])
def test_what_can_be_known_early_is_said_without_torch(line, words, tmp_path, model, light):
    ended = light.run(words_of(line.format(model=model) if "{model}" in line else line, tmp_path))
    check_refusal(ended, words, tmp_path)


def test_a_run_of_other_words_is_not_gone_on_with(tmp_path, light):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "iteration_000001.ckpt").touch()
    cfg = compose("train", ["experiment=smoke", "paths.run_dir=run", f"paths.output={tmp_path / 'outputs'}"])
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True), encoding="utf-8")
    line = f"smoke seed=1 resume=auto hydra.run.dir={folder}"
    check_refusal(light.run(words_of(line, tmp_path)), "seed: 0 there, 1 now", tmp_path)


MORE = [pytest.param(*row, marks=pytest.mark.long) for row in LATE[3:-2]]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "words"), [*LATE[:3], *MORE, *LATE[-2:]], ids=[line for line, _ in LATE])
def test_what_only_a_constructor_knows_is_said_before_anything_starts(line, words, tmp_path, forks):
    check_refusal(forks.run(words_of(line, tmp_path)), words, tmp_path, without=STARTS)


@pytest.mark.parametrize(("line", "words"), TYPED_WRONG[1:])
def test_what_does_not_compose_is_named(line, words, tmp_path, light):
    check_refusal(light.run(words_of(line, tmp_path)), words, tmp_path)


def test_it_is_named_in_a_process_of_its_own_too(tmp_path):
    line, words = TYPED_WRONG[0]
    check_refusal(run(line, tmp_path), words, tmp_path)


def check_without_engines() -> None:
    from arpo.run import evaluate, train  # noqa: F401 - what these import is looked at

    assert not STARTS & set(sys.modules)


@pytest.mark.slow
def test_no_engine_is_imported_to_say_what_a_machine_lacks(forks):
    """A refusal takes seconds: nothing heavy is loaded before a run is known to be possible."""
    forks.call(check_without_engines)


def test_what_is_light_stays_light():
    light = "run.check run.entry rollout.settings rollout.storage datamodules.demonstrator envs.osworld.env"
    light += " envs.pool.pool envs.miniwob.env envs.desktop.env"
    code = f"import sys, {', '.join(f'arpo.{name}' for name in light.split())}; print(*{HEAVY} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == ""
