"""Calls of tools as vLLM's own parsers read them."""

import json

import pytest
from transformers import AutoTokenizer

from arpo.endpoint.conversation import Tool
from arpo.endpoint.rendering import Renderer
from tests.endpoint.test_rendering import JSON_CALL, SCHEMA, XML_CALL, read, thinking

pytestmark = pytest.mark.slow  # of the import

MORE = SCHEMA["properties"] | {"s": {"type": "string"}, "n": {"type": "number"}, "o": {"type": "object"}}
XML = XML_CALL.replace(
    "</function>",
    "<parameter=s>\n 3\nTrue\n</parameter>\n<parameter=n>\n0.5\n</parameter>\n"
    '<parameter=o>\n{"a": [null]}\n</parameter>\n</function>',
)
CALLS = {
    "hermes": ("qwen3_vl", [JSON_CALL, f"So.\n{JSON_CALL}\n{JSON_CALL}", "no call"]),
    "qwen3_coder": ("qwen3_5", [XML, f"So.\n\n{XML}\n{XML}", "no call"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_those_that_vllm_reads(chats, name):
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    template, texts = CALLS[name]
    chat, tool = chats[template], Tool("click", "", {"type": "object", "properties": MORE})
    function = {"type": "function", "function": {"name": "click", "parameters": tool.schema}}
    asked = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=[function])
    for text in texts:
        parser = ToolParserManager.get_tool_parser(name)(AutoTokenizer.from_pretrained(chat.path), asked.tools)
        theirs = parser.extract_tool_calls(text, asked)
        renderer = Renderer(chat)
        ours = read(renderer, chat, thinking(renderer, text), tools=(tool,)).answer
        assert [(call.name, json.loads(call.arguments)) for call in ours.tool_calls] == [
            (call.function.name, json.loads(call.function.arguments)) for call in theirs.tool_calls
        ]
        assert ours.text == (theirs.content or "").strip()
