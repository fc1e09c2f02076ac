"""The inference protocol: prompts with images in, sampled ids and their log-probabilities out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from arpo.errors import EngineError


@dataclass(frozen=True, slots=True)
class Sampling:
    """The way to sample one response.

    There is no top-p, top-k or penalty: tokens that they cut have probability 0 for the engine and not for the
    trainer, and no weight on what was sampled makes up for what never is.
    """

    temperature: float = 1.0
    """0 is greedy. Log-probabilities are of the distribution at this temperature; greedy ones at temperature 1."""
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

    def check_images(self, image_token_id: int) -> None:
        """Check that there is one image for each placeholder.

        Raises:
            EngineError: If there is not.
        """
        placeholders = self.prompt_ids.count(image_token_id)
        if placeholders != len(self.images):
            raise EngineError(f"the prompt has {placeholders} image placeholders for {len(self.images)} images")


def check_length(tokens: int, max_model_len: int) -> None:
    """Check that a context leaves room for at least one token of a response.

    Raises:
        EngineError: If it does not.
    """
    if tokens >= max_model_len:
        raise EngineError(f"a context of {tokens} tokens leaves no room for a response in {max_model_len}")


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response."""

    token_ids: tuple[int, ...]
    """Sampled ids, verbatim; ends with the end-of-turn id unless `finish_reason` is `length`."""
    logprobs: tuple[float, ...]
    """Log-probability of each id under the distribution it was sampled from."""
    finish_reason: str
    """`stop` or `length`."""
    policy_version: int


class Sampler(Protocol):
    """A holder of one copy of the policy's weights, which can be asked alone."""

    async def generate(self, request: GenerateRequest) -> Response:
        """See `InferenceEngine.generate`."""
        ...


class InferenceEngine(Protocol):
    """A sampler of the policy. All methods are coroutines of one event loop, and many may be in flight."""

    async def generate(self, request: GenerateRequest) -> Response:
        """Sample one response; requests in flight are batched.

        Vision special ids and ids outside the tokenizer are never sampled. The same request with the same seed and
        the same weights gives the same ids whatever else is in flight, up to floating-point ties.

        Raises:
            EngineError: If the engine failed, or the context does not fit.
        """
        ...

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Adopt new weights: requests in flight finish on the old ones, new ones wait; every cache that
        depends on weights (prefix, multimodal, encoder) is emptied.

        Args:
            tensors: Every parameter by its `transformers` checkpoint name.
            version: The policy version that later responses carry.
        """
        ...

    async def sleep(self) -> None:
        """Free the memory of the device until the next `update_weights`, which wakes the engine.

        Requests in flight are answered first; later ones fail with `EngineError` as long as it sleeps. A no-op on a
        CPU.
        """
        ...

    @property
    def replicas(self) -> Sequence[Sampler]:
        """Every copy of the weights that answers requests, each of which may be a stale one: the engine itself, or
        the members of a fleet."""
        ...

    def counters(self) -> dict[str, float]:
        """Return what happened since the start, by metric; every value only grows."""
        ...

    async def close(self) -> None:
        """Free every resource; idempotent."""
        ...
