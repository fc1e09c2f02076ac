"""A page in a real browser."""

import pytest

from arpo.envs.miniwob import chromium
from arpo.envs.web import find_chromium
from tests.apps.viewer.support import Page


@pytest.fixture(scope="module")
def browser():
    with pytest.MonkeyPatch.context() as patch:  # a page on disk may then do what it may do for everybody
        flags = tuple(flag for flag in chromium.FLAGS if not flag.startswith(("--allow-file", "--proxy", "--host")))
        patch.setattr(chromium, "FLAGS", flags)
        browser = chromium.Browser(find_chromium())
    yield browser
    browser.close()


@pytest.fixture
def page(browser):
    page = Page(browser)
    yield page
    assert page.seen == page.expected
