"""The vision tower of Qwen2.5-VL, with the parts replaced that transformers computes slowly."""

from jaxtyping import Float, UInt8
from torch import Tensor, nn

from arpo.models.images import ImageProcessor, normalized_films


class PatchEmbedding(nn.Module):
    """The vision tower's first layer, from bytes: normalizes patches in float32 on their device, then embeds them.

    Bytes are an eighth of the float32 films that the checkpoint's image processor makes of them. As a convolution
    whose kernel is as large as a patch, the layer would take several times as long as the matrix product that it is.

    Args:
        proj: The convolution; the weights keep their names.
        images: Knows how the checkpoint normalizes.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, proj: nn.Conv3d, images: ImageProcessor) -> None:
        super().__init__()
        self.proj = proj
        self.register_buffer("mean", images.mean.clone(), persistent=False)
        self.register_buffer("std", images.std.clone(), persistent=False)

    def forward(self, pixels: UInt8[Tensor, "patches channels height width"]) -> Float[Tensor, "patches hidden"]:
        """Return the embedding of each patch, in the number format of the weights."""
        films = normalized_films(pixels, self.mean, self.std, self.proj.kernel_size[0])
        return nn.functional.linear(films.to(self.proj.weight.dtype), self.proj.weight.flatten(1), self.proj.bias)
