"""OpenDocument files: made for instances, and read for their checkers.

What is read comes from a guest, so it may be anything: what is no document reads as an empty one.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

NAMESPACES = {
    name: f"urn:oasis:names:tc:opendocument:xmlns:{path}:1.0"
    for name, path in {
        "office": "office",
        "table": "table",
        "text": "text",
        "style": "style",
        "number": "datastyle",
        "draw": "drawing",
        "presentation": "presentation",
        "fo": "xsl-fo-compatible",
        "svg": "svg-compatible",
        "chart": "chart",
    }.items()
}
LARGEST = 4 * 2**20
"""Bytes of a document's content, unpacked."""
MOST_REPEATED = 64
"""Cells and rows of which one element may stand for many; empty ones at the end are a million."""
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
_LINK = "{http://www.w3.org/1999/xlink}href"
_MANIFEST = "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"

Value = str | int | float
Sheets = Mapping[str, Sequence[Sequence[Value | None]]]
"""The rows of sheets by name, from A1 on."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a sheet."""

    value: Value
    """A number, or the text."""
    shown: str
    """The text on the screen."""
    formula: str
    """Without spaces, as OpenFormula writes it, such as `of:=SUM([.B2:.B5])`; empty for a value."""
    style: Mapping[str, str]
    """Properties such as `fo:font-weight`."""
    columns: int
    """That the cell spans."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One paragraph of a text or a slide."""

    text: str
    style: Mapping[str, str]
    """Properties of all of it, such as `fo:text-align` and `fo:font-weight`."""
    heading: int
    """The level of a heading, 0 for none."""


@dataclass(frozen=True, slots=True)
class Slide:
    """One slide of a presentation."""

    name: str
    paragraphs: list[Paragraph]
    """Of all its frames, notes aside."""
    hidden: bool

    @property
    def texts(self) -> list[str]:
        """The texts of the paragraphs."""
        return [each.text for each in self.paragraphs]


def spreadsheet(sheets: Sheets) -> bytes:
    """Return a spreadsheet as an ODS file."""
    body = "".join(
        f'<table:table table:name="{escape(name)}">{_rows(rows)}</table:table>' for name, rows in sheets.items()
    )
    return _packed("spreadsheet", body)


def text_document(paragraphs: Sequence[str]) -> bytes:
    """Return a text of plain paragraphs as an ODT file."""
    return _packed("text", "".join(f"<text:p>{escape(text)}</text:p>" for text in paragraphs))


def presentation(slides: Sequence[tuple[str, str]]) -> bytes:
    """Return slides with a title and a text as an ODP file."""
    box = '<style:graphic-properties draw:fill="none" draw:stroke="none"/>'
    styles = f'<style:style style:name="box" style:family="graphic">{box}</style:style>'
    return _packed(
        "presentation", "".join(_slide(number, *slide) for number, slide in enumerate(slides, start=1)), styles
    )


def read_sheets(content: bytes) -> dict[str, dict[str, Cell]]:
    """Return the cells of a spreadsheet by sheet and by name such as `B3`; empty cells are left out."""
    root = _read(content)
    styles = _Styles(root)
    return {
        str(_get(table, "table:name")): dict(_cells(table, styles))
        for table in root.iterfind(".//table:table", NAMESPACES)
    }


def read_charts(content: bytes) -> list[tuple[str, list[str]]]:
    """Return of each chart its class, such as `chart:bar`, and the cells of its series: `Sheet1.B2:Sheet1.B5`."""
    charts = []
    for place in _read(content).iterfind(".//draw:object", NAMESPACES):
        root = _read(content, f"{place.get(_LINK, '').removeprefix('./')}/content.xml")
        chart = root.find(".//chart:chart", NAMESPACES)
        if chart is not None:
            series = chart.iterfind(".//chart:series", NAMESPACES)
            cells = [(_get(each, "chart:values-cell-range-address") or "").replace("$", "") for each in series]
            charts.append((_get(chart, "chart:class") or "", cells))
    return charts


def read_paragraphs(content: bytes) -> list[Paragraph]:
    """Return the paragraphs of a text, those of tables aside."""
    root = _read(content)
    styles = _Styles(root)
    kinds = {_tag("text:p"), _tag("text:h")}
    found = [each for each in root.iterfind(".//office:text/*", NAMESPACES) if each.tag in kinds]
    return [_paragraph(each, styles) for each in found]


def read_tables(content: bytes) -> list[tuple[int, int]]:
    """Return the numbers of rows and columns of the tables of a text."""
    tables = _read(content).iterfind(".//office:text/table:table", NAMESPACES)
    return [
        (
            sum(_repeats(row, "rows") for row in table.iterfind(".//table:table-row", NAMESPACES)),
            sum(_repeats(column, "columns") for column in table.iterfind(".//table:table-column", NAMESPACES)),
        )
        for table in tables
    ]


def read_slides(content: bytes) -> list[Slide]:
    """Return the slides of a presentation, in order."""
    root = _read(content)
    styles = _Styles(root)
    return [
        Slide(
            _get(page, "draw:name") or "",
            [_paragraph(each, styles) for each in page.iterfind("draw:frame//text:p", NAMESPACES)],
            styles.properties("drawing-page", _get(page, "draw:style-name")).get("presentation:visibility")
            == "hidden",
        )
        for page in root.iterfind(".//draw:page", NAMESPACES)
    ]


class _Styles:
    """The automatic styles of a document, with what they inherit from one another."""

    def __init__(self, root: ET.Element) -> None:
        self._styles = {
            (_get(style, "style:family"), _get(style, "style:name")): style
            for style in root.iterfind(".//office:automatic-styles/style:style", NAMESPACES)
        }
        self._formats = {
            _get(style, "style:name"): style for style in root.iterfind(".//office:automatic-styles/*", NAMESPACES)
        }

    def properties(self, family: str, name: str | None) -> dict[str, str]:
        """Return the properties of a style by prefixed name."""
        style = self._styles.get((family, name))
        if style is None:
            return {}
        found = {_short(key): value for part in style for key, value in part.attrib.items()}
        data = self._formats.get(_get(style, "style:data-style-name"))
        if data is not None:
            found["format"] = data.tag.rpartition("}")[2]
            found |= {_short(key): value for part in data for key, value in part.attrib.items()}
        return found


def _cells(table: ET.Element, styles: _Styles) -> list[tuple[str, Cell]]:
    defaults = [
        _get(column, "table:default-cell-style-name")
        for column in table.iterfind(".//table:table-column", NAMESPACES)
        for _ in range(_repeats(column, "columns"))
    ]
    found, number = [], 0
    for row in table.iterfind(".//table:table-row", NAMESPACES):
        cells = [cell for cell in row if cell.tag in (_tag("table:table-cell"), _tag("table:covered-table-cell"))]
        for _ in range(_repeats(row, "rows")):
            number += 1
            column = 0
            for cell in cells:
                for _ in range(_repeats(cell, "columns")):
                    default = defaults[column] if column < len(defaults) else None
                    column += 1
                    if _get(cell, "office:value-type"):
                        found.append((f"{column_name(column)}{number}", _cell(cell, styles, default)))
    return found


def _cell(cell: ET.Element, styles: _Styles, default: str | None) -> Cell:
    shown = "\n".join("".join(text.itertext()) for text in cell.iterfind("text:p", NAMESPACES))
    number = _get(cell, "office:value")
    return Cell(
        value=shown if number is None else _float(number),
        shown=shown,
        formula=(_get(cell, "table:formula") or "").replace(" ", ""),
        style=styles.properties("table-cell", _get(cell, "table:style-name") or default),
        columns=_whole(_get(cell, "table:number-columns-spanned"), 1),
    )


def _paragraph(element: ET.Element, styles: _Styles) -> Paragraph:
    style = styles.properties("paragraph", _get(element, "text:style-name"))
    spans = [
        styles.properties("text", _get(span, "text:style-name")) for span in element.iterfind("text:span", NAMESPACES)
    ]
    covered = "".join("".join(span.itertext()) for span in element.iterfind("text:span", NAMESPACES))
    text = "".join(element.itertext())
    if spans and covered == text:  # all of it is styled by spans: what they have in common
        style |= dict(set(spans[0].items()).intersection(*(span.items() for span in spans[1:])))
    return Paragraph(text, style, _whole(_get(element, "text:outline-level"), 0))


def column_name(number: int) -> str:
    """Return `A` for 1 and `AA` for 27."""
    letters = ""
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _rows(rows: Sequence[Sequence[Value | None]]) -> str:
    return "".join(f"<table:table-row>{''.join(map(_written, row))}</table:table-row>" for row in rows)


def _written(value: Value | None) -> str:
    if value is None:
        return "<table:table-cell/>"
    shown = f"<text:p>{escape(str(value))}</text:p>"
    if isinstance(value, str):
        return f'<table:table-cell office:value-type="string">{shown}</table:table-cell>'
    return f'<table:table-cell office:value-type="float" office:value="{value}">{shown}</table:table-cell>'


def _slide(number: int, title: str, text: str) -> str:
    frames = "".join(
        f'<draw:frame draw:style-name="box" presentation:class="{kind}" svg:x="2cm" svg:y="{top}cm" svg:width="24cm" '
        f'svg:height="{height}cm">'
        f"<draw:text-box><text:p>{escape(words)}</text:p></draw:text-box></draw:frame>"
        for kind, words, top, height in (("title", title, 1, 3), ("outline", text, 5, 9))
    )
    return f'<draw:page draw:name="page{number}" draw:master-page-name="Default">{frames}</draw:page>'


def _packed(kind: str, body: str, styles: str = "") -> bytes:
    mime = f"application/vnd.oasis.opendocument.{kind}"
    spaces = " ".join(f'xmlns:{name}="{uri}"' for name, uri in NAMESPACES.items())
    content = (
        f'{_HEAD}<office:document-content {spaces} office:version="1.3">'
        f"<office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )
    manifest = (
        f'{_HEAD}<manifest:manifest xmlns:manifest="{_MANIFEST}" manifest:version="1.3">'
        f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{mime}"/>'
        '<manifest:file-entry manifest:full-path="content.xml" manifest:media-type="text/xml"/></manifest:manifest>'
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in (("mimetype", mime), ("content.xml", content), ("META-INF/manifest.xml", manifest)):
            archive.writestr(zipfile.ZipInfo(name), text)
    return file.getvalue()


def _read(content: bytes, part: str = "content.xml") -> ET.Element:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(part) as file:
            text = file.read(LARGEST + 1)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, OSError, ValueError, EOFError):
        return ET.Element("nothing")
    if len(text) > LARGEST or b"<!DOCTYPE" in text:
        return ET.Element("nothing")
    try:
        return ET.fromstring(text)
    except ET.ParseError:
        return ET.Element("nothing")


def _tag(name: str) -> str:
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


def _get(element: ET.Element, name: str) -> str | None:
    return element.get(_tag(name))


def _short(key: str) -> str:
    uri, _, local = key.removeprefix("{").partition("}")
    return next((f"{prefix}:{local}" for prefix, space in NAMESPACES.items() if space == uri), local)


def _repeats(element: ET.Element, what: str) -> int:
    return min(_whole(_get(element, f"table:number-{what}-repeated"), 1), MOST_REPEATED)


def _whole(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else otherwise


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
