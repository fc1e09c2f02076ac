"""Commands that cannot run, and what each of them says before anything starts: one for each kind of check."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Set
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from arpo.run.build import compose
from tests.run.forks import HEAVY, ROOT, Ended, Forks

HANGS_S = 600.0
STARTS = {"ray", "vllm"}
"""What is imported once something starts."""

EARLY = [
    # the environment, the tasks, the model
    ("train.py experiment=smoke rollout.settings.group_size=0", "group_size=0 should be at least 1"),
    ("train.py experiment=arpo_miniwob model.path=/nope", "leave model.path out, or set it to a directory that"),
    ("train.py experiment=arpo_miniwob env=desktop", "are tasks of miniwob, which the environment desktop cannot run"),
    (
        "train.py experiment=smoke tasks.train._target_=arpo.evaluation.selection.listed_only "
        "+tasks.train.tasks={_target_:arpo.envs.osworld.tasks.osworld_tasks}",
        "tasks.train are tasks of osworld, which the environment fake cannot run",
    ),
    ("train.py", "it needs a checkpoint, and no path is set: set model.path"),
    # values
    ("train.py experiment=smoke threads=none", "threads must be a whole number of at least 1, got none"),
    ("train.py experiment=smoke rollout.settings.max_tokens=2048", "max_context=1024 must be above"),
    ("train.py experiment=arpo_miniwob env.size=0", "env.size=0 should be at least 1"),
    ("train.py experiment=arpo_miniwob env.make_env.tabs=0", "tabs=0 should be at least 1"),
    ("train.py experiment=smoke env.backend=spark", "spark"),
    ("train.py experiment=arpo_miniwob tasks.pages=[click-tset]", "click-tset"),
    (
        "train.py experiment=warmstart_fake datamodule.collector.demonstrator.success_rate=2",
        "success_rate=2 should be",
    ),
    ("train.py experiment=smoke engine=vllm trainer=ddp", "choose engine=fleet"),
    ("train.py experiment=smoke env=null", "env=null: this must be the name of a choice; choose one of desktop,"),
    *(
        []
        if find_spec("wandb")
        else [
            ("train.py experiment=smoke logger=wandb", "logger=wandb needs the package wandb, which is not installed")
        ]
    ),
    ("train.py experiment=offline_dpo source=nowhere", "source=nowhere holds no episodes to learn from: name the"),
    # numbers that fit no other, or none at all
    ("train.py experiment=smoke engine=fleet engine.num_gpus=0 engine.replicas=0", "engine.replicas must be at least"),
    ("train.py experiment=warmstart_miniwob trainer=fsdp", "MuonWithAdamW needs whole matrices, and trainer=fsdp has"),
    ("train.py experiment=smoke module.optimizer.betas=[0.9,nan]", "module.optimizer.betas.1=nan must be a finite"),
    # keys
    ("train.py experiment=smoke +env.make_env.speed=2", "env.make_env.speed: arpo.envs.fake.FakeDesktop has"),
    # options of Lightning's
    ("train.py experiment=smoke engine=hf +trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches=2"),
    ("train.py experiment=smoke +trainer.limit_train_batches=1", "iterations says how long a run is"),
    ("train.py experiment=smoke +trainer.precision=16-mixed", "take bf16-mixed, or model.policy.dt"),
    # words without effect
    ("train.py experiment=smoke experience=[/nowhere]", "[/nowhere]: nothing reads experience; replay=pool reads it"),
    ("train.py experiment=smoke source=/nowhere", "source=/nowhere: nothing reads source; experiment=offline_rs, "),
    ("train.py experiment=smoke gpus=8", "gpus=8: nothing reads gpus; layout=split and layout=colocated read it, or"),
    ("train.py experiment=smoke +speed=2", "+speed=2: nothing reads speed; take choices that do, or leave it out"),
    ("train.py experiment=smoke model.make.seed=4", "model.make.seed=4: nothing reads model.make.seed"),
    ("train.py experiment=warmstart_fake engine=hf", "engine=hf: nothing reads engine"),
    (
        "train.py experiment=arpo_miniwob callbacks.evaluation=null evaluation.protocol=standard",
        "nothing reads evaluation.protocol",
    ),
    ("train.py experiment=smoke 'module.reference=${model.policy}'", "set module.objective.kl_coefficient above 0"),
    ("train.py experiment=smoke module.objective.kl=k1", "kl=k1: only the KL term reads it: set module.objective."),
    ("train.py experiment=smoke replay=off module.replayed_old_logprobs=stored", "nothing is replayed: choose replay"),
    (
        "train.py experiment=smoke module.objective.estimator=rloo module.objective.std=sample",
        "this module.objective.estimator divides by no deviation: take grpo or step_grpo, or leave it out",
    ),
    ("train.py experiment=smoke rollout.settings.order=finished", "set rollout.settings.max_policy_lag to 1 or more"),
    ("train.py experiment=smoke engine=fleet engine.num_gpus=0 engine.max_unavailable=2", "set engine.sync=rolling"),
    ("train.py experiment=smoke engine.max_num_seqs=8", "at a time: set deterministic=false"),
    (
        "train.py experiment=smoke env=recorded env.make_env.patches=0 env.make_env.thought=recorded "
        "tasks=recorded source=x",
        "set env.make_env.patches to 1 or more, or",
    ),
    (
        "train.py experiment=warmstart_miniwob datamodule.collector.demonstrator.habit=0.3",
        "the script makes no mistakes: set datamodule.collector.demonstrator.success_rate below 1, or leave it out",
    ),
    (
        "train.py experiment=warmstart_fake datamodule.collector.demonstrator.rules=true "
        "datamodule.collector.demonstrator.habit=0.3",
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
    ("train.py experiment=smoke replay.buffer.capacity_per_task=0", "capacity_per_task=0 should be at least 1"),
    (
        "train.py experiment=smoke method=digirl module.replayed_old_logprobs=stored module.objective.clip_low=0.1",
        "module.objective.clip_low=0.1: the method of this run compares no old log-probabilities with new ones",
    ),
    ("train.py experiment=smoke module/critic=two_layer", "critic=two_layer: the method of this run has no critic"),
    ("train.py experiment=smoke module.critic_rate=1e-4", "critic_rate=1e-4: the method of this run has no critic"),
    ("train.py experiment=smoke module.optimizer.betas=[0.9]", "module.optimizer.betas=[0.9] should be a list that"),
    ("train.py experiment=smoke module.objective.clip_high=-1", "clip_high=-1 should be at least 0"),
    ("train.py experiment=smoke module.objective.std=both", "should be 'sample' or 'population'"),
    ("train.py experiment=smoke rollout.settings.max_context=65536", "is above the 32768 tokens that the model was"),
    ("train.py experiment=smoke ~callbacks.weight_sync", "no callback sends the policy to the engine"),
]
TYPED_WRONG = [
    ("train.py experiment=arpo_miniwop", "experiment=arpo_miniwop: there is arpo_miniwob; choose one of arpo_128_"),
    ("train.py experiment=smoke modul.lr=1", "modul.lr: there is module; a run has name, seed, "),
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


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("ARPO_", "RAY_ADDRESS"))}


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes that have imported what says things early; Hydra alone takes most of a second."""
    with Forks(
        ("hydra", "arpo.run.check", "arpo.run.entry"), environment(), tmp_path_factory.mktemp("light")
    ) as forks:
        yield forks


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes that have imported what a run imports, which takes five seconds."""
    modules = ("arpo.run.train", "arpo.inference.vllm", "arpo.modules.grpo", "arpo.run.loggers")
    with Forks(modules, environment(), tmp_path_factory.mktemp("whole")) as forks:
        yield forks


def run(line: str, tmp_path: Path) -> Ended:
    """Run a command as a person does, every import included."""
    command = [sys.executable, *words_of(line, tmp_path)]
    env = environment() | {"PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=HANGS_S)
    imported = set(re.findall(r"^import time: .*\| +(\w+)$", done.stderr, re.MULTILINE))
    assert "hydra" in imported
    return Ended(done.returncode, done.stdout + done.stderr, HEAVY & imported)


def words_of(line: str, tmp_path: Path) -> list[str]:
    return [*shlex.split(line), f"paths.output={tmp_path / 'outputs'}"]


def check_refusal(ended: Ended, words: str, tmp_path: Path, *, code: int = 2, without: Set[str] = HEAVY) -> None:
    assert words in ended.said
    assert "Traceback" not in ended.said
    assert ended.code == code
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
    line = f"train.py experiment=smoke seed=1 resume=auto hydra.run.dir={folder}"
    ended = light.run(words_of(line, tmp_path))
    check_refusal(ended, "seed: 0 there, 1 now", tmp_path)


MORE = [pytest.param(*row, marks=pytest.mark.long) for row in LATE[3:-2]]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "words"), [*LATE[:3], *MORE, *LATE[-2:]], ids=[line for line, _ in LATE])
def test_what_only_a_constructor_knows_is_said_before_anything_starts(line, words, tmp_path, whole):
    check_refusal(whole.run(words_of(line, tmp_path)), words, tmp_path, without=STARTS)


@pytest.mark.slow
def test_the_last_check_imports_no_more_in_a_process_of_its_own(tmp_path):
    line, words = LATE[-1]
    check_refusal(run(line, tmp_path), words, tmp_path, without=STARTS)


@pytest.mark.parametrize(("line", "words"), TYPED_WRONG, ids=[line for line, _ in TYPED_WRONG])
def test_what_does_not_compose_is_named(line, words, tmp_path):
    check_refusal(run(line, tmp_path), words, tmp_path)


def test_what_is_light_stays_light():
    code = (
        "import sys, arpo.run.check, arpo.run.entry, arpo.rollout.settings, arpo.envs.osworld.env, "
        "arpo.envs.pool.pool, arpo.envs.miniwob.env, arpo.envs.desktop.env, arpo.rollout.storage, "
        "arpo.datamodules.demonstrator; "
        "print(sorted({'torch', 'lightning', 'transformers', 'ray', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
