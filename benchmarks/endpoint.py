"""Overhead of the recording endpoint, without generation: seconds of a request beside an engine that answers at once.

    PYTHONPATH=. python benchmarks/endpoint.py [SESSIONS]

Requests of OpenAI's chat dialect over loopback, sent by a client in a process of its own: a text, a screenshot of
1920 x 1080, 15 of them of which 14 are known; medians of 30. Then so many sessions (64) at once, each with a growing
conversation of screenshots: how late the event loop is, 99th percentile. A tiny model's tokenizer; the machine should
be idle.
"""

import asyncio
import base64
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from arpo.endpoint.rendering import Renderer
from arpo.endpoint.server import Endpoint, Seat
from arpo.endpoint.session import Budgets, Session
from arpo.inference.engine import Response, Sampling
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.tokenization import ChatTokenizer

REPEATS = 30
SIZE = 1920, 1080
TURNS = 6


def screenshot(number: int) -> str:
    """A picture like a desktop's: flat areas, and some noise that no PNG makes small."""
    pixels = np.full((SIZE[1], SIZE[0], 3), 235, np.uint8)
    pixels[100:400, 100:900] = np.random.default_rng(number).integers(0, 255, (300, 800, 3), np.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"


def body(pictures: list[str], text: str) -> bytes:
    images = [{"type": "image_url", "image_url": {"url": each}} for each in pictures]
    content = [{"type": "text", "text": text}, *images]
    return json.dumps({"model": "policy", "messages": [{"role": "user", "content": content}]}).encode()


def seat(chat: ChatTokenizer) -> Seat:
    ids = chat.encode_response("Action: wait()")

    async def generate(_: object) -> Response:
        return Response(ids, (-1.0,) * len(ids), "stop", 0)

    rest = {"seed": 1, "sampling": Sampling(), "max_context": 10**6, "budgets": Budgets(10**4, 10**7)}
    return Seat(Session("0/0/0", Renderer(chat), chat, **rest), generate)


CLIENT = """
import http.client, json, sys, time
port, key, known = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
visitor, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=300), []
visitor.connect()
for path in sys.argv[4:]:
    body = open(path, "rb").read()
    began = time.perf_counter()
    visitor.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {key}"})
    reply = visitor.getresponse()
    assert reply.status == 200, reply.read()
    reply.read()
    seconds.append(time.perf_counter() - began)
print(json.dumps(seconds[known:]))
"""


async def medians(endpoint: Endpoint, chat: ChatTokenizer, folder: Path) -> None:
    """Print the seconds of requests that a client in a process of its own sends, one after the other."""
    pictures = [screenshot(number) for number in range(15 + REPEATS)]
    bodies = {
        "text": [body([], f"Hello {number}.") for number in range(REPEATS)],
        "one 1080p screenshot": [body(pictures[number : number + 1], "Look.") for number in range(REPEATS)],
        "15 screenshots, 14 known": [body([*pictures[:14], pictures[15 + each]], "Look.") for each in range(REPEATS)],
    }
    for name, contents in bodies.items():
        known = [body(pictures[:14], "Look.")] if "known" in name else []
        paths = [folder / f"{number}.json" for number in range(len(known) + REPEATS)]
        for path, content in zip(paths, [*known, *contents], strict=True):
            path.write_bytes(content)
        async with endpoint.admit(seat(chat)) as key:
            argv = [sys.executable, "-c", CLIENT, str(endpoint.port), key, str(len(known)), *map(str, paths)]
            client = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
            seconds = json.loads((await client.communicate())[0])
        size = f"{len(contents[0]) / 1e6:.1f} MB"
        median, worst = 1000 * statistics.median(seconds), 1000 * max(seconds)
        print(f"{name:<26}{size:>9}  {median:7.1f} ms   worst {worst:7.1f} ms")


PROGRAM = """
import json, sys, urllib.request
address, key = sys.argv[1:3]
pictures, messages = json.load(open(sys.argv[3])), []
for turn, picture in enumerate(pictures):
    content = [{"type": "text", "text": str(turn)}, {"type": "image_url", "image_url": {"url": picture}}]
    messages.append({"role": "user", "content": content})
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    answer = json.load(urllib.request.urlopen(urllib.request.Request(address, body, head), timeout=600))
    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
"""


async def lag(endpoint: Endpoint, chat: ChatTokenizer, sessions: int, folder: Path) -> None:
    """Print how late the loop wakes up while clients in processes of their own, two at a time, keep sessions busy."""
    (folder / "pictures.json").write_text(json.dumps([*map(screenshot, range(TURNS))]), encoding="utf-8")
    late: list[float] = []
    turns = asyncio.Semaphore(2)

    async def play() -> None:
        async with turns, endpoint.admit(seat(chat)) as key:
            address = f"http://127.0.0.1:{endpoint.port}/v1/chat/completions"
            words = [sys.executable, "-c", PROGRAM, address, key, str(folder / "pictures.json")]
            assert await (await asyncio.create_subprocess_exec(*words)).wait() == 0

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            late.append(time.perf_counter() - began - 0.005)

    watching = asyncio.create_task(watch())
    began = time.perf_counter()
    await asyncio.gather(*(play() for _ in range(sessions)))
    watching.cancel()
    ordered = sorted(late)
    p99, seconds = ordered[int(0.99 * len(ordered))], time.perf_counter() - began
    print(f"{sessions} sessions of {TURNS} turns in {seconds:.1f} s: the loop is late by {1000 * p99:.1f} ms (p99)")


async def main(sessions: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_tiny(Path(folder) / "model", corpus=["Hello. Look. Action: wait()"] * 20)
        chat = ChatTokenizer(Path(folder) / "model")
        endpoint = Endpoint()
        await endpoint.start()
        try:
            await medians(endpoint, chat, Path(folder))
            await lag(endpoint, chat, sessions, Path(folder))
        finally:
            await endpoint.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 64))
