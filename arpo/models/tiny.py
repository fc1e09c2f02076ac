"""A Qwen2.5-VL small enough to learn on two cores, as a directory that goes down the path of a real checkpoint."""

import logging
import re
from collections.abc import Iterator, Sequence
from math import isqrt
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from arpo.errors import ConfigError, check_at_least, check_positive

log = logging.getLogger(__name__)

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen2.5-VL's special tokens, by its names and in its order."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2.5-VL's turns without its default system message, which would cost tokens in every prompt."""

CONTEXT = 32768
"""Tokens of a conversation that the model is made for, unless it is told otherwise."""
HEAD_DIM = 32
"""vLLM's CPU attention wants a multiple of 32."""
AXES = 3
"""Time, row and column."""
VISION_HIDDEN = 64
VISION_DEPTH = 2
VISION_HEADS = 2
VISION_SPREAD = 0.1
"""Standard deviation of the vision tower's first weights: 0.02, the real model's, suits a width of 1,280."""
VISION = {
    "depth": VISION_DEPTH,
    "hidden_size": VISION_HIDDEN,
    "intermediate_size": 2 * VISION_HIDDEN,
    "num_heads": VISION_HEADS,
    "initializer_range": VISION_SPREAD,
}
IMAGE_MEAN = (1.0, 1.0, 1.0)
IMAGE_SPREAD = (0.15, 0.15, 0.15)
"""White is zero: most of a page is white, and a grey button on it would differ from it by a hundredth of its norm."""
FULL_ATTENTION = tuple(range(VISION_DEPTH))
"""Every layer: window attention on a handful of patches is twenty times slower on vLLM's CPU than full attention."""
VOCABULARY_MULTIPLE = 64
"""The embedding has more rows than the tokenizer has words, as in the real model: 152,064 against 151,665."""
QUOTED = r"""(?<=["'])\w[^"'()\n]*(?=["'])"""
"""What an instruction quotes, and what a response has in quotes."""
COPIED = r"""(?:(?<=")|(?<=content='))\w[^"'()\n]*(?=["'])"""
"""The part of it that is copied from the one to the other, and is no word of the grammar."""
FREQUENT = 1000
"""The repetitions of what must become one word in the tokenizer's training: more than anything in the corpus has."""


def make_tiny(  # noqa: PLR0913 - one argument a line of the configuration
    directory: str | Path,
    *,
    corpus: Sequence[str],
    hidden: int = 128,
    layers: int = 2,
    words: int = 640,
    seed: int = 0,
    min_pixels: int = 56 * 56,
    max_pixels: int = 112 * 140,
    full_attention: Sequence[int] = FULL_ATTENTION,
    rotary_base: float = 10_000.0,
    rotary_sections: Sequence[int] = (4, 6, 6),
    context: int = CONTEXT,
) -> Path:
    """Write a randomly initialised Qwen2.5-VL with its own tokenizer and processor, and return the directory.

    The defaults give 0.7 million parameters and 20 visual tokens a screenshot of 112 x 140. Every integer up to the
    longest coordinate of a 16:9 screenshot of `max_pixels` is one token, so a click is five or six.

    Args:
        directory: Created if missing; `from_pretrained` and vLLM load it.
        corpus: Texts the byte-level BPE is trained on: instructions, responses and prompt texts of the tasks.
        hidden: Width of the language model, a multiple of 64: heads are 32 wide and come in pairs.
        layers: Depth of the language model.
        words: Size of the vocabulary at most, the 14 special tokens and 256 bytes included.
        seed: Of the weights.
        min_pixels: Smaller screenshots are enlarged to this.
        max_pixels: Larger screenshots are reduced to this.
        full_attention: Layers of the vision tower, of two, that see whole screenshots; the others see windows of
            112 x 112 pixels, as most of the real model do.
        rotary_base: Of the rotations of a head; the larger, the longer a conversation whose places differ. With
            10,000, the columns of a tiny screenshot hardly do: what looks at short ones is better off with 100.
        rotary_sections: How many of the 16 rotations, the fastest first, are those of time, row and column.
        context: Tokens of a conversation that the model is made for; engines refuse longer ones.

    Raises:
        ConfigError: If the numbers do not make a model.
    """
    if not set(full_attention) <= set(range(VISION_DEPTH)):
        raise ConfigError(f"full_attention must name layers 0 to {VISION_DEPTH - 1}, got {list(full_attention)}")
    if hidden < 2 * HEAD_DIM or hidden % (2 * HEAD_DIM):
        raise ConfigError(f"hidden must be a positive multiple of {2 * HEAD_DIM}, got {hidden}")
    check_at_least(1, layers=layers, context=context)
    check_positive(rotary_base=rotary_base)
    sections = list(rotary_sections)
    if len(sections) != AXES or sum(sections) != HEAD_DIM // 2 or min(sections) < 1:
        raise ConfigError(
            f"rotary_sections must be {AXES} positive numbers with the sum {HEAD_DIM // 2}, got {sections}"
        )
    if not 0 < min_pixels <= max_pixels:
        raise ConfigError(f"need 0 < min_pixels <= max_pixels, got {min_pixels} and {max_pixels}")
    largest_number = isqrt(max_pixels * 16 // 9)
    smallest_vocabulary = len(SPECIAL_TOKENS) + 256 + largest_number
    if words < smallest_vocabulary:
        raise ConfigError(
            f"words must be at least {smallest_vocabulary} (special tokens, bytes and numbers to {largest_number}), "
            f"got {words}; raise it or lower max_pixels"
        )
    tokenizer = _train_tokenizer(corpus, words, largest_number, context)
    rotary = {"rope_type": "default", "rope_theta": rotary_base, "mrope_section": sections}
    model = _build_model(tokenizer, hidden, layers, list(full_attention), rotary, seed, context)
    model.save_pretrained(directory)
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(
            min_pixels=min_pixels, max_pixels=max_pixels, image_mean=IMAGE_MEAN, image_std=IMAGE_SPREAD
        ),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(directory)
    log.info("made a tiny Qwen2.5-VL: %d parameters, %d words", model.num_parameters(), len(tokenizer))
    return Path(directory)


def _training_texts(corpus: Sequence[str], largest_number: int) -> Iterator[str]:
    # A letter in the place of what is quoted: names and passwords are spelled, and who can copy letters copies any.
    yield from (re.sub(COPIED, "x", text) for text in corpus)
    for _ in range(FREQUENT):
        yield from (str(number) for number in range(largest_number + 1))
        yield from ("user\n", "assistant\n", "system\n")


def _train_tokenizer(corpus: Sequence[str], words: int, largest_number: int, context: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE whose words may span spaces and quotes but never mix digits with anything else."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # A response starts after the assistant header's newline: no word may span it, or a conversation tokenized
            # as a whole would differ from one tokenized turn by turn.
            pre_tokenizers.Split("\n", behavior="merged_with_previous"),
            # The same tokens on both sides, as neither melts into the words around it.
            pre_tokenizers.Split(Regex(QUOTED), behavior="isolated"),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_texts(corpus, largest_number), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[t for t in SPECIAL_TOKENS if t not in ("<|im_end|>", "<|endoftext|>")],
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _build_model(
    tokenizer: PreTrainedTokenizerFast,
    hidden: int,
    layers: int,
    full_attention: list[int],
    rotary: dict[str, object],
    seed: int,
    context: int,
) -> Qwen2_5_VLForConditionalGeneration:
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL_TOKENS}
    rows = -(-len(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": rows,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // HEAD_DIM,
            "num_key_value_heads": hidden // HEAD_DIM // 2,
            "max_position_embeddings": context,
            "max_window_layers": layers,
            "rope_parameters": rotary,
            "tie_word_embeddings": True,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config=VISION | {"out_hidden_size": hidden, "fullatt_block_indexes": full_attention},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"], do_sample=True
    )
    return model
