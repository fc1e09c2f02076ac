"""Foreign agents for tests: coroutines and programs that play, fail, hang and cheat."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx

from arpo.apps.mcp_server import desktop_server

OWN_LOOP = Path(__file__).parents[2] / "experiments" / "foreign_loop" / "agent.py"
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


async def insists(given):
    """Ask again and again, whatever is answered."""
    while True:
        SEEN.append(await ask(given))
        await asyncio.sleep(0.01)


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
        for body in (b"{", b'{"action": 3}', b'{"action": "fly()"}', b"{}", b'{"response": "I would rather not."}'):
            SEEN.append((await web.post("/act", content=body)).status_code)


def main() -> None:
    """A program: show its environment, leave a child in a session of its own, and end as it is asked to."""
    sys.stdout.write(str(sorted(os.environ)))
    sys.stdout.flush()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    asyncio.run(ask(type("Given", (), {"key": os.environ["ARPO_KEY"], "address": os.environ["ARPO_ENDPOINT"]})))
    raise SystemExit(3)


if __name__ == "__main__":
    main()
