"""Attention of the vision tower on a 1080p screenshot: transformers' loop over windows against one call a size.

    python benchmarks/vision_windows.py

The real tower's 32 layers, of which four see whole pictures and 28 see windows of 112 x 112 pixels, 64 wide, with
random weights; forward and backward, float32, one thread, seconds of CPU. Target: equal to 1e-5, and not slower.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import copy
import tempfile

import torch
from screens import WORDS, desktop
from torch.overrides import TorchFunctionMode
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from arpo.models.images import ImageProcessor
from arpo.models.tiny import make_tiny
from arpo.models.vision.tower import VisionTower

WIDTH, LAYERS, WHOLE = 64, 32, (7, 15, 23, 31)


class KernelCalls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.nn.functional.scaled_dot_product_attention
        return function(*args, **(kwargs or {}))


def tower(whole: tuple[int, ...]) -> Any:
    torch.manual_seed(0)
    config = Qwen2_5_VLVisionConfig(
        depth=LAYERS,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_heads=2,
        out_hidden_size=WIDTH,
        fullatt_block_indexes=list(whole),
    )
    return Qwen2_5_VisionTransformerPretrainedModel._from_config(config, attn_implementation="sdpa")


def measure(forward: Any) -> tuple[int, float, float, torch.Tensor]:
    with KernelCalls() as calls:
        start = time.process_time()
        tokens = forward()
        middle = time.process_time()
        tokens.square().sum().backward()
    return calls.count, middle - start, time.process_time() - middle, tokens.detach()


def compare(images: ImageProcessor, whole: tuple[int, ...], pictures: int) -> None:
    shots = [desktop(seed, "windows") for seed in range(pictures)]
    packed = [images.packed(*shot) for shot in shots]
    films = torch.cat([images(*shot).pixel_values for shot in shots])
    pixels, grids = torch.cat([picture.pixels for picture in packed]), tuple(picture.grid for picture in packed)
    plain = tower(whole)
    ours = VisionTower(copy.deepcopy(plain), images)
    results = {
        "loop over windows": lambda: plain(films, grid_thw=torch.tensor(grids)).pooler_output,
        "a call a size": lambda: ours(pixels, grids),
    }
    print(f"\n{pictures} screenshot(s), {LAYERS} layers, {len(whole)} of them see whole pictures")
    print(f"{'':<20} {'kernel calls':>12} {'forward s':>10} {'backward s':>11}")
    seen = []
    for name, forward in results.items():
        best = min((measure(forward) for _ in range(2)), key=lambda result: result[1])
        print(f"{name:<20} {best[0]:>12} {best[1]:>10.2f} {best[2]:>11.2f}")
        seen.append(best[3])
    print(f"largest difference {(seen[0] - seen[1]).abs().max().item():.1e} of {seen[0].abs().max().item():.1f}")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        make_tiny(directory, corpus=WORDS * 4, words=3000, max_pixels=2_116_800)
        images = ImageProcessor(directory)
        compare(images, (), 1)
        compare(images, WHOLE, 1)


if __name__ == "__main__":
    main()
