import pytest

from arpo.agent.keys import KEYS, canonical_key, split_keys


def test_every_canonical_name_is_its_own():
    assert all(canonical_key(key) == key for key in KEYS)


SPELLED = {
    "Return": "enter", "\n": "enter", "ESC": "esc", "escape": "esc", "ArrowUp": "up", "Page_Up": "pageup",
    " ": "space", "super": "win", "a": "a", "A": "A", "plus": "+", "F5": "f5",
}  # fmt: skip


@pytest.mark.parametrize(("name", "key"), SPELLED.items())
def test_spellings_lead_to_one_name(name, key):
    assert canonical_key(name) == key


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ctrl c", ["ctrl", "c"]),
        ("Ctrl+ Shift -T", ["Ctrl", "Shift", "T"]),
        ("ctrl + + + l", ["ctrl", "l"]),
        ("ctrl +-", ["ctrl", "-"]),
        ("+ a", ["+", "a"]),
        ("+ +", ["+"]),
        (" ", [" "]),
        ("page down page up", ["pagedown", "pageup"]),
        ("left arrow arrow left", ["leftarrow", "arrowleft"]),
        ("num 5 volume up", ["num5", "volumeup"]),
        ("ctrl left shift right", ["ctrl", "left", "shift", "right"]),
        ("no such key", ["no", "such", "key"]),
    ],
)
def test_the_names_in_a_text_are_told_from_its_joints(text, names):
    assert split_keys(text) == names


@pytest.mark.parametrize("name", ["", "f25", "é", "\x00", "hyper", "ctrl+c", "enter enter"])
def test_what_is_no_key_has_no_name(name):
    assert canonical_key(name) is None
