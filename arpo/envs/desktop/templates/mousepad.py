"""Tasks in the text editor: lines, words, and where they are saved."""

from collections.abc import Mapping

from arpo.envs.desktop.templates.template import Draw, Home, Instance, templates_of
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, PEOPLE, distinct, file_name, sentence, sentences

SAVE = "hotkey(key='ctrl s')"


def append_a_line(draw: Draw) -> Instance:
    """Add a line at the end of a text."""
    lines, line = (
        sentences(draw, draw.randrange(2, 5)),
        f"Seen by {draw.choice(PEOPLE)} on day {draw.randrange(1, 366)}.",
    )
    ask = draw.choice(
        ("Add the line '{}' at the end of the text and save.", "Write '{}' below the last line and save it.")
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
    ask = draw.choice(
        (
            "Put the title '{}' above the text, as a line of its own, and save.",
            "Let the text begin with the line '{}'. Save it.",
        )
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
    wrong = number % len(lines) + 1
    ask = draw.choice(("Delete line {} of the text and save.", "Remove the line with number {} and save the file."))

    def deleting(which: int) -> tuple[str, ...]:
        return (*_to_line(which), "hotkey(key='ctrl shift delete')")

    return _editing(
        draw,
        ask.format(number),
        lines,
        [line for line in lines if line != lines[number - 1]],
        (*deleting(number), SAVE),
        {"another line": (*deleting(wrong), SAVE), "not saved": deleting(number)},
    )


def replace_a_word(draw: Draw) -> Instance:
    """Replace a word wherever it stands."""
    old, new, *others = distinct(draw, NOUNS, 6)
    lines = [f"{draw.choice(PEOPLE)} wants the {old} and the {other}." for other in others[: draw.randrange(2, 5)]]
    lines.append(f"The {old} is {draw.choice(ADJECTIVES)}.")
    ask = draw.choice(
        ("Replace every '{}' by '{}' and save.", "Write '{1}' in the place of '{0}' everywhere, and save.")
    )
    window = ("hotkey(key='ctrl r')", "window('Replace')", f"type(content='{old}\t{new}')")
    close = ("hotkey(key='esc')", "window('Mousepad')", SAVE)
    return _editing(
        draw,
        ask.format(old, new),
        lines,
        [line.replace(old, new) for line in lines],
        (*window, "hotkey(key='alt a')", "hotkey(key='alt r')", *close),
        {
            "one of them": (*window, "hotkey(key='alt f')", "hotkey(key='alt r')", *close),
            "the other way round": (
                *window[:2],
                f"type(content='{new}\t{old}')",
                "hotkey(key='alt a')",
                "hotkey(key='alt r')",
                *close,
            ),
        },
    )


def correct_a_number(draw: Draw) -> Instance:
    """Write another number in the line of a name."""
    names = distinct(draw, NOUNS, draw.randrange(3, 7))
    prices = [draw.randrange(10, 100) for _ in names]
    number, price = draw.randrange(len(names)), draw.randrange(100, 1000)
    lines = [f"{name}: {old}" for name, old in zip(names, prices, strict=True)]
    ask = draw.choice(
        ("The {} costs {} now. Correct its line and save.", "Change the price of the {} to {} and save the list.")
    )

    def writing(which: int, text: str) -> tuple[str, ...]:
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
    ask = draw.choice(
        (
            "Save the text in the same folder under the name {} too.",
            "Save a copy of this file as {} in the same folder.",
        )
    )

    def saving(what: str) -> tuple[str, ...]:
        return (
            "hotkey(key='ctrl shift s')",
            "window('Save As')",
            "hotkey(key='ctrl a')",
            f"type(content='{what}\\n')",
        )

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
    ask = draw.choice(
        (
            "Write '{}' and save it as {} in the home folder.",
            "Make a note that says '{}', and save it in the home folder under the name {}.",
        )
    )

    def writing(what: str, where: str) -> tuple[str, ...]:
        return (
            f"type(content='{what}')",
            "hotkey(key='ctrl s')",
            "window('Save As')",
            "hotkey(key='ctrl a')",
            f"type(content='{where}')",
            "hotkey(key='enter')",
            f"window('{where}')",
        )

    return Instance(
        ask.format(text, name),
        launch=("mousepad",),
        window="Mousepad",
        done=lambda home: home.text(name).removesuffix("\n") == text,
        solution=writing(text, name),
        near_misses={"half of it": writing(text.rpartition(" ")[0], name), "another name": writing(text, f"a{name}")},
    )


TEMPLATES = templates_of(
    __name__,
    (append_a_line, insert_a_title, delete_a_line, replace_a_word, correct_a_number, save_a_copy, write_a_note),
)


def _to_line(number: int) -> tuple[str, ...]:
    return ("hotkey(key='ctrl home')", *["hotkey(key='down')"] * (number - 1))


def _editing(
    draw: Draw,
    instruction: str,
    lines: list[str],
    wanted: list[str],
    solution: tuple[str, ...],
    near_misses: Mapping[str, tuple[str, ...]],
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
