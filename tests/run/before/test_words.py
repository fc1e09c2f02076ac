import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st

from arpo.errors import ConfigError
from arpo.run.before.words import check_command, check_words, override, quoted

ROOT = Path(__file__).parents[3]


def read(word):
    return OverridesParser.create().parse_override(word).value()


@pytest.mark.parametrize(
    ("word", "typed"),
    [
        ("model.path=/数据/模型", "'model.path=\"/数据/模型\"'"),
        ("tasks.train.pages=[点击,a]", "'tasks.train.pages=[\"点击\",a]'"),
        ("model.path=/x/[old", "'model.path=\"/x/[old\"'"),
        ("model.path=/x/old]", "'model.path=\"/x/old]\"'"),
        ("model.path=/x/seed=2/policy", "'model.path=\"/x/seed=2/policy\"'"),
        ("model.path=/x(1)/m", "'model.path=\"/x(1)/m\"'"),
        ("model.path={x", "'model.path=\"{x\"'"),
        ("model.path=a;b", "'model.path=\"a;b\"'"),
        ("model.path=café", "'model.path=\"café\"'"),
        ("model.path=🙂", "'model.path=\"🙂\"'"),
    ],
)
def test_a_word_that_hydra_cannot_read_is_shown_as_it_can(word, typed):
    with pytest.raises(ConfigError) as raised:
        check_words([word])
    assert str(raised.value).endswith(f"as in {typed}")
    (again,) = shlex.split(typed)
    check_words([again])


@example('a\\"]')
@example("a]\\")
@given(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs", "Cc"]), min_size=1))
def test_whatever_is_quoted_is_read_as_it_was(text):
    assert read(override("key", text)) == text


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_what_is_offered_can_always_be_read(text):
    read(quoted(f"key={text}"))


@pytest.mark.parametrize("word", ["foo", "名=1", " seed=1", "a b=1", "seed =1"])
def test_a_word_without_a_key_is_named(word):
    with pytest.raises(ConfigError, match="is no override: type KEY=VALUE, such as seed=1"):
        check_words([word])


@pytest.mark.parametrize(
    "word",
    [
        "seed=1",
        "a" * 5000 + "=null",
        "+a.b=[1,2]",
        "~callbacks.replay",
        "++a=b",
        "a=",
        "model.path=/x/m",
        "a={b:1}",
        "a='中'",
    ],
)
def test_what_hydra_reads_passes(word):
    check_words([word])


def test_the_values_of_a_sweep_are_quoted_one_by_one():
    with pytest.raises(ConfigError, match='name="中",b'):
        check_command(["-m", "name=中,b"])
    with pytest.raises(ConfigError, match='name="中,b"'):
        check_command(["name=中,b"])


def test_options_of_hydra_are_no_overrides():
    check_command(["--config-name", "select", "--cfg", "job", "-m", "seed=0,1"])


@pytest.mark.parametrize("program", ["train.py", "evaluate.py"])
def test_the_programs_say_so_before_anything_else(program):
    words = ["experiment=smoke", "tasks.train.pages=[点"]
    command = [sys.executable, program, *(word.encode() for word in words)]  # the locale here may lack the letter
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "quote it twice" in done.stderr
