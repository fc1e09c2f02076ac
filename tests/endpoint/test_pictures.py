"""Pictures of requests: which are taken, which are refused before they are decoded, and which are known."""

import base64
import io
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from arpo.endpoint.wire.common import Pictures
from arpo.envs.screenshot import check_picture
from arpo.errors import RefusedError
from tests.endpoint.samples import DIALECTS, PNG, encoded, parse, picturing, reader, url
from tests.models.samples import screenshot


def taken(dialect, address, reads=None, **limits):
    (picture,) = parse(dialect, picturing(dialect, address), reads, **limits).pictures()
    return picture


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_screenshot_arrives_as_the_same_bytes(dialect):
    key, png = screenshot(3, 64, 48)
    picture = taken(dialect, url(png))
    assert (picture.png, picture.key, picture.width, picture.height) == (png, key, 64, 48)


def test_anthropics_own_form_of_a_picture_and_one_in_the_result_of_a_tool():
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    block = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    body = {"messages": [{"role": "user", "content": [result, block]}]}
    assert [picture.png for picture in parse("messages", body).pictures()] == [PNG, PNG]
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url()}]}
    assert [picture.png for picture in parse("responses", {"input": [output]}).pictures()] == [PNG]
    said = {"role": "tool", "content": [{"type": "image_url", "image_url": url()}]}
    assert [picture.png for picture in parse("chat", {"messages": [said]}).pictures()] == [PNG]


OTHERS = {
    "jpeg": encoded("JPEG"),
    "webp": encoded("WEBP", lossless=True),
    "palette": encoded("PNG", "P"),
    "grey": encoded("PNG", "L"),
    "sixteen bits": encoded("PNG", "I;16"),
    "orientation": encoded("PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"),
    "lie": encoded("JPEG"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_picture_becomes_a_png_that_every_decoder_reads_alike(name):
    kind = "png" if name == "lie" else name  # what the address says of it does not matter
    picture = taken("chat", url(OTHERS[name], kind))
    check_picture(picture.png)
    with Image.open(io.BytesIO(picture.png)) as made, Image.open(io.BytesIO(OTHERS[name])) as given:
        assert made.format == "PNG"
        assert np.array_equal(np.array(made.convert("RGB")), np.array(given.convert("RGB")))
        assert made.size == (picture.width, picture.height) == (40, 30)


def bomb(width, height):
    """A PNG of a few bytes that says so many pixels, and holds them."""
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    chunks = (header, b"IDAT" + zlib.compress(bytes(min((3 * width + 1) * height, 10**7))), b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (len(each) - 4).to_bytes(4, "big") + each + zlib.crc32(each).to_bytes(4, "big") for each in chunks
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://169.254.169.254/latest", "must be a data: URL.*opens no address and no file; send the bytes"),
        ("file:///etc/passwd", "must be a data: URL"),
        ("data:image/png,abc", "must be a data: URL"),
        ("data:image/png;base64,a$b=", "not written in base 64"),
        ("data:image/png;base64,é", "must be a text in base 64"),
        (url(b"GIF89a"), "cannot be decoded.*send one whole PNG, JPEG or WebP"),
        (url(PNG[:60]), "cannot be decoded"),
        (url(encoded("GIF")), "cannot be decoded"),
        (url(bomb(30_000, 30_000)), "cannot be decoded|has 30000x30000 pixels"),
        (url(bomb(5_000, 4_000)), "has 5000x4000 pixels: at most 8294400"),
        (url(encoded("JPEG", size=(4000, 10))), "one side at most 200 times"),
    ],
    ids=range(11),
)  # fmt: skip
def test_a_picture_that_is_not_taken_is_refused_with_the_remedy(dialect, address, message):
    with pytest.raises(RefusedError, match=message):
        taken(dialect, address)


def test_pictures_are_limited_in_number_in_bytes_and_in_pixels_that_are_new():
    three = {"messages": [picturing("chat", url(screenshot(n, 40, 30)[1]))["messages"][0] for n in range(3)]}
    with pytest.raises(RefusedError, match="number of pictures must be from 0 to 2, got 3"):
        parse("chat", three, pictures=2)
    with pytest.raises(RefusedError, match="at most 10 bytes"):
        parse("chat", three, picture_bytes=10)
    known = Pictures()
    with pytest.raises(RefusedError, match="more than 2400 pixels together"):  # 40 x 30 is 1200
        parse("chat", three, reader(known, new_pixels=2400))
    assert known.decoded == 2
    assert len([*parse("chat", three, reader(known, new_pixels=2400)).pictures()]) == 3
    assert known.decoded == 3


def test_a_known_picture_is_not_decoded_again_and_the_oldest_is_forgotten():
    shots = [screenshot(n, 40, 30)[1] for n in range(3)]
    known = Pictures(most_bytes=sum(len(shot) + len(url(shot)) for shot in shots) - 1)
    first = [taken("chat", url(shot), reader(known)) for shot in (shots[0], shots[1], shots[0])]
    assert first[0] is first[2]
    assert known.decoded == 2
    for shot in (shots[2], shots[0]):  # the least recently used one makes room
        taken("messages", url(shot), reader(known))
    assert known.decoded == 3
    taken("chat", url(shots[1]), reader(known))
    assert known.decoded == 4


def lit(gamma):
    """A PNG whose pixels and length are those of any other of them."""
    chunk = b"gAMA" + gamma.to_bytes(4, "big")
    return PNG[:33] + (4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big") + PNG[33:]


def test_pictures_of_one_length_and_one_end_are_told_apart_and_take_the_place_of_one():
    one, two, other = lit(1), lit(2), screenshot(1, 40, 30)[1]
    known = Pictures(most_bytes=sum(len(shot) + len(url(shot)) for shot in (one, other)))
    given = [other, *[one, two] * 4, other]
    assert [taken("chat", url(shot), reader(known)).png for shot in given] == given
    assert known.decoded == 9


def test_many_threads_share_what_is_known():
    known, shots = Pictures(), [url(screenshot(n, 40, 30)[1]) for n in range(4)]
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda n: taken("chat", shots[n % 4], reader(known)).key, range(200))]
    assert found == found[:4] * 50
