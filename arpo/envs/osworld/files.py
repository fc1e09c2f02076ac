"""Files from the web that OSWorld's tasks start from and are graded by, downloaded once a machine.

A page may come in the place of a file: a drive whose quota is used up answers 200 and says so. A download that broke
off goes on from where it was.
"""

import logging
import os
import re
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import tenacity
from filelock import FileLock

from arpo.envs.guest.tasks import as_list, steps_of
from arpo.errors import EnvError, TaskFormatError
from arpo.host.files import PARTIAL
from arpo.types import Task

log = logging.getLogger(__name__)

ATTEMPTS = 3
TIMEOUT_S = 60.0
"""Without a byte; a large file may take longer than that."""
OVERLAP = 4096
"""Bytes at the end of what is there that are asked for again: where others come, the address has another file now."""
EMPTY_HISTORY_URL = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)
EMPTY_HISTORY = "history_empty.sqlite"
HEAD_BYTES = 8192
"""What is looked at of a file: the signature of each kind stands there, of a PDF after other bytes too."""
ZIP = ".docm .docx .epub .jar .odg .odp .ods .odt .pptm .pptx .xlsm .xlsx .zip"
SIGNATURES: dict[str, tuple[bytes, ...]] = {
    # An office document with a password is no ZIP but one of Microsoft's older containers.
    **dict.fromkeys(ZIP.split(), (b"PK\3\4", b"PK\5\6", b"\xd0\xcf\x11\xe0")),
    ".pdf": (b"%PDF",),
}
PICTURES = ".bmp .gif .ico .jpeg .jpg .png .psd .tif .tiff .webp .xcf"
SOUNDS_AND_FILMS = ".avi .flac .m4a .mkv .mov .mp3 .mp4 .ogg .wav .webm"
ARCHIVES = ".7z .bz2 .db .deb .gz .otf .sqlite .tar .tgz .ttf .vsix .xz"
BINARY = frozenset(f"{PICTURES} {SOUNDS_AND_FILMS} {ARCHIVES}".split())
"""Kinds that are never text. Which one it is says the desktop: a task may call a PNG a JPEG."""
PAGES = frozenset((".htm", ".html", ".mht", ".mhtml", ".php", ".xhtml"))
PAGE_TYPES = ("text/html", "application/xhtml+xml")
_PAGE = re.compile(
    rb"(\xef\xbb\xbf)?(?>\s+|<!--.*?-->|<\?xml.*?>)*+<(!doctype\s+html|html|head|title|meta|body)\b",
    re.IGNORECASE | re.DOTALL,
)


class FileCache:
    """A folder of downloads by task and address, which all environments of a machine share.

    A file that is there is whole: it gets its name after its last byte, and not if it is a page in the file's place.
    The names of set-up files are those of OSWorld's own cache, so a folder that its runs filled can be used here; a
    page that they have kept is noticed, and the file downloaded again.
    `on_bytes` hears of each piece that comes how many bytes it has.
    """

    def __init__(self, root: str | Path, on_bytes: Callable[[int], object] = lambda _: None) -> None:
        self._root = Path(root).expanduser().resolve()
        self._on_bytes = on_bytes

    def fetch(self, url: str, task_id: str, name: str) -> Path:
        """Return the path of a file with the content of an address; of its name where it is used the last part counts.

        Raises:
            EnvError: If it cannot be downloaded, or something else came: that says nothing about the agent.
        """
        path = self.place(url, task_id, name)
        if _is_kept(path, name, url):
            return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(path.suffix + ".lock")):
                if not _is_kept(path, name, url):  # another environment may have had the lock before us
                    _download(url, path, name, self._on_bytes)
        except OSError as error:
            raise EnvError("reset", f"{url} cannot be kept at {path}: {error}") from error
        return path

    def place(self, url: str, task_id: str, name: str) -> Path:
        """Return the path of a file, there or not; the arguments are those of `fetch`."""
        return self._root / task_id / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{Path(name).name}"

    def lacking(self, task: Task) -> list[tuple[str, str]]:
        """Return the addresses and names of a task's files that are not there, or are pages in their place."""
        return [(url, name) for url, name in files_of(task) if not _is_kept(self.place(url, task.id, name), name, url)]

    def gold_files(self, evaluator: Mapping[str, Any], task_id: str) -> dict[str, Path]:
        """Return the files that a task is compared with, by the names by which OSWorld's getters look for them."""
        return {name: self.fetch(url, task_id, name) for url, name in _gold_files(evaluator)}


def files_of(task: Task) -> list[tuple[str, str]]:
    """Return the addresses and names of all files that a task starts from and is compared with, each once."""
    record, found = task.config, []
    try:
        for step in steps_of(record):
            if step["type"] == "download":
                found += [(file["url"], file["path"]) for file in step["parameters"]["files"]]
            if step["type"] == "update_browse_history":
                found.append((EMPTY_HISTORY_URL, EMPTY_HISTORY))
        found += _gold_files(record["evaluator"])
        return list(dict.fromkeys((str(url), Path(name).name) for url, name in found))
    except (KeyError, TypeError, ValueError) as error:
        raise TaskFormatError(
            f"task {task.id}: a file that it downloads has no address or no name: {error!r}"
        ) from error


def _gold_files(evaluator: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("result", "expected"):
        for getter in as_list(evaluator.get(key)):
            if getter and getter["type"] in ("cloud_file", "pdf_from_url"):
                several = getter.get("multi", False)
                urls, names = (getter[part] if several else [getter[part]] for part in ("path", "dest"))
                yield from zip(urls, names, strict=True)


def _is_kept(path: Path, name: str, url: str) -> bool:
    try:
        check_content(path, name, url)
    except (OSError, EnvError):
        return False
    return True


def _download(url: str, path: Path, name: str, on_bytes: Callable[[int], object]) -> None:
    """Download a file under another name, which a connection that breaks leaves for the next try to go on from."""
    partial = path.with_name(path.name + PARTIAL)
    if path.exists():
        log.warning("%s is no %s, and is downloaded again", path, Path(name).name)
    try:
        check_content(partial, name, url, _write(url, partial, on_bytes))
        partial.replace(path)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EnvError("reset", f"{url} cannot be downloaded: {type(error).__name__}: {error}") from error
    except (EnvError, OSError):  # something else came, or the disk is full
        partial.unlink(missing_ok=True)
        raise


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.HTTPError),
    stop=tenacity.stop_after_attempt(ATTEMPTS),
    before_sleep=tenacity.before_sleep_log(log, logging.WARNING),
    reraise=True,
)
def _write(url: str, partial: Path, on_bytes: Callable[[int], object]) -> str:
    """Write what an address gives, from where it broke off, and return what the server calls it."""
    start = max(0, partial.stat().st_size - OVERLAP) if partial.exists() else 0
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={start}-"} if start else {})
    with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S) as response:
        if start and not _begins_at(response, start):
            partial.unlink()
            raise httpx.RemoteProtocolError(f"it cannot go on at byte {start}")
        response.raise_for_status()
        goes_on = response.status_code == HTTPStatus.PARTIAL_CONTENT
        with partial.open("r+b" if goes_on else "w+b") as file:
            file.seek(start if goes_on else 0)
            for chunk in response.iter_bytes():
                known = file.read(len(chunk))
                if not chunk.startswith(known):
                    partial.unlink()
                    raise httpx.RemoteProtocolError("it is another file than the one that broke off")
                file.seek(-len(known), os.SEEK_CUR)
                file.write(chunk)
                on_bytes(len(chunk))
            file.truncate()  # the file may have become shorter
    return str(response.headers.get("content-type", ""))


def _begins_at(response: httpx.Response, start: int) -> bool:
    """Return whether an answer to a question for the end of a file is that, the whole file, or a failure."""
    if response.status_code == HTTPStatus.PARTIAL_CONTENT:
        place = response.headers.get("content-range", "")
        return place.startswith(f"bytes {start}-") and "content-encoding" not in response.headers
    return response.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


def check_content(path: Path, name: str, url: str, content_type: str = "") -> None:
    """Check that a file fits the ending of its name, and its type where that is known, as its first bytes show."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    cut = head.startswith(b"PK") and Path(name).suffix.lower() in SIGNATURES and not zipfile.is_zipfile(path)
    if cut or not _is_kind(head, Path(name).suffix.lower(), content_type.partition(";")[0].strip().lower()):
        kind = f"{content_type} of " if content_type else ""
        raise EnvError(
            "reset",
            f"{url} gives no {Path(name).name} but {kind}{path.stat().st_size} bytes that begin {head[:80]!r}: open "
            "the address in a browser, and try again later if it asks for that",
        )


def _is_kind(head: bytes, suffix: str, content_type: str) -> bool:
    if suffix in SIGNATURES:
        return any(signature in head for signature in SIGNATURES[suffix])
    if suffix in BINARY:
        return any(byte < 9 or 13 < byte < 32 for byte in head)  # text holds no such bytes
    if suffix in PAGES:
        return True
    return content_type not in PAGE_TYPES and not _PAGE.match(head)
