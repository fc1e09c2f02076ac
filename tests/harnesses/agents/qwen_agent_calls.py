"""An agent of Qwen-Agent, which writes its tools and their results into the text itself; streamed."""

import os

import door
from qwen_agent.agents import FnCallAgent
from qwen_agent.llm.schema import ContentItem, Message
from qwen_agent.tools.base import BaseTool


def shown(text):
    return [ContentItem(text=text), ContentItem(image=door.screen_url())]


class Click(BaseTool):
    name, description, parameters = "click", "Click a point of the screen.", door.SCHEMAS["click"]

    def call(self, params, **_):
        return shown(door.click(**self._verify_json_format_args(params)))


class TypeText(BaseTool):
    name, description, parameters = "type_text", "Type a text where the focus is.", door.SCHEMAS["type_text"]

    def call(self, params, **_):
        return shown(door.type_text(**self._verify_json_format_args(params)))


llm = {"model": door.MODEL, "model_type": "qwenvl_oai", "model_server": os.environ["OPENAI_BASE_URL"]}
agent = FnCallAgent([Click(), TypeText()], llm, door.SYSTEM)
[*agent.run([Message("user", shown(door.TASK))])][-1]
