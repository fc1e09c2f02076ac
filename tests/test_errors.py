"""What a guest, a page or a model said forges no line of the log and moves no cursor, wherever it is shown."""

import ast
import pickle
from pathlib import Path

import pytest

from arpo.agent.ui_tars import parse_response
from arpo.envs.guest.tasks import load_task
from arpo.errors import (
    LONGEST,
    ActionParseError,
    CountedError,
    DesktopDestroyedError,
    EnvError,
    TaskFormatError,
    quoted,
)
from arpo.host.terminal import print_table
from tests.test_architecture import trees

ROOT = Path(__file__).parents[1]

FORGED = "12:00:00 INFO    in_domain: success 100.0 %"
HOSTILE = {
    "a line": (f"\n{FORGED}", r"\n"),
    "a carriage return": (f"\r{FORGED}", r"\r"),
    "a form feed": ("\f", r"\x0c"),
    "a colour": ("\x1b[31m", r"\x1b[31m"),
    "a cleared screen": ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
    "a title": ("\x1b]0;mine\x07", r"\x1b]0;mine\x07"),
    "a link": ("\x1b]8;;http://x\x1b\\", r"\x1b]8;;http://x\x1b" + "\\"),
    "a clipboard": ("\x1b]52;c;AAAA\x07", r"\x1b]52;c;AAAA\x07"),
    "a backspace": ("\b\b", r"\x08\x08"),
    "a null": ("\0", r"\x00"),
    "CSI in one byte": ("\x9b2J", r"\x9b2J"),
    "a next line": (f"\x85{FORGED}", r"\x85"),
    "a line separator": (f"\u2028{FORGED}", r"\u2028"),
    "a paragraph separator": (f"\u2029{FORGED}", r"\u2029"),
    "right to left": ("\u202e% 0.1", r"\u202e"),
    "an isolate": ("\u2066abc\u2069", r"\u2066abc\u2069"),
    "no width": ("a\u200bb\u200d\ufeff", r"a\u200bb\u200d\ufeff"),
    "half of a pair": ("\ud800", r"\ud800"),
    "a tag": ("\U000e0041", r"\U000e0041"),
    "a blank letter": ("\u3164\u2800", r"\u3164\u2800"),
    "a variation of Mongolian": ("a\u180bb\u180f", r"a\u180bb\u180f"),
    "an empty note": ("\U0001d159", r"\U0001d159"),
    "a private letter": ("\ue000", r"\ue000"),
}


def test_what_cannot_be_seen_becomes_its_escape_in_an_error_and_in_a_table(capsys):
    for name, (text, escape) in HOSTILE.items():
        line = quoted(f"before {text} behind")
        assert line.startswith(f"before {escape}"), name
        assert line.splitlines() == [line]
        assert line.encode().decode() == quoted(line) == line
    forms = ("{}", "Action: {}()", "Action: click(start_box='{}')", "Action: hotkey(key='{}')")
    for response in (form.format(text) for text, _ in HOSTILE.values() for form in forms):
        with pytest.raises(ActionParseError) as error:
            parse_response(response)
        assert str(error.value) == quoted(error.value)
    for text, escape in HOSTILE.values():
        print_table([("domain", "rate"), (f"[bold]{text}", "1")], title="a", caption="")
        said = capsys.readouterr().out
        assert "[bold]" + escape in said
        assert quoted(said, most=10**6, keep="\n") == said


@pytest.mark.parametrize(
    "text", ["plain", "C:\\n\\x1b", "naïve – “Größe” 中文\u3000日本語 עברית العربية", "🙂 100 %", "a\xa0b"]
)
def test_what_can_be_seen_stays_and_what_is_kept_on_purpose(text):
    assert quoted(text) == text
    assert quoted("a\n\tb\r", keep="\n\t") == "a\n\tb\\r"


@pytest.mark.parametrize("size", [LONGEST + 1, 2 * LONGEST, 10**6])
@pytest.mark.parametrize("letter", ["a", "\n", "\U000e0041"])
def test_a_long_text_keeps_its_beginning_and_its_end(size, letter):
    line = quoted(f"begin{letter * size}end")
    assert len(line) == LONGEST
    assert line.startswith("begin")
    assert line.endswith("end")
    assert quoted(line) == line


@pytest.mark.parametrize(
    "make",
    [lambda said: EnvError("guest", said), lambda said: ActionParseError("no_action", said), DesktopDestroyedError],
)
def test_an_error_of_a_guest_or_a_model_is_one_line_also_in_another_process_and_around_another(make):
    for text, _ in HOSTILE.values():
        error = make(f"it said {text}{'a' * 10**5}")
        assert str(error) == quoted(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert len(str(make(f"task 7: {error}"))) == LONGEST


def test_every_error_with_words_of_others_quotes_them():
    """Subclasses that write a constructor of their own would go around it."""
    own = [
        node.name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and {"EnvError", "ActionParseError"} & {ast.unparse(each) for each in node.bases}
        if any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in node.body)
    ]
    assert own == []
    assert issubclass(EnvError, CountedError)


@pytest.mark.parametrize("place", ["domain", "name"])
def test_a_task_whose_name_cannot_be_seen_is_refused(tmp_path, place):
    for text in (text for name, (text, _) in HOSTILE.items() if "null" not in name):
        named = {"domain": "os", "name": "one", place: f"a{text}"}
        with pytest.raises(TaskFormatError, match="must have a name of visible characters") as error:
            load_task(tmp_path, **named)
        assert str(error.value).isprintable()
