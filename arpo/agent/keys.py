"""The keys an agent can press: one canonical name each, and the spellings that models use for them.

The set is what pyautogui really maps on X11, because any other name would be a silent no-op on a real desktop.
"""

import re
import string
import unicodedata

SYMBOL_KEYS = frozenset(string.ascii_letters + string.digits + string.punctuation)
"""Keys that are named by the character they type."""

_NAMES = """
    enter tab space backspace delete insert esc home end pageup pagedown left right up down
    ctrl ctrlleft ctrlright shift shiftleft shiftright alt altleft altright win winleft winright apps
    capslock numlock scrolllock printscreen pause help select execute
    num0 num1 num2 num3 num4 num5 num6 num7 num8 num9 multiply add separator subtract decimal divide
    browserback browserforward browserrefresh browserstop browsersearch browserfavorites browserhome
    volumemute volumedown volumeup nexttrack prevtrack stop playpause launchmail launchmediaselect sleep
"""
NAMED_KEYS = frozenset(_NAMES.split()) | {f"f{number}" for number in range(1, 25)}
"""Keys that type no character, or more than a character."""

KEYS = SYMBOL_KEYS | NAMED_KEYS
"""Every canonical key name: what `Hotkey`, `Press`, `KeyDown` and `KeyUp` hold after parsing."""

_SPELLINGS = {
    "enter": ("return", "\n", "\r"),
    "tab": ("\t",),
    "space": (" ", "spacebar"),
    "delete": ("del",),
    "insert": ("ins",),
    "esc": ("escape",),
    "pageup": ("pgup",),
    "pagedown": ("pgdn", "pgdown"),
    **{way: (f"arrow{way}", f"{way}arrow") for way in ("left", "right", "up", "down")},
    "ctrl": ("control",),
    "alt": ("option",),
    "win": ("super", "meta", "windows", "command", "cmd"),
    "apps": ("menu", "contextmenu"),
    "capslock": ("caps",),
    "printscreen": ("print", "prtsc", "prtscr", "prntscrn"),
    "+": ("plus",),
    "-": ("minus", "hyphen"),
    "=": ("equal", "equals"),
    ",": ("comma",),
    ".": ("period",),
    "/": ("slash",),
    "\\": ("backslash",),
    ";": ("semicolon",),
    "_": ("underscore",),
}
_ALIASES = {spelling: key for key, spellings in _SPELLINGS.items() for spelling in spellings}


def canonical_key(name: str) -> str | None:
    """Return the canonical name of a key, or None when no keyboard has it.

    Names of more than one character are compared without case and underscores (`Page_Down` is `pagedown`); a single
    character is the key that types it, so `A` is not `a`.
    """
    if len(name) == 1:
        return name if name in SYMBOL_KEYS else _ALIASES.get(name)
    folded = name.strip().lower().replace("_", "")
    if folded in NAMED_KEYS:
        return folded
    return _ALIASES.get(folded)


_JOINTS = ("+", "-")
_WORD = re.compile(r"[+-]|[^\s+-]+")


def split_keys(text: str) -> list[str]:
    """Return the names of the keys in a text, known or not: of `ctrl c`, `ctrl+ c`, `Ctrl++L` or `shift page down`.

    UI-TARS-desktop splits at spaces and plus signs and drops what is empty. Here a sign is itself a key where nothing
    stands for it to join: alone (`+`), first (`+ a`), or last (`ctrl +`, `ctrl++`, `ctrl + -`).
    """
    parts = _WORD.findall(text) or [text[:1]]  # a space or a newline is a key too
    names = [place for place, part in enumerate(parts) if part not in _JOINTS]
    if not names:
        return list(dict.fromkeys(parts))
    first, last = parts[:1] if names[0] > 0 else [], parts[-1:] if names[-1] < len(parts) - 1 else []
    return [*first, *_joined([parts[place] for place in names]), *last]


def _joined(parts: list[str]) -> list[str]:
    """Return the names with those of two words as one: `page down` is a key, `ctrl left` are two."""
    names: list[str] = []
    for part in parts:
        if names and canonical_key(names[-1] + part) and not (canonical_key(names[-1]) and canonical_key(part)):
            names[-1] += part
        else:
            names.append(part)
    return names


def known_key(key: str) -> str:
    """Return a key name as it is."""
    if canonical_key(key) != key:
        raise ValueError(f"{key!r} is not a canonical key name; `arpo.agent.keys.KEYS` has them all")
    return key


def typeable(text: str) -> str:
    """Return a text without what is no text, control characters and lone surrogates, and with plain newlines.

    No keyboard types those, and no program could be handed them.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c for c in lines if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs"))
