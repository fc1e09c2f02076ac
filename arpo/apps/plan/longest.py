"""The longest trajectory that the numbers of an experiment allow, as the module gets it."""

from dataclasses import dataclass, replace
from math import prod

import torch

from arpo.bounds import AtLeastOne, checked
from arpo.errors import ConfigError
from arpo.models.images import ImageProcessor
from arpo.models.tokenization import ChatTokenizer, TokenizedTrajectory
from arpo.models.vision.tower import PackedPatches
from arpo.modules.minibatch import Minibatch, Sample


@checked
@dataclass(frozen=True, slots=True)
class WorstCaseTrajectory:
    """The bounds of a trajectory, and the longest one within them.

    It has as many screenshots as steps are allowed and fit, and its text is sampled as far as responses may be long:
    that is where most hidden states reach the output layer. With an image window every step is a training sequence
    of its own, the last one of which is the longest.
    """

    max_context: int
    """Tokens of a training sequence at most."""
    max_steps: AtLeastOne
    max_tokens: AtLeastOne
    """Tokens of a response at most."""
    screen: tuple[int, int]
    """Width and height of a screenshot in pixels."""
    image_tokens: int
    """Tokens of a screenshot."""
    image_window: int | None = None
    """Screenshots that a response sees at most; None: all, and a trajectory is one sequence."""

    def __post_init__(self) -> None:
        if self.max_context <= self.image_tokens + 1:
            raise ConfigError(
                f"max_context={self.max_context} has no room for a screenshot of {self.screen[0]} x {self.screen[1]} "
                f"pixels, which takes {self.image_tokens} tokens, and a response: raise rollout.settings.max_context"
            )

    @property
    def shown(self) -> int:
        """Screenshots in the longest sequence."""
        fitting = (self.max_context - 1) // (self.image_tokens + 1)
        return min(self.max_steps, fitting, self.image_window or fitting)

    @property
    def steps(self) -> int:
        """Steps of the longest trajectory."""
        if self.image_window is None or self.shown < self.image_window:
            return self.shown
        return min(self.max_steps, self.max_context - 1 - self.shown * self.image_tokens)  # a token a response

    @property
    def sampled_tokens(self) -> int:
        """Sampled tokens of the longest trajectory."""
        return min(self.steps * self.max_tokens, self.max_context - 1 - self.shown * self.image_tokens)

    @property
    def action_tokens(self) -> int:
        """Sampled tokens that the longest sequence trains: those of its last response, where it is one step."""
        return self.sampled_tokens if self.image_window is None else self._sampled_by(self.steps, since=self.steps - 1)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each training sequence of the longest trajectory, in order."""
        if self.image_window is None:
            return (self.max_context,)
        prompt = self.max_context - self.shown * self.image_tokens - self.sampled_tokens
        return tuple(
            prompt + self.screenshots[step - 1] * self.image_tokens + self._sampled_by(step)
            for step in range(1, self.steps + 1)
        )

    @property
    def screenshots(self) -> tuple[int, ...]:
        """Screenshots in each training sequence of the longest trajectory, in order."""
        if self.image_window is None:
            return (self.steps,)
        return tuple(min(step, self.shown) for step in range(1, self.steps + 1))

    def _sampled_by(self, step: int, since: int = 0) -> int:
        """Return the number of tokens that are sampled after a step and before another one has ended."""
        return self.sampled_tokens * step // self.steps - self.sampled_tokens * since // self.steps

    def tokens(self, chat: ChatTokenizer) -> TokenizedTrajectory:
        """Return the longest sequence as a training sequence [max_context]."""
        ids = torch.full((self.max_context,), chat.end_of_turn_id)
        sampled = torch.zeros(self.max_context, dtype=torch.bool)
        # A prompt of text comes first.
        at = self.max_context - self.shown * self.image_tokens - self.sampled_tokens
        for step in range(self.steps):
            if step >= self.steps - self.shown:
                ids[at : at + self.image_tokens] = chat.image_token_id
                at += self.image_tokens
            response = self._sampled_by(step + 1, since=step)
            sampled[at : at + response] = self.image_window is None or step == self.steps - 1
            at += response
        return TokenizedTrajectory(
            input_ids=ids,
            action_mask=sampled,
            image_mask=ids == chat.image_token_id,
            screenshots=tuple(f"step {step}" for step in range(self.shown)),
            sampler_logprobs=torch.zeros(self.action_tokens),
            spans=((0, self.action_tokens),),
        )

    def minibatch(self, chat: ChatTokenizer, micro_batch_tokens: int) -> Minibatch:
        """Return as many of it as are computed at once, with screenshots of their own."""
        count = max(1, micro_batch_tokens // self.max_context)
        tokens = self.tokens(chat)
        samples = []
        for number in range(count):
            keys = tuple(f"{number}: {key}" for key in tokens.screenshots)
            own = replace(tokens, screenshots=keys)
            samples.append(Sample(own, dict.fromkeys(keys, b""), advantages=torch.ones(self.action_tokens)))
        return Minibatch(tuple(samples), count, count * self.action_tokens, count)


class BlankScreens(ImageProcessor):
    """An image processor to which every screenshot is a blank one of the same size."""

    def __init__(self, like: ImageProcessor, screen: tuple[int, int]) -> None:
        self.__dict__.update(like.__dict__)
        grid, side = self._settings.grid(*screen), self._settings.patch_size
        self._blank = PackedPatches(torch.zeros(prod(grid), 3, side, side, dtype=torch.uint8), grid)

    def packed(self, key: str, png: bytes) -> PackedPatches:
        """Return the patches of the blank screenshot, whatever is asked for."""
        return self._blank
