"""OpenDocument files: what is written is read again, and what is no document reads as an empty one."""

import time
import zipfile

import pytest

from arpo.envs.desktop.templates import documents
from arpo.envs.desktop.templates.documents import read_charts, read_paragraphs, read_sheets, read_slides, read_tables
from tests.envs.desktop.templates import odf
from tests.envs.desktop.templates.odf import BOLD, SPACES, chart, shapes, style


def packed(content, name="content.xml", method=zipfile.ZIP_DEFLATED):
    return odf.packed({name: content}, method)


def document(body, styles="", kind="text", **more):
    return odf.document(kind, body, styles, **more)


HEAD = '<?xml version="1.0" encoding="UTF-8"?>'


def test_a_spreadsheet_is_read_as_it_was_written():
    sheets = read_sheets(documents.spreadsheet({"A & B": [["Name", 7, "x<y"], ["Ada", 3, 2.5]], "Two": []}))
    assert list(sheets) == ["A & B", "Two"]
    values = {name: cell.value for name, cell in sheets["A & B"].items()}
    assert values == {"A1": "Name", "B1": 7.0, "C1": "x<y", "A2": "Ada", "B2": 3.0, "C2": 2.5}


def test_a_cell_that_stands_for_several_is_read_as_often_and_a_million_empty_ones_are_not():
    body = (
        '<table:table table:name="S"><table:table-column table:number-columns-repeated="16384"/><table:table-row '
        'table:number-rows-repeated="2"><table:table-cell office:value-type="float" office:value="7" '
        'table:number-columns-repeated="2"><text:p>7</text:p></table:table-cell></table:table-row>'
        '<table:table-row table:number-rows-repeated="1048573"><table:table-cell '
        'table:number-columns-repeated="16384"/></table:table-row></table:table>'
    )
    assert sorted(read_sheets(document(body, kind="spreadsheet"))["S"]) == ["A1", "A2", "B1", "B2"]


def test_the_style_and_the_format_of_a_cell_and_of_its_column_are_read():
    two = '<number:number-style style:name="N2"><number:number number:decimal-places="2"/></number:number-style>'
    styles = two + style("two", "table-cell", more='style:data-style-name="N2"') + style("fat", "table-cell", BOLD)
    body = (
        '<table:table table:name="S"><table:table-column table:default-cell-style-name="two"/><table:table-row>'
        '<table:table-cell office:value-type="float" office:value="1"/>'
        '<table:table-cell table:style-name="fat" office:value-type="string"><text:p>a</text:p></table:table-cell>'
        "</table:table-row></table:table>"
    )
    cells = read_sheets(document(body, styles, "spreadsheet"))["S"]
    assert (cells["A1"].style["format"], cells["A1"].style["number:decimal-places"]) == ("number-style", "2")
    assert cells["B1"].style["fo:font-weight"] == "bold"


def test_paragraphs_are_read_with_their_level_and_the_style_that_all_of_them_has():
    written = documents.text_document(["One & two", "Three"])
    assert [each.text for each in read_paragraphs(written)] == ["One & two", "Three"]
    both = '<style:text-properties fo:font-weight="bold" fo:font-style="italic"/>'
    centred = style("P1", "paragraph", '<style:paragraph-properties fo:text-align="center"/>')
    bold = '<style:text-properties fo:font-weight="bold"/>'
    styles = style("T1", "text", bold) + style("T2", "text", both) + centred
    body = (
        '<text:p text:style-name="P1"><text:span text:style-name="T1">all </text:span>'
        '<text:span text:style-name="T2">bold</text:span></text:p>'
        '<text:p>half <text:span text:style-name="T1">bold</text:span></text:p>'
        '<text:h text:outline-level="2">head</text:h>'
        '<table:table><table:table-column table:number-columns-repeated="3"/><table:table-row><table:table-cell>'
        "<text:p>in a table</text:p></table:table-cell></table:table-row></table:table>"
    )
    whole, half, head = read_paragraphs(document(body, styles))
    assert whole.style == {"fo:text-align": "center", "fo:font-weight": "bold"}
    assert half.style == {}
    assert half.pieces == [{"fo:font-weight": "bold"}, {}]
    assert (head.text, head.heading) == ("head", 2)
    table = documents.Table(rows=1, columns=3, text="in a table", paragraphs_above=3)
    assert read_tables(document(body, styles)) == [table]


def test_spaces_tabs_and_line_breaks_are_text():
    body = '<text:p>a<text:s text:c="3"/>b<text:tab/>c<text:line-break/>d<text:s text:c="999999999"/></text:p>'
    (paragraph,) = read_paragraphs(document(body))
    assert paragraph.text == "a   b\tc\nd" + " " * documents.MOST_REPEATED


def test_paragraphs_of_lists_parts_and_boxes_are_read_in_order_and_those_whose_deletion_is_recorded_too():
    body = (
        "<text:tracked-changes><text:p>0</text:p></text:tracked-changes><text:list><text:list-item><text:p>1</text:p>"
        "<text:list><text:list-item><text:p>2</text:p></text:list-item></text:list></text:list-item></text:list>"
        "<text:section><text:p>3</text:p></text:section><draw:frame><draw:text-box><text:p>4</text:p></draw:text-box>"
        "</draw:frame><text:p>5<draw:frame><draw:text-box><text:p>6</text:p></draw:text-box></draw:frame></text:p>"
    )
    assert [each.text for each in read_paragraphs(document(body))] == ["0", "1", "2", "3", "4", "56"]


def test_a_style_has_what_it_inherits_of_those_with_a_name_and_may_inherit_in_a_circle():
    head = '<style:text-properties fo:font-weight="bold" fo:font-style="italic"/>'
    circle = style("A", "paragraph", "", "B") + style("B", "paragraph", '<style:text-properties fo:color="red"/>', "A")
    normal = '<style:text-properties fo:font-style="normal"/>'
    body = '<text:p text:style-name="P1">a</text:p><text:p text:style-name="A">b</text:p>'
    own = style("P1", "paragraph", normal, "Head", 'style:master-page-name="Landscape"')
    first, second = read_paragraphs(document(body, own, common=style("Head", "paragraph", head) + circle))
    assert first.style == {"fo:font-weight": "bold", "fo:font-style": "normal", "style:master-page-name": "Landscape"}
    assert second.style == {"fo:color": "red"}


def test_slides_are_read_with_the_texts_of_their_boxes_and_without_notes():
    slides = read_slides(documents.presentation([("First", "one"), ("Second", "two")]))
    assert [(slide.texts, slide.hidden) for slide in slides] == [(["First", "one"], False), (["Second", "two"], False)]
    boxes = (
        "<draw:frame><draw:text-box><text:p>a</text:p><text:p>b</text:p><text:p/></draw:text-box></draw:frame>"
        "<draw:frame><draw:text-box><text:p/></draw:text-box></draw:frame>"
        "<draw:custom-shape><text:p>c</text:p></draw:custom-shape>"
    )
    (slide,) = read_slides(document(f"<draw:page>{boxes}</draw:page>", kind="presentation"))
    assert slide.texts == ["a\nb", "c"]
    styles = style("d", "drawing-page", '<style:drawing-page-properties presentation:visibility="hidden"/>')
    notes = "<presentation:notes><draw:frame><text:p>note</text:p></draw:frame></presentation:notes>"
    (hidden,) = read_slides(document(f'<draw:page draw:style-name="d">{notes}</draw:page>', styles, "presentation"))
    assert (hidden.texts, hidden.hidden) == ([], True)


def test_a_chart_is_read_by_its_class_and_the_cells_of_its_series():
    objects = [chart(2, 5).replace('chart:vertical="false"', ""), chart(2, 5, vertical="true")]
    content = document(shapes(2) + "<draw:object/>", kind="spreadsheet", objects=objects)
    series = ["Sheet1.B2:Sheet1.B5"]
    assert read_charts(content) == [documents.Chart("chart:bar", lies=lies, series=series) for lies in (False, True)]


def test_numbers_that_are_none_are_read_as_none():
    body = rows('<table:table-cell office:value-type="float" office:value="many"/>', repeated=-1)
    cell = read_sheets(document(body, kind="spreadsheet"))["S"]["A1"]
    assert cell.value != cell.value
    (head,) = read_paragraphs(document('<text:h text:outline-level="first">a</text:h>'))
    assert head.heading == 0


PACKED, START = packed(HEAD + "<a>bc</a>" * 50), 30 + len("content.xml")
DAMAGED = PACKED[:START] + b"\x07" + PACKED[START + 1 :]
"""Its packed part begins with a block of a kind that there is not."""
NO_DOCUMENTS = {
    "empty": b"",
    "text": b"no archive",
    "no content": packed("<a/>", "other.xml"),
    "broken": packed("<a"),
    "entities": packed('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'),
    "huge": packed(b"<a>" + b" " * documents.LARGEST + b"</a>"),
    "half": packed("<a/>")[:40],
    "damaged": packed("<a>" + "x" * 3000 + "</a>", method=zipfile.ZIP_STORED).replace(b"xxxx", b"yyyy"),
    "damaged where it is packed": DAMAGED,
    "packed otherwise": packed(HEAD + "<a>bc</a>" * 50, method=zipfile.ZIP_LZMA),
    "entities of UTF-16": packed('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'.encode("utf-16")),
    "no encoding": packed('<?xml version="1.0" encoding="none"?><a/>'),
    "several bytes a character": packed('<?xml version="1.0" encoding="utf-7"?><a/>'),
    "no encoding of text": packed('<?xml version="1.0" encoding="rot13"?><a/>'),
    "two sheets of one name": document('<table:table table:name="S"/>' * 2, kind="spreadsheet"),
}


@pytest.mark.parametrize("what", NO_DOCUMENTS)
def test_what_is_no_document_reads_as_an_empty_one(what):
    content = NO_DOCUMENTS[what]
    assert read_sheets(content) == {}
    assert [read(content) for read in (read_paragraphs, read_slides, read_tables, read_charts)] == [[], [], [], []]


REPEATED = 'table:number-columns-repeated="64"'
CELL = f'<table:table-cell table:style-name="x" office:value-type="float" office:value="1" {REPEATED}/>'
LINE = f"<text:p>{'x' * 400_000}</text:p>"
LONG = f'<table:table-cell office:value-type="string" {REPEATED}>{LINE}{LINE}</table:table-cell>'
MANY = " ".join(f'fo:a{number}=""' for number in range(20_000))
SPAN = '<text:span text:style-name="x">a</text:span>'
CHARTS = f"<a {SPACES}>{'<chart:chart/>' * 1000}</a>"
LOOKS = "".join(
    f'<style:style style:name="x" style:family="{family}"><style:text-properties {MANY}/></style:style>'
    for family in ("table-cell", "paragraph", "text")
)


def rows(cells, name="S", repeated=64):
    row = f'<table:table-row table:number-rows-repeated="{repeated}">{cells}</table:table-row>'
    return f'<table:table table:name="{name}">{row}</table:table>'


HUGE = {
    "cells": document(rows(CELL * 4000), LOOKS, "spreadsheet"),
    "empty cells": document(rows(f"<table:table-cell {REPEATED}/>" * 12_000), kind="spreadsheet"),
    "sheets": document("".join(rows(CELL, f"S{number}") for number in range(3000)), kind="spreadsheet"),
    "a long text": document(rows(LONG), kind="spreadsheet"),
    "lists": document("<text:list>" * 40_000 + "</text:list>" * 40_000),
    "tables in tables": document("<table:table>" * 30_000 + "</table:table>" * 30_000),
    "looks": document(f'<text:p text:style-name="x">{SPAN}</text:p>' * 5000, LOOKS),
    "charts": document('<draw:object xlink:href="./Object 1"/>' * 10_000, kind="spreadsheet", objects=[CHARTS]),
}


@pytest.mark.parametrize("what", HUGE)
def test_what_is_made_to_take_long_is_read_soon(what):
    began = time.process_time()
    for read in (read_sheets, read_paragraphs, read_slides, read_tables, read_charts):
        read(HUGE[what])
    assert time.process_time() - began < 5
    assert what != "charts" or len(read_charts(HUGE[what])) == 1000 * documents.MOST_PARTS


def test_columns_have_the_names_of_a_spreadsheet():
    assert [documents.column_name(number) for number in (1, 26, 27, 52, 703)] == ["A", "Z", "AA", "AZ", "AAA"]
