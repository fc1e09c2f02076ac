"""An agent of Strands with its model of OpenAI's chat, streamed; its tools return a text and a picture."""

import os

import door
from strands import Agent, tool
from strands.models.openai import OpenAIModel


def shown(text):
    return [{"text": text}, {"image": {"format": "png", "source": {"bytes": door.screen()}}}]


@tool
def click(x: int, y: int):
    """Click a point of the screen."""
    return {"status": "success", "content": shown(door.click(x, y))}


@tool
def type_text(text: str):
    """Type a text where the focus is."""
    return {"status": "success", "content": shown(door.type_text(text))}


given = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
model = OpenAIModel(client_args=given, model_id=door.MODEL, params={"max_tokens": 500, "temperature": 0.7})
Agent(model=model, tools=[click, type_text], system_prompt=door.SYSTEM)(shown(door.TASK))
