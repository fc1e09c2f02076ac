"""What an agent may leave of a text in Writer, by template."""

import re

from arpo.envs.desktop.templates.documents import read_paragraphs
from tests.envs.desktop.templates.odf import BOLD, odt, paragraph, style, text_table
from tests.envs.desktop.templates.states.common import number_of, replaced


def text_of(instance):
    return [each.text for each in read_paragraphs(instance.files["Documents/letter.odt"])]


def other_texts(texts):
    """What no task of a text asks for, beside its right paragraphs."""
    yield "one more paragraph", False, odt(*texts, "More.")
    yield (
        "one more item of a list",
        False,
        odt(*texts, "<text:list><text:list-item><text:p>More.</text:p></text:list-item></text:list>"),
    )
    yield "a part with more", False, odt(*texts, "<text:section><text:p>More.</text:p></text:section>")
    yield (
        "a box with more",
        False,
        odt(*texts, "<draw:frame><draw:text-box><text:p>More.</text:p></draw:text-box></draw:frame>"),
    )
    yield "in another order", False, odt(*reversed(texts))
    yield "a space behind", False, odt(f"{texts[0]} ", *texts[1:])
    yield "two spaces", False, odt(paragraph(texts[0].replace(" ", " <text:s/>", 1)), *texts[1:])
    yield "a tab", False, odt(paragraph(texts[0].replace(" ", " <text:tab/>", 1)), *texts[1:])
    yield "a line break", False, odt(paragraph(f"{texts[0]}<text:line-break/>"), *texts[1:])
    yield "upper case", False, odt(texts[0].upper(), *texts[1:])
    yield "one paragraph", False, odt(" ".join(texts))
    yield "the last is gone", False, odt(*texts[:-1])
    yield "nothing", False, odt()


LOOKS = {
    "bold": ('<style:text-properties fo:font-weight="bold"/>', "text"),
    "italic": ('<style:text-properties fo:font-style="italic"/>', "text"),
    "underlined": (
        '<style:text-properties style:text-underline-style="solid" style:text-underline-width="auto"/>',
        "text",
    ),
    "centred": ('<style:paragraph-properties fo:text-align="center" style:justify-single-word="false"/>', ""),
    "aligned to the right": ('<style:paragraph-properties fo:text-align="end"/>', ""),
    "justified": ('<style:paragraph-properties fo:text-align="justify"/>', ""),
}
PLAIN = '<style:text-properties fo:font-weight="normal" fo:font-style="normal" style:text-underline-style="none"/>'


def style_a_paragraph(instance):
    texts, number = text_of(instance), number_of(instance)
    how = next(each for each in LOOKS if each in instance.instruction)
    properties, kind = LOOKS[how]
    wrong, _ = LOOKS["bold" if how == "italic" else "italic"]
    more = {
        "styles": style("P1", "paragraph", properties, "Standard")
        + style("P2", "paragraph", wrong)
        + style("P3", "paragraph", properties + wrong)
        + style("P4", "paragraph", "", "Named")
        + style("T1", "text", properties)
        + style("T2", "text", PLAIN),
        "common": style("Standard", "paragraph")
        + style("Named", "paragraph", properties, "Standard")
        + style("Strong", "text", properties),
    }

    def dressed(named, others=""):
        return [paragraph(each, named if index == number else others) for index, each in enumerate(texts)]

    right = dressed("P1")
    yield "right", True, odt(*right, **more)
    yield "and an empty line", True, odt(*right, "<text:p/>", **more)
    yield "by a style with a name", True, odt(*dressed("Named"), **more)
    yield "by a style that inherits it", True, odt(*dressed("P4"), **more)
    yield "another look", False, odt(*dressed("P2"), **more)
    yield "one look more", False, odt(*dressed("P3"), **more)
    yield "all of them", False, odt(*dressed("P1", "P1"), **more)
    yield "and the others another look", False, odt(*dressed("P1", "P2"), **more)
    yield "the others", False, odt(*dressed("", "P1"), **more)
    heading = [*right[:number], paragraph(texts[number], "P1", 1), *right[number + 1 :]]
    yield "as a heading", False, odt(*heading, **more)
    yield "and a table", False, odt(*right, text_table(2, 2), **more)
    yield "and a paragraph more", False, odt(*right, "More.", **more)
    if kind == "text":
        for what, solved, changed in _spans(texts, number):
            body = [changed.get(index, each) for index, each in enumerate(right)]
            yield what, solved, odt(*body, **more)


def _spans(texts, number):
    """States of a paragraph in pieces: what, whether it is right, and the paragraphs in other words."""
    span = '<text:span text:style-name="{}">{}</text:span>'.format
    first, rest = texts[number][:4], texts[number][4:]
    yield "as spans", True, {number: paragraph(span("T1", first) + span("T1", rest))}
    yield "as a span of a style with a name", True, {number: paragraph(span("Strong", texts[number]))}
    yield "half of it", False, {number: paragraph(span("T1", first) + rest)}
    yield "all but a word", False, {number: paragraph(span("T2", first) + rest, "P1")}
    other = (number + 1) % len(texts)
    yield "and some of another", False, {other: paragraph(span("T1", texts[other][:5]) + texts[other][5:])}


def make_a_heading(instance):
    texts, number = text_of(instance), number_of(instance)
    level = int(re.search(r"\d", instance.instruction)[0])

    def headed(*levels):
        return [paragraph(text, f"Heading_20_{of}" if of else "", of) for text, of in zip(texts, levels, strict=True)]

    wanted = [level if index == number else 0 for index in range(len(texts))]
    yield "right", True, odt(*headed(*wanted))
    yield "another level", False, odt(*headed(*(each and each % 3 + 1 for each in wanted)))
    yield "all of them", False, odt(*headed(*[level] * len(texts)))
    yield (
        "big letters alone",
        False,
        odt(*(paragraph(text, "P1") for text in texts), styles=style("P1", "paragraph", BOLD)),
    )
    yield "one more heading", False, odt(*headed(*wanted), paragraph("More.", "", level))
    yield "and a table", False, odt(*headed(*wanted), text_table(2, 2))
    yield (
        "the others in a list",
        False,
        odt(
            headed(*wanted)[number],
            *(f"<text:list><text:list-item>{paragraph(each)}</text:list-item></text:list>" for each in texts),
        ),
    )
    swapped = headed(*wanted)
    swapped[number] = paragraph(texts[number].lower(), "", level)
    yield "lower case", False, odt(*swapped)


def replace_a_word(instance):
    texts = text_of(instance)
    old, new = replaced(instance)
    right = [text.replace(old, new) for text in texts]
    yield "right", True, odt(*right)
    yield (
        "in pieces",
        True,
        odt(*(paragraph(each.replace(new, f'<text:span text:style-name="T1">{new}</text:span>')) for each in right)),
    )
    yield "with a mark", True, odt(paragraph(f'<text:bookmark-start text:name="a"/>{right[0]}'), *right[1:])
    yield "all but the last", False, odt(*right[:-1], texts[-1])
    yield "upper case", False, odt(*(text.replace(new, new.upper()) for text in right))
    yield "twice", False, odt(*(text.replace(new, f"{new} {new}") for text in right))
    yield "cut out", False, odt(*(text.replace(f" {old}", "") for text in texts))
    yield (
        "in a comment",
        False,
        odt(*(paragraph(f"{text}<office:annotation><text:p>{new}</text:p></office:annotation>") for text in texts)),
    )
    yield "and a table", False, odt(*right, text_table(2, 2))
    yield from other_texts(right)


def append_a_paragraph(instance):
    texts = text_of(instance)
    added = re.search(r"'(.+)'", instance.instruction)[1]
    begins = "beginning" in instance.instruction
    right = [added, *texts] if begins else [*texts, added]
    yield "right", True, odt(*right)
    yield "an empty line between", True, odt(right[0], "<text:p/>", *right[1:], "<text:p/>")
    yield "a line break before it", False, odt(paragraph(f"{right[0]}<text:line-break/>{right[1]}"), *right[2:])
    yield "twice", False, odt(added, *texts, added)
    yield "in a table", False, odt(*texts, text_table(1, 1, added))
    yield "without its end", False, odt(*(text.replace(added, added[:-1]) for text in right))
    yield "and a table", False, odt(*right, text_table(2, 2))
    yield from other_texts(right)


def delete_a_paragraph(instance):
    texts, number = text_of(instance), number_of(instance)
    right = texts[:number] + texts[number + 1 :]
    yield "right", True, odt(*right)
    yield "an empty line left", True, odt(*right[:1], "<text:p/>", *right[1:])
    item = f"<text:list><text:list-item>{paragraph(texts[number])}</text:list-item></text:list>"
    yield "made an item of a list", False, odt(*texts[:number], item, *texts[number + 1 :])
    yield "put into a table", False, odt(*texts[:number], text_table(1, 1, texts[number]), *texts[number + 1 :])
    part = f"<text:section>{paragraph(texts[number])}</text:section>"
    yield "put into a part", False, odt(*texts[:number], part, *texts[number + 1 :])
    hidden = style("P1", "paragraph", '<style:text-properties text:display="none"/>')
    yield "hidden", False, odt(*texts[:number], paragraph(texts[number], "P1"), *texts[number + 1 :], styles=hidden)
    yield "its full stop is left", False, odt(*texts[:number], ".", *texts[number + 1 :])
    yield from other_texts(right)


def insert_a_table(instance):
    texts = text_of(instance)
    columns, rows = map(int, re.findall(r"\d+", instance.instruction))
    right = text_table(rows, columns)
    yield "right", True, odt(*texts, right, "<text:p/>")
    yield "an empty line before it", True, odt(*texts, "<text:p/>", right, "<text:p/>")
    single = right.replace(
        f'<table:table-column table:number-columns-repeated="{columns}"/>', "<table:table-column/>" * columns
    )
    yield "columns one by one", True, odt(*texts, single, "<text:p/>")
    first, _, rest = right.partition("</table:table-row>")
    head = first.replace("<table:table-row>", "<table:table-header-rows><table:table-row>")
    yield (
        "with a row of headings",
        True,
        odt(*texts, f"{head}</table:table-row></table:table-header-rows>{rest}", "<text:p/>"),
    )
    yield "above the text", False, odt(right, *texts)
    yield "between", False, odt(texts[0], right, *texts[1:])
    yield "not empty", False, odt(*texts, text_table(rows, columns, "x"))
    yield "turned", False, odt(*texts, text_table(columns, rows))
    yield "two", False, odt(*texts, right, right)
    yield "and a small one", False, odt(*texts, right, "<text:p/>", text_table(1, 1))
    yield (
        "one that makes up for a row with another in it",
        False,
        odt(*texts, text_table(rows - 1, columns).replace("<text:p></text:p>", text_table(1, 0), 1)),
    )
    yield "without a row", False, odt(*texts, text_table(rows - 1, columns))
    yield from other_texts(texts)
    yield "and the text is gone", False, odt(right)


def begin_a_page(instance):
    texts, number = text_of(instance), number_of(instance)
    styles = (
        style("P1", "paragraph", '<style:paragraph-properties fo:break-before="page"/>')
        + style("P2", "paragraph", '<style:paragraph-properties fo:break-after="page"/>')
        + style("P3", "paragraph", more='style:master-page-name="Standard"')
        + style("P4", "paragraph", '<style:paragraph-properties fo:break-before="column"/>')
        + style(
            "P5", "paragraph", '<style:paragraph-properties fo:break-before="page"/>', more='style:master-page-name=""'
        )
    )

    def broken(named, **more):
        return odt(*(paragraph(text, named.get(index, "")) for index, text in enumerate(texts)), styles=styles, **more)

    yield "right", True, broken({number: "P1"})
    yield "right, as Writer has it", True, broken({number: "P5"})
    yield "a break behind the one before", True, broken({number - 1: "P2"})
    yield "a break with a style of pages", True, broken({number: "P3"})
    empty = [paragraph(text) for text in texts]
    empty.insert(number, '<text:p text:style-name="P1"/>')
    yield "an empty line on top of the page", True, odt(*empty, styles=styles)
    yield "a column", False, broken({number: "P4"})
    yield "each on a page", False, broken(dict.fromkeys(range(1, len(texts)), "P1") if len(texts) > 2 else {})
    yield "the break behind it", False, broken({number: "P2"})
    yield "the one before", False, broken({number - 1: "P1"})
    yield "two breaks", False, broken({number: "P1", (1 if number > 1 else 2): "P1"})
    yield "a style of pages for the first too", True, broken({0: "P3", number: "P1"})
    body = [paragraph(text, "P1" if index == number else "") for index, text in enumerate(texts)]
    yield "and a table", False, odt(*body, text_table(2, 2), styles=styles)
    yield "and a paragraph more", False, odt(*body, "More.", styles=styles)
    yield "empty lines", False, odt(*texts[:number], *["<text:p/>"] * 60, *texts[number:])
