"""Tasks in the text editor: lines, words, and where they are saved."""

from collections.abc import Mapping

from arpo.envs.desktop.templates.template import SAVE, Draw, Home, Instance, Script, press
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, PEOPLE, file_name, sentence, sentences


def append_a_line(draw: Draw) -> Instance:
    """Add a line at the end of a text."""
    lines = sentences(draw, draw.randrange(2, 5))
    line = f"Seen by {draw.choice(PEOPLE)} on day {draw.randrange(1, 366)}."
    ask = draw.phrase(
        "Add the line '{}' at the end of the text and save.", "Write '{}' below the last line and save it."
    )
    adding = ("hotkey(key='ctrl end')", f"type(content='{line}\\n')")
    return _editing(
        draw,
        ask.format(line),
        lines,
        [*lines, line],
        (*adding, SAVE),
        {"not saved": adding, "at the beginning": ("hotkey(key='ctrl home')", f"type(content='{line}\\n')", SAVE)},
        may_end_in_empty_lines=True,
    )


def insert_a_title(draw: Draw) -> Instance:
    """Add a line at the beginning of a text."""
    lines, title = sentences(draw, draw.randrange(2, 5)), f"{draw.choice(ADJECTIVES)} {draw.choice(NOUNS)}".title()
    ask = draw.phrase(
        "Put the title '{}' above the text, as a line of its own, and save.",
        "Let the text begin with the line '{}'. Save it.",
    )
    typing = f"type(content='{title}\\n')"
    return _editing(
        draw,
        ask.format(title),
        lines,
        [title, *lines],
        ("hotkey(key='ctrl home')", typing, SAVE),
        {
            "no line of its own": ("hotkey(key='ctrl home')", f"type(content='{title} ')", SAVE),
            "at the end": ("hotkey(key='ctrl end')", typing, SAVE),
        },
    )


def delete_a_line(draw: Draw) -> Instance:
    """Delete one line, which is named by its number."""
    lines = sentences(draw, draw.randrange(3, 7))
    number = draw.randrange(1, len(lines) + 1)
    wrong, deleting = number % len(lines) + 1, press("ctrl shift delete")
    ask = draw.phrase("Delete line {} of the text and save.", "Remove the line with number {} and save the file.")

    return _editing(
        draw,
        ask.format(number),
        lines,
        [line for line in lines if line != lines[number - 1]],
        (*_to_line(number), *deleting, SAVE),
        {"another line": (*_to_line(wrong), *deleting, SAVE), "not saved": (*_to_line(number), *deleting)},
    )


def replace_a_word(draw: Draw) -> Instance:
    """Replace a word wherever it stands."""
    old, new, *others = draw.sample(NOUNS, 6)
    lines = [f"{draw.choice(PEOPLE)} wants the {old} and the {other}." for other in others[: draw.randrange(2, 5)]]
    lines.append(f"The {old} is {draw.choice(ADJECTIVES)}.")
    ask = draw.phrase(
        "Replace every '{}' by '{}' and save.", "Write '{1}' in the place of '{0}' everywhere, and save."
    )

    def replacing(find: str, by: str, keys: str) -> Script:
        window = (*press("ctrl r"), "window('Replace')", f"type(content='{find}\t{by}')")
        return (*window, *press(keys), *press("alt r"), *press("esc"), "window('Mousepad')", SAVE)

    return _editing(
        draw,
        ask.format(old, new),
        lines,
        [line.replace(old, new) for line in lines],
        replacing(old, new, "alt a"),
        {"one of them": replacing(old, new, "alt f"), "the other way round": replacing(new, old, "alt a")},
    )


def correct_a_number(draw: Draw) -> Instance:
    """Write another number in the line of a name."""
    names = draw.sample(NOUNS, draw.randrange(3, 7))
    prices = [draw.randrange(10, 100) for _ in names]
    number, price = draw.randrange(len(names)), draw.randrange(100, 1000)
    lines = [f"{name}: {old}" for name, old in zip(names, prices, strict=True)]
    ask = draw.phrase(
        "The {} costs {} now. Correct its line and save.", "Change the price of the {} to {} and save the list."
    )

    def writing(which: int, text: str) -> Script:
        return (*_to_line(which + 1), "hotkey(key='shift end')", f"type(content='{text}')", SAVE)

    right = f"{names[number]}: {price}"
    return _editing(
        draw,
        ask.format(names[number], price),
        lines,
        [right if line == lines[number] else line for line in lines],
        writing(number, right),
        {
            "another number": writing(number, f"{names[number]}: {price + 1}"),
            "in another line": writing((number + 1) % len(names), right),
        },
    )


def save_a_copy(draw: Draw) -> Instance:
    """Save a text under another name; the first file stays as it is."""
    text, name = sentence(draw) + "\n", file_name(draw)
    copy = f"{name[:-4]}-{draw.randrange(10, 100)}.txt"
    ask = draw.phrase(
        "Save the text in the same folder under the name {} too.", "Save a copy of this file as {} in the same folder."
    )

    def saving(what: str) -> Script:
        return (*press("ctrl shift s"), "window('Save As')", *press("ctrl a"), f"type(content='{what}\\n')")

    return Instance(
        ask.format(copy),
        launch=("mousepad", f"~/notes/{name}"),
        window=name,
        done=lambda home: home.tree("notes") == {name: text.encode(), copy: text.encode()},
        solution=(*saving(copy), f"window('{copy}')"),
        near_misses={
            "another name": saving(f"{copy[:-4]}1.txt"),
            "another text": ("hotkey(key='ctrl end')", "type(content='x')", *saving(copy)),
        },
        files={f"notes/{name}": text.encode()},
    )


def write_a_note(draw: Draw) -> Instance:
    """Write a new text and save it under a name."""
    text, name = sentence(draw), f"{draw.choice(NOUNS)}-{draw.randrange(100, 1000)}.txt"
    ask = draw.phrase(
        "Write '{}' and save it as {} in the home folder.",
        "Make a note that says '{}', and save it in the home folder under the name {}.",
    )

    def writing(what: str, where: str) -> Script:
        saving = (SAVE, "window('Save As')", *press("ctrl a"), f"type(content='{where}')")
        return (f"type(content='{what}')", *saving, *press("enter"), f"window('{where}')")

    return Instance(
        ask.format(text, name),
        launch=("mousepad",),
        window="Mousepad",
        done=lambda home: home.text(name).removesuffix("\n") == text,
        solution=writing(text, name),
        near_misses={"half of it": writing(text.rpartition(" ")[0], name), "another name": writing(text, f"a{name}")},
    )


def _to_line(number: int) -> Script:
    return ("hotkey(key='ctrl home')", *press("down", number - 1))


def _editing(
    draw: Draw,
    instruction: str,
    lines: list[str],
    wanted: list[str],
    solution: Script,
    near_misses: Mapping[str, Script],
    *,
    may_end_in_empty_lines: bool = False,
) -> Instance:
    """Return the instance of a text that is on the screen, and that is to have other lines on the disk."""
    name = file_name(draw)

    def done(home: Home) -> bool:
        text = home.text(f"notes/{name}")
        text = text.rstrip("\n") if may_end_in_empty_lines else text.removesuffix("\n")
        return text.split("\n") == wanted

    return Instance(
        instruction,
        launch=("mousepad", f"~/notes/{name}"),
        window=name,
        done=done,
        solution=solution,
        near_misses=near_misses,
        files={f"notes/{name}": ("\n".join(lines) + "\n").encode()},
    )
