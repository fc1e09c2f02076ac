"""The desktop of an episode for agents that speak MCP, on standard input and output: `python -m arpo mcp`.

It is started by the agent, with the variables of its assignment, and needs the package `mcp`.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx

from arpo.errors import ConfigError

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

ADDRESS = "ARPO_DESKTOP"
TIMEOUT_S = 120.0
INSTRUCTIONS = "A desktop: look at it with screenshot, and do one thing at a time with act, until the task is done."


def desktop_server(address: str) -> "MCPServer[Any]":
    """Return a server of MCP for the desktop at an address, which holds its key."""
    try:
        from mcp.server.mcpserver import Image, MCPServer
    except ImportError as error:
        raise ConfigError(f"`python -m arpo mcp` needs the package mcp: `uv pip install mcp` ({error})") from error
    server: MCPServer[Any] = MCPServer("desktop", instructions=INSTRUCTIONS, log_level="WARNING")

    async def ask(method: str, path: str, **content: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            return await client.request(method, f"{address}/{path}", **content)

    @server.tool()
    async def task() -> str:
        """Return the instruction, the size of the screen and the number of actions that are left."""
        return (await ask("GET", "task")).text

    @server.tool()
    async def screenshot() -> Image:
        """Return a picture of the screen."""
        return Image(data=(await ask("GET", "screenshot")).content, format="png")

    @server.tool()
    async def act(action: str) -> str:
        """Do one thing, in pixels of the screen.

        Such as click(start_box='(12,34)'), left_double, right_single, hover, drag(start_box=…, end_box=…),
        scroll(start_box=…, direction='down'), type(content='text'), hotkey(key='ctrl c'), press(key='enter'), wait(),
        finished(content='an answer') or fail().
        """
        return (await ask("POST", "act", json={"action": action})).text

    return server


def main(arguments: Sequence[str]) -> int:
    """Serve until standard input ends."""
    if arguments or not os.environ.get(ADDRESS):
        raise ConfigError(f"`python -m arpo mcp` takes no arguments, and {ADDRESS} from the environment of an agent")
    desktop_server(os.environ[ADDRESS]).run()
    return 0
