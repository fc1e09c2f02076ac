"""Pictures for tasks of GIMP, in its own format too."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.envs.osworld.standins.vlc import film

TILE = 64
"""Pixels along a side of what GIMP keeps together."""


def photo(path: Path) -> None:
    """Write a picture of soft colours, another at each place."""
    import numpy
    from PIL import Image

    down, right = numpy.mgrid[0:240, 0:320]
    waves = 12 * numpy.sin(down / 17) * numpy.cos(right / 23)
    colours = (90 + right / 4 + waves, 150 - down / 4 + waves, 110 + down / 8 + waves)
    Image.fromarray(numpy.stack(colours, axis=-1).astype(numpy.uint8)).save(path)


def photos(*paths: Path) -> None:
    for path in paths:
        photo(path)


def plain(width: int, height: int, colour: Sequence[int]) -> Any:
    """Return a layer of one colour, opacity included."""
    import numpy

    return numpy.full((height, width, 4), colour, numpy.uint8)


def xcf(path: Path, **layers: Any) -> None:
    """Write layers of equal size, the top one first, in the oldest version of GIMP's format, not compressed."""
    height, width, _ = next(iter(layers.values())).shape
    properties = struct.pack(">IIB", 17, 1, 0) + bytes(8)  # no compression, and the end
    head = b"gimp xcf file\0" + struct.pack(">III", width, height, 0) + properties
    places, body = [], b""
    start = len(head) + 4 * (len(layers) + 2)  # pointers to layers, a 0, and the 0 of no channels
    for name, pixels in layers.items():
        places.append(start + len(body))
        body += _layer(name.replace("_", " "), pixels, places[-1])
    path.write_bytes(head + struct.pack(f">{len(places) + 2}I", *places, 0, 0) + body)


def _layer(name: str, pixels: Any, start: int) -> bytes:
    height, width, _ = pixels.shape
    text = name.encode() + b"\0"
    visible = struct.pack(">III", 8, 4, 1)
    head = struct.pack(">IIII", width, height, 1, len(text)) + text + visible + bytes(8)
    hierarchy = start + len(head) + 8
    level = hierarchy + 20
    tiles = [
        pixels[top : top + TILE, left : left + TILE].tobytes()
        for top in range(0, height, TILE)
        for left in range(0, width, TILE)
    ]
    first = level + 8 + 4 * (len(tiles) + 1)
    places = [first + sum(map(len, tiles[:index])) for index in range(len(tiles))]
    return b"".join(
        (
            head,
            struct.pack(">II", hierarchy, 0),
            struct.pack(">IIIII", width, height, 4, level, 0),
            struct.pack(f">II{len(tiles) + 1}I", width, height, *places, 0),
            *tiles,
        )
    )


def white_background(path: Path) -> None:
    xcf(path, Background=plain(256, 256, (255, 255, 255, 255)))


def object_on_white(layered: Path, flat: Path) -> None:
    """Write a black square on white, in two layers and in none; square, as the checker takes rows for columns."""
    from PIL import Image

    subject = plain(256, 256, (0, 0, 0, 0))
    subject[96:160, 96:160] = (0, 0, 0, 255)
    xcf(layered, Object=subject, Background=plain(256, 256, (255, 255, 255, 255)))
    picture = Image.new("RGB", (256, 256), "white")
    picture.paste("black", (96, 96, 160, 160))
    picture.save(flat)


def short_film(path: Path) -> None:
    film(path, 6)


def raw(path: Path) -> None:
    """Write what a camera might have."""
    path.write_bytes(bytes(range(256)) * 64)


IMPOSSIBLE: dict[str, Callable[..., None]] = {
    "045bf3ff-9077-4b86-b483-a1040a949cff": photos,
    "2e6f678f-472d-4c55-99cc-8e7c5c402a71": photos,
    "38f48d40-764e-4e77-a7cf-51dfce880291": short_film,
    "58d3eeeb-e9d0-499f-962e-fd0db2a744d8": photos,
    "62f7fd55-0687-4a43-b6e1-3eda16fc6252": photos,
    "8ea73f6f-9689-42ad-8c60-195bbf06a7ba": photos,
    "dbbf4b99-2253-4b10-9274-45f246af2466": raw,
}
BUILDERS: dict[str, Callable[..., None]] = {
    **IMPOSSIBLE,
    "06ca5602-62ca-47f6-ad4f-da151cde54cc": photos,
    "554785e9-4523-4e7a-b8e1-8016f565f56a": photos,
    "72f83cdc-bf76-4531-9a1b-eb893a13f8aa": photos,
    "734d6579-c07d-47a8-9ae2-13339795476b": object_on_white,
    "77b8ab4d-994f-43ac-8930-8ca087d7c4b4": photos,
    "7a4deb26-d57d-4ea9-9a73-630f66a7b568": photos,
    "a746add2-cab0-4740-ac36-c3769d9bfb46": photos,
    "b148e375-fe0b-4bec-90e7-38632b0d73c2": white_background,
    "f723c744-e62c-4ae6-98d1-750d3cd7d79d": photos,
}
