"""The longest trajectory that the numbers of an experiment allow, as the module gets it."""

from dataclasses import dataclass, replace

import torch

from arpo.errors import ConfigError, check_at_least
from arpo.models.images import ImageProcessor
from arpo.models.tokenization import ChatTokenizer, TokenizedTrajectory
from arpo.models.vision.patches import PackedPatches
from arpo.modules.minibatch import Minibatch, Sample


@dataclass(frozen=True, slots=True)
class Longest:
    """The bounds of a trajectory, and the longest one within them.

    It has as many screenshots as steps are allowed and fit, and its text is sampled as far as responses may be long:
    that is where most hidden states reach the output layer.
    """

    max_context: int
    """Tokens of a trajectory at most."""
    max_steps: int
    max_tokens: int
    """Tokens of a response at most."""
    screen: tuple[int, int]
    """Width and height of a screenshot in pixels."""
    image_tokens: int
    """Tokens of a screenshot."""

    def __post_init__(self) -> None:
        check_at_least(1, max_steps=self.max_steps, max_tokens=self.max_tokens)
        if self.max_context <= self.image_tokens + 1:
            raise ConfigError(
                f"max_context={self.max_context} has no room for a screenshot of {self.screen[0]} x {self.screen[1]} "
                f"pixels, which takes {self.image_tokens} tokens, and a response: raise rollout.settings.max_context"
            )

    @property
    def steps(self) -> int:
        """Steps of the longest trajectory."""
        return min(self.max_steps, (self.max_context - 1) // (self.image_tokens + 1))

    @property
    def action_tokens(self) -> int:
        """Sampled tokens of the longest trajectory."""
        return min(self.steps * self.max_tokens, self.max_context - 1 - self.steps * self.image_tokens)

    def tokens(self, chat: ChatTokenizer) -> TokenizedTrajectory:
        """Return it as a training sequence [max_context]."""
        ids = torch.full((self.max_context,), chat.end_of_turn_id)
        sampled = torch.zeros(self.max_context, dtype=torch.bool)
        at = self.max_context - self.steps * self.image_tokens - self.action_tokens  # a prompt of text comes first
        for step in range(self.steps):
            ids[at : at + self.image_tokens] = chat.image_token_id
            at += self.image_tokens
            response = self.action_tokens * (step + 1) // self.steps - self.action_tokens * step // self.steps
            sampled[at : at + response] = True
            at += response
        return TokenizedTrajectory(
            input_ids=ids,
            action_mask=sampled,
            image_mask=ids == chat.image_token_id,
            screenshots=tuple(f"step {step}" for step in range(self.steps)),
            sampler_logprobs=torch.zeros(self.action_tokens),
            step_lengths=(self.action_tokens,),
        )

    def minibatch(self, chat: ChatTokenizer, micro_batch_tokens: int) -> Minibatch:
        """Return as many of it as are computed at once, with screenshots of their own."""
        count = max(1, micro_batch_tokens // self.max_context)
        tokens = self.tokens(chat)
        samples = []
        for number in range(count):
            keys = tuple(f"{number}: {key}" for key in tokens.screenshots)
            own = replace(tokens, screenshots=keys)
            samples.append(Sample(own, dict.fromkeys(keys, b""), advantage=1.0))
        return Minibatch(tuple(samples), count, count * self.action_tokens)


class BlankScreens(ImageProcessor):
    """An image processor to which every screenshot is a blank one of the same size."""

    def __init__(self, like: ImageProcessor, patch_size: int, model_size: tuple[int, int]) -> None:
        self.__dict__.update(like.__dict__)
        columns, rows = model_size[0] // patch_size, model_size[1] // patch_size
        self._blank = PackedPatches(
            torch.zeros(rows * columns, 3, patch_size, patch_size, dtype=torch.uint8), (1, rows, columns)
        )

    def packed(self, key: str, png: bytes) -> PackedPatches:
        """Return the patches of the blank screenshot, whatever is asked for."""
        return self._blank
