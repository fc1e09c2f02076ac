"""What the records promise beyond their fields."""

from arpo.types import screenshot_key


def test_a_screenshot_is_named_by_the_sha_256_of_its_bytes():
    # the first example of FIPS 180-2, appendix B: the message "abc"
    assert screenshot_key(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
