"""Tasks in LibreOffice Writer: words, paragraphs, styles, tables, pages."""

from collections.abc import Callable, Mapping, Sequence

from arpo.envs.desktop.templates.documents import Paragraph, Table, read_paragraphs, read_tables, text_document
from arpo.envs.desktop.templates.template import ORDINALS, Draw, Instance, Script, document, press
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, PEOPLE, sentence, sentences

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
    number, other = draw.sample(range(len(texts)), 2)
    (how, key, _), (_, wrong, _) = draw.sample(STYLES, 2)
    ask = draw.phrase("Make the {} paragraph {}.", "The {} paragraph should be {}.")

    def looks(paragraphs: Sequence[Paragraph]) -> bool:
        paragraphs = [each for each in paragraphs if each.text]
        found = [(index, look) for index, each in enumerate(paragraphs) for look in sorted(_looks(*each.pieces))]
        plain = not any(each.heading for each in paragraphs)
        return plain and found == [(number, how)] and how in _looks(paragraphs[number].style)

    return _instance(
        ask.format(ORDINALS[number], how),
        texts,
        texts,
        _select(number, key),
        {"another paragraph": _select(other, key), "another style": _select(number, wrong)},
        looks,
    )


def make_a_heading(draw: Draw) -> Instance:
    """Make one paragraph a heading of a level."""
    texts = sentences(draw, draw.randrange(3, 6))
    number, other = draw.sample(range(len(texts)), 2)
    level, wrong = draw.sample((1, 2, 3), 2)
    ask = draw.phrase("Make the {} paragraph a heading of level {}.", "Give the {} paragraph the style Heading {}.")
    wanted = [level if index == number else 0 for index in range(len(texts))]
    return _instance(
        ask.format(ORDINALS[number], level),
        texts,
        texts,
        _select(number, f"ctrl {level}"),
        {"another level": _select(number, f"ctrl {wrong}"), "another paragraph": _select(other, f"ctrl {level}")},
        lambda paragraphs: [each.heading for each in paragraphs if each.text] == wanted,
    )


def replace_a_word(draw: Draw) -> Instance:
    """Replace a word wherever it stands."""
    old, new, *others = draw.sample(NOUNS, 6)
    texts = [f"{draw.choice(PEOPLE)} wants the {old} and the {other}." for other in others[: draw.randrange(2, 5)]]
    texts.append(f"The {old} is {draw.choice(ADJECTIVES)}.")
    ask = draw.phrase("Replace every '{}' by '{}'.", "Write '{1}' in the place of '{0}' everywhere.")

    def replacing(find: str, by: str, button: str = "l") -> Script:
        window = ("hotkey(key='ctrl h')", "window('Find')", "hotkey(key='ctrl a')", f"type(content='{find}')")
        writing = (*press("alt p"), *press("ctrl a"), f"type(content='{by}')")
        return (*window, *writing, *press(f"alt {button}"), *press("esc"), "window('Writer')")

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
    ask = draw.phrase("Add the paragraph '{}' {}.", "Write '{}' as a paragraph of its own {} of the text.")

    def writing(at_the_beginning: bool, apart: bool = True) -> Script:
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
    number, other = draw.sample(range(len(texts)), 2)
    ask = draw.phrase("Delete the {} paragraph.", "Remove the {} paragraph from the text.")

    def deleting(which: int) -> Script:
        return _select(which, "delete", "backspace" if which == len(texts) - 1 else "delete")

    return _instance(
        ask.format(ORDINALS[number]),
        texts,
        [text for text in texts if text != texts[number]],
        deleting(number),
        {
            "another paragraph": deleting(other),
            "its first word": _select(number, "home", "ctrl delete"),
        },
    )


def insert_a_table(draw: Draw) -> Instance:
    """Insert an empty table below the text."""
    texts = sentences(draw, draw.randrange(2, 4))
    columns, rows = draw.sample(range(2, 9), 2)
    ask = draw.phrase(
        "Insert a table with {} columns and {} rows at the end.",
        "Add an empty table of {} columns and {} rows below the text.",
    )

    def inserting(across: int, down: int) -> Script:
        window = (*press("ctrl end"), *press("ctrl f12"), "window('Insert Table')", *press("tab"))
        numbers = (f"type(content='{across}\\t')", f"type(content='{down}')")
        return (*window, *numbers, *press("enter"), "window('Writer')")

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
    number, other = draw.sample(range(1, len(texts)), 2)
    ask = draw.phrase("Insert a page break before the {} paragraph.", "Let the {} paragraph begin on a new page.")

    def breaking(which: int) -> Script:
        return ("hotkey(key='ctrl home')", *press("down", which), "hotkey(key='ctrl enter')")

    return _instance(
        ask.format(ORDINALS[number]),
        texts,
        texts,
        breaking(number),
        {
            "another paragraph": breaking(other),
            "an empty line": ("hotkey(key='ctrl home')", *press("down", number), "hotkey(key='enter')"),
        },
        lambda paragraphs: _first_of_pages(paragraphs) == [texts[number]],
    )


def _select(number: int, *keys: str) -> Script:
    """Select a paragraph of one line, counted from 0, and press keys."""
    selecting = (*press("ctrl home"), *press("down", number), *press("home"), *press("shift end"))
    return (*selecting, *(each for key in keys for each in press(key)))


def _looks(*pieces: Mapping[str, str]) -> set[str]:
    """Return those of `STYLES` that pieces of a paragraph have."""
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
    solution: Script,
    near_misses: Mapping[str, Script],
    looks: Look = lambda _: True,
    *,
    tables: Sequence[Table] = (),
) -> Instance:
    """Return the instance of a text that is to have these paragraphs, empty ones aside, and tables; see `document`."""

    def done(content: bytes) -> bool:
        paragraphs = read_paragraphs(content)
        is_whole = [each.text for each in paragraphs if each.text] == list(wanted)
        return is_whole and read_tables(content) == list(tables) and looks(paragraphs)

    return document("letter.odt", text_document(texts), instruction, done, solution, near_misses)
