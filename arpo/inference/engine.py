"""The inference protocol: prompts with images in, sampled ids and their log-probabilities out."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from torch import Tensor

from arpo.envs.screenshot import check_picture
from arpo.errors import EngineError, EnvError
from arpo.types import screenshot_key

GREEDY = 1e-5
"""The temperature below which a response is greedy, for vLLM too: scores divided by less may overflow."""
MOST_KNOWN = 2**16
"""Keys of pictures that an engine remembers as sound: 8 MB."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The way to sample one response.

    There is no top-p, top-k or penalty: tokens that they cut have probability 0 for the engine and not for the
    trainer, and no weight on sampled tokens makes up for those that never are.
    """

    temperature: float = 1.0
    """Below `GREEDY` the response is greedy. Log-probabilities are of the distribution at this temperature; greedy
    ones at temperature 1."""
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
    """The oldest policy version that may answer; in a fleet whose replicas hold several versions, the request waits
    for a replica that has come so far. A single engine holds one version, and is not asked before it serves it."""

    def check(self, image_token_id: int, vocabulary: int) -> None:
        """Refuse a request that would end the thread of an engine in the middle of a batch.

        Args:
            image_token_id: The placeholder of an image.
            vocabulary: Rows of the model's embedding.

        Raises:
            EngineError: If an id is none of the model's, if images and their placeholders do not match, or if the
                sampling is impossible.
        """
        ids, sampling = self.prompt_ids, self.sampling
        if not ids or set(map(type, ids)) != {int} or not 0 <= min(ids) <= max(ids) < vocabulary:
            wrong = [each for each in ids if type(each) is not int or not 0 <= each < vocabulary][:3]
            raise EngineError(f"the prompt must be ids from 0 to {vocabulary - 1}, at least one, got {wrong or ids}")
        if (placeholders := ids.count(image_token_id)) != len(self.images):
            raise EngineError(f"the prompt has {placeholders} image placeholders for {len(self.images)} images")
        if (image_token_id, image_token_id) in pairwise(ids):
            raise EngineError("the prompt has two image placeholders side by side: they would be taken for one image")
        numbers = (sampling.max_tokens, sampling.seed)
        whole = {int} == set(map(type, numbers)) and numbers[0] >= 1 and -(2**63) <= numbers[1] < 2**63
        if not whole or not 0 <= sampling.temperature < math.inf:
            raise EngineError(
                f"temperature must be at least 0 and finite, max_tokens at least 1 and seed of 64 bits, got {sampling}"
            )


class PictureCheck:
    """A check of the pictures of requests, each once, so that none breaks the thread that decodes it."""

    def __init__(self) -> None:
        self._sound: set[str] = set()

    def __call__(self, images: Sequence[bytes]) -> None:
        """Check the pictures that were not seen before.

        Raises:
            EngineError: If one is no screenshot, or of a size that models do not see.
        """
        for png in images:
            if not isinstance(png, bytes):
                raise EngineError(f"the request is refused: a screenshot must be the bytes of a PNG, got {type(png)}")
            key = screenshot_key(png)
            if key in self._sound:
                continue
            try:
                check_picture(png)
            except EnvError as error:
                raise EngineError(f"the request is refused: {error}") from error
            if len(self._sound) == MOST_KNOWN:
                self._sound.clear()
            self._sound.add(key)


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


@runtime_checkable
class Shaped(Protocol):
    """Tensors of an update whose names and shapes are known before the first of them is read."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor, by name."""
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
        depends on weights (prefix, multimodal, encoder) is emptied, and the checksum of what the engine holds is
        compared with that of what it was sent (`arpo.inference.pump.checksum`). Returns when the tensors may change.

        In a fleet that updates its replicas one after the other, new requests are answered by those that have their
        turn before or after them; the version of a response says which weights made it.

        Args:
            tensors: Every parameter by its `transformers` checkpoint name.
            version: The policy version that later responses carry.

        Raises:
            WeightSyncError: If the weights are not the model's, or a replica holds other ones afterwards.
        """
        ...

    async def sleep(self) -> None:
        """Free the memory of the device until the next `update_weights`, which wakes the engine.

        Requests in flight are answered first; later ones fail with `EngineError` as long as it sleeps. A no-op on a
        CPU.
        """
        ...

    @property
    def oldest_version(self) -> int:
        """The oldest policy version that may answer a request which comes now, whatever version it asks for."""
        ...

    def counters(self) -> dict[str, float]:
        """Return counts since the start, by metric; every value only grows."""
        ...

    async def close(self) -> None:
        """Free every resource; idempotent."""
        ...


def engine_metrics(grown: Mapping[str, float], elapsed_s: float) -> dict[str, float]:
    """Return the growth of an engine's counters with rates and shares in the place of sums.

    Seconds of requests become their mean number (`in_flight`, `waiting`), tokens become `tokens_per_s`, and prompt
    tokens and pictures the shares that came from caches (`prompt_cached`, `pictures_cached`). Everything else stays.

    Args:
        grown: By how much each counter has grown, by metric.
        elapsed_s: Seconds in which it did.
    """
    found: dict[str, float] = {}
    sums: dict[str, dict[str, float]] = defaultdict(dict)
    for metric, value in grown.items():
        place, _, name = metric.rpartition("/")
        if metric.startswith("engine/") and name in _SUMS:
            sums[place][name] = value
        else:
            found[metric] = value
    for place, of in sums.items():
        found |= {f"{place}/{rate}": of[total] / elapsed_s for total, rate in _RATES.items() if total in of}
        for whole, share in _SHARES.items():
            if of.get(whole):  # a share of nothing is none
                found[f"{place}/{share}_cached"] = of[f"cached_{whole}"] / of[whole]
    return found


_RATES = {"in_flight_s": "in_flight", "waiting_s": "waiting", "tokens": "tokens_per_s"}
_SHARES = {"prompt_tokens": "prompt", "pictures": "pictures"}
_SUMS = {*_RATES, *_SHARES, *(f"cached_{name}" for name in _SHARES)}
