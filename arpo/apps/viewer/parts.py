"""The data of a group as the page needs them: records, marks of actions, texts of tokens, pictures.

They are scripts that hand one value each to the page, because a page on disk may fetch nothing.
"""

import base64
import functools
import hashlib
import io
import json
import logging
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.Image import Resampling

from arpo.agent.actions import Click, Scroll
from arpo.agent.ui_tars import parse_actions
from arpo.apps.viewer.records import Episode, Records, ShownGroup
from arpo.errors import ActionParseError, ArpoError
from arpo.rollout.storage import UpdateRecord

log = logging.getLogger(__name__)

FORMAT = 4
"""Counts changes of the content of a chunk: chunks of another number are written again."""
INJECTED, LEFT_OUT, PARSE_ERROR = 1, 2, 4
"""Bits of the flags of an episode in the index."""
SMALL_BYTES = 24_000
"""A screenshot that is no larger is shown as it is; a larger one as a thumbnail, with a link to the file."""
THUMBNAIL_WIDTH = 480
THUMBNAIL_QUALITY = 70
KEY = re.compile(r"[0-9a-f]{64}")

Mark = list[Any]
"""An action to draw: its kind, then numbers in pixels of the screen or a text."""


def mark(action: str, parse_error: str) -> Mark:
    """Return the mark on the screenshot that was answered with an action."""
    if parse_error or not action:
        return ["error", parse_error] if parse_error else []
    try:
        parsed = parse_actions(action)
    except (ActionParseError, ValueError) as error:
        return ["error", f"unreadable: {error}"]
    match parsed:
        case [Scroll(direction, x, y)]:
            return ["scroll", x, y, direction]
        case [Click(x, y, button, count)] if x is not None:
            return ["double" if count == 2 else "click" if button == "left" else button, x, y]
        case [one] if one.points:
            return ["drag" if len(one.points) > 1 else "hover", *chain.from_iterable(one.points)]
        case _:  # a text, or several actions, of which the picture has room for none
            return ["text", action]


class TokenTexts:
    """The text of each token of a vocabulary; without one, or with a broken one, tokens are shown by number."""

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
    """The screenshots of a trajectory store as the page shows them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._shown = functools.lru_cache(maxsize=1024)(self._read)

    def of(self, keys: Iterable[str]) -> list[tuple[str, str, bool]]:
        """Return key, address (with the picture in it) and whether it is a thumbnail, of each screenshot."""
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


def script(name: str, value: Any) -> str:
    """Return a script that hands a value to the page under a name.

    JSON in ASCII is an expression of JavaScript, and what it holds stays text: nothing in it is run. No key of it may
    come from a record, as the key `__proto__` is more than text in JavaScript.
    """
    return f"arpoData({json.dumps(name)},{json.dumps(value, allow_nan=False, separators=(',', ':'))});\n"


def chunk_name(group: ShownGroup, stamp: tuple[int, int] | None, vocabulary: str) -> str:
    """Return the name of the chunk of a group, which changes with everything that the chunk is made of."""
    members = [
        (member.episode.id, member.episode.digest, member.injected, member.left_out, member.number)
        for member in group.members
    ]
    content = repr((FORMAT, group.key, members, stamp, vocabulary)).encode(errors="replace")
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def texts_of(group: ShownGroup, records: Records) -> list[list[Any]]:
    """Return a row for each member: group, position, and all of its responses, for the search in answers."""
    rows: list[list[Any]] = []
    for position, member in enumerate(group.members):
        line = records.line(member.episode)
        if line is not None:
            rows.append([group.key, position, "\n".join(step["response"] for step in json.loads(line)["steps"])])
    return rows


def group_chunk(
    group: ShownGroup, records: Records, update: UpdateRecord | None, words: TokenTexts, pictures: Pictures
) -> dict[str, Any]:
    """Return the content of the pages of a group: stored records, texts, pictures, and the numbers of its update."""
    members: list[dict[str, Any] | None] = []
    ids, shown = set[int](), list[str]()
    for member in group.members:
        line = records.line(member.episode)
        if line is None:  # a resumed run has just taken it back; the next look at the run sees that
            members.append(None)
            continue
        record = json.loads(line)
        for exchange in record["exchanges"]:
            ids.update(exchange["added_ids"], exchange["response_ids"])
            shown += [picture["key"] for picture in exchange["pictures"]]
        shown += [step["screenshot"] for step in record["steps"]]
        shown.append(str(record.get("last_screenshot", "")))
        members.append(
            {
                "raw": line.decode(),
                "marks": [mark(step["action"], step["parse_error"]) for step in record["steps"]],
                "numbers": _numbers(update, member.number, member.episode),
                "file": f"{member.episode.path.parent.name}/{member.episode.path.name}",
            }
        )
    return {"key": group.key, "members": members, "words": words.of(ids), "pictures": pictures.of(shown)}


def _numbers(update: UpdateRecord | None, number: int | None, episode: Episode) -> list[tuple[str, str]]:
    """Return the numbers of an episode's tokens in an update: pairs of a name and little-endian float32 in base64."""
    if update is None or number is None:
        return []
    found = update.tokens(number).items()
    return [
        (name, base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode())
        for name, values in found
        if len(values) == episode.tokens
    ]
