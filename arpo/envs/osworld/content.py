"""Files and the pages that come in their place: a drive whose quota is used up answers 200 and says so."""

import re
import zipfile
from pathlib import Path

from arpo.errors import EnvError

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
