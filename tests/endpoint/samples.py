"""Answers, pictures and requests for the tests of this folder."""

import base64
import io
import json

from PIL import Image

from arpo.endpoint.conversation import Answer, Stamp, ToolCall
from arpo.endpoint.wire.common import Limits, Pictures, Reader
from arpo.endpoint.wire.dialects import DIALECTS
from tests.models.samples import screenshot

STAMP = Stamp("e7", 1_700_000_000, "policy")
CALLS = (ToolCall("call_e7_0", "click", '{"x": 3, "why": "é </s>"}'), ToolCall("call_e7_1", "stop", "{}"))
ANSWERS = {
    "text": Answer(text="Hello.\nÜ", prompt_tokens=9, completion_tokens=4),
    "empty": Answer(text="", prompt_tokens=9, completion_tokens=1),
    "cut": Answer(text="Hel", finish="length", prompt_tokens=9, completion_tokens=2),
    "calls": Answer(text="", tool_calls=CALLS, finish="tool_calls", prompt_tokens=9, completion_tokens=30),
    "all": Answer(
        text="So.", thought="I think.", tool_calls=CALLS, finish="tool_calls", prompt_tokens=9, completion_tokens=40
    ),
}
PNG = screenshot(0, 40, 30)[1]


def reader(known=None, **limits):
    return Reader(known or Pictures(), Limits(**limits))


def parse(dialect, request, reads=None, **limits):
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return DIALECTS[dialect].parse(body, reads or reader(**limits))


def url(data=PNG, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def encoded(kind, mode="RGB", size=(40, 30), **options):
    written = io.BytesIO()
    Image.new(mode, size, "red" if mode == "RGB" else 1).save(written, kind, **options)
    return written.getvalue()


def asking(dialect, /, **options):
    """Return the smallest request with a text of the user."""
    body = {"model": "policy"} | ({"input": "Hi"} if dialect == "responses" else {})
    return body | ({} if body.get("input") else {"messages": [{"role": "user", "content": "Hi"}]}) | options


def picturing(dialect, address):
    """Return a request with a picture."""
    part = {
        "chat": {"type": "image_url", "image_url": {"url": address}},
        "responses": {"type": "input_image", "image_url": address, "detail": "auto"},
        "messages": {"type": "image", "source": {"type": "url", "url": address}},
    }[dialect]
    content = [{"role": "user", "content": [part]}]
    return {"model": "policy", ("input" if dialect == "responses" else "messages"): content}
