"""What checkers say of what an agent may leave: the right thing in several ways, and much that is not right."""

import importlib
import io
import re
import subprocess
import zipfile
from copy import deepcopy
from functools import partial
from xml.etree import ElementTree as ET

import pytest

from arpo.envs.desktop.templates.documents import NAMESPACES
from arpo.envs.desktop.templates.lists import TEMPLATES
from tests.envs.desktop.templates.local import LocalHome

NAMES = [name for name in TEMPLATES if name != "calculator/copy-a-result"]  # those whose results are files


def name(short):
    prefix, _, local = short.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


TEXTS = {name("text:p"), name("text:h")}
PARTS = TEXTS | {name(each) for each in ("table:table-row", "table:table", "draw:page", "draw:frame")}
CELL, VALUE, TYPE, PAGE_STYLE = map(name, ("table:table-cell", "office:value", "office:value-type", "draw:style-name"))
SEVEN = f'<cell xmlns:office="{NAMESPACES["office"]}" office:value-type="float" office:value="7"/>'
EMPTY = re.compile(r'<table:table-cell table:number-columns-repeated="\d+"/>')
MORE = {"spreadsheet": "table:table", "text": "table:table", "presentation": "draw:page"}
"""An empty one of these is too much."""


def changes(body):
    yield "one more", partial(body.append, ET.Element(name(MORE[body.tag.rpartition("}")[2]])))
    for each, parent in [(child, above) for above in body.iter() for child in above]:
        text = "".join(each.itertext())
        if VALUE in parent.attrib:  # a number is shown in any way
            continue
        if each.tag in TEXTS and each.text:
            for changed in {f"{each.text}x", f"{each.text} ", each.text.swapcase()} - {each.text}:
                yield f"{changed!r} for {text!r}", partial(setattr, each, "text", changed)
        if each.tag in PARTS and (text or each.tag in map(name, MORE.values())):
            yield f"{text!r} gone", partial(parent.remove, each)
            yield f"{text!r} twice", partial(parent.insert, list(parent).index(each), deepcopy(each))
        if each.tag == CELL and each.get(TYPE):
            yield f"{text!r} as nothing", partial(each.attrib.pop, TYPE)
            seven = ET.fromstring(SEVEN)
            seven.tag = CELL
            yield f"a number behind {text!r}", partial(parent.append, seven)
        if VALUE in each.attrib:
            yield f"more than {text}", partial(each.set, VALUE, str(float(each.get(VALUE)) + 1))
            yield f"{text} as a text", partial(each.attrib.pop, VALUE)
        if each.get(name("table:name")) and body.tag == name("office:spreadsheet"):
            yield "another name", partial(each.set, name("table:name"), "Other")
        if PAGE_STYLE in each.attrib:
            yield "hidden or not", partial(each.set, PAGE_STYLE, "dp1" if each.get(PAGE_STYLE) == "dp2" else "dp2")
        for key in {name("text:style-name"), name("table:style-name")} & each.attrib.keys() if text else ():
            yield f"{text!r} without its style", partial(each.attrib.pop, key)


def mutants(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    source = EMPTY.sub("", parts["content.xml"].decode())  # a million cells take time
    number = count = 0
    while number <= count:
        root = ET.fromstring(source)
        found = list(changes(root.find("office:body/*", NAMESPACES)))
        count = len(found) - 1
        what, change = found[number]
        change()
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for path, part in {**parts, "content.xml": ET.tostring(root)}.items():
                archive.writestr(path, part)
        yield what, file.getvalue()
        number += 1


def states_of(name, instance):
    """The states that an agent may leave of an instance; the first one of documents is right, its mutants are not."""
    application, _, kind = name.partition("/")
    module = importlib.import_module(f"tests.envs.desktop.templates.states.{application}")
    states = list(vars(module)[kind.replace("-", "_")](instance))
    _, solved, first = states[0]
    if isinstance(first, bytes):
        assert solved
        states += [(what, False, each) for what, each in mutants(first)]
    return states


def leave(home, instance, state):
    if isinstance(state, bytes):
        (path,) = [name for name in instance.files if name.startswith("Documents/")]
        (home.folder / path).write_bytes(state)
    else:
        home.run(state)


@pytest.fixture
def homes(tmp_path):
    number = iter(range(10_000))
    yield lambda instance: LocalHome(tmp_path / str(next(number)), instance)
    subprocess.run(["chmod", "-R", "u+rwX", tmp_path], check=True)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_scores_1_and_what_is_not_0(name, seed, homes):
    wrong, rights = [], 0
    instance = TEMPLATES[name].instance(seed)
    for what, solved, state in states_of(name, instance):
        home = homes(instance)
        leave(home, instance, state)
        rights += solved
        if instance.done(home) != solved:
            wrong.append(f"{what}: {float(not solved)}")
    assert wrong == []
    assert rights


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("gimp/")])
def test_an_instruction_for_gimp_says_what_is_changed_and_where_the_result_belongs(name):
    for instance in map(TEMPLATES[name].instance, range(20)):
        assert re.search("picture.*(Overwrite|beside|same folder)", instance.instruction)


GARBAGE = {
    "random bytes": "head -c 3000 /dev/urandom > {}",
    "a large file": "head -c 3000000 /dev/zero > {}",
    "a folder": "rm {0}; mkdir {0}",
    "a pipe": "rm {0}; mkfifo {0}",
    "a link to itself": "rm {0}; ln -s {0} {0}",
    "a link to what has no end": "rm {0}; ln -s /dev/zero {0}",
    "locked": "echo > {0}; chmod 0 {0}",
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if (first + second) % len(GARBAGE) == 0 else pytest.mark.long)
        for first, name in enumerate(TEMPLATES)
        for second, kind in enumerate(GARBAGE)
    ],
)
def test_garbage_in_the_place_of_all_files_solves_nothing(name, kind, homes):
    instance = TEMPLATES[name].instance(0)
    home = homes(instance)
    home.run("\n".join(GARBAGE[kind].format(path) for path in instance.files if not path.endswith("/")))
    assert instance.done(home) is False


def test_a_program_in_the_home_directory_does_not_tell_what_is_in_the_clipboard(homes):
    instance = TEMPLATES["calculator/copy-a-result"].instance(0)
    first, word, second = re.search(r"(\d+) (plus|minus|times) (\d+)", instance.instruction).groups()
    value = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}[word](int(first), int(second))
    home = homes(instance)
    (home.folder / "tkinter.py").write_text(f"class Tk:\n    def clipboard_get(self):\n        return {value}\n")
    assert not instance.done(home)
