"""OpenDocument files as LibreOffice writes them: with named styles, cells that stand for a million, charts apart."""

import io
import re
import zipfile
from xml.sax.saxutils import escape

from arpo.envs.desktop.templates.documents import NAMESPACES

SPACES = " ".join(f'xmlns:{name}="{uri}"' for name, uri in NAMESPACES.items()) + (
    ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:dc="http://purl.org/dc/elements/1.1/"'
)


def packed(parts, method=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def document(kind, body, styles="", common="", objects=()):
    """A document: `styles` are its automatic ones, `common` those that have a name for people."""
    content = (
        f"<office:document-content {SPACES}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )
    named = f"<office:document-styles {SPACES}><office:styles>{common}</office:styles></office:document-styles>"
    apart = {f"Object {number}/content.xml": each for number, each in enumerate(objects, 1)}
    return packed({"content.xml": content, "styles.xml": named, **apart})


def style(name, family, properties="", parent="", more=""):
    """A style whose properties are elements such as `<style:text-properties …/>`."""
    above = f'style:parent-style-name="{parent}"' if parent else ""
    return f'<style:style style:name="{name}" style:family="{family}" {above} {more}>{properties}</style:style>'


BOLD = '<style:text-properties fo:font-weight="bold" style:font-weight-asian="bold"/>'
ITALIC = '<style:text-properties fo:font-style="italic"/>'


def cell(value, style_name="", formula=""):
    """A cell of a number or a text; a text that is XML already is taken as the cell."""
    if isinstance(value, str) and value.startswith("<table:"):
        return value
    named = f' table:style-name="{style_name}"' if style_name else ""
    worked_out = f' table:formula="{escape(formula)}"' if formula else ""
    if value is None:
        return f"<table:table-cell{named}/>"
    shown = f"<text:p>{escape(str(value))}</text:p>"
    kind = '"string"' if isinstance(value, str) else f'"float" office:value="{value!r}"'
    return f"<table:table-cell{named}{worked_out} office:value-type={kind}>{shown}</table:table-cell>"


def sheet(cells, name="Sheet1", columns="", shapes=""):
    """A sheet of cells by name such as `B3`, with all the empty ones that LibreOffice writes."""
    places = {}
    for place, value in cells.items():
        letter, number = re.fullmatch(r"([A-Z])(\d+)", place).groups()
        places[int(number), ord(letter) - 64] = value
    rows = "".join(
        "<table:table-row>"
        + "".join(cell(places.get((row, column))) for column in range(1, max((c for r, c in places), default=0) + 1))
        + '<table:table-cell table:number-columns-repeated="16000"/></table:table-row>'
        for row in range(1, max((r for r, c in places), default=0) + 1)
    )
    empty = (
        '<table:table-row table:number-rows-repeated="1048000"><table:table-cell '
        'table:number-columns-repeated="16384"/></table:table-row>'
    )
    columns = columns or '<table:table-column table:number-columns-repeated="16384"/>'
    return f'<table:table table:name="{escape(name)}">{columns}{shapes}{rows}{empty}</table:table>'


def ods(*sheets, **more):
    return document("spreadsheet", "".join(sheets), **more)


def chart(first, last, kind="chart:bar", vertical="false"):
    styles = style("ch1", "chart", f'<style:chart-properties chart:vertical="{vertical}"/>')
    series = f'<chart:series chart:values-cell-range-address="Sheet1.$B${first}:Sheet1.$B${last}"/>'
    return (
        f"<office:document-content {SPACES}><office:automatic-styles>{styles}</office:automatic-styles><office:body>"
        f'<office:chart><chart:chart chart:class="{kind}"><chart:plot-area chart:style-name="ch1">{series}'
        "</chart:plot-area></chart:chart></office:chart></office:body></office:document-content>"
    )


def shapes(number):
    frame = '<draw:frame><draw:object xlink:href="./Object {}"/></draw:frame>'.format
    return f"<table:shapes>{''.join(map(frame, range(1, number + 1)))}</table:shapes>"


def paragraph(text, style_name="", level=0):
    named = f' text:style-name="{style_name}"' if style_name else ""
    content = text if "<" in text else escape(text)
    if level:
        return f'<text:h{named} text:outline-level="{level}">{content}</text:h>'
    return f"<text:p{named}>{content}</text:p>"


def odt(*body, **more):
    return document("text", "".join(each if each.startswith("<") else paragraph(each) for each in body), **more)


def text_table(rows, columns, text=""):
    row = "<table:table-row>" + f"<table:table-cell><text:p>{text}</text:p></table:table-cell>" * columns
    return (
        f'<table:table table:name="Table1"><table:table-column table:number-columns-repeated="{columns}"/>'
        f"{(row + '</table:table-row>') * rows}</table:table>"
    )


def page(*boxes, hidden=False, more=""):
    frames = "".join(
        "<draw:frame><draw:text-box>"
        + "".join(f"<text:p>{escape(line)}</text:p>" for line in ([box] if isinstance(box, str) else box))
        + "</draw:text-box></draw:frame>"
        for box in boxes
    )
    empty = "<draw:frame><draw:text-box><text:p/></draw:text-box></draw:frame>"
    notes = f"<presentation:notes>{empty}</presentation:notes>"
    return f'<draw:page draw:style-name="dp{1 + hidden}">{frames}{more}{notes}</draw:page>'


def odp(*pages):
    invisible = '<style:drawing-page-properties presentation:visibility="hidden"/>'
    styles = style("dp1", "drawing-page") + style("dp2", "drawing-page", invisible)
    return document("presentation", "".join(pages), styles)
