"""Files of tasks of several applications."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.envs.osworld.standins import calc, writer

LISTED = (("Name", "City"), ("Anna", "Bergen"), ("Ben", "Lyon"), ("Clara", "Porto"))


def comma_separated(path: Path, rows: Sequence[Sequence[object]] = LISTED) -> None:
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")


def ods(path: Path, rows: Sequence[Sequence[str]]) -> None:
    from odf.opendocument import OpenDocumentSpreadsheet
    from odf.table import Table, TableCell, TableRow
    from odf.text import P

    made, table = OpenDocumentSpreadsheet(), Table(name="Sheet1")
    for row in rows:
        line = TableRow()
        for text in row:
            cell = TableCell(valuetype="string")
            cell.addElement(P(text=text))
            line.addElement(cell)
        table.addElement(line)
    made.spreadsheet.addElement(table)
    with path.open("wb") as file:
        made.write(file)


def sheet_to_convert(start: Path, gold: Path) -> None:
    ods(start, LISTED)
    comma_separated(gold)


def columns_to_merge(left: Path, right: Path, gold: Path) -> None:
    calc.book(left, Sheet1=[row[:1] for row in LISTED])
    ods(right, [row[1:] for row in LISTED])
    comma_separated(gold)


PRESENTERS = ("DSC00657", "DSC00574", "DSC00554", "DSC00495")


def event_photos(*paths: Path) -> None:
    """Draw one person before a screen in the photos of presenters, and rows of heads in the others."""
    for path in paths:
        event_photo(path, re.search(r"DSC\d+", path.name)[0])


def event_photo(path: Path, name: str) -> None:
    from PIL import Image, ImageDraw

    made = Image.new("RGB", (640, 480), (60, 60, int(name[-3:]) % 200))
    draw = ImageDraw.Draw(made)
    if name in PRESENTERS:
        draw.rectangle((200, 60, 600, 300), "white")
        draw.ellipse((80, 160, 150, 230), "peachpuff")
        draw.rectangle((70, 230, 160, 460), "navy")
    else:
        for row in range(3):
            for left in range(40 + 30 * row, 600, 90):
                draw.ellipse((left, 120 + 110 * row, left + 50, 170 + 110 * row), "peachpuff")
    made.save(path, format="JPEG")


INVOICES = (
    ("Invoice TII-20220301-90", "Due: 90.00"),
    ("Invoice GES-20220215-82", "Due: 82.00"),
    ("Invoice 243729", "Due: 243.00"),
)
STATEMENT = ("Bank statement", "TII-20220301-90: 90.00", "GES-20220215-82: 82.00", "243729: 234.00")


def invoices_and_a_statement(*paths: Path) -> None:
    for path, lines in zip(paths, (*INVOICES, STATEMENT, INVOICES[-1]), strict=True):
        pdf(path, lines)


def pdf(path: Path, lines: Sequence[str]) -> None:
    import fitz

    made = fitz.open()
    made.new_page().insert_text((72, 72), lines)
    made.save(path)


def project(start: Path) -> None:
    with zipfile.ZipFile(start, "w") as archive:
        for name in ("README.md", "src/binder.py"):
            archive.writestr(f"binder/{name}", f"This is {name}.\n")


BUILDERS = {
    "2b9493d7-49b8-493a-a71b-56cd1f4d6908": writer.document,
    "2c9fc0de-3ee7-45e1-a5df-c86206ad78b5": project,
    "337d318b-aa07-4f4f-b763-89d9a2dd013f": invoices_and_a_statement,
    "3680a5ee-6870-426a-a997-eba929a0d25c": columns_to_merge,
    "716a6079-22da-47f1-ba73-c9d58f986a38": writer.document,
    "82e3c869-49f6-4305-a7ce-f3e64a0618e7": event_photos,
    "ee9a3c83-f437-4879-8918-be5efbb9fac7": sheet_to_convert,
}
