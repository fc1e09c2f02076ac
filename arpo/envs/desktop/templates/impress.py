"""Tasks in LibreOffice Impress: the words of slides, and their number, names and visibility."""

from collections.abc import Mapping

from arpo.envs.desktop.templates.documents import Slide, presentation, read_slides
from arpo.envs.desktop.templates.template import ORDINALS, Draw, Instance, Script, document, press
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, sentence

NEW, DUPLICATE, DELETE, HIDE = 1, 2, 5, 12
"""Entries of the menu Slide, as the arrow keys count them."""

Words = list[tuple[str, str]]


def change_a_title(draw: Draw) -> Instance:
    """Write another title on a slide."""
    return _changing(draw, "title", 0)


def change_a_text(draw: Draw) -> Instance:
    """Write another text below the title of a slide."""
    return _changing(draw, "text below the title", 1)


def delete_a_slide(draw: Draw) -> Instance:
    """Delete one slide."""
    words, number, other = _slides(draw)
    ask = draw.phrase("Delete the {} slide.", "Remove the {} slide from the presentation.")
    left = words[:number] + words[number + 1 :]
    near_misses = {"another slide": _on(other, DELETE), "one more": _on(number, DELETE, DELETE)}
    return _instance(ask.format(ORDINALS[number]), words, left, _on(number, DELETE), near_misses)


def duplicate_a_slide(draw: Draw) -> Instance:
    """Let a slide stand twice, one behind the other."""
    words, number, other = _slides(draw)
    ask = draw.phrase("Duplicate the {} slide.", "Make a copy of the {} slide, right behind it.")
    wanted = words[: number + 1] + words[number:]
    near_misses = {"another slide": _on(other, DUPLICATE), "an empty slide": _on(number, NEW)}
    return _instance(ask.format(ORDINALS[number]), words, wanted, _on(number, DUPLICATE), near_misses)


def hide_a_slide(draw: Draw) -> Instance:
    """Hide one slide, which stays in the file."""
    words, number, other = _slides(draw)
    ask = draw.phrase("Hide the {} slide; do not delete it.", "The {} slide should not be shown. Hide it.")
    near_misses = {"another slide": _on(other, HIDE), "deleted": _on(number, DELETE)}
    return _instance(ask.format(ORDINALS[number]), words, words, _on(number, HIDE), near_misses, hidden=number)


def _changing(draw: Draw, name: str, place: int) -> Instance:
    """Return an instance in which a title (place 0) or a text (1) is to be another one."""
    words, number, other = _slides(draw)
    new = f"{draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.randrange(10, 100)}".capitalize()
    ask = draw.phrase("Change the {} of the {} slide to '{}'.", "Replace the {} on the {} slide by '{}'.")

    def writing(which: int, box: int) -> Script:
        opening = (*press("tab", box + 1), *press("f2"), *press("ctrl a"))
        return (*_on(which), *opening, f"type(content='{new}')", *press("esc", 2))

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


def _slides(draw: Draw) -> tuple[Words, int, int]:
    """Return the titles and texts of three to five slides, and the numbers of two of them."""
    titles = draw.sample(NOUNS, draw.randrange(3, 6))
    words = [(f"The {title}", sentence(draw)) for title in titles]
    number, other = draw.sample(range(len(words)), 2)
    return words, number, other


def _on(number: int, *entries: int) -> Script:
    """Choose entries of the menu Slide, the sixth one, on a slide."""
    menus = (
        each
        for entry in entries
        for each in (*press("f10"), *press("right", 5), *press("down", entry), *press("enter"))
    )
    return (*press("pagedown", number), *menus)


def _instance(
    instruction: str,
    words: Words,
    after: Words,
    solution: Script,
    near_misses: Mapping[str, Script],
    *,
    hidden: int | None = None,
) -> Instance:
    """Return the instance of slides with these titles and texts, which are to be those `after`, one of them hidden."""
    wanted = [Slide(list(slide), index == hidden) for index, slide in enumerate(after)]
    return document(
        "talk.odp",
        presentation(words),
        instruction,
        lambda content: read_slides(content) == wanted,
        solution,
        near_misses,
    )
