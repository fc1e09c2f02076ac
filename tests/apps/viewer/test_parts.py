"""Marks, words and pictures, the chunk of a group, and the script that hands it to the page."""

import base64
import io
import json

import pytest
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from arpo.agent import actions
from arpo.apps.viewer.parts import (
    SMALL_BYTES,
    THUMBNAIL_WIDTH,
    Pictures,
    TokenTexts,
    group_chunk,
    mark,
    script,
    texts_of,
)
from arpo.apps.viewer.records import Records, show_groups
from arpo.models.tokenization import ChatTokenizer
from arpo.types import screenshot_key
from tests.apps.viewer.support import make_group, write_run


@pytest.mark.parametrize(
    ("action", "drawn"),
    [
        (actions.Click(1, 2), ["click", 1, 2]),
        (actions.Click(1, 2, count=2), ["double", 1, 2]),
        (actions.Click(1, 2, button="right"), ["right", 1, 2]),
        (actions.Click(1, 2, button="middle"), ["middle", 1, 2]),
        (actions.Hover(1, 2), ["hover", 1, 2]),
        (actions.Drag(1, 2, 3, 4), ["drag", 1, 2, 3, 4]),
        (actions.Drag(None, None, 3, 4), ["hover", 3, 4]),
        (actions.Click(), ["text", "click(start_box='pointer')"]),
        (actions.Scroll("down", 1, 2), ["scroll", 1, 2, "down"]),
        (actions.Scroll("up"), ["scroll", None, None, "up"]),
        (actions.TypeText("a"), ["text", "type(content='a')"]),
        (actions.Call("f", {"n": 1}), ["text", "call(function='f', n=1)"]),
    ],
    ids=str,
)
def test_an_action_is_drawn_as_what_it_is(action, drawn):
    assert mark(action.describe(), "") == drawn


def test_several_actions_are_text_and_what_is_no_action_says_why():
    assert mark("wait()\nclick(start_box='(1,2)')", "") == ["text", "wait()\nclick(start_box='(1,2)')"]
    assert mark("", "bad_box") == ["error", "bad_box"]
    assert mark("", "") == []
    assert mark("rm -rf", "")[0] == "error"


def test_tokens_put_together_are_the_text(tiny_model):
    chat = ChatTokenizer(tiny_model)
    words = TokenTexts(tiny_model)
    text = "Action: click(start_box='(10,20)')\nThought: grüße"
    ids = chat.encode_response(text)
    found = dict(words.of(ids))
    assert "".join(found[number] for number in ids).startswith(text.partition("ü")[0])
    assert "".join(found[number] for number in ids).endswith("<|im_end|>")
    assert found.keys() == set(ids)


def test_a_token_that_is_not_spelled_in_bytes_stands_for_itself_and_an_id_that_is_no_word_is_shown_by_number(tmp_path):
    assert TokenTexts(None).of([1]) == []
    assert not TokenTexts(tmp_path).known
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "trunc')
    assert not TokenTexts(tmp_path).known
    vocabulary = {"a b": 0, "日本": 1, "Ġgr": 2}
    Tokenizer(WordLevel(vocabulary, unk_token="a b")).save(str(tmp_path / "tokenizer.json"))
    assert TokenTexts(tmp_path).of(vocabulary.values()) == [(0, "a b"), (1, "日本"), (2, " gr")]
    numbers = [-5, 10**6, 2**70]
    assert TokenTexts(tmp_path).of(numbers) == [(number, f"⟨{number}⟩") for number in numbers]


def stored(root, png):
    key = screenshot_key(png)
    path = root / "screens" / key[:2] / f"{key}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png)
    return key


def picture(size, noise):
    buffer = io.BytesIO()
    made = Image.effect_noise(size, 60) if noise else Image.new("L", size, 9)
    made.convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def test_a_small_screenshot_is_shown_as_it_is_and_a_large_one_as_a_thumbnail(tmp_path):
    small, large = picture((168, 210), False), picture((1920, 1080), True)
    assert len(small) < SMALL_BYTES < len(large)
    shown = Pictures(tmp_path).of([stored(tmp_path, small), stored(tmp_path, large)])
    assert [thumbnail for _, _, thumbnail in shown] == [False, True]
    contents = [base64.b64decode(uri.partition(",")[2]) for _, uri, _ in shown]
    assert contents[0] == small
    made = Image.open(io.BytesIO(contents[1]))
    assert (made.format, made.width, made.height) == ("WEBP", THUMBNAIL_WIDTH, 270)
    # what is no picture has no address, or one that shows nothing
    small, large = stored(tmp_path, b""), stored(tmp_path, b"x" * (SMALL_BYTES + 1))
    shown = Pictures(tmp_path).of([small, large, "0" * 64, "../../../etc/passwd"])
    assert shown == [(small, "data:image/png;base64,", False), (large, "", False), ("0" * 64, "", False)]


def test_what_a_resumed_run_has_just_taken_back_keeps_its_place_as_nothing(tmp_path):
    episodes = make_group(0, 0, 1.0, 0.0, 0.0)
    store = write_run(tmp_path, episodes)
    records = Records(store.root)
    records.refresh()
    (group,) = show_groups(records.episodes, ())
    store.truncate(0, -1)
    store.write(episodes[0])
    chunk = group_chunk(group, records, None, TokenTexts(None), Pictures(store.root))
    assert [member is None for member in chunk["members"]] == [False, True, True]
    assert [position for _, position, _ in texts_of(group, records)] == [0]


def test_a_script_is_one_call_whatever_the_value_says():
    hostile = "</script>\u2028\u2029\x00\ud83d\"'\\"
    text = script(hostile, [hostile])
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(f"[{text.removeprefix('arpoData(').removesuffix(');' + chr(10))}]") == [hostile, [hostile]]
