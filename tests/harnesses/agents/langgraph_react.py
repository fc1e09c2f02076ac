"""The agent of LangGraph that reasons and acts, with LangChain's client; its tools return a text and a picture."""

import door
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


def shown(text):
    return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": door.screen_url()}}]


def click(x: int, y: int):
    """Click a point of the screen."""
    return shown(door.click(x, y))


def type_text(text: str):
    """Type a text where the focus is."""
    return shown(door.type_text(text))


agent = create_react_agent(ChatOpenAI(model=door.MODEL, temperature=0), [click, type_text], prompt=door.SYSTEM)
agent.invoke({"messages": [{"role": "user", "content": shown(door.TASK)}]}, {"recursion_limit": 100})
