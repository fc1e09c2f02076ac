"""Sequences of unequal length as one batch of tensors, each distinct screenshot in it once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from arpo.bounds import AtLeastOne, checked
from arpo.models.images import ImageProcessor
from arpo.models.tokenization import TokenizedTrajectory
from arpo.models.vision.tower import Grid, to_device

MAX_PADDING = 0.05
"""The share of what the micro-batches of an optimizer step compute that may be padding."""
_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """A micro-batch for the policy, padded on the right.

    Attention is causal, so what stands to the right of a sequence cannot reach it: there is no attention mask.
    What depends on where tokens stand is worked out here, on the host: the policy asks its device for no number.
    """

    input_ids: Int64[Tensor, "batch tokens"]
    position_ids: Int64[Tensor, "3 batch tokens"]
    """Time, row and column of each token, as the model's family counts them."""
    action_mask: Bool[Tensor, "batch tokens"]
    """True exactly on sampled tokens."""
    image_mask: Bool[Tensor, "batch tokens"]
    """True on image placeholders."""
    action_places: Int64[Tensor, " actions"]
    """For each sampled token, row by row, its place in the batch as one row."""
    packed_places: Int64[Tensor, " actions"]
    """For each sampled token its place in `packed_mask` as one row."""
    packed_mask: Bool[Tensor, "batch packed"]
    """True where there is a token when the sampled tokens of each row are moved to the left."""
    image_places: Int64[Tensor, " placeholders"]
    """For each placeholder, row by row, its place in the batch as one row."""
    image_index: Int64[Tensor, " placeholders"]
    """For each placeholder which of the vision tower's outputs stands there."""
    image_grid: tuple[Grid, ...]
    """Frames, rows and columns of patches of each distinct screenshot, or of a blank one where texts show none; on the
    host, where shapes are decided."""
    pixels: UInt8[Tensor, "patches channels height width"] | None
    """The patches of each distinct screenshot, once, as bytes: the vision tower's first layer normalizes them."""
    visual: Float[Tensor, "visual hidden"] | None = None
    """In the place of `pixels`: what the vision tower has made of the screenshots before."""

    def to(self, device: torch.device | str) -> "TokenBatch":
        """Return the batch on a device; the host does not wait for it."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        sent = {name: to_device(part, device) for name, part in parts.items() if isinstance(part, Tensor)}
        return TokenBatch(**parts | sent)


def collate(
    tokenized: Sequence[TokenizedTrajectory],
    screenshots: Mapping[str, bytes],
    images: ImageProcessor,
    features: Mapping[str, Tensor] | None = None,
) -> TokenBatch:
    """Return the batch of some sequences, with rows in the order given.

    The PNGs of all screenshots that they show are given by SHA-256, and so are the features: the vision tower's output
    of each, [tokens, hidden], where it is known already.
    """
    if not tokenized:
        raise ValueError("cannot collate 0 sequences: give at least 1")
    keys = list(dict.fromkeys(key for sequence in tokenized for key in sequence.screenshots))
    if missing := [key for key in keys if key not in screenshots]:
        raise ValueError(f"{len(missing)} of {len(keys)} screenshots are missing, the first is {missing[0]}")
    pixels, visual = None, None
    if features:
        width_alone = next(iter(features.values()))[:0]  # a batch of texts shows nothing
        visual = torch.cat([width_alone, *(features[key] for key in keys)])
        grids = [images.grid(key, screenshots[key]) for key in keys]
        seen = grids
    else:
        packed = [images.packed(key, screenshots[key]) for key in keys]
        shown = packed or [images.blank]  # the tower is passed in any case: other ranks may wait in it
        pixels, seen = torch.cat([patches.pixels for patches in shown]), [patches.grid for patches in shown]
        grids = [patches.grid for patches in packed]
    grid_of = dict(zip(keys, grids, strict=True))
    sizes = [prod(grid) // images.merge_size**2 for grid in grids]
    rows = dict(zip(keys, torch.split(torch.arange(sum(sizes)), sizes), strict=True))
    action_mask = _pad([sequence.action_mask for sequence in tokenized])
    image_mask = _pad([sequence.image_mask for sequence in tokenized])
    # The state at one token predicts the next: nothing predicts a first token.
    sampled = action_mask.clone()
    sampled[:, 0] = False
    counts = sampled.sum(1)
    packed_mask = torch.arange(int(counts.max())) < counts.unsqueeze(1)
    return TokenBatch(
        input_ids=_pad([sequence.input_ids for sequence in tokenized]),
        position_ids=_pad([_position_ids(sequence, grid_of, images) for sequence in tokenized]),
        action_mask=action_mask,
        image_mask=image_mask,
        action_places=_places(sampled),
        packed_places=_places(packed_mask),
        packed_mask=packed_mask,
        image_places=_places(image_mask),
        image_index=torch.cat([_NONE, *(rows[key] for sequence in tokenized for key in sequence.screenshots)]),
        image_grid=tuple(seen),
        pixels=pixels,
        visual=visual,
    )


@checked
def micro_batches(lengths: Sequence[int], max_tokens: AtLeastOne) -> list[list[int]]:
    """Return positions in `lengths` in the fewest groups that are neither too large nor padded too much.

    In each group, rows times the longest row stays within `max_tokens`; a longer sequence stands alone. Of what
    all groups compute, no more than `MAX_PADDING` is padding, and the least with as few groups. Longest first, ties in
    the order given; the result depends on nothing else.
    """
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    starts = _cuts([lengths[position] for position in order], max_tokens)
    return [order[start:end] for start, end in pairwise([*starts, len(order)])]


def _cuts(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Return the starts of groups in lengths that fall, by dynamic programming over the number of groups.

    Groups of neighbours suffice: if the longest rows take the places of the first group, the next longest those of the
    second, and so on, no group's longest row gets longer.
    """
    count = len(lengths)
    ends = np.arange(count + 1)
    rows = ends - ends[:count, None]  # of the group from one place to another
    padded = rows * np.array(lengths, float)[:, None]
    padded[(rows < 1) | ((rows > 1) & (padded > max_tokens))] = np.inf
    least = np.where(ends == 0, 0.0, np.inf)  # what as many groups as there are layers compute up to each place
    starts: list[np.ndarray] = []
    while (1 - MAX_PADDING) * least[count] > sum(lengths):
        total = least[:count, None] + padded
        starts.append(total.argmin(0))
        least = total.min(0)
    cuts = [count]
    for start in reversed(starts):
        cuts.append(int(start[cuts[-1]]))
    return cuts[:0:-1]


def _position_ids(
    sequence: TokenizedTrajectory, grids: Mapping[str, Grid], images: ImageProcessor
) -> Int64[Tensor, "3 tokens"]:
    shown = [grids[key] for key in sequence.screenshots]
    placeholders, visual = int(sequence.image_mask.sum()), sum(prod(grid) for grid in shown) // images.merge_size**2
    if placeholders != visual:
        raise ValueError(
            f"{placeholders} image placeholders but {visual} visual tokens in {len(shown)} screenshots: the size "
            "noted with a step is not the size of its screenshot"
        )
    return images.family.position_ids(sequence.image_mask, shown, images.merge_size)


def _pad(rows: Sequence[Tensor]) -> Tensor:
    """Return the rows stacked, filled with zeros at the end of their last dimension; rows may be [3, tokens]."""
    longest = max(row.shape[-1] for row in rows)
    dimension = rows[0].ndim - 1
    return torch.stack([torch.nn.functional.pad(row, (0, longest - row.shape[-1])) for row in rows], dim=dimension)


def _places(mask: Bool[Tensor, "batch tokens"]) -> Int64[Tensor, " chosen"]:
    """Return the places at which a mask is True, in the mask as one row."""
    return mask.flatten().nonzero().squeeze(1)
