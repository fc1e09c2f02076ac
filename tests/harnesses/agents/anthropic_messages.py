"""A loop around Anthropic's client: streamed messages with thoughts, the screenshot in the result of the tool."""

import anthropic
from door import FUNCTIONS, MODEL, SCHEMAS, SYSTEM, TASK, screen_base64

TOOLS = [{"name": name, "description": "", "input_schema": schema} for name, schema in SCHEMAS.items()]
CACHED = {"cache_control": {"type": "ephemeral"}}


def said(text):
    source = {"type": "base64", "media_type": "image/png", "data": screen_base64()}
    return [{"type": "text", "text": text}, {"type": "image", "source": source}]


client = anthropic.Anthropic()
messages = [{"role": "user", "content": said(TASK)}]
while True:
    asked = {
        "model": MODEL,
        "messages": messages,
        "tools": TOOLS,
        "system": [{"type": "text", "text": SYSTEM, **CACHED}],
    }
    asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    assert client.messages.count_tokens(**asked).input_tokens < 100_000
    with client.messages.stream(**asked, max_tokens=2048) as stream:
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": said(FUNCTIONS[block.name](**block.input))}
        for block in answer.content
        if block.type == "tool_use"
    ]
    if not results:
        break
    messages.append({"role": "user", "content": results})
