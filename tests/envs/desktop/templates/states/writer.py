"""What an agent may leave of a text in Writer, by template."""

import re

from arpo.envs.desktop.templates.documents import read_paragraphs
from tests.envs.desktop.templates.odf import BOLD, odt, paragraph, style, text_table
from tests.envs.desktop.templates.states.common import number_of, replaced


def text_of(instance):
    return [each.text for each in read_paragraphs(instance.files["Documents/letter.odt"])]


def item(text):
    return f"<text:list><text:list-item>{paragraph(text)}</text:list-item></text:list>"


def other_texts(texts):
    yield "one more item of a list", False, odt(*texts, item("More."))
    yield "in another order", False, odt(*reversed(texts))
    for space in ("<text:s/>", "<text:tab/>"):
        yield f"{space} more", False, odt(paragraph(texts[0].replace(" ", f" {space}", 1)), *texts[1:])
    yield "a line break", False, odt(paragraph(f"{texts[0]}<text:line-break/>"), *texts[1:])
    yield "one paragraph", False, odt(" ".join(texts))
    yield "nothing", False, odt()


def text(properties):
    return f"<style:text-properties {properties}/>", "text"


def aligned(where):
    return f'<style:paragraph-properties fo:text-align="{where}" style:justify-single-word="false"/>', ""


LOOKS = {
    "bold": text('fo:font-weight="bold"'),
    "italic": text('fo:font-style="italic"'),
    "underlined": text('style:text-underline-style="solid" style:text-underline-width="auto"'),
    "centred": aligned("center"),
    "aligned to the right": aligned("end"),
    "justified": aligned("justify"),
}
PLAIN, _ = text('fo:font-weight="normal" fo:font-style="normal" style:text-underline-style="none"')


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

    def dressed(named, others="", *behind, **pieces):
        body = [paragraph(each, named if index == number else others) for index, each in enumerate(texts)]
        return odt(*body, *behind, **more)

    yield "right", True, dressed("P1")
    yield "and an empty line", True, dressed("P1", "", "<text:p/>")
    yield "by a style with a name", True, dressed("Named")
    yield "by a style that inherits it", True, dressed("P4")
    yield "another look", False, dressed("P2")
    yield "one look more", False, dressed("P3")
    yield "all of them", False, dressed("P1", "P1")
    yield "the others", False, dressed("", "P1")
    right = [paragraph(each, "P1" if index == number else "") for index, each in enumerate(texts)]
    changed = _spans(texts, number) if kind == "text" else []
    for what, solved, place, each in [*changed, ("as a heading", False, number, paragraph(texts[number], "P1", 1))]:
        yield what, solved, odt(*right[:place], each, *right[place + 1 :], **more)


def _spans(texts, number):
    span = '<text:span text:style-name="{}">{}</text:span>'.format
    first, rest = texts[number][:4], texts[number][4:]
    yield "as spans", True, number, paragraph(span("T1", first) + span("T1", rest))
    yield "as a span of a style with a name", True, number, paragraph(span("Strong", texts[number]))
    yield "half of it", False, number, paragraph(span("T1", first) + rest)
    yield "all but a word", False, number, paragraph(span("T2", first) + rest, "P1")
    other = (number + 1) % len(texts)
    yield "and some of another", False, other, paragraph(span("T1", texts[other][:5]) + texts[other][5:])


def make_a_heading(instance):
    texts, number = text_of(instance), number_of(instance)
    level = int(re.search(r"\d", instance.instruction)[0])

    def headed(*levels):
        return [paragraph(text, f"Heading_20_{of}" if of else "", of) for text, of in zip(texts, levels, strict=True)]

    wanted = [level if index == number else 0 for index in range(len(texts))]
    bold = style("P1", "paragraph", BOLD)
    yield "right", True, odt(*(paragraph(text, "", of) for text, of in zip(texts, wanted, strict=True)))
    yield "right, as Writer has it", True, odt(*headed(*wanted))
    yield "another level", False, odt(*headed(*(each and each % 3 + 1 for each in wanted)))
    yield "all of them", False, odt(*headed(*[level] * len(texts)))
    yield "big letters alone", False, odt(*(paragraph(text, "P1") for text in texts), styles=bold)


def replace_a_word(instance):
    texts = text_of(instance)
    old, new = replaced(instance)
    right = [text.replace(old, new) for text in texts]
    span = f'<text:span text:style-name="T1">{new}</text:span>'
    comment = f"<office:annotation><text:p>{new}</text:p></office:annotation>"
    yield "right", True, odt(*right)
    yield "in pieces", True, odt(*(paragraph(each.replace(new, span)) for each in right))
    yield "with a mark", True, odt(paragraph(f'<text:bookmark-start text:name="a"/>{right[0]}'), *right[1:])
    yield "all but the last", False, odt(*right[:-1], texts[-1])
    yield "in a comment", False, odt(*(paragraph(text + comment) for text in texts))
    yield from other_texts(right)


def append_a_paragraph(instance):
    texts = text_of(instance)
    added = re.search(r"'(.+)'", instance.instruction)[1]
    right = [added, *texts] if "beginning" in instance.instruction else [*texts, added]
    yield "right", True, odt(*right)
    yield "an empty line between", True, odt(right[0], "<text:p/>", *right[1:], "<text:p/>")
    yield "a line break before it", False, odt(paragraph(f"{right[0]}<text:line-break/>{right[1]}"), *right[2:])
    yield "in a table", False, odt(*texts, text_table(1, 1, added))
    yield from other_texts(right)


def delete_a_paragraph(instance):
    texts, number = text_of(instance), number_of(instance)
    above, below = texts[:number], texts[number + 1 :]
    right = above + below
    hidden = style("P1", "paragraph", '<style:text-properties text:display="none"/>')
    yield "right", True, odt(*right)
    yield "an empty line left", True, odt(*right[:1], "<text:p/>", *right[1:])
    yield "made an item of a list", False, odt(*above, item(texts[number]), *below)
    yield "put into a table", False, odt(*above, text_table(1, 1, texts[number]), *below)
    yield "hidden", False, odt(*above, paragraph(texts[number], "P1"), *below, styles=hidden)
    yield from other_texts(right)


def insert_a_table(instance):
    texts = text_of(instance)
    columns, rows = map(int, re.findall(r"\d+", instance.instruction))
    right = text_table(rows, columns)
    yield "right", True, odt(*texts, right, "<text:p/>")
    yield "an empty line before it", True, odt(*texts, "<text:p/>", right, "<text:p/>")
    together = f'<table:table-column table:number-columns-repeated="{columns}"/>'
    yield "columns one by one", True, odt(*texts, right.replace(together, "<table:table-column/>" * columns))
    first, _, rest = right.partition("</table:table-row>")
    head = first.replace("<table:table-row>", "<table:table-header-rows><table:table-row>")
    headed = f"{head}</table:table-row></table:table-header-rows>{rest}"
    yield "with a row of headings", True, odt(*texts, headed, "<text:p/>")
    yield "above the text", False, odt(right, *texts)
    yield "between", False, odt(texts[0], right, *texts[1:])
    yield "not empty", False, odt(*texts, text_table(rows, columns, "x"))
    yield "turned", False, odt(*texts, text_table(columns, rows))
    yield "without a row", False, odt(*texts, text_table(rows - 1, columns))
    yield "and a small one", False, odt(*texts, right, "<text:p/>", text_table(1, 1))
    nested = text_table(rows - 1, columns).replace("<text:p></text:p>", text_table(1, 0), 1)
    yield "one that makes up for a row with another in it", False, odt(*texts, nested)
    yield from other_texts(texts)


def begin_a_page(instance):
    texts, number = text_of(instance), number_of(instance)
    page = '<style:paragraph-properties fo:break-before="{}"/>'.format
    styles = (
        style("P1", "paragraph", page("page"))
        + style("P2", "paragraph", '<style:paragraph-properties fo:break-after="page"/>')
        + style("P3", "paragraph", more='style:master-page-name="Standard"')
        + style("P4", "paragraph", page("column"))
        + style("P5", "paragraph", page("page"), more='style:master-page-name=""')
    )

    def broken(named):
        return odt(*(paragraph(text, named.get(index, "")) for index, text in enumerate(texts)), styles=styles)

    yield "right", True, broken({number: "P1"})
    yield "right, as Writer has it", True, broken({number: "P5"})
    yield "a break behind the one before", True, broken({number - 1: "P2"})
    yield "a break with a style of pages", True, broken({number: "P3"})
    broken_line = '<text:p text:style-name="P1"/>'
    yield "an empty line on top of the page", True, odt(*texts[:number], broken_line, *texts[number:], styles=styles)
    yield "a column", False, broken({number: "P4"})
    yield "the break behind it", False, broken({number: "P2"})
    yield "two breaks", False, broken({number: "P1", (1 if number > 1 else 2): "P1"})
    yield "a style of pages for the first too", True, broken({0: "P3", number: "P1"})
    yield "empty lines", False, odt(*texts[:number], *["<text:p/>"] * 60, *texts[number:])
