"""Thousands of broken, hostile and sound requests: no failure of the server, no leak, no special token out of text."""

import asyncio
import json
import random
from collections import Counter
from copy import deepcopy

import pytest

from arpo.endpoint.session import Budgets
from tests.endpoint.samples import PNG, asking, picturing, url
from tests.endpoint.serving import serving

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|image_pad|>",
    "<|endoftext|>",
    "<tool_call>",
    "<think>",
)
SECRETS = ("apricot", "borage", "cumin", "dill")
FIELDS = (
    "stream",
    "n",
    "max_tokens",
    "stop",
    "tools",
    "tool_choice",
    "temperature",
    "response_format",
    "system",
    "seed",
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "click", "arguments": '{"x": 1}'}}
TOOL = {"name": "click", "description": "<|im_start|>", "parameters": {"type": "object", "properties": {}}}


def junk(rng):
    """Return a value that no field expects, or that some field does."""
    text = "".join(
        rng.choices((*SPECIAL, "a", " ", "é", "\x00", "\ud800", "\U0001f600", "{", "'"), k=rng.randrange(6))
    )
    values = (
        None,
        True,
        -1,
        0,
        3,
        10**30,
        1e308,
        "",
        text,
        [],
        {},
        [text],
        {"type": "text", "text": text},
        [[[]]],
        CALL,
    )
    values += url(PNG[: rng.randrange(len(PNG))]), "http://127.0.0.1/", "file:///etc/passwd", TOOL
    return deepcopy(rng.choice(values))


def places(value):
    """Return all containers of a body with each of their keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    found = [(value, key) for key in keys]
    return found + [place for key in keys for place in places(value[key])]


def body(rng, dialect, secret):
    """Return the bytes of a request that holds the session's secret: sound, broken in places, or no JSON at all."""
    say = lambda: f"{secret} " + "".join(rng.choices((*SPECIAL, "ab", " "), k=rng.randrange(5)))  # noqa: E731
    made = picturing(dialect, url()) if rng.random() < 0.2 else asking(dialect)
    field = "input" if dialect == "responses" else "messages"
    turns = made[field] if isinstance(made[field], list) else []
    history = [{"role": rng.choice(("user", "assistant")), "content": say()} for _ in range(rng.randrange(4))]
    made[field] = [*history, *turns, {"role": "user", "content": say()}]
    if dialect == "messages":
        made["max_tokens"] = 20
    made |= {name: junk(rng) for name in FIELDS if rng.random() < 0.04}
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        container, key = rng.choice(places(made))
        if isinstance(container, dict) and rng.random() < 0.3:
            container[rng.choice(FIELDS)] = container.pop(key)
        elif isinstance(container, list) and not 0 <= key < len(container):
            continue
        elif key in container or isinstance(container, list):
            container[key] = junk(rng)
    raw = bytearray(json.dumps(made).encode())
    for _ in range(rng.choice((0, 0, 0, 0, 1, 3))):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw[: rng.randrange(1, len(raw))] if rng.random() < 0.03 else raw)


def saying(secret):
    return lambda request: f"Well, {secret}."


async def bombard(visit, secret, rng, count, seen):
    async with visit.client() as client:
        for _ in range(count):
            dialect = rng.choice(list(PATHS))
            content = body(rng, dialect, secret)
            reply = await client.post(PATHS[dialect], content=content)
            seen[reply.status_code] += 1
            assert reply.status_code in (200, 400, 413), (reply.status_code, reply.text, content)
            others = set(SECRETS) - {secret}
            assert not any(other in reply.text for other in others), reply.text


@pytest.mark.parametrize(
    "count", [400, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])], ids=str
)
async def test_whatever_agents_send_the_server_stands_and_records_each_session_apart(chats, count):
    chat, seen = chats["qwen3_vl"], Counter()
    options = [{"respond": saying(secret), "budgets": Budgets(10**6, 10**9)} for secret in SECRETS]
    async with serving(chat, *options) as visits, asyncio.timeout(800), asyncio.TaskGroup() as group:
        for number, (visit, secret) in enumerate(zip(visits, SECRETS, strict=True)):
            group.create_task(bombard(visit, secret, random.Random(f"{count} {number}"), count // len(SECRETS), seen))
    assert min(seen[200], seen[400]) > count // 10, seen
    for visit, secret in zip(visits, SECRETS, strict=True):
        check(visit, secret, chat)


def check(visit, secret, chat):
    """Check a session's record against what its engine was asked, and what that holds."""
    exchanges = visit.seat.session.close()
    assert len(exchanges) == len(visit.engine.requests)
    start, end = chat._tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    contexts, pictures = {}, 0
    for number, (request, exchange) in enumerate(zip(visit.engine.requests, exchanges, strict=True)):
        contexts[number] = exchange.added_ids
        if exchange.parent is not None:
            contexts[number] = (
                *contexts[exchange.parent],
                *exchanges[exchange.parent].response_ids,
                *exchange.added_ids,
            )
        assert contexts[number] == request.prompt_ids
        assert not any(other in chat.decode(request.prompt_ids) for other in {*SECRETS} - {secret})
        assert request.prompt_ids.count(chat.image_token_id) == len(request.images)
        assert request.prompt_ids.count(start) == request.prompt_ids.count(end) + 1
        pictures += len(request.images)
    assert pictures
