"""Files from the web that OSWorld's tasks start from and are graded by, downloaded once a machine."""

import logging
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import tenacity
from filelock import FileLock

from arpo.envs.guest.tasks import as_list
from arpo.envs.osworld.content import check_content
from arpo.errors import EnvError
from arpo.host.files import atomically

log = logging.getLogger(__name__)

ATTEMPTS = 3
TIMEOUT_S = 60.0
"""Without a byte; a large file may take longer than that."""


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
