"""`python -m arpo`: the list of commands, and what a wrong word says."""

import os
import signal
import subprocess
import sys
from importlib import import_module

import pytest

from arpo.__main__ import COMMANDS, main
from arpo.apps import doctor


def test_without_a_word_it_lists_every_command_also_to_a_reader_that_has_enough(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name, (command, purpose) in COMMANDS.items():
        assert f"  {name} " in listed
        assert command in listed
        assert purpose in listed
    # As in `python -m arpo | head -1`, where head is the first to end.
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run([sys.executable, "-m", "arpo"], stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    ("word", "module"),
    [
        ("plan", "arpo.apps.plan.command"),
        ("rehearse", "arpo.apps.rehearsal.rehearse"),
        ("episodes", "arpo.apps.dataset.parquet"),
        ("compare", "arpo.apps.comparison.command"),
        ("tasks", "arpo.apps.tasks"),
    ],
)
def test_a_command_gets_the_words_after_it_and_doctor_looks_where_it_is_asked_to(monkeypatch, word, module):
    monkeypatch.setattr(doctor, "main", lambda: 7)
    monkeypatch.setattr(doctor, "look", lambda: 8)
    assert (main(["doctor"]), main(["doctor", "--look"])) == (7, 8)
    heard = []
    monkeypatch.setattr(import_module(module), "main", lambda words: heard.append(words) or 3)
    assert main([word, "run", "--to", "parquet"]) == 3
    assert heard == [["run", "--to", "parquet"]]


@pytest.mark.parametrize(("word", "lacking"), [("episodes", "run, --to"), ("compare", "runs")])
def test_a_command_without_its_words_says_which(capsys, word, lacking):
    with pytest.raises(SystemExit, match="2"):
        main([word])
    assert f"python -m arpo {word}: error: the following arguments are required: {lacking}" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["plan", "rehearse", "doctor", "select", "mcp"])
def test_a_command_that_is_asked_for_help_says_what_it_is_for_and_what_to_type(capsys, word):
    command, purpose = COMMANDS[word]
    assert main([word, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"{purpose}\n\n  $ {command}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("docter", "` does not know 'docter'; without arguments it lists what you can do.\n"),
        ("doctor now", "` does not know 'doctor now'; without arguments it lists what you can do.\n"),
        ("train", " train` is not a command of its own; type `python train.py experiment=arpo_miniwob`.\n"),
        (
            "watch --port 0",
            " watch` has gone: `python -m arpo view RUN --serve` follows a live run, "
            "`python -m arpo doctor --look` pictures a desktop.\n",
        ),
    ],
)
def test_a_wrong_word_is_one_sentence_and_exit_status_2(capsys, words, said):
    assert main(words.split()) == 2
    assert capsys.readouterr() == ("", f"`python -m arpo{said}")


def test_the_list_starts_without_heavy_imports_and_train_with_words_trains():
    code = "import sys, runpy; sys.argv = ['arpo']; runpy.run_module('arpo', run_name='x'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "lightning", "ray", "hydra", "arpo.apps.doctor"} & set(done.stdout.split())
    command = [sys.executable, "-m", "arpo", "train", "experiment=smoke", "seed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = "'seed' is no override: type KEY=VALUE, such as seed=1, with a key of conf/\n"
    assert (done.returncode, done.stderr) == (2, said)
