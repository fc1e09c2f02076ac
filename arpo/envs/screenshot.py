"""The one check of a screenshot, made where it arrives: nothing behind it meets a picture that does not decode."""

from io import BytesIO

from PIL import Image

from arpo.errors import EnvError, env_boundary
from arpo.types import Observation

CHANNELS = 4
SLACK_BYTES = 2**18
"""Room for everything but pixels: the frames of chunks, a date, a colour profile."""


def check_screenshot(observation: Observation) -> None:
    """Check that a screenshot is a whole PNG of the size that the observation says, and that its pixels decode.

    It may be as long as its pixels would be without compression: what is longer carries something else, and would
    travel to the trainer and rest on disk with every trajectory.

    Raises:
        EnvError: Of kind `screenshot`.
    """
    png, width, height = observation.screenshot, observation.width, observation.height
    most = (CHANNELS * width + 1) * height + SLACK_BYTES  # a row begins with the number of its filter
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


def _open(png: bytes) -> Image.Image:
    return Image.open(BytesIO(png), formats=("PNG", "JPEG"))  # JPEG, so that it can be named
