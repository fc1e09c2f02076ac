"""Pictures, and layers in GIMP's own format, which no library of the graders' environment writes."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SIZE = 400, 400
TILE = 64  # GIMP keeps a layer in squares of so many pixels
ACTIVE_LAYER, OFFSETS, COMPRESSION = 2, 15, 17  # numbers of properties in GIMP's format
RGBA = 1
SKY, MEADOW, BARN, SUN = (96, 144, 200), (104, 160, 96), (176, 88, 80), (232, 208, 120)
BLACK, WHITE, YELLOW = (0, 0, 0), (255, 255, 255), (250, 210, 20)


def meadow() -> Any:
    """Return a barn under the sun: no half of it is like the other, and no colour is grey."""
    from PIL import Image, ImageDraw

    made = Image.new("RGB", SIZE, SKY)
    draw = ImageDraw.Draw(made)
    draw.rectangle((0, 260, 399, 399), MEADOW)
    draw.rectangle((40, 180, 160, 300), BARN)
    draw.ellipse((280, 40, 360, 120), SUN)
    return made


def picture(path: Path) -> None:
    meadow().save(path)


def layer(size: tuple[int, int], draw: Callable[[Any], object] = lambda _: None) -> Any:
    from PIL import Image, ImageDraw

    made = Image.new("RGBA", size, (0, 0, 0, 0))
    draw(ImageDraw.Draw(made))
    return made


def filled(colour: tuple[int, int, int]) -> Any:
    return layer(SIZE, lambda draw: draw.rectangle((0, 0, *SIZE), colour))


def xcf(path: Path, *layers: tuple[str, Any, tuple[int, int]]) -> None:
    """Write layers in GIMP's format, the uppermost and active one first: a name, a picture, where its corner is."""
    head = b"gimp xcf file\0" + _numbers(*SIZE, 0) + _property(COMPRESSION, b"\0") + _property(0, b"")
    written, places = b"", []
    start = len(head) + 4 * (len(layers) + 2)
    for each in layers:
        places.append(start + len(written))
        written += _layer(*each, places[-1], *([] if written else [_property(ACTIVE_LAYER, b"")]))
    path.write_bytes(head + _numbers(*places, 0, 0) + written)


def _layer(name: str, made: Any, corner: tuple[int, int], start: int, *active: bytes) -> bytes:
    """Return a layer that begins at this byte of a file: its pixels are found by their places there."""
    size, text = made.size, name.encode() + b"\0"
    properties = (_property(OFFSETS, _numbers(*corner)), *active, _property(0, b""))
    head = _numbers(*size, RGBA, len(text)) + text + b"".join(properties)
    hierarchy = start + len(head) + 8
    level = hierarchy + 20
    tiles = _tiles(made)
    place = level + 4 * (len(tiles) + 3)
    places = [place + sum(map(len, tiles[:count])) for count in range(len(tiles))]
    numbers = (hierarchy, 0, *size, 4, level, 0, *size, *places, 0)
    return head + _numbers(*numbers) + b"".join(tiles)


def _tiles(made: Any) -> Sequence[bytes]:
    width, height = made.size
    corners = [(x, y) for y in range(0, height, TILE) for x in range(0, width, TILE)]
    return [made.crop((x, y, min(x + TILE, width), min(y + TILE, height))).tobytes() for x, y in corners]


def _property(number: int, content: bytes) -> bytes:
    return _numbers(number, len(content)) + content


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


def background_alone(start: Path) -> None:
    xcf(start, ("Background", filled(WHITE), (0, 0)))


def triangle_at_the_side(flat: Path, start: Path) -> None:
    """Draw a mark too, smaller than the triangle: the grader takes the colour with the second least pixels for it."""
    triangle = layer((80, 80), lambda draw: draw.polygon(((0, 79), (79, 79), (40, 0)), YELLOW))
    ground = filled(WHITE)
    ground.paste(BLACK, (380, 380, 390, 390))
    xcf(start, ("Triangle", triangle, (20, 160)), ("Background", ground, (0, 0)))
    ground.alpha_composite(triangle, (20, 160))
    ground.convert("RGB").save(flat)


def dog_and_its_cutout(start: Path, gold: Path) -> None:
    def dog(draw: Any) -> None:
        draw.ellipse((110, 160, 290, 280), BARN)
        draw.ellipse((250, 110, 330, 200), BARN)
        draw.rectangle((140, 250, 160, 340), BARN)
        draw.rectangle((240, 250, 260, 340), BARN)

    cutout, ground = layer(SIZE, dog), filled(SKY)
    ground.alpha_composite(cutout)
    ground.convert("RGB").save(start)
    cutout.save(gold)


BUILDERS = {
    "2a729ded-3296-423d-aec4-7dd55ed5fbb3": dog_and_its_cutout,
    "554785e9-4523-4e7a-b8e1-8016f565f56a": picture,
    "7a4deb26-d57d-4ea9-9a73-630f66a7b568": picture,
    "06ca5602-62ca-47f6-ad4f-da151cde54cc": picture,
    "72f83cdc-bf76-4531-9a1b-eb893a13f8aa": picture,
    "77b8ab4d-994f-43ac-8930-8ca087d7c4b4": picture,
    "a746add2-cab0-4740-ac36-c3769d9bfb46": picture,
    "b148e375-fe0b-4bec-90e7-38632b0d73c2": background_alone,
    "f4aec372-4fb0-4df5-a52b-79e0e2a5d6ce": triangle_at_the_side,
}
