"""Models of the known families small enough to learn on two cores, written on the spot."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2VLImageProcessor

from arpo.bounds import AtLeastOne, Positive, checked
from arpo.errors import ConfigError

log = logging.getLogger(__name__)

CONTEXT = 32768
"""Tokens of a conversation that the model is made for by default."""
QUOTED = r"""(?<=["'])\w[^"'()\n]*(?=["'])"""
"""What an instruction quotes, and what a response has in quotes."""
COPIED = r"""(?:(?<=")(?<!": ")|(?<="text": ")|(?<=content='))\w[^"'()\n]*(?=["'])(?!": ["{\[\d-])"""
"""The part of it that is copied from the one to the other, and is no word of a grammar: no key or value of a call."""
TYPED = r"""(?:(?<="text": ")|(?<=content='))[^"'()\n]*"""
"""What a response types."""
WORD = r"(?<![^\W_])[A-Za-z]{2,}(?![^\W_])"
NAME = rf"{WORD}(?=[-./])|(?<=[-./]){WORD}"
"""A word of a file's name, which an instruction may have without quotes: `late` in `Delete late-poem.txt.`"""
RARE = 3
"""What is typed less often than this is a name by chance, such as a random password."""
FREQUENT = 1000
"""The repetitions of what must become one word in the tokenizer's training: more than anything in the corpus has."""

_NAMES = (
    "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start "
    "vision_end vision_pad image_pad video_pad"
)
SPECIAL_TOKENS = tuple(f"<|{name}|>" for name in _NAMES.split())
"""Qwen2.5-VL's special tokens, by its names and in its order."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2.5-VL's turns without its default system message, which would cost tokens in every prompt."""

HEAD_DIM = 32
"""vLLM's CPU attention wants a multiple of 32."""
AXES = 3
"""Time, row and column."""
VISION_SPREAD = 0.1
"""Standard deviation of the vision tower's first weights: 0.02, the real model's, suits a width of 1,280."""
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "initializer_range": VISION_SPREAD,
}
IMAGE_MEAN = (1.0, 1.0, 1.0)
IMAGE_SPREAD = (0.15, 0.15, 0.15)
"""White is zero: most of a page is white, and a grey button on it would differ from it by a hundredth of its norm."""
VOCABULARY_MULTIPLE = 64
"""The embedding has more rows than the tokenizer has words, as in the real model: 152,064 against 151,665."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A tiny model of one family, by the settings in which it differs from those of others."""

    model: Any
    config: Any
    processor: Any
    video_processor: Any
    image_processor: dict[str, int] = field(default_factory=dict)
    pixels: tuple[int, int]
    """The smallest and the largest picture, where `make` is given no others."""
    numbers: int | None = None
    """How many numbers are one token each, beside the words; None: up to the longest coordinate, among the words."""
    rotary_sections: tuple[int, int, int]
    """Where `make` is given no others."""
    rotations: dict[str, Any] = field(default_factory=dict)
    """Of the language model's rotations, beside their base and sections."""
    least_layers: int = 1
    text: Callable[[int, int], dict[str, Any]]
    """Settings of the language model, by its width and depth."""
    vision: dict[str, Any]

    @checked
    def make(  # noqa: PLR0913 - one argument a line of the configuration
        self,
        directory: str | Path,
        *,
        corpus: Sequence[str],
        hidden: int = 128,
        layers: AtLeastOne = 2,
        words: int = 640,
        seed: int = 0,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        rotary_base: Positive = 10_000.0,
        rotary_sections: Sequence[int] | None = None,
        context: AtLeastOne = CONTEXT,
        vision: dict[str, Any] | None = None,
    ) -> Path:
        """Write a randomly initialised model with its own tokenizer and processor, and return the directory.

        The defaults give 0.7 to 0.9 million parameters and 20 visual tokens a screenshot of the largest size. Every
        number that a point can have is one token, so a click is five or six.

        Args:
            directory: Created if missing; `from_pretrained` and vLLM load it.
            corpus: Texts the byte-level BPE is trained on: instructions, responses and prompt texts of the tasks.
            hidden: Width of the language model, a multiple of 64: heads are 32 wide and come in pairs.
            layers: Its depth.
            words: Size of the vocabulary at most, the 14 special tokens and 256 bytes included; numbers are more where
                points are thousandths of the screen.
            seed: Of the weights.
            min_pixels: Smaller screenshots are enlarged to this.
            max_pixels: Larger screenshots are reduced to this.
            rotary_base: Of the rotations of a head; the larger, the longer a conversation whose places differ. With
                10,000, the columns of a tiny screenshot hardly do: what looks at short ones is better off with 100.
            rotary_sections: How many of the 16 rotations are those of time, row and column: the fastest first, or in
                turns where the family interleaves them, so that rows and columns get five at most, and time the rest.
            context: Tokens of a conversation that the model is made for; engines refuse longer ones.
            vision: Settings of the vision tower in the place of the family's.
        """
        least = self.pixels[0] if min_pixels is None else min_pixels
        most = self.pixels[1] if max_pixels is None else max_pixels
        if not 0 < least <= most:
            raise ConfigError(f"need 0 < min_pixels <= max_pixels, got {least} and {most}")
        if layers < self.least_layers:
            raise ConfigError(f"layers must be at least {self.least_layers}, got {layers}")
        if hidden < 2 * HEAD_DIM or hidden % (2 * HEAD_DIM):
            raise ConfigError(f"hidden must be a positive multiple of {2 * HEAD_DIM}, got {hidden}")
        sections = list(self.rotary_sections if rotary_sections is None else rotary_sections)
        if len(sections) != AXES or sum(sections) != HEAD_DIM // 2 or min(sections) < 1:
            raise ConfigError(
                f"rotary_sections must be {AXES} positive numbers with the sum {HEAD_DIM // 2}, got {sections}"
            )
        largest = isqrt(most * 16 // 9) if self.numbers is None else self.numbers - 1
        tokenizer = _train_tokenizer(corpus, words + (self.numbers or 0), largest, context)
        rotations: dict[str, Any] = {"rope_type": "default", "rope_theta": rotary_base, "mrope_section": sections}
        text: dict[str, Any] = {
            "vocab_size": -(-len(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // HEAD_DIM,
            "num_key_value_heads": hidden // HEAD_DIM // 2,
            "max_position_embeddings": context,
            "rope_parameters": rotations | self.rotations,
            "tie_word_embeddings": True,
            "bos_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        config = self.config(
            text_config=text | self.text(hidden, layers),
            vision_config=VISION | {"out_hidden_size": hidden} | self.vision | (vision or {}),
            tie_word_embeddings=True,
            image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
            video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
            vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
            vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        )
        config.architectures = [self.model.__name__]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.model(config)
        model.generation_config = GenerationConfig(
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
        )
        model.save_pretrained(directory)
        images = Qwen2VLImageProcessor(
            min_pixels=least, max_pixels=most, image_mean=IMAGE_MEAN, image_std=IMAGE_SPREAD, **self.image_processor
        )
        self.processor(
            image_processor=images,
            tokenizer=tokenizer,
            video_processor=self.video_processor(),
            chat_template=CHAT_TEMPLATE,
        ).save_pretrained(directory)
        log.info("made a tiny %s: %d parameters, %d words", config.model_type, model.num_parameters(), len(tokenizer))
        return Path(directory)


def _train_tokenizer(corpus: Sequence[str], words: int, largest_number: int, context: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE in which every number up to the largest is one token.

    Words may span spaces and quotes but never mix digits with anything else. Special tokens have the first ids.
    """
    smallest_vocabulary = len(SPECIAL_TOKENS) + 256 + largest_number
    if words < smallest_vocabulary:
        raise ConfigError(
            f"words must be at least {smallest_vocabulary} (special tokens, bytes and numbers to {largest_number}), "
            f"got {words}"
        )
    names = _names(corpus)
    apart = [pre_tokenizers.Split(Regex(rf"(?<![^\W_])(?:{'|'.join(names)})(?![^\W_])"), behavior="isolated")]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # A response starts after the assistant header's newline: no word may span it, or a conversation tokenized
            # as a whole would differ from one tokenized turn by turn.
            pre_tokenizers.Split("\n", behavior="merged_with_previous"),
            # The same tokens on both sides, as neither melts into the words around it.
            pre_tokenizers.Split(Regex(QUOTED), behavior="isolated"),
            pre_tokenizers.Digits(individual_digits=False),
            *(apart if names else ()),
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
    # A letter in the place of a quotation: names and passwords are spelled, and what copies letters copies any.
    texts = (re.sub(COPIED, "x", text) for text in corpus)
    whole = [*map(str, range(largest_number + 1)), "user\n", "assistant\n", "system\n", *names]
    tokenizer.train_from_iterator(chain(texts, whole * FREQUENT), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[t for t in SPECIAL_TOKENS if t not in ("<|im_end|>", "<|endoftext|>")],
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _names(corpus: Sequence[str]) -> list[str]:
    """Return the words of files' names that responses type and instructions have without quotes, in their order.

    Spelled on one side and a word on the other they could not be copied, so each is a word on both.
    """
    typed = Counter(name for text in corpus for span in re.findall(TYPED, text) for name in re.findall(NAME, span))
    plain = {name for text in corpus for name in re.findall(WORD, re.sub(QUOTED, "", text))}
    return sorted(name for name, times in typed.items() if name in plain and times >= RARE)
