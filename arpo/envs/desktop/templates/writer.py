"""Tasks in LibreOffice Writer: words, paragraphs, styles, tables, pages."""

from collections.abc import Callable, Mapping, Sequence

from arpo.envs.desktop.templates.documents import Paragraph, Table, read_paragraphs, read_tables, text_document
from arpo.envs.desktop.templates.template import Draw, Home, Instance, templates_of
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, PEOPLE, distinct, sentence, sentences

SAVE = "hotkey(key='ctrl s')"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
STYLES = (
    ("bold", "ctrl b", ("fo:font-weight", ("bold",))),
    ("italic", "ctrl i", ("fo:font-style", ("italic",))),
    ("underlined", "ctrl u", ("style:text-underline-style", ("solid",))),
    ("centred", "ctrl e", ("fo:text-align", ("center",))),
    ("aligned to the right", "ctrl r", ("fo:text-align", ("end", "right"))),
    ("justified", "ctrl j", ("fo:text-align", ("justify",))),
)
"""What a paragraph may be, the key that makes it so, and the property that says so with its values."""

Look = Callable[[Sequence[Paragraph]], bool]


def style_a_paragraph(draw: Draw) -> Instance:
    """Make one paragraph bold, centred or the like."""
    texts = sentences(draw, draw.randrange(3, 6))
    number, other = distinct(draw, range(len(texts)), 2)
    (how, key, _), (_, wrong, _) = distinct(draw, STYLES, 2)
    ask = draw.choice(("Make the {} paragraph {}.", "The {} paragraph should be {}."))

    def styling(which: int, keys: str) -> tuple[str, ...]:
        return (*_select(which), f"hotkey(key='{keys}')")

    def looks(paragraphs: Sequence[Paragraph]) -> bool:
        found = [(index, look) for index, each in enumerate(paragraphs) for look in sorted(_looks(*each.pieces))]
        plain = not any(each.heading for each in paragraphs)
        return plain and found == [(number, how)] and how in _looks(paragraphs[number].style)

    return _instance(
        ask.format(ORDINALS[number], how),
        texts,
        texts,
        styling(number, key),
        {"another paragraph": styling(other, key), "another style": styling(number, wrong)},
        looks,
    )


def make_a_heading(draw: Draw) -> Instance:
    """Make one paragraph a heading of a level."""
    texts = sentences(draw, draw.randrange(3, 6))
    number, other = distinct(draw, range(len(texts)), 2)
    level, wrong = distinct(draw, (1, 2, 3), 2)
    ask = draw.choice(("Make the {} paragraph a heading of level {}.", "Give the {} paragraph the style Heading {}."))

    def styling(which: int, of: int) -> tuple[str, ...]:
        return (*_select(which), f"hotkey(key='ctrl {of}')")

    wanted = [level if index == number else 0 for index in range(len(texts))]
    return _instance(
        ask.format(ORDINALS[number], level),
        texts,
        texts,
        styling(number, level),
        {"another level": styling(number, wrong), "another paragraph": styling(other, level)},
        lambda paragraphs: [each.heading for each in paragraphs] == wanted,
    )


def replace_a_word(draw: Draw) -> Instance:
    """Replace a word wherever it stands."""
    old, new, *others = distinct(draw, NOUNS, 6)
    texts = [f"{draw.choice(PEOPLE)} wants the {old} and the {other}." for other in others[: draw.randrange(2, 5)]]
    texts.append(f"The {old} is {draw.choice(ADJECTIVES)}.")
    ask = draw.choice(("Replace every '{}' by '{}'.", "Write '{1}' in the place of '{0}' everywhere."))

    def replacing(find: str, by: str, button: str = "l") -> tuple[str, ...]:
        window = ("hotkey(key='ctrl h')", "window('Find')", "hotkey(key='ctrl a')", f"type(content='{find}')")
        return (
            *window,
            "hotkey(key='alt p')",
            "hotkey(key='ctrl a')",
            f"type(content='{by}')",
            f"hotkey(key='alt {button}')",
            "hotkey(key='esc')",
            "window('Writer')",
        )

    return _instance(
        ask.format(old, new),
        texts,
        [text.replace(old, new) for text in texts],
        replacing(old, new),
        {"the other way round": replacing(new, old), "found and not replaced": replacing(old, new, "a")},
    )


def append_a_paragraph(draw: Draw) -> Instance:
    """Write a new paragraph at the end, or at the beginning."""
    texts = sentences(draw, draw.randrange(2, 5))
    added = f"{sentence(draw)} {draw.choice(PEOPLE)} agrees."
    begins = draw.random() < 0.5
    place = "at the beginning" if begins else "at the end"
    ask = draw.choice(("Add the paragraph '{}' {}.", "Write '{}' as a paragraph of its own {} of the text."))

    def writing(at_the_beginning: bool, apart: bool = True) -> tuple[str, ...]:
        enter = "\\n" if apart else " "
        words = f"type(content='{added}{enter}')" if at_the_beginning else f"type(content='{enter}{added}')"
        return (f"hotkey(key='ctrl {'home' if at_the_beginning else 'end'}')", words)

    return _instance(
        ask.format(added, place),
        texts,
        [added, *texts] if begins else [*texts, added],
        writing(begins),
        {"no paragraph of its own": writing(begins, apart=False), "at the other end": writing(not begins)},
    )


def delete_a_paragraph(draw: Draw) -> Instance:
    """Delete one paragraph, and the empty line that it would leave."""
    texts = sentences(draw, draw.randrange(3, 6))
    number, other = distinct(draw, range(len(texts)), 2)
    ask = draw.choice(("Delete the {} paragraph.", "Remove the {} paragraph from the text."))

    def deleting(which: int) -> tuple[str, ...]:
        last = which == len(texts) - 1
        return (*_select(which), "hotkey(key='delete')", f"hotkey(key='{'backspace' if last else 'delete'}')")

    return _instance(
        ask.format(ORDINALS[number]),
        texts,
        [text for text in texts if text != texts[number]],
        deleting(number),
        {
            "another paragraph": deleting(other),
            "its first word": (*_select(number), "hotkey(key='home')", "hotkey(key='ctrl delete')"),
        },
    )


def insert_a_table(draw: Draw) -> Instance:
    """Insert an empty table below the text."""
    texts = sentences(draw, draw.randrange(2, 4))
    columns, rows = distinct(draw, range(2, 9), 2)
    ask = draw.choice(
        (
            "Insert a table with {} columns and {} rows at the end.",
            "Add an empty table of {} columns and {} rows below the text.",
        )
    )

    def inserting(across: int, down: int) -> tuple[str, ...]:
        window = ("hotkey(key='ctrl end')", "hotkey(key='ctrl f12')", "window('Insert Table')", "hotkey(key='tab')")
        return (
            *window,
            f"type(content='{across}\\t')",
            f"type(content='{down}')",
            "hotkey(key='enter')",
            "window('Writer')",
        )

    return _instance(
        ask.format(columns, rows),
        texts,
        texts,
        inserting(columns, rows),
        {"rows and columns swapped": inserting(rows, columns), "one row more": inserting(columns, rows + 1)},
        tables=[Table(rows, columns, text="", paragraphs_above=len(texts))],
    )


def begin_a_page(draw: Draw) -> Instance:
    """Let a paragraph begin on a new page."""
    texts = sentences(draw, draw.randrange(3, 6))
    number, other = distinct(draw, range(1, len(texts)), 2)
    ask = draw.choice(("Insert a page break before the {} paragraph.", "Let the {} paragraph begin on a new page."))

    def breaking(which: int) -> tuple[str, ...]:
        return ("hotkey(key='ctrl home')", *["hotkey(key='down')"] * which, "hotkey(key='ctrl enter')")

    return _instance(
        ask.format(ORDINALS[number]),
        texts,
        texts,
        breaking(number),
        {
            "another paragraph": breaking(other),
            "an empty line": ("hotkey(key='ctrl home')", *["hotkey(key='down')"] * number, "hotkey(key='enter')"),
        },
        also=lambda content: _first_of_pages(read_paragraphs(content)) == [texts[number]],
    )


TEMPLATES = templates_of(
    __name__,
    (
        style_a_paragraph,
        make_a_heading,
        replace_a_word,
        append_a_paragraph,
        delete_a_paragraph,
        insert_a_table,
        begin_a_page,
    ),
)


def _select(number: int) -> tuple[str, ...]:
    """Select a paragraph of one line, counted from 0."""
    return (
        "hotkey(key='ctrl home')",
        *["hotkey(key='down')"] * number,
        "hotkey(key='home')",
        "hotkey(key='shift end')",
    )


def _looks(*pieces: Mapping[str, str]) -> set[str]:
    """Return what pieces of a paragraph are, of `STYLES`."""
    return {how for how, _, (name, values) in STYLES for piece in pieces if piece.get(name) in values}


def _first_of_pages(paragraphs: Sequence[Paragraph]) -> list[str]:
    """Return the texts that begin on a new page, by whichever break; an empty line may stand above."""
    found: list[str] = []
    breaks = False
    for number, each in enumerate(paragraphs):
        if number and (each.style.get("fo:break-before") == "page" or "style:master-page-name" in each.style):
            breaks = True
        if each.text and breaks:
            found.append(each.text)
        breaks = each.style.get("fo:break-after") == "page" or (breaks and not each.text)
    return found


def _instance(
    instruction: str,
    texts: Sequence[str],
    wanted: Sequence[str],
    solution: tuple[str, ...],
    near_misses: Mapping[str, tuple[str, ...]],
    looks: Look = lambda _: True,
    *,
    tables: Sequence[Table] = (),
    also: Callable[[bytes], bool] = lambda _: True,
) -> Instance:
    """Return the instance of a text that is on the screen; near-misses are saved, and one more is not.

    Args:
        instruction: Without the sentence that asks for saving.
        texts: The paragraphs.
        wanted: Those that there are to be; empty ones do not count.
        solution: Without saving.
        near_misses: Without saving.
        looks: Judges the paragraphs.
        tables: Those that there are to be.
        also: Judges the file.
    """
    path = "Documents/letter.odt"

    def done(home: Home) -> bool:
        content = home.content(path)
        paragraphs = [each for each in read_paragraphs(content) if each.text]
        is_whole = [each.text for each in paragraphs] == list(wanted) and read_tables(content) == list(tables)
        return is_whole and looks(paragraphs) and also(content)

    return Instance(
        f"{instruction} Save the file.",
        launch=("soffice", "--norestore", f"~/{path}"),
        window="letter.odt",
        done=done,
        solution=(*solution, SAVE),
        near_misses={**{name: (*script, SAVE) for name, script in near_misses.items()}, "not saved": solution},
        files={path: text_document(texts)},
    )
