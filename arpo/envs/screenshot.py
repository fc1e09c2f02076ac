"""The one check of a screenshot, made where it arrives: nothing behind it meets a picture that does not decode.

What decoders forgive is refused, because each forgives something else: the model, the viewer and whoever opens the
stored file must see one picture.
"""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import NamedTuple

from PIL import Image, PngImagePlugin
from PIL.ExifTags import Base
from zlib_ng import zlib_ng

from arpo.agent.coordinates import MAX_RATIO
from arpo.errors import EnvError, env_boundary
from arpo.types import Observation

SIGNATURE = b"\x89PNG\r\n\x1a\n"
BEGINNING = SIGNATURE + (13).to_bytes(4) + b"IHDR"
HEADER = struct.Struct(">IIBBBBB")
CHANNELS_OF_COLOURS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Numbers a pixel: grey, RGB, an index of the palette, grey and RGB with transparency."""
DEPTHS_OF_COLOURS = {0: (1, 2, 4, 8), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8,), 6: (8, 16)}
"""Bits a number. Grey of 16 bits is left out: Pillow cuts it off where browsers scale it."""
PALETTE = 3
PLAIN = ((8, 2, 0, 0, 0), (8, 6, 0, 0, 0))
"""What follows the size in the header of a screenshot as guests and browsers write it."""
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row, and the steps to the next ones, of the seven pictures that an interlaced one is made of."""
CHANNELS = max(CHANNELS_OF_COLOURS.values())
FILTERS = 5
"""Ways to write a row, by which it begins: from 0."""
MOST_CHUNKS = 2**13
"""The longest screenshot, in the chunks of 8 KiB that libpng writes, has half as many."""
REPEATED = {b"IDAT", b"tEXt"}
"""Chunks of which a picture may have several. Others may be unpacked as they are read, and cost a millisecond each."""
CRITICAL = {b"IHDR", b"PLTE", b"IDAT", b"IEND"}
"""Chunks without which a picture is another one; the names of others begin with a small letter."""
ANIMATION = b"acTL"
SLACK_BYTES = 2**18
"""Room for everything but pixels: the frames of chunks, a date, a colour profile."""
LARGEST_SCREEN = 3840 * 2160
"""Pixels of a screen whose size a guest says; they are 32 MiB when they are decoded."""

PngImagePlugin.MAX_TEXT_MEMORY = SLACK_BYTES
"""Bytes that packed texts of a picture may become: Pillow allows them 64 MiB."""

Chunks = list[tuple[bytes, bytes]]
"""Kinds and contents, in their order."""


class Header(NamedTuple):
    """The first chunk of a PNG."""

    width: int
    height: int
    depth: int
    colours: int
    packing: int
    filtering: int
    interlaced: int


def check_screenshot(observation: Observation) -> None:
    """Check that a screenshot is a whole PNG of the size that the observation says, and that its pixels decode.

    Raises:
        EnvError: Of kind `screenshot`.
    """
    with env_boundary("screenshot", "a screenshot cannot be checked"):
        said, size = (observation.width, observation.height), measured(observation.screenshot)
        if size != said:
            raise _fault(f"is {size[0]}x{size[1]}, the observation says {said[0]}x{said[1]}")
    check_picture(observation.screenshot)


def check_picture(png: bytes) -> None:
    """Check that bytes are a whole PNG of a size that models see, which every decoder decodes to the same pixels.

    It may be as long as its pixels would be without compression: what is longer carries something else, and would
    travel to the trainer and rest on disk with every trajectory.

    Raises:
        EnvError: Of kind `screenshot`.
    """
    with env_boundary("screenshot", f"a screenshot of {len(png)} bytes cannot be decoded"):
        width, height = measured(png)
        most = most_bytes(width, height)
        if len(png) > most:
            raise _fault(f"of {width}x{height} has {len(png)} bytes, more than {most}")
        header, chunks = Header(*HEADER.unpack_from(png, len(BEGINNING))), _sound_chunks(png)
        _check_rows(header, b"".join(data for kind, data in chunks if kind == b"IDAT"))
        if header[2:] in PLAIN and {kind for kind, _ in chunks[1:-1]} == {b"IDAT"}:
            return  # every decoder can decode it, and to know that costs a tenth of decoding
        image = _open(png)
        image.load()
        _check_shown(image, header, dict(chunks))
        image.convert("RGB")  # as whoever looks at it will: a text may be taken for a colour here


def most_bytes(width: int, height: int) -> int:
    """Return how many bytes a screenshot of this size may have: as many as without compression."""
    return (CHANNELS * width + 1) * height + SLACK_BYTES  # a row begins with the number of its filter


def measured(png: bytes) -> tuple[int, int]:
    """Return the width and height that a screenshot says, of a guest whose screen nobody else knows.

    Raises:
        EnvError: Of kind `screenshot`, if it is no PNG, larger than any screen, or narrower than models see.
    """
    if not png.startswith(SIGNATURE):
        with env_boundary("screenshot", f"a screenshot of {len(png)} bytes cannot be decoded"):
            raise _fault(f"is {_open(png).format}, not PNG")
    if not png.startswith(BEGINNING) or len(png) < len(BEGINNING) + HEADER.size:
        raise _fault(f"of {len(png)} bytes does not begin with its size")
    width, height, *_ = HEADER.unpack_from(png, len(BEGINNING))
    if not 0 < width * height <= LARGEST_SCREEN:
        raise _fault(f"says {width}x{height}, which is not between 1 and {LARGEST_SCREEN} pixels")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise _fault(f"of {width}x{height} has one side over {MAX_RATIO} times as long as the other: no model sees it")
    return width, height


def _fault(what: str) -> EnvError:
    return EnvError("screenshot", f"a screenshot {what}")


def _sound_chunks(png: bytes) -> Chunks:
    """Return the chunks of a PNG.

    Raises:
        EnvError: If one is cut or does not fit its checksum, or there are more of them, or of one kind, than a picture
            of a screen has: Pillow believes the last of several sizes, and unpacks a thing as often as it comes.
    """
    found: Chunks = []
    at = len(SIGNATURE)
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        body, check = png[at + 4 : at + 8 + length], png[at + 8 + length : at + 12 + length]
        if len(check) < 4 or zlib_ng.crc32(body) != int.from_bytes(check, "big"):
            raise _fault(f"of {len(png)} bytes cannot be decoded: a chunk of it is cut or damaged")
        found.append((body[:4], body[4:]))
        if len(found) > MOST_CHUNKS:
            raise _fault(f"has more than {MOST_CHUNKS} chunks")
        at += 12 + length
    _check_order([kind for kind, _ in found])
    return found


def _check_order(kinds: Sequence[bytes]) -> None:
    """Check that chunks are those of one picture, in the only order that all decoders read alike."""
    for kind, count in Counter(kinds).items():
        if count > 1 and kind not in REPEATED:
            raise _fault(f"has {count} chunks {kind!r}, of which a picture has one")
        if kind[:1].isupper() and kind not in CRITICAL:
            raise _fault(f"has a chunk {kind!r}, which decoders must not leave out, and do not know")
    if kinds[-1] != b"IEND":
        raise _fault("cannot be decoded: it has no end")
    pixels = [place for place, kind in enumerate(kinds) if kind == b"IDAT"]
    if not pixels or pixels[-1] - pixels[0] >= len(pixels):
        raise _fault("has no pixels, or something between them")
    if b"PLTE" in kinds[pixels[0] :]:
        raise _fault("has its palette behind its pixels")


def _check_rows(header: Header, data: bytes) -> None:
    """Check that packed pixels are the rows of a picture, no more and no less, each with a filter that there is."""
    if header.depth not in DEPTHS_OF_COLOURS.get(header.colours, ()) or header[4:] not in ((0, 0, 0), (0, 0, 1)):
        raise _fault(f"is of a kind that screens do not have: {header}")
    bits = CHANNELS_OF_COLOURS[header.colours] * header.depth
    parts = [(1 + -(-width * bits // 8), height) for width, height in _parts(header)]
    total = sum(row * height for row, height in parts)
    inflate = zlib_ng.decompressobj()
    try:
        rows = inflate.decompress(data, total + 1)
    except zlib_ng.error as error:  # type: ignore[misc]  # its stub takes the class for an instance
        raise _fault(f"has pixels that cannot be unpacked: {error}") from error
    if len(rows) != total or not inflate.eof or inflate.unused_data:
        raise _fault(f"of {header.width}x{header.height} must have {total} bytes of rows and nothing behind them")
    at = 0
    for row, height in parts:
        end = at + row * height
        if max(rows[at:end:row]) >= FILTERS:
            raise _fault("has a row of a kind that there is not")
        at = end


def _parts(header: Header) -> Iterator[tuple[int, int]]:
    """Yield width and height of the pictures whose rows follow each other: one, or the passes of an interlaced one."""
    if not header.interlaced:
        yield header.width, header.height
        return
    for column, row, right, down in PASSES:
        width, height = -((column - header.width) // right), -((row - header.height) // down)
        if width > 0 and height > 0:
            yield width, height


def _check_shown(image: Image.Image, header: Header, chunks: dict[bytes, bytes]) -> None:
    """Check that a picture is shown as its pixels lie: not turned, not moving, and in colours that it has."""
    if ANIMATION in chunks:
        raise _fault("is an animation")
    if (turned := image.getexif().get(Base.Orientation, 1)) != 1:
        raise _fault(f"asks to be turned before it is shown (orientation {turned} in its Exif)")
    if header.colours != PALETTE:
        return
    count, rest = divmod(len(chunks.get(b"PLTE", b"")), 3)
    most = 2**header.depth
    if rest or not 0 < count <= most:
        raise _fault(f"has a palette of {count} colours and {rest} bytes, {most} colours are allowed")
    if count < most and (last := max(image.tobytes())) >= count:
        raise _fault(f"has pixels of colour {last} in a palette of {count}")


def _open(png: bytes) -> Image.Image:
    return Image.open(BytesIO(png), formats=("PNG", "JPEG"))  # JPEG, so that it can be named
