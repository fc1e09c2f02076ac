"""Conversations and trajectories as token ids: the only file that knows how turns and images become a sequence.

Text is text: what a task, a desktop or a response spells like a special token is encoded by its letters.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from jinja2 import TemplateError
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig

from arpo.agent.actions import CoordinateFrame
from arpo.agent.prompt import PromptText
from arpo.errors import ConfigError
from arpo.models.family import checkpoint_directory, family_named, family_of
from arpo.models.processor import image_numbers, load_processor
from arpo.types import Trajectory

BOX = re.compile(r"(?<=_box=['\"])(<\|box_start\|>)([^<>|'\"]*)(<\|box_end\|>)(?=['\"])")
"""Where special tokens stand in a response of UI-TARS: around the point of an action."""
SCREENSHOT = {"role": "user", "content": [{"type": "image"}]}
PROBE = "\ue000"
"""A response that no template holds."""
UNRENDERED = (ValueError, TypeError, TemplateError)
"""Errors of a chat template about messages that it does not take."""
CALL = re.compile(
    r"^(<tool_call>)(\n(?:\{.*\}|<function=\S+>\n(?:<parameter=\S+>\n(?:(?!</parameter>)(?s:.))*</parameter>\n)*"
    r"</function>)\n)(</tool_call>)$",
    re.MULTILINE,
)
"""Where Qwen3-VL and Qwen3.5 have tokens: around a call of a line of JSON, or of XML without a tag in a value."""


@dataclass(frozen=True, slots=True)
class Turns:
    """A conversation as its chat template writes it, cut at the turns of the assistant: what to put in their place."""

    between: tuple[tuple[int, ...], ...]
    """The ids before the first of them, between two, and behind the last, without the header of one to come."""
    answers: tuple[tuple[int, ...], ...]
    """The ids of each turn from its header on, but for its end."""
    thinking: tuple[bool, ...]
    """Whether each is written as it is sampled, with its thought."""


class ChatTokenizer:
    """The chat template, tokenizer and image sizes of a checkpoint.

    What stands between turns is cut out of the checkpoint's own chat template, so that any directory of a known family
    works unchanged. Ids are only ever appended: what was sampled is never decoded and tokenized again.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._processor = load_processor(path)
        self.family = family_of(path)
        config = load_processor(path, AutoConfig)
        self._tokenizer = self._processor.tokenizer
        self._added: dict[str, int] = self._tokenizer.get_added_vocab()
        # The longest first: where one begins another, the tokenizer takes the longer.
        names = sorted(self._added, key=len, reverse=True)
        self._markup = re.compile(f"({'|'.join(map(re.escape, names))})")
        # transformers loads Qwen3.5's by a class that splits words in its own way, whatever the file says.
        file = checkpoint_directory(path) / "tokenizer.json"
        written = Tokenizer.from_file(str(file)) if file.is_file() else self._tokenizer.backend_tokenizer
        # The same without the tokens that stand beside its words.
        self._letters = Tokenizer(written.model)
        if written.normalizer is not None:
            self._letters.normalizer = written.normalizer
        if written.pre_tokenizer is not None:
            self._letters.pre_tokenizer = written.pre_tokenizer
        self.image_token_id: int = config.image_token_id
        self._glue = self._derive_glue(path)
        self.end_of_turn_id: int = self._glue[0]
        self.header: tuple[int, ...] = self._encode(self._header + self._opened)
        """The ids that every prompt ends with: the header of an answer, and the beginning of a thought in some."""
        whole = self.render([SCREENSHOT, {"role": "assistant", "content": PROBE}])
        bare = self._encode(whole.partition(PROBE)[2])
        self._screenshot_turn = self._glue[1 : len(self._glue) - len(bare) + 1]
        """The ids of a user turn that holds a screenshot and nothing else, as they follow the end of a turn."""
        self.forbidden_ids: tuple[int, ...] = self._never_sampled(config.text_config.vocab_size)
        self._forbidden = frozenset(self.forbidden_ids)
        self.longest_token = max(map(len, self._tokenizer.get_vocab()))
        """Letters of a text that one id can stand for."""
        never = self._forbidden | {self.end_of_turn_id}
        self._grammar = frozenset(name for name, number in self._added.items() if number not in never)
        self.pictures = image_numbers(self._processor.image_processor, path)
        """The numbers by which a screenshot becomes what the model sees."""

    def check_pictures(self, family: str, min_pixels: int, max_pixels: int) -> None:
        """Check that the checkpoint sees pictures as the demonstrations do, which were made for a family and sizes."""
        name, sizes, factor = self.family.model_type, self.pictures.sizes, family_named(family).resize_factor
        here = (name, sizes.factor, sizes.min_pixels, sizes.max_pixels)
        if here != (family, factor, min_pixels, max_pixels):
            raise ConfigError(
                f"the checkpoint ({name}, {sizes.factor} pixels along a token) sees images of {sizes.min_pixels} to "
                f"{sizes.max_pixels} pixels, and the demonstrations ({family}, {factor} pixels) are for {min_pixels} "
                f"to {max_pixels}: delete it, or set family and image_limits to its own"
            )

    def check_teacher(self, teacher: "ChatTokenizer") -> None:
        """Check that a teacher reads the ids and sees the screenshots that a policy of this tokenizer does."""
        own, other = (
            {"family": each.family, "vocabulary": each._tokenizer.get_vocab(), "image processor": each.pictures}
            for each in (self, teacher)
        )
        if differing := [name for name in own if own[name] != other[name]]:
            raise ConfigError(
                f"the teacher {teacher.path} has another {differing[0]} than the policy {self.path}, and cannot score "
                "what that one samples: take a teacher that began as the same model, or one of its family"
            )

    @property
    def pad_id(self) -> int:
        """An id to fill batches with; any would do."""
        return int(self._tokenizer.pad_token_id)

    def first_prompt(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Return the ids of the conversation up to and including the assistant header, one id for each image.

        The content of a message is a string or a list of `{"type": "text", "text": …}` and `{"type": "image"}` parts.
        A text is encoded by its letters; in a `PromptText`, what is not foreign may hold the tokens that responses may
        hold, too.
        """
        marks = _unused(messages)
        return self._with_images(self._encode(self.render(self._marked(messages, *marks)), *marks), messages)

    def turns(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> Turns:
        """Return the ids of a foreign conversation, cut at the assistant's turns, as the chat template writes them.

        Beside its content, a message may have `reasoning_content` and `tool_calls`, whose arguments are objects. Every
        text, name and schema is encoded by its letters; in a turn of the assistant alone, the tokens that
        `encode_response` has are tokens.
        """
        marks = _unused([messages, tools])
        hidden = [{**tool, "function": self._hidden(tool["function"], marks[0])} for tool in tools]
        first, *rest = self.render(self._marked(messages, *marks), hidden).split(self._header)
        said = [message for message in messages if message["role"] == "assistant"]
        if len(rest) != len(said) + 1 or rest[-1] != self._opened:
            raise ValueError(f"the chat template of {str(self.path)!r} writes no turn of its own for each answer")
        end = str(self._tokenizer.convert_ids_to_tokens(self.end_of_turn_id))
        parts = [turn.partition(end) for turn in rest[:-1]]
        between = tuple(self._encode(part, *marks) for part in (first, *(end + after for *_, after in parts)))
        self._with_images(tuple(number for ids in between for number in ids), messages)
        return Turns(
            between,
            tuple(self._encode(self._header + body, *marks) for body, *_ in parts),
            tuple(
                body.startswith(self._opened)
                and (not str(message.get("reasoning_content", "")).strip() or marks[1] in body)
                for message, (body, *_) in zip(said, parts, strict=True)
            ),
        )

    def _with_images(self, ids: tuple[int, ...], messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        images = sum(
            part["type"] == "image"
            for message in messages
            if not isinstance(message["content"], str)
            for part in message["content"]
        )
        if ids.count(self.image_token_id) != images:
            raise ValueError(
                f"{images} images but {ids.count(self.image_token_id)} image placeholders in the prompt: the chat "
                f"template of {str(self.path)!r} must write one for each image"
            )
        return ids

    def next_prompt(self, response_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids behind a response: the end of its turn, a user turn with one image, the assistant header.

        A sampled end of turn is never doubled, and a missing one is part of the prompt, outside the action mask.
        """
        ended = bool(response_ids) and response_ids[-1] == self.end_of_turn_id
        return self._glue[1:] if ended else self._glue

    def without_screenshot(self, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return a prompt of one screenshot without it, and without the turn of the user that holds nothing else."""
        turn = self._screenshot_turn
        at = prompt_ids.index(self.image_token_id)
        start = at - turn.index(self.image_token_id)
        if start >= 0 and prompt_ids[start : start + len(turn)] == turn:
            return prompt_ids[:start] + prompt_ids[start + len(turn) :]
        around = self.family.around_image
        return prompt_ids[: at - around] + prompt_ids[at + 1 + around :]

    def scripted(self, text: str) -> str:
        """Return a script's response as it follows a prompt: behind the thought that the template may have opened."""
        opened = self.decode(self._glue).endswith("<think>\n")
        return f"\n</think>\n\n{text}" if opened and "</think>" not in text else text

    def encode_response(self, text: str) -> tuple[int, ...]:
        """Return the ids of a written response, with the end-of-turn id that a model would sample.

        Special tokens are those around a call or the point of an action; elsewhere what looks like one is text.
        """
        ids = [
            number
            for part, token in self._spoken(text)
            for number in ([self._added[part]] if token else self._spelled(part))
        ]
        return (*ids, self.end_of_turn_id)

    def _spoken(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of a response, and whether each is a token."""
        # Where a tokenizer has no such tokens, a word may span a tag and what is around it.
        for place, piece in enumerate(CALL.split(text) if "<tool_call>" in self._added else [text]):
            if place % 4 in (1, 3):
                yield piece, True
                continue
            for inside, part in enumerate(BOX.split(piece)):  # text, token, point, token and text
                yield part, inside % 4 in (1, 3) and part in self._added

    def check_response(self, response_ids: Sequence[int]) -> None:
        """Refuse a response that the policy cannot have sampled."""
        if not self._forbidden.isdisjoint(response_ids):
            wrong = sorted(self._forbidden.intersection(response_ids))
            raise ValueError(
                f"response holds ids {wrong} ({self._tokenizer.convert_ids_to_tokens(wrong)}), which are never "
                "sampled; the engine must mask forbidden_ids"
            )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without special tokens; what stands between box tokens stays."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def spell(self, ids: Sequence[int]) -> str:
        """Return the text with special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def model_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of a screenshot as the model sees it, in pixels."""
        return self.pictures.sizes.model_size(width, height)

    def frame(self, width: int, height: int) -> CoordinateFrame:
        """Return the map between the points that the model names in a screenshot of this size and the screen's."""
        return self.family.frame((width, height), self.model_size(width, height))

    def image_tokens(self, width: int, height: int) -> int:
        """Return the number of tokens of a screenshot of this size."""
        return prod(self.pictures.sizes.grid(width, height)) // self.pictures.sizes.merge_size**2

    def context_length(self, ids: Sequence[int], sizes: Sequence[tuple[int, int]]) -> int:
        """Return the number of tokens of a context once each image placeholder is as long as its screenshot."""
        return len(ids) - len(sizes) + sum(self.image_tokens(width, height) for width, height in sizes)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return a conversation as the chat template writes it, up to and including the assistant header."""
        written = self._processor.apply_chat_template(
            list(messages), tools=list(tools) or None, add_generation_prompt=True, tokenize=False
        )
        return str(written)

    def _marked(self, messages: Sequence[Mapping[str, Any]], mark: str, thinking: str) -> list[dict[str, Any]]:
        """Return messages with a mark between the letters of what is text: no special token can be found in it."""
        marked = partial(self._marked_text, mark=mark)
        found = []
        for message in messages:
            role, content = message["role"], message["content"]
            if isinstance(content, str):
                content = marked(content, role)
            else:
                content = [part | {"text": marked(part["text"], role)} if "text" in part else part for part in content]
            made = {**message, "content": content}
            if "reasoning_content" in message:
                made["reasoning_content"] = self._hidden(message["reasoning_content"], thinking)
            if "tool_calls" in message:
                calls = message["tool_calls"]
                made["tool_calls"] = [{**call, "function": self._hidden(call["function"], mark)} for call in calls]
            found.append(made)
        return found

    def _marked_text(self, text: str, role: str, mark: str) -> str:
        if not isinstance(text, PromptText):
            spoken = self._spoken(text) if role == "assistant" else [(text, False)]
            return "".join(part if token else self._hidden(part, mark) for part, token in spoken)
        before, behind = (
            "".join(
                piece if piece in self._grammar else self._hidden(piece, mark) for piece in self._markup.split(part)
            )
            for part in (text.before, text.behind)
        )
        return before + str(self._hidden(text.foreign, mark)) + behind

    def _hidden(self, value: Any, mark: str) -> Any:
        """Return a value with a mark around each of its texts, and between the letters of one that spells a token.

        White space at the ends stays outside, for templates that cut it off.
        """
        if isinstance(value, str):
            body = value.strip()
            if not body:
                return value
            before, _, after = value.partition(body)
            return f"{before}{mark}{mark.join(body) if self._markup.search(body) else body}{mark}{after}"
        if isinstance(value, Mapping):
            return {
                self._hidden(key, mark) if self._markup.search(key) else key: self._hidden(each, mark)
                for key, each in value.items()
            }
        return [self._hidden(each, mark) for each in value] if isinstance(value, list | tuple) else value

    def _encode(self, rendered: str, *marks: str) -> tuple[int, ...]:
        """Return the ids of what a chat template has rendered, its special tokens among them."""
        ids: list[int] = []
        for piece in self._markup.split(rendered):
            if piece in self._added:
                ids.append(self._added[piece])
                continue
            text = piece
            for mark in marks:
                text = text.replace(mark, "")
            ids += self._spelled(text)
        return tuple(ids)

    def _spelled(self, text: str) -> list[int]:
        whole = text.encode(errors="replace").decode()  # half a surrogate pair becomes a question mark
        # As a batch: the other threads of this process go on meanwhile, and a foreign agent's text may be long.
        return list(self._letters.encode_batch_fast([whole], add_special_tokens=False)[0].ids)

    def _derive_glue(self, path: str | Path) -> tuple[int, ...]:
        """Return the ids between the end of a response and the start of the next, from two renderings of a probe."""
        try:
            head = self.render([SCREENSHOT])
            whole = self.render([SCREENSHOT, {"role": "assistant", "content": PROBE}, SCREENSHOT])
        except UNRENDERED as error:
            raise ConfigError(f"the chat template of {str(path)!r} cannot be rendered: {error}") from error
        before, _, after = whole.partition(PROBE)
        glue = self._encode(after)
        at = max((found.start() for found in self._markup.finditer(before)), default=len(before))
        self._header, self._opened = before[at:], head[len(before) :]
        # Qwen3.5 opens a thought for a response to come, and not for one that has come.
        ends_turns = (
            head.startswith(before) and self._header and glue[:1] and glue[0] in self._tokenizer.all_special_ids
        )
        if not ends_turns or glue.count(self.image_token_id) != 1:
            raise ConfigError(
                f"the chat template of {str(path)!r} does not append turns that end with a special token and hold one "
                f"placeholder an image: after a response it renders {after!r}"
            )
        return glue

    def _never_sampled(self, vocabulary_size: int) -> tuple[int, ...]:
        ids = self._tokenizer.get_vocab()
        special = {ids[name] for name in (*self.family.never_sampled, self._tokenizer.pad_token) if name in ids}
        special.discard(self.end_of_turn_id)
        # The embedding has more rows than the tokenizer has words; the rest decodes to nothing.
        return tuple(sorted(special.union(range(len(self._tokenizer), vocabulary_size))))


def _unused(said: Any) -> tuple[str, str]:
    """Return two characters that stand nowhere in what is said."""
    text = json.dumps(said, ensure_ascii=False)
    unused = (character for character in map(chr, range(0xE000, 0x110000)) if character not in text)
    return next(unused), next(unused)


Span = tuple[int, int]
"""The first of some tokens in a row, and the one behind the last."""


def check_exchanges(trajectory: Trajectory, chat: ChatTokenizer) -> None:
    """Check that a trajectory's exchanges can have been: a placeholder a picture, and no id that is never sampled."""
    for number, exchange in enumerate(trajectory.exchanges):
        where = f"trajectory {trajectory.id!r}, exchange {number}"
        found, wanted = exchange.added_ids.count(chat.image_token_id), len(exchange.pictures)
        if found != wanted:
            raise ValueError(f"{where}: {wanted} pictures but {found} image placeholders in added_ids")
        try:
            chat.check_response(exchange.response_ids)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedTrajectory:
    """One training sequence: every image placeholder as long as its picture, no padding."""

    input_ids: Int64[Tensor, " tokens"]
    action_mask: Bool[Tensor, " tokens"]
    """True exactly on sampled tokens that are trained."""
    image_mask: Bool[Tensor, " tokens"]
    """True on image placeholders."""
    screenshots: tuple[str, ...]
    """SHA-256 of each picture, in the order of the placeholders."""
    sampler_logprobs: Float[Tensor, " actions"]
    """The engine's log-probability of each trained token."""
    spans: tuple[Span, ...]
    """Of each response that is trained, in order: its place among the trained tokens of the trajectory."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def step_lengths(self) -> tuple[int, ...]:
        """The tokens of each response that is trained."""
        return tuple(end - start for start, end in self.spans)


def tokenize(trajectory: Trajectory, chat: ChatTokenizer) -> list[TokenizedTrajectory]:
    """Return the training sequences of a trajectory, as the engine saw them: a path of its tree each."""
    if not trajectory.exchanges:
        raise ValueError(f"trajectory {trajectory.id!r} has no exchanges: what a script says must be encoded first")
    check_exchanges(trajectory, chat)
    return [_sequence(trajectory, *sequence, chat) for sequence in trajectory.sequences()]


def _sequence(
    trajectory: Trajectory, path: Sequence[int], trained: Sequence[int], chat: ChatTokenizer
) -> TokenizedTrajectory:
    """Return the sequence along a path of exchanges, of which it trains some."""
    ids: list[int] = []
    sampled: list[bool] = []
    shown: list[str] = []
    logprobs: list[float] = []
    for number in path:
        exchange = trajectory.exchanges[number]
        sizes = (chat.image_tokens(picture.width, picture.height) for picture in exchange.pictures)
        for given in exchange.added_ids:
            ids += [given] * (next(sizes) if given == chat.image_token_id else 1)
        sampled += [False] * (len(ids) - len(sampled)) + [number in trained] * len(exchange.said_ids)
        ids += exchange.said_ids
        shown += [picture.key for picture in exchange.pictures]
        logprobs += exchange.sampler_logprobs[: len(exchange.said_ids)] if number in trained else ()
    input_ids = torch.tensor(ids, dtype=torch.int64)
    spans = list(pairwise(accumulate(trajectory.trained_lengths, initial=0)))
    return TokenizedTrajectory(
        input_ids=input_ids,
        action_mask=torch.tensor(sampled, dtype=torch.bool),
        image_mask=input_ids == chat.image_token_id,
        screenshots=tuple(shown),
        sampler_logprobs=torch.tensor(logprobs, dtype=torch.float32),
        spans=tuple(spans[number] for number in trained),
    )
