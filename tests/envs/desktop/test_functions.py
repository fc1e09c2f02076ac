"""Functions of the desktops: the guest's, in a home directory of their own, and what the environment makes of them."""

import os
import resource
import runpy
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from arpo.agent.actions import Call, Wait
from arpo.agent.functions import LONGEST_TEXT
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.desktop.functions import FUNCTIONS, check_functions, perform
from arpo.envs.guest.client import CallResult
from arpo.errors import ConfigError, DesktopDestroyedError, EnvError
from tests.envs.desktops import QUICK, editor_task, needs_desktop

PROGRAM = Path(__file__).parents[3] / "docker" / "guest" / "functions.py"
guest = SimpleNamespace(**runpy.run_path(str(PROGRAM)))  # it is no part of the package


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory, and beside it what no function may touch; editor and file manager say what they open."""
    (tmp_path / "home").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "outside").write_text("theirs")
    os.mkfifo(tmp_path / "opened")
    for program in ("mousepad", "pcmanfm"):
        made = tmp_path / "bin" / program
        made.write_text(f'#!/bin/sh\nprintf %s "{program} $1" >"{tmp_path}/opened"\n')
        made.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "home"


def run(name, limit=None, **arguments):
    """What a call says, as the server of a guest would hear it; empty where it was done."""
    command = guest.command_line(name, arguments)
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == bool(done.stderr), done
    assert "Traceback" not in done.stderr
    return done.stderr


def refused(name, **arguments):
    """Why the function itself does not do it, without a process around it."""
    with pytest.raises((guest.RefusedError, OSError)) as error:
        guest.FUNCTIONS[name](**arguments)
    return str(error.value)


def test_environment_and_guest_have_the_same_functions():
    declared = [{"name": function.name, "parameters": dict(function.parameters)} for function in FUNCTIONS]
    assert declared == guest.signatures()
    assert {function.name.partition(".")[0] for function in FUNCTIONS} == {"mousepad", "pcmanfm"}
    assert guest.LONGEST_TEXT == LONGEST_TEXT


def test_a_file_is_written_whole_and_written_again(home):
    assert run("mousepad.write", path="~/note.txt", text="żółw 'a' \"b\"\n$HOME `id` 🐢\n") == ""
    assert (home / "note.txt").read_text(encoding="utf-8") == "żółw 'a' \"b\"\n$HOME `id` 🐢\n"
    assert run("mousepad.write", path=str(home / "note.txt"), text="") == ""
    assert (home / "note.txt").read_text(encoding="utf-8") == ""


def test_the_longest_texts_of_any_characters_fit_the_words_of_a_program(home):
    for character in ("\x01", "\U0001f422", '"'):
        text = character * LONGEST_TEXT
        assert run("mousepad.write", path="a", text=text) == ""
        assert run("mousepad.replace", path="a", find=text, by=character + text[1:]) == ""
        assert (home / "a").read_text(encoding="utf-8") == text


def test_a_text_is_replaced_wherever_it_is(home):
    (home / "pets.txt").write_text("a cat and a cat\n")
    assert run("mousepad.replace", path="pets.txt", find="cat", by="dog") == ""
    assert (home / "pets.txt").read_text(encoding="utf-8") == "a dog and a dog\n"
    assert "does not hold 'cat'" in run("mousepad.replace", path="pets.txt", find="cat", by="dog")
    assert "does not hold ''" in refused("mousepad.replace", path="pets.txt", find="", by="dog")


def test_a_replacement_may_not_make_a_file_of_any_size(home):
    (home / "a").write_text("a" * 1000)
    assert "more than 1048576 bytes" in run("mousepad.replace", path="a", find="a", by="b" * LONGEST_TEXT)
    assert (home / "a").read_text(encoding="utf-8") == "a" * 1000
    os.truncate(home / "a", 2**40)
    assert "more than 1048576 bytes" in refused("mousepad.replace", path="a", find="\0", by="b")


def test_a_full_disk_leaves_a_file_as_it_was(home):
    """A limit on the size of files stands in for the disk: a write ends in the middle, too."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1000, 1000))
    (home / "a").write_text("a" * 50)
    assert "File too large" in run("mousepad.write", limit, path="a", text="b" * 2000)
    assert (home / "a").read_text(encoding="utf-8") == "a" * 50
    assert "File too large" in run("mousepad.replace", limit, path="a", find="a", by="b" * 40)
    assert (home / "a").read_text(encoding="utf-8") == "a" * 50


def test_folders_are_made_and_things_are_moved(home):
    assert run("pcmanfm.make_folder", path="papers") == ""
    assert run("mousepad.write", path="papers/old.txt", text="x") == ""
    assert run("pcmanfm.move", path="papers/old.txt", to="~/new.txt") == ""
    assert (home / "new.txt").read_text(encoding="utf-8") == "x"
    assert run("pcmanfm.move", path="papers", to="letters") == ""
    assert sorted(each.name for each in home.iterdir()) == ["letters", "new.txt"]
    assert "there is something at letters" in refused("pcmanfm.move", path="new.txt", to="letters")
    assert "File exists" in refused("pcmanfm.make_folder", path="letters")
    assert "No such file" in refused("pcmanfm.make_folder", path="no/where")
    assert "No such file" in refused("pcmanfm.move", path="none", to="some")


def test_applications_open_what_is_there(home):
    (home / "note.txt").write_text("x")
    assert run("mousepad.open", path="note.txt") == ""
    assert (home.parent / "opened").read_text(encoding="utf-8") == f"mousepad {home}/note.txt"
    assert run("pcmanfm.open", path="~") == ""
    assert (home.parent / "opened").read_text(encoding="utf-8") == f"pcmanfm {home}"
    assert "there is no file none" in refused("mousepad.open", path="none")
    assert "there is no folder note.txt" in refused("pcmanfm.open", path="note.txt")


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "~/../outside", "a/../../outside", "~root/x", "link", "folder/outside", "/"]
)
def test_no_path_leaves_the_home_directory(home, path):
    (home / "link").symlink_to(home.parent / "outside")
    (home / "folder").symlink_to(home.parent)
    (home / "mine").write_text("x")
    for name, arguments in (
        ("mousepad.open", {"path": path}),
        ("mousepad.write", {"path": path, "text": "mine"}),
        ("mousepad.replace", {"path": path, "find": "theirs", "by": "mine"}),
        ("pcmanfm.open", {"path": path}),
        ("pcmanfm.make_folder", {"path": path}),
        ("pcmanfm.move", {"path": path, "to": "here"}),
        ("pcmanfm.move", {"path": "mine", "to": path}),
    ):
        assert "is not in the home directory" in refused(name, **arguments), name
    assert (home.parent / "outside").read_text(encoding="utf-8") == "theirs"
    assert (home / "mine").exists()
    (home.parent / "home2").mkdir(exist_ok=True)
    assert "is not in the home" in refused("mousepad.write", path=f"{home}2/a", text="")


@pytest.mark.parametrize("path", ["pipe", "folder", "", "loop/a", "a" * 300, "x/" * 4000], ids=lambda path: path[:9])
def test_a_pipe_a_folder_and_a_link_in_circles_keep_nobody_waiting(home, path):
    os.mkfifo(home / "pipe")
    (home / "folder").mkdir()
    (home / "loop").symlink_to(home / "loop")
    assert refused("mousepad.write", path=path, text="a")
    assert refused("mousepad.replace", path=path, find="a", by="b")
    assert refused("mousepad.open", path=path)


def test_a_long_chain_of_links_is_refused_as_a_short_circle_is(home):
    for number in range(2000):
        (home / f"{number}").symlink_to(home / f"{number + 1}")
    assert run("mousepad.open", path="0")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("mousepad.jump", {}, "there is no function 'mousepad.jump'"),
        (None, {}, "there is no function 'None'"),
        (["mousepad.open"], {}, "there is no function"),
        ("mousepad.open", None, "mousepad.open takes path"),
        ("mousepad.open", [], "mousepad.open takes path"),
        ("mousepad.open", {}, "mousepad.open takes path"),
        ("mousepad.open", {"path": "a", "mode": "b"}, "mousepad.open takes path"),
        ("mousepad.open", {"path": 3}, "mousepad.open: path must be a str"),
        ("mousepad.open", {"path": None}, "mousepad.open: path must be a str"),
        ("mousepad.open", {"path": "a" * 10_001}, "mousepad.open: path has more than 10000 characters"),
        ("mousepad.open", {"path": "a\0b"}, "or some that are no text"),
        ("mousepad.open", {"path": "\ud800"}, "or some that are no text"),
        ("mousepad.open", {"path": "a"}, ""),
    ],
)
def test_a_guest_refuses_what_fits_no_function_whoever_asks(name, arguments, said):
    assert said in guest.refusal(name, arguments)
    assert bool(guest.refusal(name, arguments)) == bool(said)


class GuestThatSays:
    """Notes what it is asked, and answers every call the same."""

    def __init__(self, answer):
        self.asked, self._answer = [], answer

    def call(self, function, arguments):
        self.asked.append((function, dict(arguments)))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


OPEN = Call("mousepad.open", {"path": "a"})


def test_a_call_that_fits_is_the_guests_to_perform(caplog):
    asked = GuestThatSays(CallResult(done=True))
    with caplog.at_level("INFO"):
        perform(OPEN, FUNCTIONS, asked)
    assert asked.asked == [("mousepad.open", {"path": "a"})]
    assert caplog.text == ""


def test_a_call_that_fits_nothing_never_travels(caplog):
    asked = GuestThatSays(CallResult(done=True))
    with caplog.at_level("INFO"):
        perform(OPEN, (), asked)
        for call in (Call("mousepad.jump"), Call("mousepad.open"), Call("mousepad.open", {"path": 3})):
            perform(call, FUNCTIONS, asked)
    assert asked.asked == []
    assert caplog.text.count("a call was refused") == 4


def test_a_refusal_of_the_guest_is_logged_as_one_line_and_is_no_error(caplog):
    with caplog.at_level("INFO"):
        perform(OPEN, FUNCTIONS, GuestThatSays(CallResult(done=False, said="no\n\x1b[31mroom")))
    assert r"a call was refused: no\n\x1b[31mroom" in caplog.text


@pytest.mark.parametrize("error", [EnvError("guest", "gone"), DesktopDestroyedError("used up")])
def test_a_guest_that_fails_is_an_error_as_ever(error):
    with pytest.raises(type(error)):
        perform(OPEN, FUNCTIONS, GuestThatSays(error))


def test_an_image_without_the_functions_of_the_prompt_is_refused_before_anybody_plays():
    named = {each["name"]: each["parameters"] for each in guest.signatures()}
    has = SimpleNamespace(functions=lambda: {**named, "xterm.run": {"command": "str"}})
    check_functions(has, "mine")
    named["pcmanfm.move"] = {"path": "str"}
    del named["mousepad.open"]
    with pytest.raises(ConfigError, match=r"image mine lack the functions mousepad\.open, pcmanfm\.move: build"):
        check_functions(has, "mine")
    named.clear()
    with pytest.raises(ConfigError, match="build the image again"):
        check_functions(has, "mine")


@pytest.fixture(scope="module")
def desktop():
    env = DockerDesktop(**QUICK, functions=True)
    yield env
    env.close()


@pytest.mark.docker
@pytest.mark.skipif(needs_desktop[1].args[0], reason=needs_desktop[1].kwargs["reason"])
def test_a_real_desktop_performs_calls_as_its_user_and_goes_on_after_a_refusal(desktop):
    desktop.reset(editor_task())
    before = desktop.step(Wait()).observation
    assert desktop.step(Call("mousepad.write", {"path": "/etc/motd", "text": "a"})).observation == before
    assert desktop.step(Call("mousepad.jump")).observation == before
    desktop.step(Call("mousepad.write", {"path": "list.txt", "text": "bread\nmilk\n"}))
    assert desktop.machine.guest.execute("stat -c %U ~/list.txt", shell=True).output == "user\n"
    desktop.step(Call("pcmanfm.open", {"path": "~"}))
    desktop.machine.guest.wait_for(lambda: "user" in desktop.machine.guest.titles(), "the folder")
    assert desktop.evaluate() == 1.0
    desktop.machine.guest.reset()
