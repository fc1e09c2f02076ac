"""OpenAI's Agents SDK as it comes: responses, tools that return a text and a picture."""

import door
from agents import Agent, Runner, ToolOutputImage, ToolOutputText, function_tool


def shown(text):
    return [ToolOutputText(text=text), ToolOutputImage(image_url=door.screen_url())]


@function_tool
def click(x: int, y: int):
    """Click a point of the screen."""
    return shown(door.click(x, y))


@function_tool
def type_text(text: str):
    """Type a text where the focus is."""
    return shown(door.type_text(text))


agent = Agent(name="desktop", instructions=door.SYSTEM, model=door.MODEL, tools=[click, type_text])
content = [{"type": "input_text", "text": door.TASK}, {"type": "input_image", "image_url": door.screen_url()}]
Runner.run_sync(agent, [{"role": "user", "content": content}], max_turns=door.MAX_STEPS + 2)
