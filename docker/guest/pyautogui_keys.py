"""Exact characters for PyAutoGUI.

It presses shift for the characters that an American keyboard has above others, and the first key that the X server
names for a character: for `<` that is key 94, which has `<` below and `>` above. What it has no name for, such as `é`
and `€`, it leaves out without a word.
"""

import threading
from types import ModuleType, SimpleNamespace

from devices import Devices
from Xlib.display import Display


def install(pyautogui: ModuleType, backend: ModuleType, display: Display) -> None:
    """Have PyAutoGUI type characters as the guest server does: on the key that has them, or that is taught them."""
    devices = Devices(SimpleNamespace(display=display, lock=threading.RLock()))
    for name, event in (("_keyDown", "key_down"), ("_keyUp", "key_up")):
        setattr(backend, name, _exact(devices, event, getattr(backend, name)))
    pyautogui.write = pyautogui.typewrite = _taught(devices, pyautogui.typewrite)


def _exact(devices: Devices, event: str, original):
    def play(key) -> None:
        if isinstance(key, str) and len(key) == 1 and key >= " ":
            devices.play([[event, key]])
        else:
            original(key)

    return play


def _taught(devices: Devices, original):
    """Teach the keys of a text together: one by one, each new character takes a third of a second."""

    def write(message, *arguments, **named) -> None:
        for part in devices.taught(message) if isinstance(message, str) else [message]:
            original(part, *arguments, **named)

    return write
