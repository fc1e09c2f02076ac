"""Foreign agents for tests: coroutines and programs that play, fail, hang and cheat."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx

from arpo.apps.mcp_server import desktop_server

OWN_LOOP = Path(__file__).parents[2] / "experiments" / "foreign_loop" / "agent.py"
UI_TARS = Path(__file__).parents[1] / "harnesses" / "agents" / "ui_tars.py"
HI = {"model": "policy", "messages": [{"role": "user", "content": "Click the red button."}]}
SEEN: list = []


def client(given):
    headers = {"Authorization": f"Bearer {given.key}"}
    return httpx.AsyncClient(base_url=given.address, headers=headers, timeout=60, trust_env=False)


async def ask(given):
    async with client(given) as web:
        return (await web.post("/v1/chat/completions", json=HI)).status_code


async def silent(given):
    return None


async def dies(given):
    await ask(given)
    raise RuntimeError("out of ideas")


async def hangs(given):
    await ask(given)
    await asyncio.sleep(600)


async def stays(given):
    """Go on whoever cancels it."""
    await ask(given)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)


async def insists(given):
    """Ask again and again, whatever is answered, until its budget is refused thrice."""
    while SEEN.count(429) < 3:
        SEEN.append(await ask(given))
        await asyncio.sleep(0.01)


async def collects(given):
    """Send one more screenshot each time, four times."""
    async with client(given) as web:
        screen = base64.b64encode((await web.get("/screen")).content).decode()
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{screen}"}}
        for count in range(1, 5):
            pictured = {"role": "user", "content": [picture] * count}
            SEEN.append(await web.post("/v1/chat/completions", json=HI | {"messages": [*HI["messages"], pictured]}))


async def acts(given):
    """Wait on the desktop for longer than there are steps, and say what came of each request."""
    async with client(given) as web:
        await ask(given)
        for _ in range(given.max_steps + 1):
            SEEN.append((await web.post("/act", json={"action": "wait()"})).status_code)
        SEEN.append((await web.get("/task")).json())


async def looks(given):
    async with client(given) as web:
        await ask(given)
        screens = [(await web.get(path)).content for path in ("/screen", "/screenshot")]
        ran = await web.post(f"/desktop/{given.key}/execute", json={"command": ["echo", "hi"]})
        SEEN.extend([*screens, ran.status_code, ran.json()])


async def speaks_mcp(given):
    from mcp import Client

    async with Client(desktop_server(f"{given.address}/desktop/{given.key}")) as web:
        await ask(given)
        for name, arguments in (("task", {}), ("screenshot", {}), ("act", {"action": "wait()"})):
            SEEN.extend((await web.call_tool(name, arguments)).content)


async def misbehaves(given):
    async with client(given) as web:
        await ask(given)
        long, many = (
            json.dumps({"action": each}).encode() for each in (f"type(content='{'x' * 5000}')", "wait()\n" * 20)
        )
        wrong = (
            b"{",
            b'{"action": 3}',
            b'{"action": "fly()"}',
            b"{}",
            long,
            many,
            b'{"response": "I would rather not."}',
        )
        for body in (*wrong, b" " * 2**19):
            SEEN.append((await web.post("/act", content=body)).status_code)


async def chooses(given):
    """Set options that are the run's, in two dialects."""
    await ask(given)
    async with client(given) as web:
        for path, option in (("chat/completions", {"temperature": 0.1, "seed": 1}), ("messages", {"top_k": 1})):
            SEEN.append(await web.post(f"/v1/{path}", json={**HI, "max_tokens": 9, **option}))


async def exits(given):
    await ask(given)
    sys.exit("I have finished.")


async def cancels_itself(given):
    await ask(given)
    raise asyncio.CancelledError


async def leaves_in_the_middle(given):
    """Have three requests act, and be gone before they are answered."""
    await ask(given)
    async with client(given) as web:
        acting = [asyncio.create_task(web.post("/act", json={"action": "wait()\nwait()\nwait()"})) for _ in range(3)]
        while not SEEN:
            await asyncio.sleep(0.01)
        for task in acting:
            task.cancel()


async def clicks_far_away(given):
    async with client(given) as web:
        await ask(given)
        await web.post("/act", json={"action": "click(start_box='(99999,-99999)')"})


async def looks_at_what_is_gone(given):
    async with client(given) as web:
        await ask(given)
        SEEN.append((await web.get("/screenshot")).status_code)
        SEEN.append((await web.get("/task")).json()["ended"])


def main() -> None:
    """A program: show its environment, leave a child in a session of its own, and end as it is asked to."""
    sys.stdout.write(f"{sorted(os.environ)}\n")
    sys.stdout.flush()
    sleep = [sys.executable, "-c", "import time; time.sleep(613)"]
    subprocess.Popen(sleep, start_new_session=True)
    # These have no mark: one works in the directory of the episode, and the other has the pipe alone.
    subprocess.Popen(sleep, start_new_session=True, env={}, cwd=os.environ["HOME"])
    subprocess.Popen(["sleep", "61"], start_new_session=True, env={"PATH": os.environ["PATH"]}, cwd="/")
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    subprocess.Popen(sleep, start_new_session=True, cwd=".")
    asyncio.run(ask(type("Given", (), {"key": os.environ["ARPO_KEY"], "address": os.environ["ARPO_ENDPOINT"]})))
    raise SystemExit(3)


if __name__ == "__main__":
    main()
