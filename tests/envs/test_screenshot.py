"""The one check of a screenshot: whatever passes it can be decoded by everybody who gets it."""

import io
import zlib

import pytest
from PIL import Image

from arpo.envs.screenshot import check_screenshot
from arpo.errors import EnvError
from arpo.types import Observation


def picture(form="PNG", size=(32, 16), **options):
    buffer = io.BytesIO()
    Image.effect_noise(size, 50).save(buffer, format=form, **options)
    return buffer.getvalue()


def chunk(kind, data):
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


def with_pixels(data):
    """A PNG of 32x16 grey pixels, every checksum right, with these bytes where the compressed pixels belong."""
    header = (32).to_bytes(4) + (16).to_bytes(4) + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def with_chunk(kind, data):
    """A good PNG with one more chunk behind its pixels."""
    good = picture()
    return good[:-12] + chunk(kind, data) + good[-12:]


PIXELS = zlib.compress(bytes(33 * 16))
BOMB = b"Comment\0\0" + zlib.compress(bytes(2**27))


@pytest.mark.parametrize(
    "png",
    [picture(), picture(compress_level=0), with_pixels(PIXELS), with_chunk(b"tEXt", b"Comment\0" + bytes(2**17))],
    ids=["noise", "uncompressed", "blank", "a long comment"],
)
def test_a_whole_png_of_the_right_size_is_a_screenshot(png):
    check_screenshot(Observation(png, 32, 16))


def test_a_whole_screen_may_be_as_long_as_its_pixels():
    buffer = io.BytesIO()
    Image.new("RGBA", (1920, 1080)).save(buffer, format="PNG", compress_level=0)
    assert len(buffer.getvalue()) > 4 * 1920 * 1080
    check_screenshot(Observation(buffer.getvalue(), 1920, 1080))


@pytest.mark.parametrize(
    "png",
    [
        b"",
        b"not a PNG",
        picture()[:-20],
        picture("JPEG"),
        picture()[:60] + b"\0" + picture()[61:],
        picture(size=(16, 32)),
        with_pixels(PIXELS[: len(PIXELS) // 2]),
        with_chunk(b"zTXt", BOMB),
    ],
    ids=["empty", "text", "cut", "JPEG", "damaged", "another size", "short pixels", "text bomb"],
)
def test_anything_else_is_a_fault(png):
    with pytest.raises(EnvError) as caught:
        check_screenshot(Observation(png, 32, 16))
    assert caught.value.kind == "screenshot"


def test_a_screenshot_that_carries_something_else_is_a_fault():
    with pytest.raises(EnvError, match=r"32x16 has 2097\d{5} bytes, more than 264208") as caught:
        # 16 rows of 32 pixels of 4 bytes and a filter are 2064 bytes, and 262144 more are allowed
        check_screenshot(Observation(with_chunk(b"juNk", bytes(200 * 2**20)), 32, 16))
    assert caught.value.kind == "screenshot"


def test_another_size_is_told_before_anything_is_decoded():
    huge = picture(size=(3000, 3000), compress_level=9)
    with pytest.raises(EnvError, match="is 3000x3000, the observation says 2900x3100"):
        check_screenshot(Observation(huge[:-4000], 2900, 3100))
