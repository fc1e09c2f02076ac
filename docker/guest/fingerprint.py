"""The state of an unused desktop: taken from a new one, and compared after every reset."""

import hashlib
import os
from pathlib import Path

import walls
from desktop import Desktop
from files import WRITABLE, flags
from Xlib import X, Xatom

CHANCE = ("_ARPO_NUDGE", "_OPENBOX_PID")
"""Properties of the root window that are different in every session."""
SELECTIONS = ("PRIMARY", "SECONDARY", "CLIPBOARD")
FIRST_KEY = 8


def fingerprint(desktop: Desktop) -> dict[str, object]:
    """Return all that an episode could leave behind, by what it is; every value can be compared."""
    with walls.files_of(walls.USER):
        files = {path: _file(path) for root in WRITABLE for path in _below(root)}
    return {**files, **_display(desktop), **_system()}


def differences(wanted: dict[str, object], found: dict[str, object]) -> list[str]:
    """Return the differences as a sentence."""
    return [
        f"{name} is {found.get(name)!r}, was {wanted.get(name)!r}"
        for name in sorted(wanted.keys() | found.keys())
        if found.get(name) != wanted.get(name)
    ]


def _display(desktop: Desktop) -> dict[str, object]:
    with desktop.lock:
        display, root = desktop.display, desktop.root
        pointer, size = root.query_pointer(), root.get_geometry()
        last = display.display.info.max_keycode
        return {
            "the keyboard map": _digest(display.get_keyboard_mapping(FIRST_KEY, last - FIRST_KEY + 1)),
            "the modifiers": _digest(display.get_modifier_mapping()),
            "the keyboard control": _reply(display.get_keyboard_control()),
            "the pointer map": list(display.get_pointer_mapping()),
            "the pointer control": _reply(display.get_pointer_control()),
            "the screen saver": _reply(display.get_screen_saver()),
            "the pointer": (pointer.root_x, pointer.root_y, pointer.mask),
            "the keys that are down": _digest(display.query_keymap()),
            "the size of the screen": (size.width, size.height),
            "the picture": desktop.checksum(),
            "the windows": len(desktop.windows()),
            "the selections": [bool(display.get_selection_owner(display.intern_atom(each))) for each in SELECTIONS],
            **_properties(desktop),
        }


def _properties(desktop: Desktop) -> dict[str, object]:
    """Return the properties of the root window; of one that lists windows or atoms, whose ids are chance, how many."""
    found = {}
    for atom in desktop.root.list_properties():
        value = desktop.root.get_full_property(atom, X.AnyPropertyType)
        name = desktop.display.get_atom_name(atom)
        if value is not None and name not in CHANCE:
            has_ids = value.property_type in (Xatom.ATOM, Xatom.WINDOW)
            found[f"the property {name}"] = len(value.value) if has_ids else _digest(list(value.value))
    return found


def _reply(reply) -> str:
    return _digest(sorted((name, value) for name, value in reply._data.items() if name != "sequence_number"))


def _system() -> dict[str, object]:
    names = sorted((owner, _name(pid)) for pid, owner, state in walls.processes() if state not in "ZX")
    memory = {f"the {kind} between processes": _lines(f"/proc/sysvipc/{kind}") for kind in ("shm", "sem", "msg")}
    return {"the processes": names, **memory}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _lines(path: str) -> int:
    return len(Path(path).read_text().splitlines()) - 1


def _below(root: str) -> list[str]:
    return [root] + [os.path.join(at, name) for at, folders, files in os.walk(root) for name in folders + files]


def _file(path: str) -> tuple[object, ...]:
    found = os.lstat(path)
    kept = os.path.isfile(path) and not os.path.islink(path) and found.st_uid == walls.USER.pw_uid
    content = _digest(Path(path).read_bytes()) if kept else ""
    attributes = tuple(sorted(os.listxattr(path, follow_symlinks=False)))
    kept_flags = flags(path).hex() if kept or os.path.isdir(path) else ""
    return oct(found.st_mode), found.st_uid, found.st_gid, content, attributes, kept_flags


def _digest(value: object) -> str:
    return hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).hexdigest()[:12]
