"""A loop around OpenAI's client: streamed responses, the screenshot in the output of the function."""

import json

import openai
from door import FUNCTIONS, MODEL, SCHEMAS, SYSTEM, TASK, screen_url

TOOLS = [{"type": "function", "name": name, "parameters": schema, "strict": False} for name, schema in SCHEMAS.items()]


def said(text):
    return [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": screen_url(), "detail": "auto"}]


client = openai.OpenAI()
items = [{"role": "user", "content": said(TASK)}]
while True:
    asked = {"model": MODEL, "instructions": SYSTEM, "input": items, "tools": TOOLS, "store": False}
    with client.responses.stream(**asked, include=["reasoning.encrypted_content"], truncation="auto") as stream:
        answer = stream.get_final_response()
    items += answer.output
    calls = [item for item in answer.output if item.type == "function_call"]
    for call in calls:
        result = FUNCTIONS[call.name](**json.loads(call.arguments))
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": said(result)})
    if not calls:
        break
