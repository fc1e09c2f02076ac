"""The X display: what is on it, and which windows."""

import io
import mmap
import struct
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from Xlib import X, Xatom
from Xlib.display import Display
from Xlib.error import XError
from Xlib.ext import xfixes, xtest  # noqa: F401 - register themselves with Display
from Xlib.protocol.event import ClientMessage

PNG_LEVEL = 1
"""Level 6, the default of Pillow, takes a quarter longer for a third fewer bytes; they travel over loopback."""
LOOK_S = 0.04
"""A look at a screen of 1080p and at all processes takes 2.5 ms of a core."""
TOLD_AT_START = ("_NET_SUPPORTING_WM_CHECK", "_NET_CLIENT_LIST")
LONGEST_PROPERTY = 4096
"""Words of four bytes that are read: a program may write as many as the memory holds."""
MOST_WINDOWS, LONGEST_NAME = 100, 1000
"""Of a list of windows, and characters of a title: each window takes six questions to the X server."""


class Framebuffer:
    """The memory of Xvfb (`-fbdir`), an XWD file: 0.4 ms for a frame, where asking the X server takes 2 to 17."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        header = struct.unpack(">25I", self._memory[:100])
        header_size, self.width, self.height, self._stride, colors = (header[i] for i in (0, 4, 5, 12, 19))
        self._start = header_size + colors * 12
        self._end = self._start + self._stride * self.height

    def checksum(self) -> int:
        """Return a number that changes with the picture."""
        with memoryview(self._memory) as view:
            return zlib.crc32(view[self._start : self._end])

    def image(self) -> Image.Image:
        """Return a copy of the picture, without the pointer."""
        pixels = self._memory[self._start : self._end]
        return Image.frombuffer("RGB", (self.width, self.height), pixels, "raw", "BGRX", self._stride, 1)

    def close(self) -> None:
        """Give the memory back: as long as it is mapped, it counts although the file is gone."""
        with suppress(BufferError):  # a picture of it is being taken
            self._memory.close()


@dataclass(frozen=True)
class Holder:
    """The owner of a lock."""

    since: float
    """Seconds of `time.monotonic`."""
    thread: int
    """The kernel's number of the thread."""


class Turn:
    """A lock that knows its holder, which may take it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self.holder: Holder | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self.holder = Holder(time.monotonic(), threading.get_native_id())

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.holder = None
        self._lock.release()


class Desktop:
    """One X display. `lock` guards its connection: python-xlib takes one caller at a time."""

    def __init__(self, framebuffer: Path) -> None:
        self.display = Display()
        self.root = self.display.screen().root
        self.lock = Turn()
        self.display.xfixes_query_version()
        self.display.xtest_grab_control(True)  # a client that grabs the X server keeps all others waiting
        self._framebuffer = Framebuffer(framebuffer)
        self.width, self.height = self._framebuffer.width, self._framebuffer.height

    def screenshot(self) -> bytes:
        """Return the screen with the pointer, as PNG."""
        with self.lock:
            self._nudge()
            image = self._framebuffer.image()
            cursor = self.display.xfixes_get_cursor_image(self.root)
        pixels = struct.pack(f"<{len(cursor.cursor_image)}I", *cursor.cursor_image)
        pointer = Image.frombytes("RGBA", (cursor.width, cursor.height), pixels, "raw", "BGRA")
        image.paste(pointer, (cursor.x - cursor.xhot, cursor.y - cursor.yhot), pointer)
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=PNG_LEVEL)
        return buffer.getvalue()

    def checksum(self) -> int:
        """Return a number that changes with the picture."""
        with self.lock:
            self._nudge()
        return self._framebuffer.checksum()

    def settle(self, quiet_s: float, limit_s: float, is_busy: Callable[[], bool]) -> bool:
        """Wait until nothing has happened for a while; return whether the desktop came to rest before the limit.

        A picture that does not change is not enough: on a busy machine an application waits for its turn longer than
        anyone would wait for it. `is_busy` says whether one does.
        """
        began = since = time.monotonic()
        before = self.checksum()
        while (now := time.monotonic()) - since < quiet_s:
            if now - began > limit_s:
                return False
            time.sleep(min(LOOK_S, since + quiet_s - now))
            after = self._framebuffer.checksum()  # a nudge wakes programs, which would then be busy
            if after != before or is_busy():
                before, since = after, time.monotonic()
        return True

    def windows(self) -> list[dict]:
        """Return the windows that the window manager shows, oldest first: title, names, and place in pixels."""
        with self.lock:
            self._nudge()
            described = (self._describe(window) for window in self._clients())
            return [description for description in described if description is not None]

    def find_window(self, name: str, *, strict: bool, by_class: bool) -> int | None:
        """Return the id of the newest window with this title, or a part of it where `strict` is off.

        With `by_class`, the text is `instance.class`, such as `Mail.thunderbird`: wmctrl's, and so OSWorld's.
        """
        for window in reversed(self.windows()):
            text = f"{window['instance']}.{window['class']}" if by_class else window["title"]
            if text == name if strict else name.casefold() in text.casefold():
                return int(window["id"])
        return None

    def activate(self, window: int) -> None:
        """Raise a window and give it the keyboard."""
        self._ask_window_manager(window, "_NET_ACTIVE_WINDOW", [2, X.CurrentTime, 0, 0, 0])

    def end(self) -> None:
        """Let go of a display that has ended; it is not looked at any more."""
        self._framebuffer.close()

    def close(self, window: int) -> None:
        """Ask a window to close, as its close button does."""
        self._ask_window_manager(window, "_NET_CLOSE_WINDOW", [X.CurrentTime, 2, 0, 0, 0])

    def paint(self, background: int) -> None:
        """Give the screen behind all windows a colour, `0xRRGGBB`."""
        with self.lock:
            self.root.change_attributes(background_pixel=background)
            self.root.clear_area()
            self.display.sync()

    def shows_panel(self, background: int) -> bool:
        """Say whether a panel has been drawn over the background in the corner at the bottom right."""
        with self.lock:
            self._nudge()
        red, green, blue = self._framebuffer.image().getpixel((self.width - 1, self.height - 1))
        return red << 16 | green << 8 | blue != background

    def active_window(self) -> int | None:
        """Return the id of the window that has the keyboard."""
        with self.lock:
            active = self._property(self.root, "_NET_ACTIVE_WINDOW")
        return int(active[0]) if len(active) and active[0] else None

    def has_window_manager(self) -> bool:
        """Say whether a window manager owns the root window, and has said all that it says at its start."""
        with self.lock:
            self._nudge()
            return {self.display.intern_atom(name) for name in TOLD_AT_START} <= set(self.root.list_properties())

    def pointer(self) -> tuple[int, int]:
        """Return the place of the pointer."""
        with self.lock:
            found = self.root.query_pointer()
        return found.root_x, found.root_y

    def _nudge(self) -> None:
        """Wake openbox up: 3.6 may leave requests in its queue at start, and then no window ever shows.

        Any event on the root window makes it read them; 5 of 40 desktops stayed empty without.
        """
        self.root.change_property(self.display.intern_atom("_ARPO_NUDGE"), Xatom.CARDINAL, 32, [1])
        self.display.sync()
        self.display.display.event_queue.clear()  # every client gets some, such as those of a changed keyboard

    def _clients(self) -> list:
        return [
            self.display.create_resource_object("window", window)
            for window in self._property(self.root, "_NET_CLIENT_LIST")[:MOST_WINDOWS]
        ]

    def _describe(self, window) -> dict | None:
        try:
            title = bytes(self._property(window, "_NET_WM_NAME")).decode(errors="replace")
            title = title or str(window.get_wm_name() or "")
            names = window.get_wm_class() or ("", "")
            size = window.get_geometry()
            place = window.translate_coords(self.root, 0, 0)
            types = self._property(window, "_NET_WM_WINDOW_TYPE")
            pid = self._property(window, "_NET_WM_PID")
        except XError:  # it went away while we looked
            return None
        if self.display.intern_atom("_NET_WM_WINDOW_TYPE_DOCK") in types:  # the panel, which is always there
            return None
        return {
            "id": window.id,
            "pid": int(pid[0]) if len(pid) else 0,
            "title": title[:LONGEST_NAME],
            "instance": names[0][:LONGEST_NAME],
            "class": names[1][:LONGEST_NAME],
            "x": -place.x,
            "y": -place.y,
            "width": size.width,
            "height": size.height,
        }

    def _property(self, window, name: str):
        found = window.get_property(self.display.intern_atom(name), X.AnyPropertyType, 0, LONGEST_PROPERTY)
        if found is None:
            return []
        return found.value.encode() if isinstance(found.value, str) else found.value

    def _ask_window_manager(self, window: int, message: str, data: list[int]) -> None:
        with self.lock:
            target = self.display.create_resource_object("window", window)
            event = ClientMessage(window=target, client_type=self.display.intern_atom(message), data=(32, data))
            self.root.send_event(event, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
            self._nudge()
