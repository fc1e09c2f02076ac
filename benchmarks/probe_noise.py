"""The gap between engine and trainer in bfloat16 over a conversation of real length: what the probe has to live with.

    python benchmarks/probe_noise.py [--screenshots 15] [--head model]

One conversation with fifteen 1080p screenshots, 41,000 tokens, is played by vLLM step by step with its caches, and
scored by the trainer as one sequence. The model is random and 64 wide, with weights scaled so that logits
spread like a trained model's. `--head model` computes the engine's output layer in bfloat16, as it was before.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, quantiles

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from safetensors.torch import load_file, save_file
from screens import WORDS, desktop

from arpo.inference.engine import GenerateRequest, Response, Sampling
from arpo.inference.vllm import VllmEngine
from arpo.models.collate import collate
from arpo.models.policy import Policy
from arpo.models.tiny import make_tiny
from arpo.models.tokenization import ChatTokenizer, tokenize
from arpo.types import Outcome, Step, Trajectory

CONTEXT = 131_072
MAX_PIXELS = 2_116_800
SCALES = {"norm": 25.0, "q_proj": 5.0, "k_proj": 5.0, "o_proj": 10.0, "down_proj": 50.0}
"""Of weights of the language model. Those of a random one are so small that every token would only repeat itself: here
blocks add more than the embedding, attention prefers some tokens, and logits have a standard deviation of about
0.02 · 8 · 25 = 4."""
TOKENS = 24
"""Of a response."""


def write_model(directory: Path) -> None:
    make_tiny(directory, corpus=WORDS * 4, hidden=64, words=3000, max_pixels=MAX_PIXELS, context=CONTEXT)
    file = directory / "model.safetensors"
    weights = load_file(file)
    for name, weight in weights.items():
        module = name.split(".")[-2]
        if name.startswith("model.") and module in SCALES:
            weight.mul_(SCALES[module])
    save_file(weights, file, {"format": "pt"})


def play(engine: VllmEngine, chat: ChatTokenizer, screenshots: int) -> Trajectory:
    """Answer to one more screenshot at a time, the whole history before it."""
    content = [{"type": "text", "text": "Open the report."}, {"type": "image"}]
    context = chat.first_prompt([{"role": "user", "content": content}])
    pngs: dict[str, bytes] = {}
    steps: list[Step] = []
    for number in range(screenshots):
        key, png = desktop(number, "windows")
        pngs[key] = png
        request = GenerateRequest(context, tuple(pngs.values()), Sampling(1.0, TOKENS, number))
        start = time.perf_counter()
        response: Response = asyncio.run(engine.generate(request))
        print(
            f"step {number}: {time.perf_counter() - start:.1f} s, {fmean(response.logprobs):.2f}",
            file=sys.stderr,
            flush=True,
        )
        before = sum(len(step.prompt_ids) + len(step.response_ids) for step in steps)
        steps.append(Step(key, 1920, 1080, context[before:], response.token_ids, response.logprobs, 0, ""))
        context = context + response.token_ids + chat.next_prompt(response.token_ids)
    return Trajectory("noise", "noise", "", "", 0, tuple(steps), Outcome.MAX_STEPS, 0.0, 0.0, pngs)


def score(path: Path, trajectory: Trajectory, head: str) -> list[float]:
    policy = Policy(path, dtype="bfloat16")
    if head == "model":
        plain = torch.nn.Linear(1, 1, bias=False)
        plain.weight = torch.nn.Parameter(policy.model.lm_head.weight.detach().bfloat16())
        policy.model.lm_head = _Bfloat16Head(plain)
    (tokens,) = tokenize(trajectory, policy.chat)
    print(f"{len(tokens)} tokens, {int(tokens.action_mask.sum())} of them sampled", file=sys.stderr, flush=True)
    batch = collate([tokens], trajectory.screenshots, policy.images)
    with torch.no_grad():
        output = policy.action_logprobs(batch)
    return output.logprobs[output.mask].tolist()


class _Bfloat16Head(torch.nn.Module):
    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(hidden.bfloat16()).float()


def main(screenshots: int, head: str, out: str | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        write_model(path)
        engine = VllmEngine(
            path,
            dtype="bfloat16",
            max_model_len=65_536,
            max_num_seqs=1,
            max_images=screenshots,
            engine_args={"mm_processor_cache_gb": 1.5, "hf_overrides": {"head_dtype": head}},
        )
        trajectory = play(engine, ChatTokenizer(path), screenshots)
        asyncio.run(engine.close())
        trainer = score(path, trajectory, head)
    sampled = [logprob for step in trajectory.steps for logprob in step.sampler_logprobs]
    gaps = [abs(a - b) for a, b in zip(sampled, trainer, strict=True)]
    deciles = quantiles(gaps, n=100)
    print(f"{screenshots} screenshots, output layer in {head}, mean log-probability {fmean(sampled):.2f}")
    print(
        f"gap: mean {fmean(gaps):.4f}, median {deciles[49]:.4f}, 90 % {deciles[89]:.4f}, 99 % {deciles[98]:.4f}, "
        f"largest {max(gaps):.4f}, above 0.1: {fmean(gap > 0.1 for gap in gaps):.3f}"
    )
    half = len(gaps) // 2
    print(f"first half of the conversation {fmean(gaps[:half]):.4f}, second half {fmean(gaps[half:]):.4f}")
    if out:
        Path(out).write_text(json.dumps({"engine": sampled, "trainer": trainer}), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--screenshots", type=int, default=15)
    parser.add_argument("--head", choices=("float32", "model"), default="float32")
    parser.add_argument("--out", help="a JSON file for the log-probabilities of both sides")
    arguments = parser.parse_args()
    main(arguments.screenshots, arguments.head, arguments.out)
