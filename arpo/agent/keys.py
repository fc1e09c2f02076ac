"""The keys an agent can press: one canonical name each, and the spellings that models use for them.

The set is what pyautogui really maps on X11, because any other name would be a silent no-op on a real desktop.
"""

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


def known_key(key: str) -> str:
    """Return a key name as it is.

    Raises:
        ValueError: If it is not a canonical one.
    """
    if canonical_key(key) != key:
        raise ValueError(f"{key!r} is not a canonical key name; `arpo.agent.keys.KEYS` has them all")
    return key


def typeable(text: str) -> str:
    """Return a text without what is no text, control characters and lone surrogates, and with plain newlines.

    No keyboard types those, and no program could be handed them.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c for c in lines if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs"))
