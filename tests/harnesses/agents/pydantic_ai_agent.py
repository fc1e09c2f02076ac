"""An agent of Pydantic AI whose result has a schema, in the dialect of its argument; its tools return pictures."""

import sys

import door
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent


class Result(BaseModel):
    """What was done."""

    summary: str


def shown(text):
    return [text, BinaryContent(door.screen(), media_type="image/png")]


agent = Agent(f"{sys.argv[1]}:{door.MODEL}", output_type=Result, system_prompt=door.SYSTEM)


@agent.tool_plain
def click(x: int, y: int):
    """Click a point of the screen."""
    return shown(door.click(x, y))


@agent.tool_plain
def type_text(text: str):
    """Type a text where the focus is."""
    return shown(door.type_text(text))


agent.run_sync(shown(door.TASK))
