"""Tasks in LibreOffice Impress: the words of slides, and their number, names and visibility."""

from collections.abc import Mapping, Sequence

from arpo.envs.desktop.templates.documents import Slide, presentation, read_slides
from arpo.envs.desktop.templates.template import Draw, Home, Instance, templates_of
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, distinct, sentence

SAVE = "hotkey(key='ctrl s')"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
NEW, DUPLICATE, DELETE, HIDE = 1, 2, 5, 12
"""Entries of the menu Slide, as the arrow keys count them."""

Words = Sequence[tuple[str, str]]


def change_a_title(draw: Draw) -> Instance:
    """Write another title on a slide."""
    return _changing(draw, "title", 0)


def change_a_text(draw: Draw) -> Instance:
    """Write another text below the title of a slide."""
    return _changing(draw, "text below the title", 1)


def delete_a_slide(draw: Draw) -> Instance:
    """Delete one slide."""
    words, number, other = _slides(draw)
    ask = draw.choice(("Delete the {} slide.", "Remove the {} slide from the presentation."))

    def deleting(which: int) -> tuple[str, ...]:
        return (*_go(which), *_menu(DELETE))

    left = [slide for index, slide in enumerate(words) if index != number]
    return _instance(
        ask.format(ORDINALS[number]),
        words,
        left,
        deleting(number),
        {"another slide": deleting(other), "one more": (*deleting(number), *_menu(DELETE))},
    )


def duplicate_a_slide(draw: Draw) -> Instance:
    """Let a slide stand twice, one behind the other."""
    words, number, other = _slides(draw)
    ask = draw.choice(("Duplicate the {} slide.", "Make a copy of the {} slide, right behind it."))

    def duplicating(which: int, entry: int = DUPLICATE) -> tuple[str, ...]:
        return (*_go(which), *_menu(entry))

    wanted = [slide for index, slide in enumerate(words) for _ in range(2 if index == number else 1)]
    return _instance(
        ask.format(ORDINALS[number]),
        words,
        wanted,
        duplicating(number),
        {"another slide": duplicating(other), "an empty slide": duplicating(number, NEW)},
    )


def hide_a_slide(draw: Draw) -> Instance:
    """Hide one slide, which stays in the file."""
    words, number, other = _slides(draw)
    ask = draw.choice(("Hide the {} slide; do not delete it.", "The {} slide should not be shown. Hide it."))

    def hiding(which: int, entry: int = HIDE) -> tuple[str, ...]:
        return (*_go(which), *_menu(entry))

    return _instance(
        ask.format(ORDINALS[number]),
        words,
        words,
        hiding(number),
        {"another slide": hiding(other), "deleted": hiding(number, DELETE)},
        hidden=number,
    )


TEMPLATES = templates_of(__name__, (change_a_title, change_a_text, delete_a_slide, duplicate_a_slide, hide_a_slide))


def _changing(draw: Draw, name: str, place: int) -> Instance:
    """Return an instance in which a title (place 0) or a text (1) is to be another one."""
    words, number, other = _slides(draw)
    new = f"{draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.randrange(10, 100)}".capitalize()
    ask = draw.choice(("Change the {} of the {} slide to '{}'.", "Replace the {} on the {} slide by '{}'."))

    def writing(which: int, box: int) -> tuple[str, ...]:
        tabs = ["hotkey(key='tab')"] * (box + 1)
        return (*_go(which), *tabs, "hotkey(key='f2')", "hotkey(key='ctrl a')", f"type(content='{new}')", *_OUT)

    title, text = words[number]
    wanted = [*words]
    wanted[number] = (new, text) if place == 0 else (title, new)
    return _instance(
        ask.format(name, ORDINALS[number], new),
        words,
        wanted,
        writing(number, place),
        {"another slide": writing(other, place), "the other box": writing(number, 1 - place)},
    )


_OUT = ("hotkey(key='esc')", "hotkey(key='esc')")
"""Leaves a text, and then its box."""


def _slides(draw: Draw) -> tuple[Words, int, int]:
    """Return the titles and texts of three to five slides, and the numbers of two of them."""
    titles = distinct(draw, NOUNS, draw.randrange(3, 6))
    words = [(f"The {title}", sentence(draw)) for title in titles]
    number, other = distinct(draw, range(len(words)), 2)
    return words, number, other


def _go(number: int) -> tuple[str, ...]:
    return ("hotkey(key='pagedown')",) * number


def _menu(entry: int) -> tuple[str, ...]:
    """Choose an entry of the menu Slide, the sixth one."""
    return ("hotkey(key='f10')", *["hotkey(key='right')"] * 5, *["hotkey(key='down')"] * entry, "hotkey(key='enter')")


def _instance(
    instruction: str,
    words: Words,
    after: Words,
    solution: tuple[str, ...],
    near_misses: Mapping[str, tuple[str, ...]],
    *,
    hidden: int | None = None,
) -> Instance:
    """Return the instance of slides that are on the screen; near-misses are saved, and one more is not.

    Args:
        instruction: Without the sentence that asks for saving.
        words: The titles and texts of the slides.
        after: Those that there are to be.
        solution: Without saving.
        near_misses: Without saving.
        hidden: The number of the slide that is to be hidden.
    """
    path = "Documents/talk.odp"
    wanted = [Slide(list(slide), index == hidden) for index, slide in enumerate(after)]

    def done(home: Home) -> bool:
        return read_slides(home.content(path)) == wanted

    return Instance(
        f"{instruction} Save the file.",
        launch=("soffice", "--norestore", f"~/{path}"),
        window="talk.odp",
        done=done,
        solution=(*solution, SAVE),
        near_misses={**{name: (*script, SAVE) for name, script in near_misses.items()}, "not saved": solution},
        files={path: presentation(words)},
    )
