"""The one check of a screenshot, made where it arrives: nothing behind it meets a picture that does not decode."""

from io import BytesIO

from PIL import Image, PngImagePlugin

from arpo.errors import EnvError, env_boundary
from arpo.types import Observation

CHANNELS = 4
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


def _open(png: bytes) -> Image.Image:
    return Image.open(BytesIO(png), formats=("PNG", "JPEG"))  # JPEG, so that it can be named
