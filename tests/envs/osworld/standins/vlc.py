"""Films for tasks of VLC."""

from pathlib import Path
from typing import Any

FRAMES_A_SECOND = 25
ENCODED: dict[int, bytes] = {}
"""Films without tags by their seconds: encoding takes long, and several tasks want one of the same length."""


def scene(second: int) -> Any:
    """Return the picture of a second of a film: a white square on black, which moves every ten seconds."""
    import numpy

    picture = numpy.zeros((240, 320, 3), numpy.uint8)
    left = 16 * (second // 10 % 18)
    picture[96:144, left : left + 32] = 255
    return picture


def film(path: Path, seconds: int, **tags: str) -> None:
    import cv2
    from mutagen.mp4 import MP4

    if seconds not in ENCODED:
        codec = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(str(path.with_suffix(".mp4")), codec, FRAMES_A_SECOND, (320, 240))
        for frame in range(seconds * FRAMES_A_SECOND):
            writer.write(scene(frame // FRAMES_A_SECOND))
        writer.release()
        ENCODED[seconds] = path.read_bytes()
    path.write_bytes(ENCODED[seconds])
    tagged = MP4(path)
    for name, text in tags.items():
        tagged["\xa9" + name] = text
    tagged.save()


def long_film(path: Path) -> None:
    film(path, 600)


BUILDERS = {"59f21cfb-0120-4326-b255-a5b827b38967": long_film, "8d9fd4e2-6fdb-46b0-b9b9-02f06495c62f": long_film}
