"""OpenDocument files: what is written is read again, and what is no document reads as an empty one."""

import io
import zipfile

import pytest

from arpo.envs.desktop.templates import documents
from arpo.envs.desktop.templates.documents import (
    column_name,
    presentation,
    read_charts,
    read_paragraphs,
    read_sheets,
    read_slides,
    read_tables,
    spreadsheet,
    text_document,
)

SPACES = " ".join(f'xmlns:{name}="{uri}"' for name, uri in documents.NAMESPACES.items())


def packed(content, name="content.xml"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def document(body, styles="", kind="text"):
    return packed(
        f"<office:document-content {SPACES}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )


def test_a_spreadsheet_is_read_as_it_was_written():
    sheets = read_sheets(spreadsheet({"A & B": [["Name", None, "x<y"], ["Ada", 3, 2.5]], "Two": []}))
    assert list(sheets) == ["A & B", "Two"]
    values = {name: cell.value for name, cell in sheets["A & B"].items()}
    assert values == {"A1": "Name", "C1": "x<y", "A2": "Ada", "B2": 3.0, "C2": 2.5}


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
    styles = (
        '<number:number-style style:name="N2"><number:number number:decimal-places="2"/></number:number-style>'
        '<style:style style:name="two" style:family="table-cell" style:data-style-name="N2"/>'
        '<style:style style:name="fat" style:family="table-cell"><style:text-properties fo:font-weight="bold"/>'
        "</style:style>"
    )
    body = (
        '<table:table table:name="S"><table:table-column table:default-cell-style-name="two"/><table:table-row>'
        '<table:table-cell office:value-type="float" office:value="1" table:formula="of:=SUM([.B1:.B2] )"/>'
        '<table:table-cell table:style-name="fat" office:value-type="string"><text:p>a</text:p></table:table-cell>'
        "</table:table-row></table:table>"
    )
    cells = read_sheets(document(body, styles, "spreadsheet"))["S"]
    assert (cells["A1"].style["format"], cells["A1"].style["number:decimal-places"]) == ("number-style", "2")
    assert cells["A1"].formula == "of:=SUM([.B1:.B2])"
    assert cells["B1"].style["fo:font-weight"] == "bold"


def test_paragraphs_are_read_with_their_level_and_the_style_that_all_of_them_has():
    assert [each.text for each in read_paragraphs(text_document(["One & two", "Three"]))] == ["One & two", "Three"]
    styles = (
        '<style:style style:name="T1" style:family="text"><style:text-properties fo:font-weight="bold"/></style:style>'
        '<style:style style:name="T2" style:family="text"><style:text-properties fo:font-weight="bold" '
        'fo:font-style="italic"/></style:style>'
        '<style:style style:name="P1" style:family="paragraph"><style:paragraph-properties fo:text-align="center"/>'
        "</style:style>"
    )
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
    assert (head.text, head.heading) == ("head", 2)
    assert read_tables(document(body, styles)) == [(1, 3)]


def test_slides_are_read_with_their_name_and_texts_and_without_notes():
    slides = read_slides(presentation([("First", "one"), ("Second", "two")]))
    assert [(slide.name, slide.texts, slide.hidden) for slide in slides] == [
        ("page1", ["First", "one"], False),
        ("page2", ["Second", "two"], False),
    ]
    styles = (
        '<style:style style:name="d" style:family="drawing-page">'
        '<style:drawing-page-properties presentation:visibility="hidden"/></style:style>'
    )
    notes = "<presentation:notes><draw:frame><text:p>note</text:p></draw:frame></presentation:notes>"
    (hidden,) = read_slides(document(f'<draw:page draw:style-name="d">{notes}</draw:page>', styles, "presentation"))
    assert (hidden.texts, hidden.hidden) == ([], True)


def test_a_chart_is_read_by_its_class_and_the_cells_of_its_series():
    file = io.BytesIO()
    place = '<draw:object xlink:href="./Object 1"/><draw:object xlink:href="./Object 2"/><draw:object/>'
    spaces = f'{SPACES} xmlns:xlink="http://www.w3.org/1999/xlink"'
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("content.xml", f"<office:document-content {spaces}>{place}</office:document-content>")
        series = '<chart:series chart:values-cell-range-address="$Sheet1.$B$2:$Sheet1.$B$5"/>'
        chart = f'<chart:chart chart:class="chart:bar">{series}</chart:chart>'
        archive.writestr("Object 1/content.xml", f"<office:chart {spaces}>{chart}</office:chart>")
    assert read_charts(file.getvalue()) == [("chart:bar", ["Sheet1.B2:Sheet1.B5"])]


def test_numbers_that_are_none_are_read_as_none():
    body = (
        '<table:table table:name="S"><table:table-row table:number-rows-repeated="-1"><table:table-cell '
        'office:value-type="float" office:value="many" table:number-columns-spanned="x"/></table:table-row>'
        "</table:table>"
    )
    cell = read_sheets(document(body, kind="spreadsheet"))["S"]["A1"]
    assert cell.value != cell.value
    assert cell.columns == 1
    (head,) = read_paragraphs(document('<text:h text:outline-level="first">a</text:h>'))
    assert head.heading == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        packed("<a/>", "other.xml"),
        packed("<a"),
        packed('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'),
        packed(b"<a>" + b" " * documents.LARGEST + b"</a>"),
        packed("<a/>")[:40],
        packed("<a>" + "x" * 3000 + "</a>").replace(b"xxxx", b"yyyy"),
    ],
    ids=["empty", "text", "no content", "broken", "entities", "huge", "half", "damaged"],
)
def test_what_is_no_document_reads_as_an_empty_one(content):
    assert read_sheets(content) == {}
    assert [read(content) for read in (read_paragraphs, read_slides, read_tables, read_charts)] == [[], [], [], []]


@pytest.mark.parametrize(("number", "name"), [(1, "A"), (26, "Z"), (27, "AA"), (52, "AZ"), (703, "AAA")])
def test_columns_have_the_names_of_a_spreadsheet(number, name):
    assert column_name(number) == name
