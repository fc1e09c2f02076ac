"""A loop around OpenAI's client: chat completions, the screenshot in a message of the user behind the result."""

import json

import openai
from door import FUNCTIONS, MODEL, SCHEMAS, SYSTEM, TASK, screen_url

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]


def screenshot():
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": screen_url(), "detail": "high"}}]}


client = openai.OpenAI()
messages = [{"role": "developer", "content": SYSTEM}, {"role": "user", "content": TASK}, screenshot()]
while True:
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, temperature=0.2, max_completion_tokens=512, seed=1
    )
    said = answer.choices[0].message
    messages.append(said)
    for call in said.tool_calls or ():
        result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    if not said.tool_calls:
        break
    messages.append(screenshot())
