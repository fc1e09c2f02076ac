"""OpenDocument files: made for instances, and read for their checkers.

What is read comes from a guest, so it may be anything: what is no document reads as an empty one.
"""

import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
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
LARGEST = 2**20
"""Bytes of a part of a document, unpacked."""
MOST_REPEATED = 64
"""Cells and rows of which one element may stand for many; empty ones at the end are a million."""
MOST_CELLS = 100_000
"""Cells of a document, empty ones too; one with more reads as an empty one."""
MOST_PARTS = 8
"""Charts or tables of a document that are looked at."""
MOST_PROPERTIES = 200
"""Of a style, with what it inherits; one with more has none."""
MOST_PARENTS = 10
"""Of a style, one above the other."""
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
_TEXT = "office:body/office:text"
_LINK = "{http://www.w3.org/1999/xlink}href"
_MANIFEST = "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"

Value = str | int | float
Rows = list[list[Value]]
"""From A1 on."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a sheet."""

    value: Value
    shown: str
    style: Mapping[str, str]
    """Properties of all of it, such as `fo:font-weight`."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One paragraph of a text."""

    text: str
    style: Mapping[str, str]
    pieces: Sequence[Mapping[str, str]]
    heading: int
    """The level of a heading, 0 for none."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a text."""

    rows: int
    columns: int
    text: str
    paragraphs_above: int
    """Those of the text that are not empty."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of a sheet."""

    kind: str
    """Such as `chart:bar`."""
    lies: bool
    series: Sequence[str]
    """The cells of each, such as `Sheet1.B2:Sheet1.B5`."""


@dataclass(frozen=True, slots=True)
class Slide:
    """One slide of a presentation."""

    texts: list[str]
    """Of its boxes and shapes, empty ones and notes aside."""
    hidden: bool


def spreadsheet(sheets: Mapping[str, Rows]) -> bytes:
    """Return a spreadsheet as an ODS file."""
    body = ""
    for name, rows in sheets.items():
        written = "".join(f"<table:table-row>{''.join(map(_written, row))}</table:table-row>" for row in rows)
        body += f'<table:table table:name="{escape(name)}">{written}</table:table>'
    return _packed("spreadsheet", body)


def text_document(paragraphs: Sequence[str]) -> bytes:
    """Return a text of plain paragraphs as an ODT file."""
    return _packed("text", "".join(f"<text:p>{escape(text)}</text:p>" for text in paragraphs))


def presentation(slides: Sequence[tuple[str, str]]) -> bytes:
    """Return slides with a title and a text as an ODP file."""
    box = '<style:graphic-properties draw:fill="none" draw:stroke="none"/>'
    styles = f'<style:style style:name="box" style:family="graphic">{box}</style:style>'
    pages = (_slide(number, *slide) for number, slide in enumerate(slides, start=1))
    return _packed("presentation", "".join(pages), styles)


def read_sheets(content: bytes) -> dict[str, dict[str, Cell]]:
    """Return the cells of a spreadsheet by sheet and by name such as `B3`; empty cells are left out."""
    root = _read(content)
    styles = _styles(content, root)
    tables = root.findall("office:body/office:spreadsheet/table:table", NAMESPACES)
    found: dict[str, dict[str, Cell]] = {str(_get(table, "table:name")): {} for table in tables}
    read: dict[tuple[ET.Element, str | None], Cell] = {}
    places = ((str(_get(table, "table:name")), *place) for table in tables for place in _places(table))
    for number, (sheet, place, cell, default) in enumerate(places):
        if number == MOST_CELLS:
            return {}
        if _get(cell, "office:value-type"):
            if (cell, default) not in read:
                read[cell, default] = _cell(cell, styles, default)
            found[sheet][place] = read[cell, default]
    return found if len(found) == len(tables) else {}


def read_charts(content: bytes) -> list[Chart]:
    """Return the charts of a spreadsheet."""
    places = _read(content).findall(".//draw:object", NAMESPACES)[:MOST_PARTS]
    roots = [_read(content, f"{place.get(_LINK, '').removeprefix('./')}/content.xml") for place in places]
    return [_chart(chart, root) for root in roots for chart in root.iterfind(".//chart:chart", NAMESPACES)]


def read_paragraphs(content: bytes) -> list[Paragraph]:
    """Return the paragraphs of a text, those of lists and boxes too, and those of tables not.

    One whose deletion is recorded as a change is still there, in front of the others.
    """
    root = _read(content)
    styles = _styles(content, root)
    blocks = _blocks(root.iterfind(_TEXT, NAMESPACES))
    return [_paragraph(each, styles) for each in blocks if each.tag != _TABLE]


def read_tables(content: bytes) -> list[Table]:
    """Return the tables of a text, those in one another too."""
    tables: list[Table] = []
    above = 0
    for block in _blocks(_read(content).iterfind(_TEXT, NAMESPACES)):
        if block.tag == _TABLE:
            tables += [_table(each, above) for each in islice(block.iter(_TABLE), MOST_PARTS)]
        elif "".join(block.itertext()):
            above += 1
    return tables


def read_slides(content: bytes) -> list[Slide]:
    """Return the slides of a presentation, in order."""
    root = _read(content)
    styles = _styles(content, root)
    return [_slide_of(page, styles) for page in root.iterfind("office:body/office:presentation/draw:page", NAMESPACES)]


class _Styles:
    """The styles of a document by family and name, with what they inherit from one another."""

    def __init__(self, styles: Iterable[ET.Element]) -> None:
        named = [style for style in styles if _get(style, "style:name")]
        self._styles = {(_get(style, "style:family"), _get(style, "style:name")): style for style in named}
        self._found: dict[tuple[str, str | None], dict[str, str]] = {}

    def properties(self, family: str, name: str | None) -> Mapping[str, str]:
        """Return the properties of a style by prefixed name."""
        if (family, name) not in self._found:
            line: list[ET.Element] = []
            style = self._styles.get((family, name))
            while style is not None and len(line) < MOST_PARENTS:
                line.append(style)
                style = self._styles.get((family, _get(style, "style:parent-style-name")))
            found = list(islice(chain.from_iterable(map(self._own, reversed(line))), MOST_PROPERTIES + 1))
            self._found[family, name] = {} if len(found) > MOST_PROPERTIES else dict(found)
        return self._found[family, name]

    def _own(self, style: ET.Element) -> Iterator[tuple[str, str]]:
        page = _get(style, "style:master-page-name")
        if page:
            yield "style:master-page-name", page
        data = self._styles.get((None, _get(style, "style:data-style-name")), NOTHING)
        if data is not NOTHING:
            yield "format", data.tag.rpartition("}")[2]
        for part in chain(style, data):
            for key, value in part.attrib.items():
                yield _short(key), value


def _styles(content: bytes, root: ET.Element) -> _Styles:
    """Return the styles that have a name for people, and those that a program has made for this document."""
    named = _read(content, "styles.xml").iterfind("office:styles/*", NAMESPACES)
    return _Styles(chain(named, root.iterfind("office:automatic-styles/*", NAMESPACES)))


def _blocks(places: Iterable[ET.Element]) -> Iterator[ET.Element]:
    """Yield the paragraphs and the tables of places in order, but none within another."""
    left = list(places)[::-1]
    while left:
        block = left.pop()
        if block.tag in _BLOCKS:
            yield block
        else:
            left += reversed(block)


def _table(table: ET.Element, above: int) -> Table:
    return Table(
        sum(_repeats(row, "rows") for row in table.iterfind(".//table:table-row", NAMESPACES)),
        sum(_repeats(column, "columns") for column in table.iterfind(".//table:table-column", NAMESPACES)),
        "".join(table.itertext()).strip(),
        above,
    )


def _chart(chart: ET.Element, root: ET.Element) -> Chart:
    area = chart.find("chart:plot-area", NAMESPACES)
    styles = _Styles(root.iterfind("office:automatic-styles/*", NAMESPACES))
    look = styles.properties("chart", None if area is None else _get(area, "chart:style-name"))
    series = chart.iterfind(".//chart:series", NAMESPACES)
    cells = [(_get(each, "chart:values-cell-range-address") or "").replace("$", "") for each in series]
    return Chart(_get(chart, "chart:class") or "", look.get("chart:vertical") == "true", cells)


def _slide_of(page: ET.Element, styles: _Styles) -> Slide:
    look = styles.properties("drawing-page", _get(page, "draw:style-name"))
    boxes = [box for box in page if box.tag != _NOTES]
    texts = ["\n".join(filter(None, ("".join(line.itertext()) for line in _blocks([box])))) for box in boxes]
    return Slide([text for text in texts if text], look.get("presentation:visibility") == "hidden")


def _places(table: ET.Element) -> Iterator[tuple[str, ET.Element, str | None]]:
    """Yield the name of each place of a sheet, its cell and the style of its column."""
    columns = (
        _get(column, "table:default-cell-style-name")
        for column in table.iterfind(".//table:table-column", NAMESPACES)
        for _ in range(_repeats(column, "columns"))
    )
    defaults = dict(enumerate(islice(columns, MOST_CELLS), start=1))
    number = 0
    for row in table.iterfind(".//table:table-row", NAMESPACES):
        cells = [cell for cell in row if cell.tag in _CELLS]
        for _ in range(_repeats(row, "rows")):
            number += 1
            column = 0
            for cell in cells:
                for _ in range(_repeats(cell, "columns")):
                    column += 1
                    yield f"{column_name(column)}{number}", cell, defaults.get(column)


def _cell(cell: ET.Element, styles: _Styles, default: str | None) -> Cell:
    lines = cell.findall("text:p", NAMESPACES)
    shown = "\n".join("".join(line.itertext()) for line in lines)
    number = _get(cell, "office:value")
    style = styles.properties("table-cell", _get(cell, "table:style-name") or default)
    return Cell(
        value=shown if number is None else _float(number),
        shown=shown,
        style=_common([piece for line in lines for piece in _pieces(line, style, styles)] or [style]),
    )


def _paragraph(element: ET.Element, styles: _Styles) -> Paragraph:
    pieces = _pieces(element, styles.properties("paragraph", _get(element, "text:style-name")), styles)
    level = _whole(_get(element, "text:outline-level"), 0)
    return Paragraph("".join(element.itertext()), _common(pieces), pieces, level)


def _pieces(element: ET.Element, style: Mapping[str, str], styles: _Styles) -> list[Mapping[str, str]]:
    """Return the different looks of the spans of a paragraph, and that of what is in none."""
    texts = [(span, "".join(span.itertext())) for span in element.iterfind("text:span", NAMESPACES)]
    names = {_get(span, "text:style-name"): None for span, text in texts if text}
    looks: list[Mapping[str, str]] = [{**style, **styles.properties("text", name)} for name in names]
    return looks if looks and "".join(text for _, text in texts) == "".join(element.itertext()) else [*looks, style]


def _common(pieces: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the properties that pieces have in common."""
    return dict(set(pieces[0].items()).intersection(*(piece.items() for piece in pieces[1:])))


def column_name(number: int) -> str:
    """Return `A` for 1 and `AA` for 27."""
    letters = ""
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def filled(rows: Rows) -> dict[str, Value]:
    """Return the values of a table by the names of its cells."""
    return {
        f"{column_name(column)}{row}": value
        for row, values in enumerate(rows, 1)
        for column, value in enumerate(values, 1)
    }


def _written(value: Value) -> str:
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
    """Return the root of a part, whose spaces, tabs and line breaks are text; `NOTHING` of what is no document."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if archive.getinfo(part).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                return NOTHING
            with archive.open(part) as file:
                text = file.read(LARGEST + 1)
    except Exception:  # noqa: BLE001 - of a damaged archive: of zipfile, and of all that it is made of
        return NOTHING
    if len(text) > LARGEST or b"<!DOCTYPE" in text or b"\0" in text:  # the last is UTF-16, which may hide the other
        return NOTHING
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError, LookupError):  # the last two of encodings
        return NOTHING
    for name, character in (("s", " "), ("tab", "\t"), ("line-break", "\n")):
        for each in root.iter(_tag(f"text:{name}")):
            each.text = character * min(_whole(_get(each, "text:c"), 1), MOST_REPEATED)
    return root


def _tag(name: str) -> str:
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


NOTHING = ET.Element("nothing")
_TABLE, _NOTES = _tag("table:table"), _tag("presentation:notes")
_BLOCKS = frozenset({_TABLE, _tag("text:p"), _tag("text:h")})
_CELLS = frozenset({_tag("table:table-cell"), _tag("table:covered-table-cell")})


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
