"""vLLM against transformers' generate: 32 requests of 64 tokens, the same tiny model, one process.

    python benchmarks/engine_speed.py

Two cases: the first step of an episode (one screenshot), and the eighth (seven that were there before, and a new one),
where vLLM has the earlier part in its caches and generate starts again. All get the same prompts and pictures, sample
at temperature 1 and make all their tokens. generate is called for each request when it comes, as a program does whose
environments ask at different times, and for all of them as one batch: the best case, which rollouts never have. The
best of five rounds counts; the last screenshot is new in each. Threads are what each side takes by itself: torch one
for each core, our vLLM engine one. Set OMP_NUM_THREADS=1 to compare at one thread each. On a busy machine only the CPU
time means something.
"""

import argparse
import asyncio
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

REQUESTS, TOKENS, ROUNDS = 32, 64, 5
WORDS = "Click on the Save button."
CORPUS = (
    "Action: click(start_box='(10,20)')",
    "Action: type(content='hello world')",
    "Thought: I click the button.\nAction: finished()",
    WORDS,
)


def picture(*seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (7, 9, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((140, 112)).save(buffer, "PNG")
    return buffer.getvalue()


def screenshots(steps: int, round_number: int) -> list[list[bytes]]:
    """Those of each request: the same as in the round before, except for the last."""
    return [
        [*(picture(number, step) for step in range(steps - 1)), picture(number, steps, round_number)]
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


def best_seconds(generate: Callable[[int], int]) -> tuple[float, float]:
    """Time rounds 1 to 5 after a warm-up, on the clock and in CPU time; every round must really make all tokens."""
    wall, cpu = [], []
    for round_number in range(ROUNDS + 1):
        started = time.perf_counter(), time.process_time()
        tokens = generate(round_number)
        wall.append(time.perf_counter() - started[0])
        cpu.append(time.process_time() - started[1])
        assert tokens >= 0.9 * REQUESTS * TOKENS, f"only {tokens} tokens"
    return min(wall[1:]), min(cpu[1:])


def transformers_seconds(path: Path, steps: int, batch: int) -> tuple[float, float]:
    """`model.generate` on left-padded batches, as its documentation shows."""
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    processor = AutoProcessor.from_pretrained(path, padding_side="left")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    text = processor.apply_chat_template(messages(steps), add_generation_prompt=True, tokenize=False)
    image_id = model.config.image_token_id

    def generate(round_number: int) -> int:
        requests = screenshots(steps, round_number)
        return sum(answer(requests[first : first + batch]) for first in range(0, REQUESTS, batch))

    def answer(requests: list[list[bytes]]) -> int:
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

    return best_seconds(generate)


def vllm_seconds(path: Path, steps: int) -> tuple[float, float]:
    from arpo.inference.engine import GenerateRequest, Sampling
    from arpo.inference.vllm import VllmEngine
    from arpo.models.tokenization import ChatTokenizer

    prompt_ids = ChatTokenizer(path).first_prompt(messages(steps))
    engine = VllmEngine(path, max_model_len=1024, max_num_seqs=REQUESTS, max_images=steps)

    async def all_at_once(round_number: int) -> int:
        requests = [
            GenerateRequest(prompt_ids, tuple(pngs), Sampling(max_tokens=TOKENS, seed=number))
            for number, pngs in enumerate(screenshots(steps, round_number))
        ]
        responses = await asyncio.gather(*(engine.generate(request) for request in requests))
        return sum(len(response.token_ids) for response in responses)

    seconds = best_seconds(lambda round_number: asyncio.run(all_at_once(round_number)))
    asyncio.run(engine.close())
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="a from_pretrained directory; by default a tiny one is made")
    path = parser.parse_args().model
    with tempfile.TemporaryDirectory() as directory:
        if path is None:
            from arpo.models.tiny import make_tiny

            path = make_tiny(directory, corpus=CORPUS * 4)
        for steps in (1, 8):
            ours = vllm_seconds(path, steps)
            print(f"{steps} screenshots, {REQUESTS} requests, {TOKENS} tokens each")
            show("vLLM", ours, ours)
            show("generate, each request", transformers_seconds(path, steps, batch=1), ours)
            show("generate, one batch", transformers_seconds(path, steps, batch=REQUESTS), ours)


def show(name: str, seconds: tuple[float, float], ours: tuple[float, float]) -> None:
    wall, cpu = seconds
    print(
        f"  {name:22} {wall:7.3f} s {REQUESTS * TOKENS / wall:6.0f} tokens/s {cpu:7.3f} s of CPU, "
        f"vLLM {wall / ours[0]:4.1f}x on the clock, {cpu / ours[1]:4.1f}x of CPU"
    )


if __name__ == "__main__":
    main()
