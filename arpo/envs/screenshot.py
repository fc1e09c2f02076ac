"""The one check of a screenshot, made where it arrives: nothing behind it meets a picture that does not decode.

A screenshot is a PNG as guests and browsers write it: 8 bits a channel, RGB or RGBA, in one pass, without chunks by
which decoders change a picture, each in its own way. The model, the viewer and a reader of the file see one picture.
"""

import struct

from zlib_ng import zlib_ng

from arpo.agent.actions import MAX_RATIO
from arpo.errors import EnvError, env_boundary
from arpo.types import Observation

SIGNATURE = b"\x89PNG\r\n\x1a\n"
BEGINNING = SIGNATURE + (13).to_bytes(4) + b"IHDR"
HEADER = struct.Struct(">IIBBBBB")
CHANNELS = {(8, 2, 0, 0, 0): 3, (8, 6, 0, 0, 0): 4}
"""Bytes a pixel of RGB and RGBA, by what follows the size in the header."""
HARMLESS = {(b"bKGD", 6), (b"cHRM", 32), (b"gAMA", 4), (b"pHYs", 9), (b"tIME", 7)}
HARMLESS |= {(b"sBIT", 3), (b"sBIT", 4), (b"sRGB", 1)}
"""Chunks beside pixels, and their lengths, that no decoder stumbles over."""
FILTERS = 5
"""Ways to write a row, by which it begins: from 0."""
MOST_CHUNKS = 2**13
"""The longest screenshot, in the chunks of 8 KiB that libpng writes, has half as many."""
SLACK_BYTES = 2**18
"""Room for everything but pixels: the frames of chunks, a date."""
LARGEST_SCREEN = 3840 * 2160
"""Pixels of a screen whose size a guest says; they are 32 MiB when they are decoded."""


def check_screenshot(observation: Observation) -> None:
    """Check that a screenshot is a whole PNG of the size that the observation says, and that its pixels decode."""
    with env_boundary("screenshot", "a screenshot cannot be checked"):
        said, size = (observation.width, observation.height), measured(observation.screenshot)
        if size != said:
            raise _fault(f"is {size[0]}x{size[1]}, the observation says {said[0]}x{said[1]}")
    check_picture(observation.screenshot)


def check_picture(png: bytes) -> None:
    """Check that bytes are a whole PNG of a size that models see, which every decoder decodes to the same pixels.

    What is longer than its pixels without compression carries something else, to the trainer and to the disk.
    """
    with env_boundary("screenshot", f"a screenshot of {len(png)} bytes cannot be decoded"):
        width, height = measured(png)
        most = most_bytes(width, height)
        if len(png) > most:
            raise _fault(f"of {width}x{height} has {len(png)} bytes, more than {most}")
        _, _, *kind = HEADER.unpack_from(png, len(BEGINNING))
        if tuple(kind) not in CHANNELS:
            raise _fault(f"must have 8 bits a channel, RGB or RGBA, not interlaced; its header says {kind}")
        _check_rows(width, height, CHANNELS[tuple(kind)], _packed_rows(png))


def most_bytes(width: int, height: int) -> int:
    """Return the number of bytes that a screenshot of this size may have: as many as without compression."""
    return (max(CHANNELS.values()) * width + 1) * height + SLACK_BYTES  # a row begins with the number of its filter


def measured(png: bytes) -> tuple[int, int]:
    """Return the width and height that a screenshot says: a PNG no larger than any screen, as wide as models see."""
    if type(png) is not bytes or not png.startswith(BEGINNING) or len(png) < len(BEGINNING) + HEADER.size:
        raise _fault(f"must be a PNG, and begin with its size; its {len(png)} bytes begin with {png[:24]!r}")
    width, height, *_ = HEADER.unpack_from(png, len(BEGINNING))
    if not 0 < width * height <= LARGEST_SCREEN:
        raise _fault(f"says {width}x{height}, which is not between 1 and {LARGEST_SCREEN} pixels")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise _fault(f"of {width}x{height} has one side over {MAX_RATIO} times as long as the other: no model sees it")
    return width, height


def _fault(what: str) -> EnvError:
    return EnvError("screenshot", f"a screenshot {what}")


def _packed_rows(png: bytes) -> bytes:
    """Return the pixels of a PNG as they are packed."""
    chunks: list[tuple[bytes, bytes]] = []
    at = len(SIGNATURE)
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        body, check = png[at + 4 : at + 8 + length], png[at + 8 + length : at + 12 + length]
        if len(check) < 4 or zlib_ng.crc32(body) != int.from_bytes(check, "big"):
            raise _fault(f"of {len(png)} bytes cannot be decoded: a chunk of it is cut or damaged")
        chunks.append((body[:4], body[4:]))
        if len(chunks) > MOST_CHUNKS:
            raise _fault(f"has more than {MOST_CHUNKS} chunks")
        at += 12 + length
    if chunks[-1] != (b"IEND", b""):
        raise _fault("cannot be decoded: it has no end")
    for kind, data in chunks[1:-1]:
        if kind != b"IDAT" and (kind, len(data)) not in HARMLESS:
            raise _fault(f"has a chunk {kind!r} of {len(data)} bytes; save it without metadata and animation")
    places = [place for place, (kind, _) in enumerate(chunks) if kind == b"IDAT"]
    if not places or places[-1] - places[0] >= len(places):
        raise _fault("has no pixels, or something between them")
    return b"".join(data for kind, data in chunks if kind == b"IDAT")


def _check_rows(width: int, height: int, channels: int, data: bytes) -> None:
    """Check that packed pixels are the rows of a picture, no more and no less, each with a filter that there is."""
    row = 1 + channels * width
    inflate = zlib_ng.decompressobj()
    try:
        rows = inflate.decompress(data, row * height + 1)
    except zlib_ng.error as error:  # type: ignore[misc]  # its stub takes the class for an instance
        raise _fault(f"has pixels that cannot be unpacked: {error}") from error
    if len(rows) != row * height or not inflate.eof or inflate.unused_data:
        raise _fault(f"of {width}x{height} must have {row * height} bytes of rows and nothing behind them")
    if max(rows[::row]) >= FILTERS:
        raise _fault("has a row of a kind that there is not")
