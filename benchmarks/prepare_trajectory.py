"""Time to prepare a 15-step 1080p trajectory for generation and training: incrementally against from scratch.

    python benchmarks/prepare_trajectory.py

From scratch: at every step the processor of `transformers` renders, tokenizes and resizes the whole history, and once
more for training. Ours: ids are appended, a screenshot is decoded and resized once and shared. Target: 5 times faster.
"""

import io
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from PIL import Image
from screens import WORDS, desktop
from transformers import AutoProcessor

from arpo.agent.prompt import Prompt
from arpo.models.collate import TokenBatch, collate
from arpo.models.images import ImageProcessor, normalized_films
from arpo.models.tiny import make_tiny
from arpo.models.tokenization import ChatTokenizer, tokenize
from arpo.types import Outcome, Step, Trajectory

STEPS = 15
MAX_PIXELS = 2_116_800
RESPONSE = "Thought: I see the window, so I click the button.\nAction: click(start_box='(960,540)')"


def incrementally(chat: ChatTokenizer, images: ImageProcessor, shots: list[tuple[str, bytes]]) -> TokenBatch:
    prompt = chat.first_prompt(Prompt.ui_tars().messages("Save the file."))
    steps = []
    for key, png in shots:
        images(key, png)  # what the engine is given: this step's patches; earlier ones are in its cache
        response = chat.encode_response(RESPONSE)
        steps.append(
            Step(
                screenshot=key,
                width=1920,
                height=1080,
                prompt_ids=prompt,
                response_ids=response,
                sampler_logprobs=(-1.0,) * len(response),
                policy_version=0,
                response=RESPONSE,
            )
        )
        prompt = chat.next_prompt(response)
    episode = Trajectory("0/0/0", "task", "", "", 0, tuple(steps), Outcome.FINISHED, 1.0, 0.0)
    return collate(tokenize(episode, chat), dict(shots), images)


def from_scratch(processor: AutoProcessor, shots: list[tuple[str, bytes]]) -> dict[str, torch.Tensor]:
    messages = Prompt.ui_tars().messages("Save the file.")
    user = {"role": "user", "content": [{"type": "image"}]}
    for step in range(1, STEPS + 1):
        process(processor, messages, shots[:step], generate=True)
        messages += [{"role": "assistant", "content": RESPONSE}]
        if step < STEPS:
            messages += [user]
    return process(processor, messages, shots, generate=False)


def process(
    processor: AutoProcessor, messages: list[dict], shots: list[tuple[str, bytes]], *, generate: bool
) -> dict[str, torch.Tensor]:
    text = processor.apply_chat_template(messages, add_generation_prompt=generate, tokenize=False)
    pictures = [Image.open(io.BytesIO(png)) for _, png in shots]
    return processor(text=[text], images=pictures, return_tensors="pt")


def main() -> None:
    torch.set_num_threads(1)
    shots = [desktop(seed, "windows") for seed in range(STEPS)]
    with tempfile.TemporaryDirectory() as directory:
        make_tiny(directory, corpus=[RESPONSE, *WORDS] * 4, words=3000, max_pixels=MAX_PIXELS)
        chat, processor = ChatTokenizer(directory), AutoProcessor.from_pretrained(directory)
        images = ImageProcessor(directory)
        ours_s, theirs_s = [], []
        for _ in range(2):
            start = time.perf_counter()
            ours = incrementally(chat, ImageProcessor(directory), shots)
            ours_s.append(time.perf_counter() - start)
            start = time.perf_counter()
            theirs = from_scratch(processor, shots)
            theirs_s.append(time.perf_counter() - start)
    # The last turn's newline is the template's, after a response that nothing follows.
    length = ours.input_ids.shape[1]
    assert torch.equal(theirs["input_ids"][:, :length], ours.input_ids)
    films = normalized_films(ours.pixels, images.mean, images.std, 2)  # on a GPU, by the vision tower's first layer
    assert torch.equal(theirs["pixel_values"], films)
    print(f"{STEPS} steps of 1920 x 1080, {length} tokens, one thread, best of 2; ids and pixels equal bit for bit")
    print(f"{'':<32} {'images processed':>16} {'s':>8}")
    print(f"{'whole history at every step':<32} {STEPS * (STEPS + 1) // 2 + STEPS:>16} {min(theirs_s):>8.2f}")
    print(f"{'incrementally, cached':<32} {STEPS:>16} {min(ours_s):>8.2f}")
    print(f"ratio {min(theirs_s) / min(ours_s):.1f}x (target: at least 5x)")


if __name__ == "__main__":
    main()
