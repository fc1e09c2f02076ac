import pytest

from arpo.agent.keys import KEYS, canonical_key


def test_every_canonical_name_is_its_own():
    assert all(canonical_key(key) == key for key in KEYS)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Return", "enter"),
        ("ESC", "esc"),
        ("escape", "esc"),
        ("ArrowUp", "up"),
        ("Page_Up", "pageup"),
        ("super", "win"),
        ("\n", "enter"),
        (" ", "space"),
        ("a", "a"),
        ("A", "A"),
        ("plus", "+"),
        ("F5", "f5"),
    ],
)
def test_spellings_lead_to_one_name(name, key):
    assert canonical_key(name) == key


@pytest.mark.parametrize("name", ["", "f25", "é", "\x00", "hyper", "ctrl+c", "enter enter"])
def test_what_is_no_key_has_no_name(name):
    assert canonical_key(name) is None
