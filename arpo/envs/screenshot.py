"""The one check of a screenshot, made where it arrives: nothing behind it meets a picture that does not decode."""

import struct
from io import BytesIO

from PIL import Image, PngImagePlugin
from zlib_ng import zlib_ng

from arpo.errors import EnvError, env_boundary
from arpo.types import Observation

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEADER = struct.Struct(">IIBBBBB")
CHANNELS_OF_COLOURS = {2: 3, 6: 4}
CHANNELS = max(CHANNELS_OF_COLOURS.values())
FILTERS = 5
"""Ways to write a row, by which it begins: from 0."""
SLACK_BYTES = 2**18
"""Room for everything but pixels: the frames of chunks, a date, a colour profile."""
LARGEST_SCREEN = 3840 * 2160
"""Pixels of a screen whose size a guest says; they are 32 MiB when they are decoded."""

PngImagePlugin.MAX_TEXT_MEMORY = SLACK_BYTES
"""Bytes that packed texts of a picture may become: Pillow allows them 64 MiB."""


def check_screenshot(observation: Observation) -> None:
    """Check that a screenshot is a whole PNG of the size that the observation says, and that its pixels decode.

    It may be as long as its pixels would be without compression: what is longer carries something else, and would
    travel to the trainer and rest on disk with every trajectory.

    Raises:
        EnvError: Of kind `screenshot`.
    """
    png, width, height = observation.screenshot, observation.width, observation.height
    most = most_bytes(width, height)
    if len(png) > most:
        raise EnvError("screenshot", f"a screenshot of {width}x{height} has {len(png)} bytes, more than {most}")
    if _is_plain(png, width, height):
        return
    with env_boundary("screenshot", f"a screenshot of {len(png)} bytes cannot be decoded"):
        image = _open(png)
        if image.format == "PNG" and image.size == (width, height):
            image.load()  # looks into every chunk, but at no checksum ...
            _open(png).verify()  # ... and here the other way round
    if image.format != "PNG":
        raise EnvError("screenshot", f"a screenshot is {image.format}, not PNG")
    if image.size != (width, height):
        size = f"{image.width}x{image.height}"
        raise EnvError("screenshot", f"a screenshot is {size}, the observation says {width}x{height}")


def most_bytes(width: int, height: int) -> int:
    """Return how many bytes a screenshot of this size may have: as many as without compression."""
    return (CHANNELS * width + 1) * height + SLACK_BYTES  # a row begins with the number of its filter


def measured(png: bytes) -> tuple[int, int]:
    """Return the width and height that a screenshot says, of a guest whose screen nobody else knows.

    Raises:
        EnvError: Of kind `screenshot`, if it is no picture, or larger than any screen.
    """
    with env_boundary("screenshot", f"a screenshot of {len(png)} bytes cannot be read"):
        width, height = _open(png).size
    if width * height > LARGEST_SCREEN:
        raise EnvError("screenshot", f"a screenshot says {width}x{height}, more than {LARGEST_SCREEN} pixels")
    return width, height


def _is_plain(png: bytes, width: int, height: int) -> bool:
    """Return whether these are the rows of a picture and nothing else, 8 bits a channel, as guests and browsers write.

    Then every decoder can decode it, and to know that costs a tenth of decoding. False says nothing: look closer.
    """
    chunks = _sound_chunks(png)
    kinds = [kind for kind, _ in chunks]
    if kinds[:1] != [b"IHDR"] or set(kinds[1:-1]) != {b"IDAT"} or chunks[-1] != (b"IEND", b""):
        return False
    channels = {HEADER.pack(width, height, 8, colours, 0, 0, 0): of for colours, of in CHANNELS_OF_COLOURS.items()}
    row = 1 + width * channels.get(chunks[0][1], 0)
    inflate = zlib_ng.decompressobj()
    try:
        rows = inflate.decompress(b"".join(data for _, data in chunks[1:-1]), row * height + 1)
    except zlib_ng.error:  # type: ignore[misc]  # its stub takes the class for an instance
        return False
    whole = inflate.eof and not inflate.unused_data and len(rows) == row * height
    return whole and row > 1 and max(rows[::row], default=FILTERS) < FILTERS


def _sound_chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    """Return kinds and contents of all chunks; none, if it is no PNG, or one is cut or does not fit its checksum."""
    if not png.startswith(SIGNATURE):
        return []
    found, at = [], len(SIGNATURE)
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        body, check = png[at + 4 : at + 8 + length], png[at + 8 + length : at + 12 + length]
        if len(check) < 4 or zlib_ng.crc32(body) != int.from_bytes(check, "big"):
            return []
        found.append((body[:4], body[4:]))
        at += 12 + length
    return found


def _open(png: bytes) -> Image.Image:
    return Image.open(BytesIO(png), formats=("PNG", "JPEG"))  # JPEG, so that it can be named
