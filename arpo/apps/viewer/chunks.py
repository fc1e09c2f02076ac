"""The data of the viewer: scripts that hand one value each to the page, because a page on disk may fetch nothing."""

import base64
import hashlib
import json
from typing import Any

import numpy as np

from arpo.apps.viewer.groups import ShownGroup
from arpo.apps.viewer.parts import Pictures, Words, mark
from arpo.apps.viewer.records import Episode, Records
from arpo.rollout.updates import UpdateRecord

FORMAT = 1
"""Counts changes of what a chunk holds: chunks of another number are written again."""
INJECTED, LEFT_OUT, PARSE_ERROR = 1, 2, 4
"""Bits of the flags of an episode in the index."""


def script(name: str, value: Any) -> str:
    """Return a script that hands a value to the page under a name.

    JSON in ASCII is an expression of JavaScript, and what it holds stays text: nothing in it is run. No key of it may
    come from a record, as the key `__proto__` is more than text in JavaScript.
    """
    return f"arpoData({json.dumps(name)},{json.dumps(value, allow_nan=False, separators=(',', ':'))});\n"


def file_of(key: str) -> str:
    """Return the name of the file of a group: its id may hold any letters."""
    return hashlib.blake2b(key.encode(errors="replace"), digest_size=8).hexdigest()


def digest_of(group: ShownGroup, stamp: tuple[int, int] | None, vocabulary: str) -> str:
    """Return a digest of everything that the chunk of a group is made of."""
    members = [
        (member.episode.id, member.episode.digest, member.injected, member.left_out, member.number)
        for member in group.members
    ]
    return hashlib.blake2b(repr((FORMAT, group.key, members, stamp, vocabulary)).encode(), digest_size=8).hexdigest()


def texts_of(group: ShownGroup, records: Records) -> list[list[Any]]:
    """Return a row for each member: group, position, and all that was said, for the search in answers."""
    rows: list[list[Any]] = []
    for position, member in enumerate(group.members):
        line = records.line(member.episode)
        if line is not None:
            rows.append([group.key, position, "\n".join(step["response"] for step in json.loads(line)["steps"])])
    return rows


def group_chunk(
    group: ShownGroup, records: Records, update: UpdateRecord | None, words: Words, pictures: Pictures
) -> dict[str, Any]:
    """Return all that pages of a group and of its episodes show: records as they are stored, and what goes with them.

    Args:
        group: Its members.
        records: Where their lines are.
        update: The update that learned from it, with the numbers of its tokens.
        words: Text of tokens.
        pictures: The screenshots.
    """
    members: list[dict[str, Any] | None] = []
    ids, shown = set[int](), list[str]()
    for member in group.members:
        line = records.line(member.episode)
        if line is None:  # a resumed run has just taken it back; the next look at the run sees that
            members.append(None)
            continue
        record = json.loads(line)
        for step in record["steps"]:
            ids.update(step["prompt_ids"], step["response_ids"])
            shown.append(step["screenshot"])
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
