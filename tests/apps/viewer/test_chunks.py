"""The chunk of a group, and the script that hands it to the page."""

import json

from arpo.apps.viewer.chunks import group_chunk, script, texts_of
from arpo.apps.viewer.groups import show_groups
from arpo.apps.viewer.parts import Pictures, Words
from arpo.apps.viewer.records import Records
from tests.apps.viewer.support import make_group, write_run


def test_what_a_resumed_run_has_just_taken_back_keeps_its_place_as_nothing(tmp_path):
    episodes = make_group(0, 0, 1.0, 0.0, 0.0)
    store = write_run(tmp_path, episodes)
    records = Records(store.root)
    records.refresh()
    (group,) = show_groups(records.episodes, ())
    store.truncate(0, -1)
    store.write(episodes[0])
    chunk = group_chunk(group, records, None, Words(None), Pictures(store.root))
    assert [member is None for member in chunk["members"]] == [False, True, True]
    assert [position for _, position, _ in texts_of(group, records)] == [0]


def test_a_script_is_one_call_whatever_the_value_says():
    hostile = "</script>\u2028\u2029\x00\ud83d\"'\\"
    text = script(hostile, [hostile])
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(f"[{text.removeprefix('arpoData(').removesuffix(');' + chr(10))}]") == [hostile, [hostile]]
