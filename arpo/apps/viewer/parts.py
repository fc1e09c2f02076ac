"""The parts of an episode as the page needs them: marks of actions, words of tokens, pictures."""

import base64
import functools
import io
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.Image import Resampling

from arpo.agent import actions
from arpo.agent.parser import parse_actions
from arpo.errors import ActionParseError, ArpoError

log = logging.getLogger(__name__)

SMALL_BYTES = 24_000
"""A screenshot that is no larger is shown as it is; a larger one as a thumbnail, with a link to the file."""
THUMBNAIL_WIDTH = 480
THUMBNAIL_QUALITY = 70
KEY = re.compile(r"[0-9a-f]{64}")

Mark = list[Any]
"""An action to draw: its kind, then numbers in pixels of the screen or a text."""


def mark(action: str, parse_error: str) -> Mark:
    """Return what to draw on the screenshot that was answered with an action."""
    if parse_error or not action:
        return ["error", parse_error] if parse_error else []
    try:
        parsed = parse_actions(action)
    except (ActionParseError, ValueError) as error:
        return ["error", f"unreadable: {error}"]
    match parsed:
        case [actions.Drag(x, y, to_x, to_y)]:
            return ["hover", to_x, to_y] if x is None else ["drag", x, y, to_x, to_y]
        case [actions.Scroll(direction, x, y)]:
            return ["scroll", x, y, direction]
        case [
            actions.Click(x, y)
            | actions.DoubleClick(x, y)
            | actions.RightClick(x, y)
            | actions.MiddleClick(x, y)
            | actions.Hover(x, y) as one
        ] if x is not None:
            return [_POINTED[type(one)], x, y]
        case _:  # words, or several actions, of which the picture has room for none
            return ["text", action]


_POINTED = {
    actions.Click: "click",
    actions.DoubleClick: "double",
    actions.RightClick: "right",
    actions.MiddleClick: "middle",
    actions.Hover: "hover",
}


class Words:
    """The text of each token of a vocabulary.

    Args:
        model: The directory of a checkpoint; None where it is not known any more: tokens are then shown by number, and
            so they are where its vocabulary is broken.
    """

    def __init__(self, model: Path | None) -> None:
        self._tokenizer: Any = None
        if model is not None and (model / "tokenizer.json").is_file():
            try:
                self._tokenizer = _vocabulary(model / "tokenizer.json")
            except ArpoError as error:
                log.warning("%s: tokens are shown by number", error)

    @property
    def known(self) -> bool:
        """Whether there is a vocabulary."""
        return self._tokenizer is not None

    def of(self, ids: Iterable[int]) -> list[tuple[int, str]]:
        """Return each id once, with its text: bytes that are no whole character become a replacement character."""
        return [(number, self._text(number)) for number in sorted(set(ids))] if self.known else []

    @functools.cache  # noqa: B019 - one object a run of the command
    def _text(self, number: int) -> str:
        from tokenizers.decoders import ByteLevel

        token = self._tokenizer.id_to_token(number) if 0 <= number < 2**32 else None
        return f"⟨{number}⟩" if token is None else str(ByteLevel().decode([token]))  # a special one stands for itself


def _vocabulary(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ArpoError(f"{path} is no vocabulary ({error})") from error


class Pictures:
    """The screenshots of a trajectory store as the page shows them.

    Args:
        root: The trajectory store.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._shown = functools.lru_cache(maxsize=1024)(self._read)

    def of(self, keys: Iterable[str]) -> list[tuple[str, str, bool]]:
        """Return each screenshot once as its key, its address with the picture in it, and whether that is a thumbnail.

        One that is missing or no picture has an empty address.
        """
        return [(key, *self._shown(key)) for key in dict.fromkeys(keys) if KEY.fullmatch(key)]

    def _read(self, key: str) -> tuple[str, bool]:
        path = self.root / "screens" / key[:2] / f"{key}.png"
        try:
            png = path.read_bytes()
            if len(png) <= SMALL_BYTES:
                return _address("png", png), False
            return _address("webp", _thumbnail(png)), True
        except (OSError, Image.DecompressionBombError, ValueError, SyntaxError) as error:
            log.debug("%s: %s", path, error)
            return "", False


def _thumbnail(png: bytes) -> bytes:
    with Image.open(io.BytesIO(png)) as opened:
        picture = opened.convert("RGB")
    if picture.width > THUMBNAIL_WIDTH:
        height = max(1, round(picture.height * THUMBNAIL_WIDTH / picture.width))
        picture = picture.resize((THUMBNAIL_WIDTH, height), Resampling.LANCZOS, reducing_gap=2.0)
    out = io.BytesIO()
    picture.save(out, "WEBP", quality=THUMBNAIL_QUALITY, method=2)
    return out.getvalue()


def _address(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
