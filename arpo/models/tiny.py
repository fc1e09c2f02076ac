"""The words of a model small enough to learn on two cores; all else about it is in its family's `make_tiny`."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTEXT = 32768
"""Tokens of a conversation that the model is made for, unless it is told otherwise."""
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


def train_words(corpus: Sequence[str], words: int, largest_number: int, special_tokens: Sequence[str]) -> Tokenizer:
    """Return a byte-level BPE whose words may span spaces and quotes but never mix digits with anything else.

    Args:
        corpus: Texts that it is trained on.
        words: Size of the vocabulary at most, special tokens and 256 bytes included.
        largest_number: The last of the numbers from 0 on that are one token each.
        special_tokens: Get the first ids, in this order.
    """
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
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_texts(corpus, names, largest_number), trainer)
    return tokenizer


def _names(corpus: Sequence[str]) -> list[str]:
    """Return the words of files' names that responses type and instructions have without quotes, in their order.

    Spelled on one side and a word on the other they could not be copied, so each is a word on both.
    """
    typed = Counter(name for text in corpus for span in re.findall(TYPED, text) for name in re.findall(NAME, span))
    plain = {name for text in corpus for name in re.findall(WORD, re.sub(QUOTED, "", text))}
    return sorted(name for name, times in typed.items() if name in plain and times >= RARE)


def _training_texts(corpus: Sequence[str], names: Sequence[str], largest_number: int) -> Iterator[str]:
    # A letter in the place of what is quoted: names and passwords are spelled, and who can copy letters copies any.
    yield from (re.sub(COPIED, "x", text) for text in corpus)
    for _ in range(FREQUENT):
        yield from (str(number) for number in range(largest_number + 1))
        yield from ("user\n", "assistant\n", "system\n")
        yield from names
