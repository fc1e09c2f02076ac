"""An engine that is transformers' generate: batches of requests, each with its own random numbers."""

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from arpo.bounds import AtLeastOne, checked
from arpo.host.trial import before_start
from arpo.inference.engine import GREEDY, GenerateRequest, Response, check_context
from arpo.inference.pump import ThreadedEngine, check_length, check_request, checksum, combine_checksums
from arpo.models.checkpoint import CheckpointWeights
from arpo.models.images import ImageProcessor
from arpo.models.lora import add_lora, weights_by_name
from arpo.models.policy import Float32Head, dtype_of
from arpo.models.tokenization import ChatTokenizer
from arpo.models.vision.tower import ImagePatches
from arpo.types import screenshot_key


@checked
class HfEngine(ThreadedEngine):
    """An engine in a thread of this process, by `model.generate`: slower than vLLM, needs and caches nothing more.

    It generates on the current GPU, or on the CPU where there is none. Requests that wait are generated together,
    left-padded, until the last of them is done.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dtype: Literal["float32", "bfloat16"] = "float32",
        max_batch: AtLeastOne = 16,
        max_model_len: AtLeastOne = 4096,
        deterministic: bool = False,
    ) -> None:
        """Load the weights at `path` as policy version 0.

        Args:
            path: A `from_pretrained` directory.
            dtype: Number format of weights and computation.
            max_batch: Requests that are generated together.
            max_model_len: Tokens of prompt, images and response together.
            deterministic: Whether responses are the same bit for bit whatever else is in flight. Requests are then
                generated one by one, so this is for tests and tiny runs.
        """
        check_context(path, max_model_len)
        before_start()
        chat, at_once = ChatTokenizer(path), 1 if deterministic else max_batch
        super().__init__(max_in_flight=at_once, shapes=CheckpointWeights(path).shapes, dtype=dtype_of(dtype))
        self._path = path
        self._device = _device()
        self._max_model_len = max_model_len
        self._chat = chat
        self._family = chat.family
        self._forbidden = torch.tensor(chat.forbidden_ids, device=self._device)
        self._images = ImageProcessor(path)
        self._model: Any = None
        self._parameters: dict[str, Tensor] = {}
        self._waiting: dict[str, _Row] = {}
        self._launch()

    def _check(self, request: GenerateRequest) -> None:
        check_request(request, self._chat.image_token_id, self._shapes[self._family.embedding][0])

    def _start(self) -> None:
        with torch.random.fork_rng(devices=[]):  # a Gated DeltaNet draws numbers while it is made
            model = self._family.model_class.from_pretrained(self._path, dtype=self._dtype)
        model.lm_head = Float32Head(model.lm_head, self._dtype)
        self._model = model.eval().to(self._device)
        self._freeze()

    def _freeze(self) -> None:
        """Train no weight there is, and know each by its name in a checkpoint."""
        named = weights_by_name(self._model.requires_grad_(requires_grad=False))
        self._parameters = {self._family.checkpoint_name(name): weight for name, weight in named}

    def _add(self, key: str, request: GenerateRequest) -> None:
        self._check_pictures(request.images)
        patches = [self._images(screenshot_key(png), png) for png in request.images]
        merged = self._images.merge_size**2
        tokens = iter(prod(patch.grid) // merged for patch in patches)
        image = self._chat.image_token_id
        ids = [each for given in request.prompt_ids for each in [given] * (next(tokens) if given == image else 1)]
        check_length(len(ids), self._max_model_len)
        room = min(request.sampling.max_tokens, self._max_model_len - len(ids))
        generator = torch.Generator(self._device).manual_seed(request.sampling.seed)
        temperature = request.sampling.temperature
        self._waiting[key] = _Row(ids, patches, temperature if temperature >= GREEDY else 0.0, room, generator)

    def _abort(self, key: str) -> None:
        self._waiting.pop(key, None)

    @torch.no_grad()
    def _step(self) -> Sequence[tuple[str, Response]]:
        waiting, self._waiting = self._waiting, {}
        rows = list(waiting.values())
        self._model.generate(
            **self._inputs(rows),
            generation_config=GenerationConfig(
                do_sample=False,  # each row samples for itself and leaves one choice that is possible
                max_new_tokens=max(row.room for row in rows),
                pad_token_id=self._chat.pad_id,
            ),
            logits_processor=LogitsProcessorList([partial(self._sample, rows)]),
            stopping_criteria=StoppingCriteriaList(
                [lambda ids, *_, **__: torch.tensor([row.done for row in rows], device=ids.device)]
            ),
        )
        return [
            (key, Response(tuple(row.ids), tuple(row.logprobs), "stop" if row.stopped else "length", self._version))
            for key, row in waiting.items()
        ]

    def _inputs(self, rows: Sequence["_Row"]) -> dict[str, Tensor]:
        width = max(len(row.prompt_ids) for row in rows)
        ids = torch.full((len(rows), width), self._chat.pad_id)
        attended = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, width - len(row.prompt_ids) :] = torch.tensor(row.prompt_ids)
            attended[number, width - len(row.prompt_ids) :] = 1
        inputs = {"input_ids": ids, "attention_mask": attended}
        patches = [patch for row in rows for patch in row.patches]
        inputs |= self._family.generation_inputs(ids == self._chat.image_token_id, patches, self._dtype)
        return {name: tensor.to(self._device) for name, tensor in inputs.items()}

    def _sample(
        self, rows: Sequence["_Row"], input_ids: Int64[Tensor, "rows tokens"], scores: Float[Tensor, "rows words"]
    ) -> Float[Tensor, "rows words"]:
        """Return scores that are 0 for the id that each row sampled, and -inf for all others."""
        self._counts["steps"] += 1  # a batch takes as long as its longest response
        scores = scores.float().index_fill(1, self._forbidden, -torch.inf)
        # Greedy log-probabilities are of the distribution at temperature 1.
        temperatures = torch.tensor([row.temperature or 1.0 for row in rows], device=scores.device)
        logprobs = torch.log_softmax(scores / temperatures[:, None], dim=-1)
        choice = torch.full_like(scores, -torch.inf)
        for number, row in enumerate(rows):
            word = self._chat.pad_id if row.done else row.choose(logprobs[number], self._chat.end_of_turn_id)
            choice[number, word] = 0.0
        return choice

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            if name not in self._parameters:  # an adapter's first tensor is an A, which has as many rows as the rank
                add_lora(self._model, self._family.lora_targets, rank := len(tensor), rank)
                self._freeze()
            self._parameters[name].copy_(tensor)

    def _checksum(self, names: Sequence[str]) -> int:
        return combine_checksums((name, checksum(self._parameters[name])) for name in names)

    def _stop(self) -> None:
        self._model = None
        self._parameters.clear()
        self._waiting.clear()
        gc.collect()


def _device() -> torch.device:
    """Return the GPU of this thread by its number, which the thread of the engine does not inherit, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


@dataclass(slots=True, eq=False)
class _Row:
    """One request while it is generated, with its own random numbers."""

    prompt_ids: list[int]
    patches: list[ImagePatches]
    temperature: float
    room: int
    generator: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False

    @property
    def done(self) -> bool:
        return self.stopped or len(self.ids) == self.room

    def choose(self, logprobs: Float[Tensor, " words"], end_of_turn_id: int) -> int:
        """Sample and record the next id of this row."""
        greedy = self.temperature == 0
        word = int(logprobs.argmax() if greedy else torch.multinomial(logprobs.exp(), 1, generator=self.generator))
        self.ids.append(word)
        self.logprobs.append(float(logprobs[word]))
        self.stopped = word == end_of_turn_id
        return word
