"""Sequences of unequal length as one batch of tensors, each distinct screenshot in it once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from arpo.errors import check_at_least
from arpo.models.images import ImageProcessor, PackedPatches
from arpo.models.tokenization import TokenizedTrajectory


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """A micro-batch for the policy, padded on the right.

    Attention is causal, so what stands to the right of a sequence cannot reach it: there is no attention mask.
    """

    input_ids: Int64[Tensor, "batch tokens"]
    position_ids: Int64[Tensor, "3 batch tokens"]
    """Time, row and column of each token: Qwen2.5-VL's M-RoPE."""
    action_mask: Bool[Tensor, "batch tokens"]
    """True exactly on sampled tokens."""
    image_mask: Bool[Tensor, "batch tokens"]
    """True on image placeholders."""
    image_index: Int64[Tensor, " placeholders"]
    """For each placeholder, row by row, which of the vision tower's outputs stands there."""
    pixel_values: Float[Tensor, "patches features"]
    """The patches of each distinct screenshot, once."""
    image_grid: Int64[Tensor, "images 3"]
    """Frames, rows and columns of patches of each distinct screenshot."""

    def to(self, device: torch.device | str) -> "TokenBatch":
        """Return the batch on a device."""
        return TokenBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def collate(
    tokenized: Sequence[TokenizedTrajectory],
    screenshots: Mapping[str, bytes],
    images: ImageProcessor,
) -> TokenBatch:
    """Return the batch of some sequences, with rows in the order given.

    Args:
        tokenized: At least one sequence.
        screenshots: PNG bytes by SHA-256, of all screenshots that the sequences show.
        images: Makes patches of them.

    Raises:
        ValueError: If there is nothing to collate, or a screenshot is missing or not as large as its placeholders say.
    """
    if not tokenized:
        raise ValueError("cannot collate 0 sequences: give at least 1")
    keys = list(dict.fromkeys(key for sequence in tokenized for key in sequence.screenshots))
    missing = [key for key in keys if key not in screenshots]
    if missing:
        raise ValueError(f"{len(missing)} of {len(keys)} screenshots are missing, the first is {missing[0]}")
    packed = [images.packed(key, screenshots[key]) for key in keys]
    layout = _ImageLayout.of(dict(zip(keys, packed, strict=True)), images.merge_size)
    return TokenBatch(
        input_ids=_pad([sequence.input_ids for sequence in tokenized]),
        position_ids=_pad([layout.position_ids(sequence) for sequence in tokenized]),
        action_mask=_pad([sequence.action_mask for sequence in tokenized]),
        image_mask=_pad([sequence.image_mask for sequence in tokenized]),
        image_index=torch.cat([layout.rows[key] for sequence in tokenized for key in sequence.screenshots]),
        pixel_values=images.normalize(torch.cat([patches.pixels for patches in packed])),
        image_grid=torch.tensor([patches.grid for patches in packed]),
    )


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Return positions in `lengths`, grouped so that rows times longest row stays within `max_tokens` in each group.

    Sequences of like length go together, longest first, ties in the order given; one that is longer than `max_tokens`
    stands alone. The result depends on nothing else.

    Raises:
        ConfigError: If `max_tokens` is not positive.
    """
    check_at_least(1, max_tokens=max_tokens)
    groups: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        # The first of a group is its longest: the group's padded size is known before anything is added.
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= max_tokens:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


@dataclass(frozen=True, slots=True)
class _ImageLayout:
    """The places of each distinct screenshot's tokens: in the vision tower's output and inside the screenshot."""

    rows: dict[str, Tensor]
    offsets: dict[str, Tensor]
    sides: dict[str, int]

    @classmethod
    def of(cls, packed: Mapping[str, PackedPatches], merge: int) -> "_ImageLayout":
        rows: dict[str, Tensor] = {}
        offsets: dict[str, Tensor] = {}
        sides: dict[str, int] = {}
        seen = 0
        for key, patches in packed.items():
            frames, height, width = patches.grid[0], patches.grid[1] // merge, patches.grid[2] // merge
            size = frames * height * width
            rows[key] = torch.arange(seen, seen + size)
            offsets[key] = torch.cartesian_prod(torch.arange(frames), torch.arange(height), torch.arange(width)).T
            sides[key] = max(height, width)
            seen += size
        return cls(rows, offsets, sides)

    def position_ids(self, sequence: TokenizedTrajectory) -> Int64[Tensor, "3 tokens"]:
        """Return time, row and column of each token, as `Qwen2_5_VLModel.get_rope_index` does.

        Text advances all three by 1 a token. A screenshot starts at the next position p, spans p + row and p + column
        at the constant time p, and text goes on at p + its longer side.
        """
        keys = sequence.screenshots
        sizes = torch.tensor([len(self.rows[key]) for key in keys])
        placeholders = sequence.image_mask.nonzero().squeeze(1)
        if len(placeholders) != int(sizes.sum()):
            raise ValueError(
                f"{len(placeholders)} image placeholders but {int(sizes.sum())} visual tokens in {len(keys)} "
                "screenshots: the size noted with a step is not the size of its screenshot"
            )
        ends = sizes.cumsum(0)
        steps = torch.ones(len(sequence), dtype=torch.int64)
        # Within a screenshot time stands still; its last token makes up for the longer side.
        steps[placeholders] = 0
        steps[placeholders[ends - 1]] = torch.tensor([self.sides[key] for key in keys])
        position_ids = (steps.cumsum(0) - steps).repeat(3, 1)
        starts = position_ids[0, placeholders[ends - sizes]].repeat_interleave(sizes)
        position_ids[:, placeholders] = starts + torch.cat([self.offsets[key] for key in keys], dim=1)
        return position_ids


def _pad(rows: Sequence[Tensor]) -> Tensor:
    """Return the rows stacked, filled with zeros at the end of their last dimension; rows may be [3, tokens]."""
    longest = max(row.shape[-1] for row in rows)
    dimension = rows[0].ndim - 1
    return torch.stack([torch.nn.functional.pad(row, (0, longest - row.shape[-1])) for row in rows], dim=dimension)
