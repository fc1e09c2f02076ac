"""Some file of each kind that tasks download: it opens, and holds nothing that a task asks for."""

import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from tests.envs.osworld.standins.calc import INCOME, book
from tests.envs.osworld.standins.gimp import WHITE, filled, meadow, picture, xcf
from tests.envs.osworld.standins.several import ods
from tests.envs.osworld.standins.thunderbird import profile
from tests.envs.osworld.standins.vlc import film

TITLES = {
    "lecture.pdf": "6.006 Introduction to Algorithms, Lecture 2: Data Structures",
    "Interstellar Movie - Official Trailer.mp4": "Interstellar Movie - Official Trailer",
}
"""By names: set-up waits for a window that has the title of the real file."""
BOOK = "Spectral Graph Theory.pdf"  # in an archive, and opened by set-up
LINES = tuple(f"{month}, {revenue}, {expenses}" for month, revenue, expenses in INCOME)
TEXT = "\n".join(LINES) + "\n"
HZ = 22050


def make(*paths: Path) -> None:
    for path in paths:
        name = path.name.lower()
        MAKES[next(ending for ending in MAKES if name.endswith(ending))](path)


def _text_document(path: Path) -> None:
    from odf.opendocument import OpenDocumentText
    from odf.text import P

    made = OpenDocumentText()
    for line in LINES:
        made.text.addElement(P(text=line))
    made.save(str(path))


def _document(path: Path) -> None:
    import docx

    made = docx.Document()
    for line in LINES:
        made.add_paragraph(line)
    table = made.add_table(len(INCOME), len(INCOME[0]))
    for row, line in zip(table.rows, INCOME, strict=True):
        for cell, value in zip(row.cells, line, strict=True):
            cell.text = str(value)
    made.save(path)


def _slides(path: Path) -> None:
    import pptx

    made = pptx.Presentation()
    for number in range(1, 7):
        slide = made.slides.add_slide(made.slide_layouts[1])
        slide.shapes.title.text = f"Slide {number}"
        slide.placeholders[1].text = LINES[number % len(LINES)]
        slide.notes_slide.notes_text_frame.text = "A note."
    with path.open("wb") as file:
        made.save(file)


def _pdf(path: Path) -> None:
    import fitz

    made = fitz.open()
    for number in range(3):
        made.new_page().insert_text((72, 72), f"Page {number}\n{TEXT}")
    if title := _title(path):
        made.set_metadata({"title": title})
    made.save(str(path))


def _title(path: Path) -> str:
    """Return the title of a file of which set-up knows it; names in a cache have something before them."""
    return next((title for name, title in TITLES.items() if path.name.endswith(name)), "")


def _film(path: Path) -> None:
    if title := _title(path):
        film(path, 130, ART=title.partition(" - ")[0], nam=title)
    else:
        film(path, 20)


def _sound(path: Path) -> None:
    import numpy
    import soundfile

    times = numpy.arange(3 * HZ) / HZ
    soundfile.write(str(path), 0.3 * numpy.sin(2 * numpy.pi * 440 * times), HZ)


def _packed(path: Path) -> None:
    """Pack a folder of texts; the profile that tasks of Thunderbird unpack is one."""
    if "thunderbird" in path.name:
        return profile(path)
    name, make = (f"book/{BOOK}", _pdf) if path.name.endswith("book.zip") else ("files/note.txt", _written(TEXT))
    inner = path.with_name("inner")
    make(inner)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(inner, name)
    else:
        with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
            archive.add(inner, name)
    inner.unlink()


def _written(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def empty_history(path: Path) -> None:
    import sqlite3

    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as made, made:
        made.execute(
            "CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden)"
        )
        made.execute(
            "CREATE TABLE visits (id INTEGER PRIMARY KEY, url, visit_time, from_visit, transition, segment_id, "
            "visit_duration)"
        )


MAKES: Mapping[str, Callable[[Path], object]] = {
    ".xlsx": lambda path: book(path, Sheet1=INCOME, Sheet2=INCOME),
    ".ods": lambda path: ods(path, [[str(value) for value in line] for line in INCOME]),
    ".docx": _document,
    ".odt": _text_document,
    ".pptx": _slides,
    ".ppt": _slides,
    ".pdf": _pdf,
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp"), picture),
    ".xcf": lambda path: xcf(path, ("Dog", meadow().convert("RGBA"), (0, 0)), ("Background", filled(WHITE), (0, 0))),
    ".mp4": _film,
    **dict.fromkeys((".mp3", ".wav"), _sound),
    **dict.fromkeys((".zip", ".tar.gz", ".tar.xz"), _packed),
    ".csv": _written(TEXT),
    ".sh": _written("#!/bin/bash\nexit 0\n"),
    ".py": _written("print('{}')\n"),
    ".html": _written(f"<!DOCTYPE html><html><body><pre>{TEXT}</pre></body></html>\n"),
    ".json": _written(json.dumps({line[0]: line[1] for line in INCOME})),
    ".srt": _written("1\n00:00:00,000 --> 00:00:02,000\nHello.\n"),
    ".sqlite": empty_history,
    ".raw": lambda path: path.write_bytes(bytes(range(256)) * 1024),
}
"""By how a name ends, the first that fits."""
