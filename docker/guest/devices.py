"""Mouse and keyboard through the XTEST extension, without a process for each action."""

import time
from collections.abc import Collection, Iterator, Sequence

from desktop import Desktop
from keys import KEYSYMS
from walls import anything_runs
from Xlib import XK, X
from Xlib.ext import xtest

XK.load_keysym_group("xf86")

FIRST_SPARE = 208
"""From this key on, a keyboard has nothing but what `_teach` gives it: media keys, most of them twice."""
LONGEST_PART = 500
"""Characters that are sent at once: a book in one piece would keep the X server as busy as a program that means to."""
NOTICE_S = 0.02
CATCH_UP_LIMIT_S = 1.0
"""What programs get to take what was typed, or to notice what a key types now: at least and at most."""


class Devices:
    """Plays events, each a list of a name and its arguments.

    `move x y`, `button_down n`, `button_up n`, `key_down name`, `key_up name`, `text characters`, `sleep seconds`.
    """

    def __init__(self, desktop: Desktop) -> None:
        self._desktop = desktop
        self._display = desktop.display
        self._play_one = {
            "move": self._move,
            "button_down": lambda button: xtest.fake_input(self._display, X.ButtonPress, int(button)),
            "button_up": lambda button: xtest.fake_input(self._display, X.ButtonRelease, int(button)),
            "key_down": lambda name: self._key(X.KeyPress, name),
            "key_up": lambda name: self._key(X.KeyRelease, name),
            "text": self._text,
            "sleep": self._sleep,
        }
        self._read_keyboard()

    def play(self, events: Sequence[Sequence]) -> None:
        """Play events in order; returns when the X server has taken the last one.

        Raises:
            ValueError: If an event or a key is unknown; nothing was played then.
        """
        unknown = [event for event in events if not event or event[0] not in self._play_one]
        if unknown:
            raise ValueError(f"unknown event {unknown[0]!r}; known are {', '.join(self._play_one)}")
        for name, *arguments in events:
            if name in ("key_down", "key_up"):
                self._keysym(*arguments)
        for name, *arguments in events:
            if name in ("sleep", "text"):  # these let others look at the screen meanwhile
                self._play_one[name](*arguments)
                continue
            # Sent together, not one by one: on a busy machine a double click would take longer than it may.
            with self._desktop.lock:
                self._play_one[name](*arguments)
        self._flush()

    def _flush(self) -> None:
        with self._desktop.lock:
            self._display.sync()

    def park(self) -> None:
        """Put the pointer where every episode begins: at the bottom, out of the way."""
        self.play([["move", self._desktop.width / 2, self._desktop.height - 2]])

    def _move(self, x: float, y: float) -> None:
        xtest.fake_input(self._display, X.MotionNotify, x=round(x), y=round(y))

    def _sleep(self, seconds: float) -> None:
        self._flush()
        time.sleep(min(float(seconds), 60.0))

    def _read_keyboard(self) -> None:
        first, last = self._display.display.info.min_keycode, self._display.display.info.max_keycode
        rows = self._display.get_keyboard_mapping(first, last - first + 1)
        self._keys: dict[int, tuple[int, int]] = {}
        """Keysyms that the keyboard has, with the key and whether it needs shift."""
        for keycode, row in enumerate(rows[: FIRST_SPARE - first], start=first):
            for level, keysym in enumerate(row[:2]):
                if keysym:
                    self._keys.setdefault(keysym, (keycode, level))
        self._spare = dict.fromkeys(range(FIRST_SPARE, last + 1), 0)
        """Keys that type what they were taught, the one taught longest ago first."""

    def _keysym(self, name: str) -> int:
        keysym = _character(name) if len(name) == 1 else XK.string_to_keysym(KEYSYMS.get(name, ""))
        if not keysym:
            raise ValueError(f"unknown key {name!r}")
        return keysym

    def _key(self, event: int, name: str) -> None:
        keysym = self._keysym(name)
        self._teach({keysym} - self._keys.keys())
        keycode, shifted = self._place(keysym)
        shift, _ = self._keys[XK.XK_Shift_L]
        if shifted and event == X.KeyPress:
            xtest.fake_input(self._display, X.KeyPress, shift)
        xtest.fake_input(self._display, event, keycode)
        if shifted and event == X.KeyRelease:
            xtest.fake_input(self._display, X.KeyRelease, shift)

    def _text(self, text: str) -> None:
        for part in self.taught(text):
            with self._desktop.lock:  # sent together, as in `play`
                for character in part:
                    self._type(_character(character))
            self._flush()

    def taught(self, text: str) -> Iterator[str]:
        """Yield a text in parts, each once the spare keys have been taught what the keyboard has not."""
        keysyms = [_character(character) for character in text]
        begin = 0
        while begin < len(keysyms):
            wanted: set[int] = set()
            end = begin
            last = min(len(keysyms), begin + LONGEST_PART)
            while end < last and len(wanted | {keysyms[end]} - self._keys.keys()) <= len(self._spare):
                wanted |= {keysyms[end]} - self._keys.keys()
                end += 1
            self._teach(wanted)
            yield text[begin:end]
            begin = end

    def _type(self, keysym: int) -> None:
        shift, _ = self._keys[XK.XK_Shift_L]
        keycode, shifted = self._place(keysym)
        if shifted:
            xtest.fake_input(self._display, X.KeyPress, shift)
        xtest.fake_input(self._display, X.KeyPress, keycode)
        xtest.fake_input(self._display, X.KeyRelease, keycode)
        if shifted:
            xtest.fake_input(self._display, X.KeyRelease, shift)

    def _place(self, keysym: int) -> tuple[int, int]:
        """Return the key that types a keysym and whether with shift."""
        return self._keys.get(keysym) or (next(key for key, known in self._spare.items() if known == keysym), 0)

    def _teach(self, wanted: Collection[int]) -> None:
        """Let spare keys type keysyms, no more than there are; others of them forget."""
        if not wanted:
            return
        self._read_spare_keys()
        missing = set(wanted) - set(self._spare.values())
        if not missing:
            return
        self._catch_up()  # a program that is behind would read the keys that were typed by their new meaning
        with self._desktop.lock:
            for keysym in missing:
                keycode = next(key for key, known in self._spare.items() if known not in wanted)
                del self._spare[keycode]
                self._spare[keycode] = keysym
            rows = [[self._spare[keycode]] * 2 for keycode in sorted(self._spare)]
            self._display.change_keyboard_mapping(FIRST_SPARE, rows)  # one message: GTK takes 50 ms for each
        self._catch_up()

    def _read_spare_keys(self) -> None:
        """Learn what others have taught: a program that types by PyAutoGUI teaches too."""
        with self._desktop.lock:
            rows = self._display.get_keyboard_mapping(FIRST_SPARE, len(self._spare))
        self._spare.update(zip(range(FIRST_SPARE, FIRST_SPARE + len(rows)), (row[0] for row in rows), strict=True))

    def _catch_up(self) -> None:
        self._flush()
        deadline = time.monotonic() + CATCH_UP_LIMIT_S
        time.sleep(NOTICE_S)
        while anything_runs() and time.monotonic() < deadline:
            time.sleep(0.005)


def _character(character: str) -> int:
    """Return the keysym of a character: Latin-1 has its own, everything else has a rule."""
    if character in "\n\t":
        return XK.XK_Return if character == "\n" else XK.XK_Tab
    code = ord(character)
    return code if code < 0x100 else 0x1000000 + code
