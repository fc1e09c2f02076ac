"""Files from the web that OSWorld's tasks start from and are graded by, downloaded once a machine.

A page may come in the place of a file: a drive whose quota is used up answers 200 and says so.
"""

import logging
import re
import shutil
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import tenacity
from filelock import FileLock

from arpo.envs.guest.tasks import as_list
from arpo.errors import EnvError
from arpo.host.files import atomically

log = logging.getLogger(__name__)

ATTEMPTS = 3
TIMEOUT_S = 60.0
"""Without a byte; a large file may take longer than that."""
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
    """Downloads by task and address; all environments of a machine share one folder.

    A file that is there is whole: it gets its name after its last byte, and not if it is a page in the file's place.
    The names of set-up files are those of OSWorld's own cache, so a folder that its runs filled can be used here; a
    page that they have kept is noticed, and the file downloaded again.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).expanduser().resolve()

    def fetch(self, url: str, task_id: str, name: str) -> Path:
        """Return the path of a file with the content of an address.

        Args:
            url: Where the file is.
            task_id: Whose file it is.
            name: What the file is called where it is used; only its last part counts.

        Raises:
            EnvError: If it cannot be downloaded, or something else came: that says nothing about the agent.
        """
        path = self._root / task_id / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{Path(name).name}"
        if _is_kept(path, name, url):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(path.suffix + ".lock")):
            if not _is_kept(path, name, url):  # another environment may have had the lock before us
                _download(url, path, name)
        return path

    def place_gold_files(self, evaluator: Mapping[str, Any], task_id: str, directory: Path) -> None:
        """Put copies of what a task is compared with where OSWorld's `cloud_file` getter looks first.

        Copies, because some metric functions write beside the files that they compare, or unpack them there.

        Raises:
            EnvError: If one cannot be downloaded.
        """
        for getter in _cloud_files(evaluator):
            urls, names = getter["path"], getter["dest"]
            if not getter.get("multi", False):
                urls, names = [urls], [names]
            for url, name in zip(urls, names, strict=True):
                target = directory / name
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(self.fetch(url, task_id, name), target)


def _cloud_files(evaluator: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in ("result", "expected"):
        for getter in as_list(evaluator.get(key)):
            if getter and getter["type"] == "cloud_file":
                yield getter


def _is_kept(path: Path, name: str, url: str) -> bool:
    try:
        check_content(path, name, url)
    except FileNotFoundError:
        return False
    except EnvError as error:
        log.warning("%s is downloaded again: %s", path, error)
        return False
    return True


def _download(url: str, path: Path, name: str) -> None:
    try:
        with atomically(path) as partial:
            check_content(partial, name, url, _write(url, partial))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EnvError("reset", f"{url} cannot be downloaded: {type(error).__name__}: {error}") from error


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.HTTPError),
    stop=tenacity.stop_after_attempt(ATTEMPTS),
    before_sleep=tenacity.before_sleep_log(log, logging.WARNING),
    reraise=True,
)
def _write(url: str, path: Path) -> str:
    """Write what an address gives, and return what the server calls it."""
    with httpx.stream("GET", url, follow_redirects=True, timeout=TIMEOUT_S) as response, path.open("wb") as file:
        response.raise_for_status()
        for chunk in response.iter_bytes():
            file.write(chunk)
    return str(response.headers.get("content-type", ""))


def check_content(path: Path, name: str, url: str, content_type: str = "") -> None:
    """Check that a file is what its name says, as far as its first bytes show.

    Args:
        path: The file.
        name: Its name where it is used, whose ending says what it should be.
        url: Where it came from.
        content_type: What the server called it; empty where nobody knows any more.

    Raises:
        EnvError: If it is something else; says what came.
    """
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
