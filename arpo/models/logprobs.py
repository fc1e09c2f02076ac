"""Log-probabilities of chosen tokens, in float32, without the logits of all tokens at once."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Float32Head(nn.Module):
    """An output layer whose logits are float32, whatever the model computes in.

    A bfloat16 logit between 16 and 32 is a multiple of 0.125: what an update changes is lost in that, and ratios and
    their clipping with it. The weight is rounded as the engine's is, under its old name, and still shared with the
    embedding where it was.

    Args:
        head: The layer whose weight it takes.
        dtype: Format of the computation, to which the weight is rounded.
    """

    def __init__(self, head: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = head.weight
        self._dtype = dtype

    def forward(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocabulary"]:
        """Return the logits, in float32."""
        if self._dtype == torch.float32:
            return nn.functional.linear(hidden, self.weight)
        weight = self.weight.to(self._dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            if hidden.is_cuda and hidden.dtype == self._dtype:
                return float32_product(hidden.flatten(0, -2), weight).view(*hidden.shape[:-1], -1)
            return nn.functional.linear(hidden.float(), weight.float())


def float32_product(hidden: Float[Tensor, "rows hidden"], weight: Float[Tensor, "ids hidden"]) -> Tensor:
    """Return hidden @ weight.T in float32, of two matrices in the same narrower format, as fast as in that format.

    A product of two bfloat16 numbers is exact in float32, in which tensor cores add, so only the order of the sums
    differs from that of float32 matrices. torch has this product on CUDA, and no derivative of it.
    """
    product: Tensor = _Float32Product.apply(hidden, weight)  # type: ignore[no-untyped-call]
    return product


class _Float32Product(torch.autograd.Function):
    """The derivative is that of float32 matrices: the gradient of a logit is no number of the narrower format."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        for_hidden, for_weight = ctx.needs_input_grad
        return (
            (gradient @ weight.float()).to(hidden.dtype) if for_hidden else None,
            (gradient.T @ hidden.float()).to(weight.dtype) if for_weight else None,
        )


def chosen_logprobs(
    hidden: Float[Tensor, "tokens hidden"],
    chosen: Int64[Tensor, " tokens"],
    head: Callable[[Tensor], Tensor],
    forbidden: Int64[Tensor, " forbidden"],
    *,
    temperature: float,
    chunk: int,
    with_entropy: bool,
    entropy_gradient: bool = False,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"] | None]:
    """Return log softmax(head(h) / temperature) at the chosen ids, and the entropy if wanted.

    Logits exist for `chunk` tokens at a time only: the backward pass computes them again.

    Args:
        hidden: What the head reads; one row for each chosen token.
        chosen: Id of each token.
        head: The language model's output layer; its logits are float32.
        forbidden: Ids whose probability is zero.
        temperature: Divides the logits.
        chunk: How many tokens at a time.
        with_entropy: Whether to compute the entropy too.
        entropy_gradient: Whether it carries a gradient.
    """

    def of_chunk(rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        # In place, because vocabularies are large and nothing else holds these logits.
        logits = head(rows).index_fill_(1, forbidden, -torch.inf).div_(temperature)
        logprobs = -torch.nn.functional.cross_entropy(logits, ids, reduction="none")
        if not with_entropy:
            return logprobs, logprobs.new_empty(0)
        return logprobs, entropy_of_logits(logits if entropy_gradient else logits.detach())

    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for rows, ids in zip(torch.split(hidden, chunk), torch.split(chosen, chunk), strict=True):
        part, entropy = checkpoint(of_chunk, rows, ids, use_reentrant=False, preserve_rng_state=False)
        logprobs.append(part)
        entropies.append(entropy)
    return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None


def entropy_of_logits(logits: Float[Tensor, "tokens vocabulary"]) -> Float[Tensor, " tokens"]:
    """Return the entropy of each row's softmax; a logit of minus infinity adds nothing, to the gradient neither."""
    probabilities = logits.softmax(-1)
    if logits.requires_grad:  # the slope of -p log p is infinite at 0
        probabilities = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy


def pack_left(
    values: Float[Tensor, " chosen"], mask: Bool[Tensor, "batch actions"], places: Int64[Tensor, " chosen"]
) -> Float[Tensor, "batch actions"]:
    """Return the values row by row, each row's first and zeros after.

    Args:
        values: One for each True in the mask, row by row.
        mask: Where there is a value in the result.
        places: The same as places in the result as one row.
    """
    packed: Tensor = values.new_zeros(mask.numel()).index_copy(0, places, values)
    return packed.view(mask.shape).clone()  # FSDP's hooks would be lost with a view
