"""Questions to an engine, and its answers in the form that a trainer reads."""

import asyncio
import io
from collections import Counter

import torch
from PIL import Image

from arpo.agent.prompt import Prompt
from arpo.inference.engine import GenerateRequest, Sampling
from arpo.models.collate import collate
from arpo.models.tokenization import tokenize
from arpo.types import Outcome, Step, Trajectory, screenshot_key
from tests.exchanges import in_turn

INSTRUCTIONS = tuple(
    f"{verb} the {thing}."
    for verb in ("Click", "Find", "Open", "Close", "Select", "Drag", "Copy", "Read")
    for thing in ("blue button", "search field", "third item of the list", "last page")
)


def questions(chat, max_tokens):
    """One picture, several instructions, each with a seed of its own."""
    prompt, buffer = Prompt.compact(), io.BytesIO()
    Image.linear_gradient("L").resize((112, 112)).convert("RGB").save(buffer, "PNG")  # no two patches are alike
    pngs, ids = (buffer.getvalue(),), [chat.first_prompt(prompt.messages(text)) for text in INSTRUCTIONS]
    return [GenerateRequest(each, pngs, Sampling(1.0, max_tokens, seed)) for seed, each in enumerate(ids)]


def trajectory_of(request, response):
    (png,) = request.images
    key = screenshot_key(png)
    width, height = Image.open(io.BytesIO(png)).size
    record = in_turn([Step(key, width, height, "")], (request.prompt_ids, response.token_ids, response.logprobs))
    ended = {"outcome": Outcome.MAX_STEPS, "task_reward": 0.0, "format_reward": 0.0, "screenshots": {key: png}}
    return Trajectory("asked", "asked", "", "", 0, **record, **ended)


def trainer_logprobs(policy, request, response):
    """The policy's log-probabilities of the tokens of an answer to a question with one picture."""
    trajectory = trajectory_of(request, response)
    batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
    with torch.no_grad():
        output = policy.action_logprobs(batch)
    return output.logprobs[output.mask]


async def ask_each(fleet, request):
    return list(await asyncio.gather(*(replica.ask(request) for replica in fleet.replicas)))


async def pulses(fleet):
    return [Counter(await replica.actor.pulse.remote()) for replica in fleet.replicas]
