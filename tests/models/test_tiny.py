import pytest
from transformers import AutoTokenizer

from arpo.agent.actions import Click, TypeText
from arpo.agent.prompt import GRAMMARS
from arpo.errors import ConfigError
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.family import FAMILIES


def test_a_number_up_to_the_longest_coordinate_is_one_token_and_no_word_spans_a_line(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    # 112 * 140 pixels at 16:9 are 166.9 x 93.9
    assert all(len(tokenizer(str(number)).input_ids) == 1 for number in range(167))
    assert len(tokenizer("167").input_ids) == 2
    # words, x, comma, y, words
    assert len(tokenizer("Action: click(start_box='(10,20)')").input_ids) == 5
    assert len(tokenizer("<|im_start|>user\n").input_ids) == 2
    assert len(tokenizer("<|im_start|>assistant\n").input_ids) == 2
    text = "Ünïcode ✓ 漢字 12345678 \t\n 'quoted'  two spaces"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    words, newline = tokenizer.get_vocab(), "Ċ"  # as a byte-level vocabulary writes it
    assert "assistant" + newline in words
    # Else the header's newline and the response after it could become one word in a text tokenized as a whole.
    assert all(newline not in word[:-1] for word in words)


def trained_on(directory, *corpus):
    return AutoTokenizer.from_pretrained(make_tiny(directory, corpus=corpus, words=640))


@pytest.mark.parametrize(
    ("asked", "typed", "shared", "length"),
    [
        # A quotation is spelled: its letters, and one word on either side.
        ('Enter the username "riley" and press login.', "Action: type(content='riley')", "riley", 5 + 2),
        # A name of a file without quotes is words.
        (
            "The script work/late-poem.sh cannot be run. Make it executable.",
            r"Action: type(content='chmod +x work/late-poem.sh\n')",
            ["work", "/", "late", "-", "poem", ".", "sh"],
            None,
        ),
    ],
)
def test_a_name_has_the_same_tokens_where_it_is_asked_for_and_typed(tmp_path, asked, typed, shared, length):
    tokenizer = trained_on(tmp_path, *[asked, typed] * 8)
    name = tokenizer.convert_tokens_to_ids(list(shared))
    for text in (asked, typed):
        ids = tokenizer(text).input_ids
        assert any(ids[start : start + len(name)] == name for start in range(len(ids)))
    assert length in (None, len(ids))


@pytest.mark.parametrize(("typed", "times", "words"), [("run.sh", 2, 1), ("run.sh", 3, 3), ("run", 3, 1)])
def test_a_word_that_is_typed_by_chance_or_by_itself_changes_no_words(tmp_path, typed, times, words):
    tokenizer = trained_on(tmp_path, *[f"Action: type(content='{typed}')"] * times, *["Press run."] * 8)
    assert len(tokenizer("Press run.").input_ids) == words


def test_a_quoted_word_of_the_grammar_is_one_token(tmp_path):
    scroll = "Action: scroll(start_box='(60,50)', direction='down')"
    tokenizer = trained_on(tmp_path, *[scroll] * 8)
    assert tokenizer.convert_tokens_to_ids("down") in tokenizer(scroll).input_ids


def test_a_tool_call_is_short_and_spells_what_it_types_alone(tmp_path):
    write = GRAMMARS["computer_use"].render
    click, typed = write(Click(60, 50)), write(TypeText("riley"))
    tokenizer = trained_on(tmp_path, *[click, typed] * 8)
    assert len(tokenizer(click).input_ids) == 19
    assert len(tokenizer(typed).input_ids) == 16 + len("riley")
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "riley"]
    assert all(letter in tokenizer(typed).input_ids for letter in letters)


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        ("qwen2_5_vl", {"hidden": 96}, "hidden must be a positive multiple of 64, got 96"),
        ("qwen2_5_vl", {"layers": 0}, "layers must be at least 1, got 0"),
        ("qwen2_5_vl", {"min_pixels": 200, "max_pixels": 100}, "got 200 and 100"),
        # 14 special tokens + 256 bytes + 166 numbers
        ("qwen2_5_vl", {"words": 435}, "words must be at least 436"),
        ("qwen2_5_vl", {"context": 0}, "context must be at least 1, got 0"),
        ("qwen2_5_vl", {"rotary_base": 0.0}, "rotary_base must be above 0, got 0.0"),
        ("qwen2_5_vl", {"rotary_sections": (4, 6, 5)}, r"3 positive numbers with the sum 16, got \[4, 6, 5\]"),
        ("qwen2_5_vl", {"rotary_sections": (0, 8, 8)}, r"got \[0, 8, 8\]"),
        ("qwen2_5_vl", {"rotary_sections": (8, 8)}, r"got \[8, 8\]"),
        ("qwen3_vl", {"layers": 1}, "layers must be at least 2, got 1"),
        ("qwen3_vl", {"words": 200}, r"words must be at least 1269 \(.* and numbers to 999\), got 1200"),
        ("qwen3_5", {"layers": 1}, "layers must be at least 2, got 1"),
    ],
)
def test_numbers_that_make_no_model_are_refused(tmp_path, family, arguments, message):
    with pytest.raises(ConfigError, match=message):
        FAMILIES[family].tiny.make(tmp_path, corpus=("a",), **arguments)
