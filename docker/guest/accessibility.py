"""The accessibility tree as OSWorld's server writes it: every widget of every application that speaks AT-SPI.

    python3 accessibility.py '[{"title": …, "pid": …, "x": …, …}]' '{"7": "/usr/bin/vlc"}'  # packed XML, base64
    python3 accessibility.py terminal                                          # the text of GNOME's terminal

A program of its own, because a broken application may hang its caller. Windows of the list that no application
describes, such as a terminal's, become an application with one frame.
"""

import base64
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

NAMESPACES = {
    short: f"https://accessibility.ubuntu.example.org/ns/{long}"
    for short, long in (
        ("st", "state"),
        ("attr", "attributes"),
        ("cp", "component"),
        ("val", "value"),
        ("act", "action"),
    )
}
DEEPEST, WIDEST = 50, 1024
"""OSWorld's."""
CORNER = 2
"""Pixels from the edges of a table to where its first and its last cell surely are."""
LIMIT_S = 10.0
"""After this the tree ends where it is; an application that stands still costs CALL_LIMIT_MS."""
CALL_LIMIT_MS = 800
IS_CHROME = os.path.exists("/usr/local/bin/google-chrome")
"""Whether Chromium stands in for Chrome here, for which OSWorld's graders look."""
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffb\U00010000-\U0010ffff]")
"""What XML cannot hold, and the two characters that stand for things that are none."""
OF_THE_SYSTEM = re.compile(r"/(usr|opt)/(?!.*/(python|perl|ba|da)[^/]*$)")
"""The file of a program that says by itself what it is: in an interpreter anything may call itself Chrome."""
NAME = re.compile(r"[A-Za-z_][\w.-]*")


def tree(windows: list[Mapping], programs: Mapping[str, str] | None = None) -> Element:
    """Return the whole tree; with the files of all programs by process, only of those that the agent did not write."""
    Atspi.set_timeout(CALL_LIMIT_MS, CALL_LIMIT_MS)
    deadline = time.monotonic() + LIMIT_S
    root = Element("desktop-frame")
    described = set()
    for application in children(Atspi.get_desktop(0)):
        with suppress(GLib.Error):  # it ended, or stands still
            pid = application.get_process_id()
            if programs is None or OF_THE_SYSTEM.match(programs.get(str(pid), "")):
                add(root, application, deadline)
                described.add(pid)
    for window in windows:
        if window["pid"] not in described:
            add_window(root, window)
    return root


def terminal() -> str:
    """Return the text of the terminal with the keyboard, or else of the last; empty where none describes itself."""
    found = sorted(tree([]).iter("terminal"), key=lambda each: key("st", "focused") in each.attrib)
    return found[-1].text or "" if found else ""


def add(parent: Element, node: Atspi.Accessible, deadline: float, depth: int = 1) -> None:
    """Add a widget and what is in it."""
    role = (node.get_role_name() or "").strip().replace(" ", "-")
    element = SubElement(parent, role if NAME.fullmatch(role) else "unknown")
    element.attrib.update({name: clean(value) for name, value in attributes(node)})
    if depth == 1 and IS_CHROME and element.get("name") == "Chromium":
        element.set("name", "Google Chrome")
    if text := node.get_text_iface():
        element.text = clean(Atspi.Text.get_text(text, 0, Atspi.Text.get_character_count(text))) or None
    if depth < DEEPEST:
        for child in children(node):
            if time.monotonic() > deadline:
                return
            add(element, child, deadline, depth + 1)


def children(node: Atspi.Accessible) -> Iterator[Atspi.Accessible]:
    """Yield what is in a widget, as far as it is there; of a large table, the cells that it shows."""
    count = node.get_child_count()
    if count > WIDEST and node.get_table_iface():
        yield from shown_cells(node)
        return
    for index in range(min(count, WIDEST)):
        child = node.get_child_at_index(index)
        if child is not None:
            yield child


def shown_cells(node: Atspi.Accessible) -> Iterator[Atspi.Accessible]:
    """Yield the cells between the two in the corners, by rows: a sheet of LibreOffice has 2^34."""
    table, component = node.get_table_iface(), node.get_component_iface()
    place = node.get_extents(Atspi.CoordType.SCREEN)
    right, bottom = place.x + place.width - CORNER, place.y + place.height - CORNER
    ends = []
    for x, y in ((place.x + CORNER, place.y + CORNER), (right, bottom)):
        cell = Atspi.Component.get_accessible_at_point(component, x, y, Atspi.CoordType.SCREEN)
        if cell is None:
            return
        index = cell.get_index_in_parent()
        ends.append((Atspi.Table.get_row_at_index(table, index), Atspi.Table.get_column_at_index(table, index)))
    (top, left), (last_row, last_column) = ends
    for row in range(top, last_row + 1):
        for column in range(left, last_column + 1):
            cell = Atspi.Table.get_accessible_at(table, row, column)
            if cell is not None:
                yield cell


def attributes(node: Atspi.Accessible) -> Iterator[tuple[str, str]]:
    """Yield names and values in OSWorld's order and spelling; of an application that just ended, nothing is known."""
    yield "name", node.get_name()
    states = {state.value_nick.replace("-", "_") for state in node.get_state_set().get_states()}
    yield from ((key("st", state), "true") for state in sorted(states))
    attributes = node.get_attributes() or {}
    yield from ((key("attr", name), value) for name, value in attributes.items() if NAME.fullmatch(name))
    if {"visible", "showing"} <= states and node.get_component_iface():
        place = node.get_extents(Atspi.CoordType.SCREEN)
        yield key("cp", "screencoord"), str((place.x, place.y))
        yield key("cp", "size"), str((place.width, place.height))
    if node.get_image_iface():
        yield "image", "true"
    if node.get_selection_iface():
        yield "selection", "true"
    if value := node.get_value_iface():
        yield key("val", "value"), str(Atspi.Value.get_current_value(value))
        yield key("val", "min"), str(Atspi.Value.get_minimum_value(value))
        yield key("val", "max"), str(Atspi.Value.get_maximum_value(value))
        yield key("val", "step"), str(Atspi.Value.get_minimum_increment(value))
    if action := node.get_action_iface():
        for index in range(Atspi.Action.get_n_actions(action)):
            name = (Atspi.Action.get_action_name(action, index) or "").replace(" ", "-")
            if NAME.fullmatch(name):
                yield key("act", f"{name}_desc"), Atspi.Action.get_action_description(action, index)
                yield key("act", f"{name}_kb"), Atspi.Action.get_key_binding(action, index)


def add_window(root: Element, window: Mapping) -> None:
    """Add a window of an application that says nothing of itself."""
    application = SubElement(root, "application", name=clean(window["instance"]))
    frame = SubElement(application, "frame", name=clean(window["title"]))
    states = ["enabled", "showing", "visible"] + ["active"] * window["active"]
    frame.attrib.update({key("st", state): "true" for state in states})
    frame.set(key("cp", "screencoord"), str((window["x"], window["y"])))
    frame.set(key("cp", "size"), str((window["width"], window["height"])))


def key(space: str, name: str) -> str:
    """Return the full name of an attribute."""
    return f"{{{NAMESPACES[space]}}}{name}"


def clean(text: str | None) -> str:
    """Return the part of a text that XML can hold."""
    return UNPRINTABLE.sub("", text or "")


if __name__ == "__main__":
    if sys.argv[1] == "terminal":
        sys.stdout.write(terminal())
        sys.exit()
    for short, long in NAMESPACES.items():
        ElementTree.register_namespace(short, long)
    xml = ElementTree.tostring(tree(*map(json.loads, sys.argv[1:])), encoding="unicode")
    sys.stdout.write(base64.b64encode(zlib.compress(xml.encode())).decode())
