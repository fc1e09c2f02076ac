"""An agent's Python modules run in a process of their own: an honest test suite notices nothing, none is forged."""

import importlib
import os
import signal
import socket
import sys
from contextlib import contextmanager

import pytest

from arpo.envs.osworld import agent_modules
from arpo.envs.osworld.agent_modules import ForeignCodeError, ForeignModules, serve

SNAKE = """
from dataclasses import dataclass, field
SIZE = 20
score = 0
class Food:
    def __init__(self): self.position = (3, 4)
@dataclass
class Snake:
    body: list = field(default_factory=lambda: [(1, 1), (1, 2)])
    def eat(self, food):
        global score
        score += 1
        self.body.append(food.position)
        return len(self.body)
    def __add__(self, other): return Snake(self.body + other.body)
    def __lt__(self, other): return len(self.body) < len(other.body)
class Python(Snake): pass
def fail(kind): raise {"key": KeyError, "own": type("OwnError", (Exception,), {})}[kind]("why")
def settings(): return {"speed": 1.5, "names": ["a", b"b"], "all": {1, 2}}
def count():
    yield from range(3)
"""


@contextmanager
def modules(tmp_path, trusted=(), **files):
    """Import modules of these contents as an agent's; yields what imports."""
    for name, content in files.items():
        (tmp_path / f"{name}.py").write_text(content, encoding="utf-8")
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        try:
            os.dup2(theirs.fileno(), 3)
            os.closerange(4, 1024)  # what hostile modules write to is not this test's
            theirs.detach(), ours.detach()
            theirs = socket.socket(fileno=3)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(1, 2)
            sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, ForeignModules)]
            serve(theirs, str(tmp_path))
        finally:
            os._exit(1)
    theirs.close()
    before, finder = set(sys.modules), ForeignModules(str(tmp_path), trusted, ours)
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            del sys.modules[name]
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def snake(tmp_path):
    with modules(tmp_path, snake=SNAKE) as load:
        yield load("snake")


def test_values_objects_and_modules_are_what_they_are_in_one_process(snake):
    one, food = snake.Snake(), snake.Food()
    assert (snake.SIZE, food.position, type(food.position)) == (20, (3, 4), tuple)
    assert one.eat(food) == 3
    assert snake.score == 1
    assert one.body == [(1, 1), (1, 2), (3, 4)]
    assert one.body != [(1, 1)]
    assert list(one.body) == [(1, 1), (1, 2), (3, 4)]
    assert (len(one.body), one.body[-1], (1, 2) in one.body, isinstance(one.body, list)) == (3, (3, 4), True, True)
    one.body.append((9, 9))
    one.body = one.body[1:]
    assert one.body == [(1, 2), (3, 4), (9, 9)]
    assert (one + snake.Snake()).body == [(1, 2), (3, 4), (9, 9), (1, 1), (1, 2)]
    assert snake.Snake() < one
    assert snake.Snake() == snake.Snake()
    assert snake.Snake() != one
    assert snake.settings() == {"speed": 1.5, "names": ["a", b"b"], "all": {1, 2}}
    assert list(snake.count()) == [0, 1, 2]
    snake.SIZE = 5
    assert snake.SIZE == 5


def test_classes_are_asked_whose_instances_things_are(snake):
    assert isinstance(snake.Python(), snake.Snake)
    assert not isinstance(snake.Food(), snake.Snake)
    assert not isinstance(3, snake.Snake)


def test_python_s_own_exceptions_arrive_as_what_they_are_and_others_as_one(snake):
    with pytest.raises(KeyError, match="why"):
        snake.fail("key")
    with pytest.raises(ForeignCodeError, match="OwnError: why"):
        snake.fail("own")
    with pytest.raises(AttributeError):
        snake.nothing  # noqa: B018
    with pytest.raises(TypeError, match="cannot be handed to the agent's code"):
        snake.fail(object())


def test_a_star_brings_the_module_s_names_but_none_of_python_s_own(tmp_path):
    with modules(tmp_path, snake=SNAKE + "\nall = len = lambda *_: True\nrandom = 1\n_own = 2"):
        found = {}
        exec("from snake import *", found)
        assert {"Snake", "Food", "SIZE", "fail"} <= found.keys()
        assert not {"all", "len", "random", "_own"} & found.keys()


def test_packages_are_imported_and_trusted_modules_are_not_the_agent_s(tmp_path):
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "part.py").write_text("from helper import VALUE", encoding="utf-8")
    with modules(tmp_path, trusted=["suite"], helper="VALUE = 7", suite="") as load:
        assert load("game.part").VALUE == 7
        with pytest.raises(ModuleNotFoundError):
            load("suite")


def writes(content, repeating=""):
    writing = f"    try:\n        {repeating}os.write(number, {content!r})\n    except OSError: pass\n"
    return f"import os\nfor number in range(3, 64):\n{writing}"


HOSTILE = {
    "leaves at once": "import os; os._exit(0)",
    "exits": "raise SystemExit(0)",
    "is interrupted": "raise KeyboardInterrupt",
    "waits for ever": "import time; time.sleep(99)",
    "never stops": "while True: pass",
    "is no Python": "def",
    "writes to every descriptor": writes(b'["gave", true]\n' * 3),
    "writes no JSON": writes(b"[" * 5000 + b"\n"),
    "writes without end": writes(b"a" * 65536, "while True: "),
    "ends loops": "def value_of(_): raise StopIteration\nvalue = value_of",
    "patches Python": "import builtins, sys; builtins.len = lambda *_: 3; sys.modules['snake'] = True; value = 4",
    "equals everything": "class Same:\n    def __eq__(self, other): return True\n    __hash__ = None\nvalue = Same()",
    "is called int": "class Same:\n    __class__ = int\n    def __eq__(self, other): return True\nvalue = Same()",
    "is a wrong number": "class Same(int):\n    def __eq__(self, other): return True\nvalue = Same(4)",
    "is a wrong list": "class Same(list):\n    def __eq__(self, other): return True\nvalue = Same()",
    "raises what no suite catches": "class E(BaseException): pass\ndef __getattr__(name): raise E",
}


@pytest.mark.parametrize("way", HOSTILE)
def test_no_module_makes_a_wrong_value_right(tmp_path, monkeypatch, way):
    monkeypatch.setattr(agent_modules, "DEADLINE_S", 0.5)
    with modules(tmp_path, snake=HOSTILE[way]) as load:
        try:
            value = load("snake").value
        except (ForeignCodeError, SyntaxError, AttributeError, TypeError):
            return
        if way == "ends loops":
            with pytest.raises(ForeignCodeError):
                all(map(value, [1, 2]))
        assert value != 3
        assert not value == 3  # noqa: SIM201 - another method of it
        assert value != [3]
