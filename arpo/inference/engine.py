"""The inference protocol, and the facts that an engine reads of a checkpoint before it loads it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from arpo.errors import ConfigError

GREEDY = 1e-5
"""The temperature below which a response is greedy, for vLLM too: scores divided by less may overflow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The way to sample one response.

    There is no top-p, top-k or penalty: tokens that they cut have probability 0 for the engine and not for the
    trainer, and no weight on sampled tokens makes up for those that never are.
    """

    temperature: float = 1.0
    """Below `GREEDY` the response is greedy, and its log-probabilities are of the distribution at temperature 1."""
    max_tokens: int = 512
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A question to the engine: the whole context so far, and the way to sample one response."""

    prompt_ids: tuple[int, ...]
    """The context; one placeholder id stands for each image."""
    images: tuple[bytes, ...]
    """PNG screenshots in the order of their placeholders."""
    sampling: Sampling
    conversation: str = ""
    """The name of the episode that asks, unique among those that run; a fleet keeps it where its caches are."""
    least_version: int = 0
    """The oldest policy version that may answer; in a fleet, the request waits for a replica that has come so far."""


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response."""

    token_ids: tuple[int, ...]
    """Sampled ids, verbatim; ends with the end-of-turn id and `stop`, unless `finish_reason` is `length`."""
    logprobs: tuple[float, ...]
    """Of each id under the distribution it was sampled from."""
    finish_reason: str
    policy_version: int


@runtime_checkable
class Shaped(Protocol):
    """Tensors of an update whose names and shapes are known before the first of them is read."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor, by name."""


class InferenceEngine(Protocol):
    """A sampler of the policy. All methods are coroutines of one event loop, and many may be in flight."""

    async def generate(self, request: GenerateRequest) -> Response:
        """Sample one response; requests in flight are batched.

        Vision special ids and ids outside the tokenizer are never sampled. The same request with the same seed and
        the same weights gives the same ids whatever else is in flight, up to floating-point ties.

        Raises:
            EngineError: If the engine failed, or the context does not fit.
        """

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Adopt new weights: requests in flight finish on the old ones, new ones wait; every cache that
        depends on weights (prefix, multimodal, encoder) is emptied, and the checksum of what the engine holds is
        compared with that of what it was sent (`arpo.inference.pump.checksum`). Returns when the tensors may change.

        In a fleet that updates its replicas one after the other, new requests are answered by those that have their
        turn before or after them; the version of a response says which weights made it.

        The names are those of a `transformers` checkpoint; later responses carry the version.

        Raises:
            WeightSyncError: If the weights are not the model's, or a replica holds other ones afterwards.
        """

    async def weights(self) -> Mapping[str, Tensor]:
        """Return its weights by their names in the checkpoint, where a policy of this process may be views of them.

        It lacks those in another process, in several pieces, or not for sharing. Before one is changed the engine must
        be asleep, and an update wakes it.
        """

    async def sleep(self) -> None:
        """Free the memory of the device until the next `update_weights`, which wakes the engine; a no-op on a CPU.

        Requests in flight are answered first; later ones fail with `EngineError` as long as it sleeps.
        """

    @property
    def oldest_version(self) -> int:
        """The oldest policy version that may answer a request which comes now, whatever version it asks for."""

    def counters(self) -> dict[str, float]:
        """Return counts since the start, by metric; every value only grows."""

    async def close(self) -> None:
        """Free every resource; idempotent."""


def check_context(path: str | Path, max_model_len: int) -> None:
    """Check that a model takes contexts of so many tokens, unless it is a hub name or yet to be written."""
    positions = context_of(path)
    if positions is not None and max_model_len > positions:
        raise ConfigError(
            f"max_model_len={max_model_len} is more than the {positions} tokens that the model in '{path}' takes: "
            f"lower it to {positions} or less"
        )


def context_of(path: str | Path) -> int | None:
    """Return the tokens that a checkpoint was made for; None where there is none, or no number in it."""
    file = Path(path) / "config.json"
    if not file.exists():
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        # Published files are flat; transformers 5 nests what is the language model's.
        positions = (config.get("text_config") or config).get("max_position_embeddings")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{file} is not the configuration of a model: {error}") from error
    if positions is not None and not isinstance(positions, int):
        raise ConfigError(f"{file}: max_position_embeddings must be a whole number, got {positions!r}")
    return positions
