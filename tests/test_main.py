"""`python -m arpo`: the list of commands, and what a wrong word says."""

import subprocess
import sys

import pytest

from arpo.__main__ import COMMANDS, main


def test_without_a_word_it_lists_every_command(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name, (command, purpose) in COMMANDS.items():
        assert f"  {name} " in listed
        assert command in listed
        assert purpose in listed


def test_train_with_words_trains():
    command = [sys.executable, "-m", "arpo", "train", "experiment=smoke", "seed"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "'seed' is no override: type KEY=VALUE, such as seed=1, with a key of conf/\n",
    )


def test_doctor_runs_the_doctor(monkeypatch):
    from arpo.apps import doctor

    monkeypatch.setattr(doctor, "main", lambda: 7)
    monkeypatch.setattr(doctor, "look", lambda: 8)
    assert main(["doctor"]) == 7
    assert main(["doctor", "--look"]) == 8


def test_plan_gets_the_words_after_it(monkeypatch):
    from arpo.apps.plan import command

    monkeypatch.setattr(command, "main", lambda words: 3 if words == ["gpus=8", "gpu=h100-80"] else 4)
    assert main(["plan", "gpus=8", "gpu=h100-80"]) == 3


def test_a_rehearsal_gets_the_words_after_it(monkeypatch):
    from arpo.apps.rehearsal import rehearse

    monkeypatch.setattr(rehearse, "main", lambda words: 3 if words == ["experiment=smoke", "seed=1"] else 4)
    assert main(["rehearse", "experiment=smoke", "seed=1"]) == 3


def test_an_export_gets_the_words_after_it(monkeypatch):
    from arpo.apps.dataset import export

    monkeypatch.setattr(export, "main", lambda words: 3 if words == ["run", "--to", "parquet"] else 4)
    assert main(["episodes", "run", "--to", "parquet"]) == 3


def test_a_former_word_goes_on_working_and_says_what_it_is_called_now(capsys, monkeypatch):
    from arpo.apps.dataset import export

    monkeypatch.setattr(export, "main", lambda words: 3 if words == ["run", "--to", "parquet"] else 4)
    assert main(["export", "run", "--to", "parquet"]) == 3
    assert capsys.readouterr().err == "`python -m arpo export` is now `python -m arpo episodes`.\n"


def test_a_comparison_gets_the_words_after_it(monkeypatch):
    from arpo.apps.comparison import command

    monkeypatch.setattr(command, "main", lambda words: 3 if words == ["outputs/a/*", "--against", "default"] else 4)
    assert main(["compare", "outputs/a/*", "--against", "default"]) == 3


@pytest.mark.parametrize(("word", "lacking"), [("episodes", "run, --to"), ("compare", "runs")])
def test_a_command_without_its_words_says_which(capsys, word, lacking):
    with pytest.raises(SystemExit, match="2"):
        main([word])
    assert f"python -m arpo {word}: error: the following arguments are required: {lacking}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["docter"], "`python -m arpo` does not know 'docter'; without a word it lists what you can do.\n"),
        (["doctor", "now"], "`python -m arpo` does not know 'doctor now'; without a word it lists what you can do.\n"),
        (
            ["train"],
            "`python -m arpo train` is not a command of its own; type `python train.py experiment=arpo_miniwob`.\n",
        ),
    ],
)
def test_a_wrong_word_is_one_sentence_and_exit_status_2(capsys, words, said):
    assert main(words) == 2
    assert capsys.readouterr() == ("", said)


def test_the_list_starts_without_heavy_imports():
    code = "import sys, runpy; sys.argv = ['arpo']; runpy.run_module('arpo', run_name='x'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "lightning", "ray", "hydra", "arpo.apps.doctor"} & set(done.stdout.split())
