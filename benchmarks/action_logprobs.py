"""Log-probabilities of the action tokens alone against full logits: peak memory, time, and that they are equal.

    python benchmarks/action_logprobs.py

One sequence of 4,096 tokens with 200 action tokens, 151,936 words, forward and backward, float32, each way in a
process of its own. Targets: 5 times less peak memory, not slower, equal to 1e-5. Full logits need about 9 GB.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from screens import WORDS, desktop
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.models.collate import TokenBatch, collate
from arpo.models.images import normalized_films
from arpo.models.policy import Policy
from arpo.models.tiny import make_tiny
from arpo.models.tokenization import TokenizedTrajectory

TOKENS, WORDS_IN_HEAD, ACTIONS = 4096, 151_936, 200
FORBIDDEN = 400
"""About as many ids as Qwen2.5-VL's embedding has beyond its tokenizer."""


def write_model(directory: str) -> None:
    make_tiny(directory, corpus=WORDS * 4, hidden=256)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(directory)
    torch.manual_seed(0)
    model.resize_token_embeddings(WORDS_IN_HEAD, mean_resizing=False)
    model.save_pretrained(directory)


def load(directory: str) -> tuple[Policy, TokenBatch]:
    policy = Policy(directory)
    policy.register_buffer("_forbidden", torch.arange(WORDS_IN_HEAD - FORBIDDEN, WORDS_IN_HEAD), persistent=False)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, WORDS_IN_HEAD - FORBIDDEN, (TOKENS,), generator=generator)
    key, png = desktop(0, "windows")
    ids[10 : 10 + policy.chat.image_tokens(1920, 1080)] = policy.chat.image_token_id
    acted = torch.zeros(TOKENS, dtype=torch.bool)
    acted[TOKENS // 2 :: TOKENS // 2 // ACTIONS] = True
    acted[acted.nonzero()[ACTIONS:]] = False
    image = ids == policy.chat.image_token_id
    tokens = TokenizedTrajectory(ids, acted, image, (key,), torch.zeros(ACTIONS), (ACTIONS,))
    return policy, collate([tokens], {key: png}, policy.images)


def selected(policy: Policy, batch: TokenBatch) -> torch.Tensor:
    return policy.action_logprobs(batch).logprobs[0]


def full(policy: Policy, batch: TokenBatch) -> torch.Tensor:
    images = policy.images
    logits = policy.model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        pixel_values=normalized_films(batch.pixels, images.mean, images.std, 2),
        image_grid_thw=torch.tensor(batch.image_grid),
    ).logits
    logits[..., -FORBIDDEN:] = -torch.inf
    logprobs = logits[:, :-1].log_softmax(-1).gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)
    return logprobs[batch.action_mask[:, 1:]]


def measure(way: str, directory: str, repeats: int) -> None:
    torch.set_num_threads(1)
    policy, batch = load(directory)
    if way == "full":
        policy.model = Qwen2_5_VLForConditionalGeneration.from_pretrained(directory)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(repeats):
        policy.zero_grad()
        start = time.perf_counter()
        logprobs = {"selected": selected, "full": full}[way](policy, batch)
        logprobs.sum().backward()
        seconds.append(time.perf_counter() - start)
    gradients = [parameter.grad for parameter in policy.parameters()]
    torch.save({"logprobs": logprobs.detach(), "gradients": gradients}, Path(directory) / f"{way}.pt")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"peak_kb": peak, "step_kb": peak - before, "seconds": min(seconds)}))


def run(way: str, directory: str, repeats: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--way", way, "--directory", directory, "--repeats", str(repeats)]
    output = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    return json.loads(output.splitlines()[-1])


def main(repeats: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_model(directory)
        results = {way: run(way, directory, repeats) for way in ("full", "selected")}
        ours, theirs = (torch.load(Path(directory) / f"{way}.pt") for way in ("selected", "full"))
    difference = (ours["logprobs"] - theirs["logprobs"]).abs().max().item()
    gradients = max(
        ((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).item()
        for a, b in zip(ours["gradients"], theirs["gradients"], strict=True)
    )
    print(f"{TOKENS} tokens, {ACTIONS} action tokens, {WORDS_IN_HEAD} words; forward + backward, float32, one thread")
    print(f"{'':<10} {'peak of the process':>20} {'of the step alone':>18} {'time':>8}")
    for way, result in results.items():
        gigabytes = [result[key] / 2**20 for key in ("peak_kb", "step_kb")]
        print(f"{way:<10} {gigabytes[0]:>16.2f} GiB {gigabytes[1]:>14.2f} GiB {result['seconds']:>6.1f} s")
    ratio = {key: results["full"][key] / results["selected"][key] for key in results["full"]}
    print(f"largest difference: logprobs {difference:.1e}, gradients {gradients:.1e} of their largest entry")
    print(
        f"ratio: peak memory {ratio['peak_kb']:.1f}x (target: at least 5x), of the step {ratio['step_kb']:.1f}x, "
        f"time {ratio['seconds']:.1f}x (target: at least 1x)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=("full", "selected"), help="measure one way in this process")
    parser.add_argument("--directory", help="of the model; only with --way")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.way:
        measure(arguments.way, arguments.directory, arguments.repeats)
    else:
        main(arguments.repeats)
