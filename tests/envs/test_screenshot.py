"""The one check of a screenshot: whatever passes it can be decoded by everybody who gets it."""

import io
import random
import tracemalloc
import zlib
from itertools import pairwise

import pytest
from PIL import Image

from arpo.agent.actions import smart_resize
from arpo.envs.screenshot import BEGINNING, HEADER, SIGNATURE, check_screenshot, measured
from arpo.errors import EnvError
from arpo.models.vision.tower import picture_size
from arpo.types import Observation
from tests.envs.guest.hostile import chunk

GREY, RGB, INDEX, RGBA = 0, 2, 3, 6
ROW = bytes(1 + 3 * 32)


def picture(form="PNG", size=(32, 16), **options):
    buffer = io.BytesIO()
    Image.effect_noise(size, 50).convert("RGB").save(buffer, format=form, **options)
    return buffer.getvalue()


def header(width, height, depth=8, colours=RGB, interlaced=0):
    return chunk(b"IHDR", width.to_bytes(4) + height.to_bytes(4) + bytes([depth, colours, 0, 0, interlaced]))


def written_as(colours, depth, rows, *, between=b"", behind=b"", interlaced=0):
    """A PNG of 32x16 pixels with these rows, every checksum right, whatever else is not."""
    chunks = [header(32, 16, depth, colours, interlaced), between, chunk(b"IDAT", zlib.compress(rows)), behind]
    return SIGNATURE + b"".join([*chunks, chunk(b"IEND", b"")])


def accepted(png, size=(32, 16)):
    try:
        check_screenshot(Observation(png, *size))
    except EnvError as error:
        return error.kind != "screenshot"
    return True


GOOD = picture()
BESIDE = [(b"gAMA", 4), (b"cHRM", 32), (b"sRGB", 1), (b"pHYs", 9), (b"sBIT", 3), (b"bKGD", 6), (b"tIME", 7)]


@pytest.mark.parametrize(
    "png",
    [
        picture(),
        picture(compress_level=0),
        written_as(RGB, 8, 16 * ROW),
        written_as(RGBA, 8, 16 * bytes(1 + 4 * 32)),
        *(written_as(RGB, 8, 16 * ROW, between=chunk(kind, bytes(length))) for kind, length in BESIDE),
        written_as(RGB, 8, 16 * ROW, behind=chunk(b"tIME", bytes(7))),
    ],
)
def test_what_guests_and_browsers_write_is_a_screenshot_and_decodes(png):
    assert accepted(png)
    assert Image.open(io.BytesIO(png)).convert("RGB").size == (32, 16)


def smuggled(before, between):
    good = picture()
    return good[:8] + before + good[8:33] + between + good[33:]


def exif(orientation):
    entry = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + bytes([0, orientation]) + bytes(6)
    return chunk(b"eXIf", entry)


@pytest.mark.parametrize(
    ("png", "message"),
    [
        (b"", "must be a PNG.*0 bytes"),
        (b"not a PNG", "must be a PNG.*begin with b'not a PNG'"),
        (picture("JPEG"), r"must be a PNG.*JFIF"),
        (BEGINNING, "must be a PNG, and begin with its size"),
        (BEGINNING + bytes(HEADER.size - 1), "must be a PNG, and begin with its size"),
        (smuggled(chunk(b"juNk", b""), b""), "must be a PNG, and begin with its size"),
        (picture()[:-20], "cut or damaged"),
        (GOOD[:60] + bytes([GOOD[60] ^ 1]) + GOOD[61:], "cut or damaged"),
        (picture()[:-12], "no end"),
        (picture(size=(16, 32)), "is 16x32, the observation says 32x16"),
        # 16 rows of 32 pixels of 4 bytes and a filter are 2064 bytes, and 262144 more are allowed
        (smuggled(b"", chunk(b"juNk", bytes(2**20))), r"32x16 has 10\d{5} bytes, more than 264208"),
        (written_as(RGB, 8, 17 * ROW), "1552 bytes of rows and nothing behind"),  # 16 rows of 97 bytes
        (written_as(RGB, 8, 15 * ROW), "1552 bytes of rows"),
        (written_as(RGB, 8, 15 * ROW + b"\5" + ROW[1:]), "a row of a kind"),
        (written_as(RGB, 8, bytes(30 + 3 * 512), interlaced=1), "not interlaced"),
        *((written_as(*kind, 16 * ROW), "8 bits a channel") for kind in ((GREY, 8), (INDEX, 8), (4, 8), (RGB, 16))),
        *(
            (written_as(RGB, 8, 16 * ROW, **{place: extra}), "has a chunk")
            for place in ("between", "behind")
            for extra in (
                *(exif(1), exif(6), chunk(b"acTL", (2).to_bytes(4) + bytes(4)), chunk(b"tRNS", bytes(6))),
                *(chunk(b"tEXt", b"transparency\0x"), chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**20)))),
                *(chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**20))), chunk(b"PLTE", b"abc"), chunk(b"ABcd", b"")),
                *(chunk(b"gAMA", b"abc"), chunk(b"IEND", b""), header(6000, 6000)),
            )
        ),
        (written_as(RGB, 8, 16 * ROW, behind=chunk(b"tIME", bytes(7)) + chunk(b"IDAT", b"")), "something between"),
        (SIGNATURE + header(32, 16) + chunk(b"IEND", b""), "no pixels"),
        (smuggled(b"", chunk(b"IDAT", b"") * 10_000), "more than 8192 chunks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "PNG",
)
def test_anything_else_is_a_fault_of_its_kind(png, message):
    with pytest.raises(EnvError, match=message) as caught:
        check_screenshot(Observation(png, 32, 16))
    assert caught.value.kind == "screenshot"


SIZES = [(-1, -1), (0, 0), (2**32, 16), (32, None), ("32", "16"), (13_400, 13_400)]


@pytest.mark.parametrize(
    ("png", "size"),
    [
        *((png, (32, 16)) for png in (None, "text", bytearray(picture()), memoryview(picture()), SIGNATURE)),
        *((picture(), size) for size in SIZES),
    ],
)
def test_what_is_not_the_bytes_of_a_picture_or_no_size_of_a_screen_is_a_fault(png, size):
    assert not accepted(png, size)


NARROW = "one side over 200 times as long as the other"


@pytest.mark.parametrize(
    ("size", "message"),
    [((20_000, 20_000), "says 20000x20000"), ((600, 2), NARROW), ((1, 201), NARROW), ((30_000, 149), NARROW)],
)
def test_a_header_alone_shows_that_a_screen_is_huge_or_so_narrow_that_no_model_sees_it(size, message):
    with pytest.raises(EnvError, match=message):
        measured(SIGNATURE + header(*size))


def test_the_size_is_compared_before_the_pixels_are_unpacked():
    large = picture(size=(2000, 3000), compress_level=1)
    with pytest.raises(EnvError, match="is 2000x3000, the observation says 1900x3100"):
        check_screenshot(Observation(large[:-4000], 1900, 3100))


@pytest.mark.parametrize("size", [(1, 1), (200, 1), (1, 200), (3840, 2160)])
def test_a_model_sees_every_screen_that_is_accepted_and_none_is_too_long_without_compression(size):
    buffer = io.BytesIO()
    Image.new("RGBA", size).save(buffer, format="PNG", compress_level=0)
    assert accepted(buffer.getvalue(), size)
    assert min(smart_resize(*size, factor=28, min_pixels=56 * 56, max_pixels=2_116_800)) >= 28


def changed(chance, data):
    """The bytes without the last ones, with some between, or with one that is another."""
    at = chance.randrange(min(len(data), chance.choice((40, 10_000))))  # often in the header of a file
    other, more = bytes([data[at] ^ 1 << chance.randrange(8)]), chance.randbytes(chance.randrange(1, 9))
    return data[:at] + chance.choice((b"", more + data[at:], other + data[at + 1 :]))


def written(chance):
    """A PNG of 32x16 random pixels, as a guest would write it, with up to two things wrong; and whether none is."""
    stages = ("filters", "rows", "window", "packed", "header", "chunks", "file")
    wrong = chance.sample(stages, chance.choice((0, 1, 1, 1, 2)))

    def touched(stage, data):
        return changed(chance, data) if stage in wrong else data

    colours, channels = chance.choice([(RGB, 3), (RGBA, 4)])
    filters = (chance.randrange(8 if "filters" in wrong else 5) for _ in range(16))
    rows = touched("rows", b"".join(bytes([each]) + chance.randbytes(channels * 32) for each in filters))
    packed = zlib.compress(rows, chance.randrange(1, 10), *([9] if "window" in wrong else []))
    data, head = touched("packed", packed), touched("header", header(32, 16, 8, colours)[8:-4])
    cuts = sorted([0, len(data), *(chance.randrange(len(data) + 1) for _ in range(chance.randrange(3)))])
    parts = [chunk(b"IDAT", data[start:end]) for start, end in pairwise(cuts)]
    chunks = [chunk(b"IHDR", head), *parts, chunk(b"IEND", b"")]
    if "chunks" in wrong:
        chunks.insert(chance.randrange(len(chunks) + 1), chunk(b"IDAT", b""))
        del chunks[chance.randrange(len(chunks))]
    return touched("file", SIGNATURE + b"".join(chunks)), not wrong


def test_what_is_accepted_decodes_and_what_guests_write_is_accepted():
    chance, count = random.Random(0), 0
    for _ in range(4000):
        png, good = written(chance)
        if accepted(png):
            count += 1
            assert picture_size(png) == Image.open(io.BytesIO(png)).convert("RGB").size == (32, 16)
        else:
            assert not good
    assert 800 < count < 2000


def test_no_more_is_inflated_than_a_screen_has():
    bomb = header(32, 16) + chunk(b"IDAT", zlib.compress(bytes(2**27), 9)) + chunk(b"IEND", b"")
    tracemalloc.start()
    assert not accepted(SIGNATURE + bomb)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
