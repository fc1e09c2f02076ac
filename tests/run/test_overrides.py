import shlex
import subprocess
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st

from arpo.errors import ConfigError
from arpo.run.build import compose
from arpo.run.overrides import check_command, check_overrides, override_of
from tests.forks import ROOT


def read(word):
    return OverridesParser.create().parse_override(word).value()


@pytest.mark.parametrize(
    ("word", "typed"),
    [
        ("model.path=/数据/模型", "'model.path=\"/数据/模型\"'"),
        ("tasks.train.pages=[点击,a]", "'tasks.train.pages=\"[点击,a]\"'"),
        ("model.path=/x/[old", "'model.path=\"/x/[old\"'"),
        ("model.path=/x/seed=2/policy", "'model.path=\"/x/seed=2/policy\"'"),
        ("model.path={x", "'model.path=\"{x\"'"),
        ("model.path=a;b", "'model.path=\"a;b\"'"),
    ],
)
def test_a_word_that_hydra_cannot_read_is_shown_as_it_can(word, typed):
    with pytest.raises(ConfigError) as raised:
        check_overrides([word])
    assert str(raised.value).endswith(f"as in {typed}")
    (again,) = shlex.split(typed)
    check_overrides([again])


@example('a\\"]')
@example("a]\\")
@given(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs", "Cc"]), min_size=1))
def test_whatever_is_quoted_is_read_as_it_was(text):
    assert read(override_of("key", text)) == text


@pytest.mark.parametrize("word", ["foo", "名=1", " seed=1", "a b=1", "seed =1"])
def test_a_word_without_a_key_is_named(word):
    with pytest.raises(ConfigError, match="is no override: type KEY=VALUE, such as seed=1"):
        check_overrides([word])


def test_what_hydra_reads_passes_and_its_options_are_no_overrides():
    check_overrides(["seed=1", "a" * 5000 + "=null", "+a.b=[1,2]", "~callbacks.replay", "++a=b", "a=", "a={b:1}"])
    check_overrides(["model.path=/x/m", "a='中'"])
    check_command(["--config-name", "select", "--cfg", "job", "-m", "seed=0,1"])


@pytest.mark.parametrize("program", ["train.py", "evaluate.py"])
def test_the_programs_say_so_before_anything_else(program):
    words = ["experiment=smoke", "tasks.train.pages=[点"]
    command = [sys.executable, program, *(word.encode() for word in words)]  # the locale here may lack the letter
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "quote it twice" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.settings.temprature=1"], "there is temperature; rollout.settings has group_size, max_steps, "),
        (["rollout.setings.order=finished"], "rollout.setings.order: there is settings; rollout has make_engine, "),
        (["module.lr=1"], "module.lr: there is module.optimizer.lr; module has "),
        (["temperature=1"], r"temperature: there is module\.temperature and rollout\.settings\.temperature"),
        (["temprature=1"], r"temprature: there is .*rollout\.settings\.temperature"),
        (["lr=1"], r"lr: there is module\.optimizer\.lr"),
        (["curriculum.epochs=3"], "curriculum.epochs: the choice of curriculum has no such key"),
        (["module/critc=two_layer"], "module/critc: there is critic; module has "),
        (["env=fake_phone", "env.make_env.width=3"], "env.make_env has no keys; "),
        (["replai=on"], "replai: there is replay; a run has name"),
        (["~callbacks.weightsync"], "callbacks.weightsync: there is weight_sync; callbacks has iteration_axis, "),
        (["method=gigpo", "module.objective.stepweight=1"], "stepweight: there is step_weight; "),
        (["replay=relevance", "replay.buffer.choice=newest"], "replay.buffer.choice: replay.buffer has temperature, "),
        (["experiment=arpo_miniwop"], "experiment=arpo_miniwop: there is arpo_miniwob; choose one of arpo_128_"),
        (["replay=xxxx"], "^replay=xxxx: choose one of adapr, off, on, pool, relevance$"),
        (["+replay=on"], "^replay appears more than once in the final defaults list$"),
        (["sed=1", "experiment=smoke", "nam=a"], r"^sed: there is seed; .*\nnam: there is name; [^\n]*$"),
    ],
)
@pytest.mark.parametrize("name", ["train", "evaluate", "plan"])
def test_the_nearest_name_is_said(name, words, said):
    with pytest.raises(ConfigError, match=said):
        compose(name, words)
