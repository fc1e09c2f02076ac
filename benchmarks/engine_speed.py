"""vLLM against transformers' generate: 32 requests of 64 tokens, the same tiny model, one process.

    python benchmarks/engine_speed.py

Three cases: the first step of an episode (one small screenshot); the eighth (seven that were there before, and a new
one), where vLLM has the earlier part in its caches and generate starts again; and the eighth with larger screenshots
(144 tokens each instead of 20, still an eighth of a desktop's), where the computation outweighs Python. All get the
same prompts and pictures, sample at temperature 1 and make all their tokens. generate is called for each request when
it comes, as a program does whose environments ask at different times, and for all of them as one batch: the best case,
which rollouts never have. The best of three rounds counts; the last screenshot is new in each. Threads are what each
side takes by itself: torch one for each core, our vLLM engine one. Set OMP_NUM_THREADS=1 to compare at one thread
each. On a busy machine only the CPU time means something.
"""

import argparse
import asyncio
import io
import sys
import tempfile
import time
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

REQUESTS, TOKENS, ROUNDS = 32, 64, 3
SMALL, LARGE = (140, 112), (448, 252)
WORDS = "Click on the Save button."
CORPUS = (
    "Action: click(start_box='(10,20)')",
    "Action: type(content='hello world')",
    "Thought: I click the button.\nAction: finished()",
    WORDS,
)

Case = tuple[int, tuple[int, int]]
"""How many screenshots, and their width and height."""
Screenshots = list[list[bytes]]
"""PNG files of each request, oldest first."""


def picture(size: tuple[int, int], *seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (7, 9, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(buffer, "PNG")
    return buffer.getvalue()


def screenshots(case: Case, round_number: int) -> Screenshots:
    """Those of each request: the same as in the round before, except for the last."""
    steps, size = case
    return [
        [*(picture(size, number, step) for step in range(steps - 1)), picture(size, number, steps, round_number)]
        for number in range(REQUESTS)
    ]


def messages(steps: int) -> list[dict[str, object]]:
    turns: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "text", "text": WORDS}, {"type": "image"}]},
    ]
    for _ in range(steps - 1):
        turns.append({"role": "assistant", "content": CORPUS[0]})
        turns.append({"role": "user", "content": [{"type": "image"}]})
    return turns


def best_seconds(case: Case, generate: Callable[[Screenshots], int]) -> tuple[float, float]:
    """Time the rounds after a warm-up, on the clock and in CPU time; every round must really make all tokens."""
    wall, cpu = [], []
    for round_number in range(ROUNDS + 1):
        requests = screenshots(case, round_number)
        started = time.perf_counter(), time.process_time()
        tokens = generate(requests)
        wall.append(time.perf_counter() - started[0])
        cpu.append(time.process_time() - started[1])
        assert tokens >= 0.9 * REQUESTS * TOKENS, f"only {tokens} tokens"
    return min(wall[1:]), min(cpu[1:])


def transformers_seconds(path: Path, case: Case, batch: int) -> tuple[float, float]:
    """`model.generate` on left-padded batches, as its documentation shows."""
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    processor = AutoProcessor.from_pretrained(path, padding_side="left")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    text = processor.apply_chat_template(messages(case[0]), add_generation_prompt=True, tokenize=False)
    image_id = model.config.image_token_id

    def generate(requests: Screenshots) -> int:
        return sum(answer(requests[first : first + batch]) for first in range(0, REQUESTS, batch))

    def answer(requests: Screenshots) -> int:
        pictures = [[Image.open(io.BytesIO(png)) for png in pngs] for pngs in requests]
        inputs = processor(text=[text] * len(requests), images=pictures, padding=True, return_tensors="pt")
        ids = model.generate(
            **inputs,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=True,
            top_k=0,
            bad_words_ids=[[image_id]],
        )
        return len(requests) * (ids.shape[1] - inputs["input_ids"].shape[1])

    return best_seconds(case, generate)


def vllm_seconds(path: Path, case: Case) -> tuple[float, float]:
    from arpo.inference.engine import GenerateRequest, Sampling
    from arpo.inference.vllm import VllmEngine
    from arpo.models.tokenization import ChatTokenizer

    prompt_ids = ChatTokenizer(path).first_prompt(messages(case[0]))
    engine = VllmEngine(path, max_model_len=2048, max_num_seqs=REQUESTS, max_images=case[0])

    async def all_at_once(pictures: Screenshots) -> int:
        requests = [
            GenerateRequest(prompt_ids, tuple(pngs), Sampling(max_tokens=TOKENS, seed=number))
            for number, pngs in enumerate(pictures)
        ]
        responses = await asyncio.gather(*(engine.generate(request) for request in requests))
        return sum(len(response.token_ids) for response in responses)

    seconds = best_seconds(case, lambda pictures: asyncio.run(all_at_once(pictures)))
    asyncio.run(engine.close())
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="a from_pretrained directory; by default a tiny one is made")
    path = parser.parse_args().model
    with tempfile.TemporaryDirectory() as directory:
        if path is None:
            from arpo.models.families.qwen2_5_vl import make_tiny

            path = make_tiny(directory, corpus=CORPUS * 4, words=900, max_pixels=prod(LARGE))
        for case in ((1, SMALL), (8, SMALL), (8, LARGE)):
            ours = vllm_seconds(path, case)
            print(f"{REQUESTS} requests, {TOKENS} tokens each, screenshots: {case[0]} of {case[1][0]} x {case[1][1]}")
            show("vLLM", ours, ours)
            show("generate, each request", transformers_seconds(path, case, batch=1), ours)
            show("generate, one batch", transformers_seconds(path, case, batch=REQUESTS), ours)


def show(name: str, seconds: tuple[float, float], ours: tuple[float, float]) -> None:
    wall, cpu = seconds
    print(
        f"  {name:22} {wall:7.3f} s {REQUESTS * TOKENS / wall:6.0f} tokens/s {cpu:7.3f} s of CPU, "
        f"vLLM {wall / ours[0]:4.1f}x on the clock, {cpu / ours[1]:4.1f}x of CPU"
    )


if __name__ == "__main__":
    main()
