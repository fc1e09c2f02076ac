"""An agent of browser-use with a page of its own in Chromium, and two actions of ours for the desktop."""

import asyncio
import http.server
import shutil
import threading

import door
from browser_use import Agent, BrowserProfile, ChatOpenAI, Tools

tools = Tools()


@tools.action("Click a point of the desktop.")
def desktop_click(x: int, y: int):
    return door.click(x, y)


@tools.action("Type a text on the desktop.")
def desktop_type_text(text: str):
    return door.type_text(text)


async def play(address):
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    profile = BrowserProfile(headless=True, executable_path=chromium, chromium_sandbox=False)
    options = {"initial_actions": [{"navigate": {"url": address}}], "use_judge": False, "tools": tools}
    agent = Agent(door.TASK, ChatOpenAI(model=door.MODEL), browser_profile=profile, **options)
    assert (await agent.run(max_steps=door.MAX_STEPS)).is_done()


with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asyncio.run(play(f"http://127.0.0.1:{server.server_port}/"))
    server.shutdown()
