"""The one check of a screenshot, made where it arrives: nothing behind it meets a picture that does not decode."""

import struct
from collections import Counter
from io import BytesIO

from PIL import Image, PngImagePlugin
from zlib_ng import zlib_ng

from arpo.errors import EnvError, env_boundary
from arpo.types import Observation

SIGNATURE = b"\x89PNG\r\n\x1a\n"
BEGINNING = SIGNATURE + (13).to_bytes(4) + b"IHDR"
HEADER = struct.Struct(">IIBBBBB")
CHANNELS_OF_COLOURS = {2: 3, 6: 4}
CHANNELS = max(CHANNELS_OF_COLOURS.values())
FILTERS = 5
"""Ways to write a row, by which it begins: from 0."""
MOST_CHUNKS = 2**13
"""The longest screenshot, in the chunks of 8 KiB that libpng writes, has half as many."""
REPEATED = {b"IDAT", b"tEXt"}
"""Chunks of which a picture may have several. Others may be unpacked as they are read, and cost a millisecond each."""
SLACK_BYTES = 2**18
"""Room for everything but pixels: the frames of chunks, a date, a colour profile."""
LARGEST_SCREEN = 3840 * 2160
"""Pixels of a screen whose size a guest says; they are 32 MiB when they are decoded."""

PngImagePlugin.MAX_TEXT_MEMORY = SLACK_BYTES
"""Bytes that packed texts of a picture may become: Pillow allows them 64 MiB."""

Chunks = list[tuple[bytes, bytes]]
"""Kinds and contents, in their order."""


def check_screenshot(observation: Observation) -> None:
    """Check that a screenshot is a whole PNG of the size that the observation says, and that its pixels decode.

    It may be as long as its pixels would be without compression: what is longer carries something else, and would
    travel to the trainer and rest on disk with every trajectory.

    Raises:
        EnvError: Of kind `screenshot`.
    """
    png, width, height = observation.screenshot, observation.width, observation.height
    with env_boundary("screenshot", "a screenshot cannot be checked"):
        size = measured(png)
        if size != (width, height):
            raise _fault(f"is {size[0]}x{size[1]}, the observation says {width}x{height}")
        most = most_bytes(width, height)
        if len(png) > most:
            raise _fault(f"of {width}x{height} has {len(png)} bytes, more than {most}")
        chunks = _sound_chunks(png)
        if _is_plain(chunks, width, height):
            return
    with env_boundary("screenshot", f"a screenshot of {len(png)} bytes cannot be decoded"):
        image = _open(png)
        image.load()
        image.convert("RGB")  # as whoever looks at it will: a text may be taken for a colour here


def most_bytes(width: int, height: int) -> int:
    """Return how many bytes a screenshot of this size may have: as many as without compression."""
    return (CHANNELS * width + 1) * height + SLACK_BYTES  # a row begins with the number of its filter


def measured(png: bytes) -> tuple[int, int]:
    """Return the width and height that a screenshot says, of a guest whose screen nobody else knows.

    Raises:
        EnvError: Of kind `screenshot`, if it is no PNG, or larger than any screen.
    """
    if not png.startswith(SIGNATURE):
        with env_boundary("screenshot", f"a screenshot of {len(png)} bytes cannot be decoded"):
            raise _fault(f"is {_open(png).format}, not PNG")
    if not png.startswith(BEGINNING) or len(png) < len(BEGINNING) + HEADER.size:
        raise _fault(f"of {len(png)} bytes does not begin with its size")
    width, height, *_ = HEADER.unpack_from(png, len(BEGINNING))
    if not 0 < width * height <= LARGEST_SCREEN:
        raise _fault(f"says {width}x{height}, which is not between 1 and {LARGEST_SCREEN} pixels")
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
    for kind, count in Counter(kind for kind, _ in found).items():
        if count > 1 and kind not in REPEATED:
            raise _fault(f"has {count} chunks {kind!r}, of which a picture has one")
    if found[-1][0] != b"IEND":
        raise _fault(f"of {len(png)} bytes cannot be decoded: it has no end")
    return found


def _is_plain(chunks: Chunks, width: int, height: int) -> bool:
    """Return whether these are the rows of a picture and nothing else, 8 bits a channel, as guests and browsers write.

    Then every decoder can decode it, and to know that costs a tenth of decoding. False says nothing: look closer.
    """
    if {kind for kind, _ in chunks[1:-1]} != {b"IDAT"}:
        return False
    channels = {HEADER.pack(width, height, 8, colours, 0, 0, 0): of for colours, of in CHANNELS_OF_COLOURS.items()}
    row = 1 + width * channels.get(chunks[0][1], 0)
    inflate = zlib_ng.decompressobj()
    try:
        rows = inflate.decompress(b"".join(data for _, data in chunks[1:-1]), row * height + 1)
    except zlib_ng.error:  # type: ignore[misc]  # its stub takes the class for an instance
        return False
    whole = inflate.eof and not inflate.unused_data and len(rows) == row * height
    return whole and row > 1 and max(rows[::row]) < FILTERS


def _open(png: bytes) -> Image.Image:
    return Image.open(BytesIO(png), formats=("PNG", "JPEG"))  # JPEG, so that it can be named
