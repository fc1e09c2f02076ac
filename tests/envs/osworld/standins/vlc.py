"""Films, sounds and a PDF for tasks of VLC."""

from pathlib import Path
from typing import Any

TRAILER = "Interstellar Movie - Official Trailer"
FRAMES_A_SECOND = 25


def scene(second: int) -> Any:
    """Return the picture of a second of a film: a white square on black, which moves every ten seconds."""
    import numpy

    picture = numpy.zeros((240, 320, 3), numpy.uint8)
    left = 16 * (second // 10 % 18)
    picture[96:144, left : left + 32] = 255
    return picture


def film(path: Path, seconds: int, **tags: str) -> None:
    """Write an MP4 of scenes, with tags by the names that mutagen gives them."""
    import cv2
    from mutagen.mp4 import MP4

    writer = cv2.VideoWriter(
        str(path.with_suffix(".mp4")), cv2.VideoWriter.fourcc(*"mp4v"), FRAMES_A_SECOND, (320, 240)
    )
    for frame in range(seconds * FRAMES_A_SECOND):
        writer.write(scene(frame // FRAMES_A_SECOND))
    writer.release()
    tagged = MP4(path)
    for name, text in tags.items():
        tagged["\xa9" + name] = text
    tagged.save()


def song(path: Path, seconds: int) -> None:
    """Write an MP3 of one tone."""
    import numpy
    import soundfile

    moments = numpy.arange(22050 * seconds) / 22050
    soundfile.write(path, 0.1 * numpy.sin(2 * numpy.pi * 440 * moments), 22050, format="MP3")


def lecture(path: Path, title: str) -> None:
    """Write a PDF with this title."""
    import fitz

    document = fitz.open()
    document.new_page().insert_text((72, 72), title)
    document.set_metadata({"title": title})
    document.save(path)


def long_film(path: Path) -> None:
    film(path, 600)


def trailer(start: Path, gold: Path) -> None:
    """Write a film with tags, and what it shows after the second 120."""
    import cv2

    film(start, 150, nam=TRAILER, ART="Interstellar Movie")
    cv2.imwrite(str(gold), scene(120))


def lecture_and_song(text: Path, sound: Path) -> None:
    lecture(text, "6.006 Introduction to Algorithms, Lecture 2: Data Structures")
    song(sound, 300)


BUILDERS = {
    "386dbd0e-0241-4a0a-b6a2-6704fba26b1c": lecture_and_song,
    "59f21cfb-0120-4326-b255-a5b827b38967": long_film,
    "8d9fd4e2-6fdb-46b0-b9b9-02f06495c62f": long_film,
    "fba2c100-79e8-42df-ae74-b592418d54f4": trailer,
}
