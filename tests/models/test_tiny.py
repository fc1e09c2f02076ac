from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoProcessor, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from arpo.errors import ConfigError
from arpo.models.tiny import SPECIAL_TOKENS, make_tiny
from tests.conftest import TINY_CORPUS


def test_the_directory_loads_like_a_real_checkpoint(tiny_model: Path) -> None:
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model)
    processor = AutoProcessor.from_pretrained(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert 0.6e6 < model.num_parameters() < 0.8e6
    assert tokenizer.convert_ids_to_tokens(range(14)) == list(SPECIAL_TOKENS)
    assert model.config.image_token_id == processor.image_token_id == tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.text_config.vocab_size % 64 == 0
    assert len(tokenizer) <= model.config.text_config.vocab_size


def test_every_vision_layer_attends_to_the_whole_screenshot(tiny_model: Path) -> None:
    config = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model).config.vision_config
    assert list(config.fullatt_block_indexes) == list(range(config.depth))


def test_a_number_up_to_the_longest_coordinate_is_one_token(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    # 112 * 140 pixels at 16:9 are 166.9 x 93.9
    assert all(len(tokenizer(str(number)).input_ids) == 1 for number in range(167))
    assert len(tokenizer("167").input_ids) == 2


def test_a_click_is_five_tokens_and_the_turn_glue_two_a_header(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    # words, x, comma, y, words
    assert len(tokenizer("Action: click(start_box='(10,20)')").input_ids) == 5
    assert len(tokenizer("<|im_start|>user\n").input_ids) == 2
    assert len(tokenizer("<|im_start|>assistant\n").input_ids) == 2


def test_no_word_spans_a_line(tiny_model: Path) -> None:
    words = AutoTokenizer.from_pretrained(tiny_model).get_vocab()
    newline = "Ċ"  # how a byte-level vocabulary writes it
    assert "assistant" + newline in words
    # Else the header's newline and the response after it could become one word in a text tokenized as a whole.
    assert all(newline not in word[:-1] for word in words)


def test_a_quoted_word_is_spelled_alike_where_it_is_asked_for_and_where_it_is_typed(tmp_path: Path) -> None:
    asked = 'Enter the username "riley" and the password "x4b" into the text fields and press login.'
    typed = "Action: type(content='riley')"
    tokenizer = AutoTokenizer.from_pretrained(make_tiny(tmp_path, corpus=[asked, typed] * 8, words=640))
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "riley"]
    for text in (asked, typed):
        ids = tokenizer(text).input_ids
        assert any(ids[start : start + len(letters)] == letters for start in range(len(ids)))
    assert len(tokenizer(typed).input_ids) == 5 + 2  # the letters, and one word on either side


def test_a_quoted_word_of_the_grammar_is_one_token(tmp_path: Path) -> None:
    scroll = "Action: scroll(start_box='(60,50)', direction='down')"
    tokenizer = AutoTokenizer.from_pretrained(make_tiny(tmp_path, corpus=[scroll] * 8, words=640))
    assert tokenizer.convert_tokens_to_ids("down") in tokenizer(scroll).input_ids


def test_any_text_survives_encoding_and_decoding(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    text = "Ünïcode ✓ 漢字 12345678 \t\n 'quoted'  two spaces"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_seed_alone_decides_the_weights(tiny_model: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    same = make_tiny(tmp_path / "same", corpus=TINY_CORPUS * 4, words=600)
    other = make_tiny(tmp_path / "other", corpus=TINY_CORPUS * 4, words=600, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    weights = load_file(tiny_model / "model.safetensors")
    torch.testing.assert_close(load_file(same / "model.safetensors"), weights, rtol=0, atol=0)
    assert (tiny_model / "tokenizer.json").read_bytes() == (same / "tokenizer.json").read_bytes()
    embedding = "model.embed_tokens.weight"
    assert not torch.equal(load_file(other / "model.safetensors")[embedding], weights[embedding])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": 96}, "hidden must be a positive multiple of 64, got 96"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"min_pixels": 200, "max_pixels": 100}, "got 200 and 100"),
        # 14 special tokens + 256 bytes + 166 numbers
        ({"words": 435}, "words must be at least 436"),
        ({"rotary_base": 0.0}, "rotary_base must be"),
        ({"rotary_sections": (4, 6, 5)}, r"3 positive numbers with the sum 16, got \[4, 6, 5\]"),
        ({"rotary_sections": (0, 8, 8)}, r"got \[0, 8, 8\]"),
        ({"rotary_sections": (8, 8)}, r"got \[8, 8\]"),
    ],
)
def test_numbers_that_make_no_model_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_tiny(tmp_path, corpus=TINY_CORPUS, **arguments)


def test_the_rotations_of_places_are_parameters(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path, corpus=TINY_CORPUS, words=600, rotary_base=100.0, rotary_sections=(2, 3, 11))
    rotary = Qwen2_5_VLForConditionalGeneration.from_pretrained(directory).config.text_config.rope_parameters
    assert rotary["rope_theta"] == 100.0
    assert rotary["mrope_section"] == [2, 3, 11]


def test_the_longest_conversation_is_a_parameter(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path, corpus=TINY_CORPUS, words=600, hidden=64, layers=1, context=131_072)
    config = Qwen2_5_VLForConditionalGeneration.from_pretrained(directory).config
    assert config.text_config.max_position_embeddings == 131_072
    with pytest.raises(ConfigError, match="context must be at least 1, got 0"):
        make_tiny(tmp_path, corpus=TINY_CORPUS, context=0)
