"""Tabs of the Chrome in a guest, through the DevTools endpoint that OSWorld's tasks open on port 9222."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote, urlsplit

import tenacity

from arpo.envs.answers import decoded
from arpo.envs.guest.client import LARGEST_LIST, poll_until
from arpo.envs.guest.transport import Transport
from arpo.errors import EnvError

log = logging.getLogger(__name__)

START_TIMEOUT_S = 75.0
"""For Chrome to listen: OSWorld tries 15 times, 5 s apart."""
LOAD_TIMEOUT_S = 60.0
"""For one page, as in OSWorld; a page that is slower is left to load."""
POLL_S = 0.5
CLOSE_POLL_S = 0.05
CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab, or something else that DevTools lists, such as a worker."""

    id: str
    type: str = ""
    title: str = ""
    url: str = ""


class ChromeTabs:
    """The tabs of one Chrome, at an address without a host name but `localhost`; calls raise `EnvError`."""

    def __init__(
        self, address: str, *, start_timeout_s: float = START_TIMEOUT_S, load_timeout_s: float = LOAD_TIMEOUT_S
    ) -> None:
        self._transport = Transport(address, name="Chrome in the guest")
        self._start_timeout_s, self._load_timeout_s = start_timeout_s, load_timeout_s

    def open(self, urls: Sequence[str]) -> None:
        """Open a tab for each address and close the one that Chrome began with."""
        first = self._wait_for_chrome()
        for url in urls:
            path = f"/json/new?{quote(url, safe='')}"
            self._wait_for_page(decoded(self._call("PUT", path), Tab, "/json/new").id, url)
        if urls and first:
            self._close(first[0])

    def close(self, urls: Sequence[str]) -> None:
        """Close one tab for each address that is open."""
        tabs = self._wait_for_chrome()
        for url in urls:
            tab = next((tab for tab in tabs if same_page(tab.url, url)), None)
            if tab is None:
                log.warning("there is no tab of %s to close", url)
                continue
            tabs.remove(tab)
            self._close(tab)

    def _wait_for_chrome(self) -> list[Tab]:
        listens = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(EnvError),
            stop=tenacity.stop_after_delay(self._start_timeout_s),
            wait=tenacity.wait_fixed(POLL_S),
            reraise=True,
        )
        return listens(self.pages)

    def _wait_for_page(self, tab_id: str, url: str) -> None:
        """Wait for a title: pages get one of their own when their head has come."""

        def has_loaded() -> bool:
            tab = next((tab for tab in self.pages() if tab.id == tab_id), None)
            return tab is None or (tab.title != "" and not same_page(tab.title, url))

        if not poll_until(has_loaded, self._load_timeout_s, POLL_S):
            log.warning("%s has not loaded within %.0f s", url, self._load_timeout_s)

    def pages(self) -> list[Tab]:
        """Return the tabs that show a page."""
        listed = decoded(self._call("GET", "/json/list"), list[Tab], "/json/list")
        return [tab for tab in listed if tab.type == "page"]

    def _close(self, tab: Tab) -> None:
        """Close a tab and wait until it is gone: Chrome answers before that."""
        self._call("GET", f"/json/close/{tab.id}")
        if not poll_until(
            lambda: all(other.id != tab.id for other in self.pages()), CALL_TIMEOUT_S, CLOSE_POLL_S
        ):  # a page may ask whether one really wants to leave
            raise EnvError("reset", f"the tab of {tab.url} did not close within {CALL_TIMEOUT_S:.0f} s")

    def _call(self, method: str, path: str) -> bytes:
        answer = self._transport.ask(method, path, timeout_s=CALL_TIMEOUT_S, most_bytes=LARGEST_LIST)
        if answer.status != HTTPStatus.OK:
            raise EnvError("reset", f"Chrome in the guest: {method} {path} gave {answer.status}")
        return answer.content


def same_page(*addresses: str) -> bool:
    """Return whether addresses are of one page, whatever their scheme, `www.` and last slash."""
    parts = [urlsplit(address if "://" in address else f"//{address}") for address in addresses]
    return len({(each.netloc.removeprefix("www."), each.path.rstrip("/"), each.query) for each in parts}) == 1
