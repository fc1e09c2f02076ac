"""The step `update_browse_history`: pages that the user of a guest seems to have visited."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

TEMPLATE_URL = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)
"""An empty history of Chrome, from OSWorld."""
GUEST_PATH = ".config/google-chrome/Default/History"
"""In the guest, below the home directory."""

EPOCH = datetime(1601, 1, 1)
"""Chrome counts microseconds from here."""
LINK_TRANSITION = 805306368
"""The cause of a visit, as Chrome writes it for a link that was followed."""


def add_visits(database: Path, history: Sequence[Mapping[str, Any]], *, now: datetime) -> None:
    """Write visits into a history of Chrome.

    Args:
        database: Changed in place.
        history: Pages with `url`, `title` and `visit_time_from_now_in_seconds`.
        now: What the seconds are counted back from; the guest's local time.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        for page in history:
            visited = now - timedelta(seconds=page["visit_time_from_now_in_seconds"])
            moment = (visited - EPOCH) // timedelta(microseconds=1)
            row = connection.execute(
                "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) "
                "VALUES (?, ?, 1, 0, ?, 0)",
                (page["url"], page["title"], moment),
            )
            connection.execute(
                "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration) "
                "VALUES (?, ?, 0, ?, 0, 0)",
                (row.lastrowid, moment, LINK_TRANSITION),
            )
