"""The desktop of the episode over HTTP, as every agent of this folder reaches it."""

import base64
import json
import os
import urllib.error
import urllib.request

MODEL, TASK, MAX_STEPS = os.environ["ARPO_MODEL"], os.environ["ARPO_TASK"], int(os.environ["ARPO_MAX_STEPS"])
SYSTEM = "You operate a desktop: look at the screen, then click or type. Say that you are done when you are."


def request(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"{os.environ['ARPO_DESKTOP']}/{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return reply.read()


def screen():
    return request("screen")


def screen_base64():
    return base64.b64encode(screen()).decode()


def screen_url():
    return f"data:image/png;base64,{screen_base64()}"


def act(action):
    return f"Done, {json.loads(request('act', {'action': action}))['steps_left']} steps left."


def click(x: int, y: int) -> str:
    """Click a point of the screen.

    Args:
        x: Pixels from the left.
        y: Pixels from the top.
    """
    return act(f"click(start_box='({x},{y})')")


def type_text(text: str) -> str:
    """Type a text where the focus is.

    Args:
        text: The text.
    """
    return act(f"type(content={text!r})")


NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
SCHEMAS = {
    "click": {"type": "object", "properties": {"x": NUMBER, "y": NUMBER}, "required": ["x", "y"]},
    "type_text": {"type": "object", "properties": {"text": TEXT}, "required": ["text"]},
}
FUNCTIONS = {"click": click, "type_text": type_text}
