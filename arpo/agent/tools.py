"""The system messages of Qwen3-VL and Qwen3.5 as a desktop agent: the tool `computer_use`, and functions beside it.

The former is the message that qwen-agent makes of the tool of Qwen's cookbook (QwenLM/Qwen3-VL,
cookbooks/utils/agent_function_call.py), for a screen of 1000 x 1000. Any change to it is another prompt.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from arpo.agent.computer_use import TOOL
from arpo.agent.functions import Function, Kind

_DESCRIPTION = """Use a mouse and keyboard to interact with a computer, and take screenshots.
* This is an interface to a desktop GUI. You do not have access to a terminal or applications menu. You must click on desktop icons to start applications.
* Some applications may take time to start or process actions, so you may need to wait and take successive screenshots to see the results of your actions. E.g. if you click on Firefox and a window doesn't open, try wait and taking another screenshot.
* The screen's resolution is 1000x1000.
* Whenever you intend to move the cursor to click on an element like an icon, you should consult a screenshot to determine the coordinates of the element before moving the cursor.
* If you tried clicking on a program or link but it failed to load, even after waiting, try adjusting your cursor position so that the tip of the cursor visually falls on the element that you want to click.
* Make sure to click any buttons, links, icons, etc with the cursor tip in the center of the element. Don't click boxes on their edges."""  # noqa: E501

_ACTIONS = {
    "key": "Performs key down presses on the arguments passed in order, then performs key releases in reverse order.",
    "type": "Type a string of text on the keyboard.",
    "mouse_move": "Move the cursor to a specified (x, y) pixel coordinate on the screen.",
    "left_click": "Click the left mouse button at a specified (x, y) pixel coordinate on the screen.",
    "left_click_drag": "Click and drag the cursor to a specified (x, y) pixel coordinate on the screen.",
    "right_click": "Click the right mouse button at a specified (x, y) pixel coordinate on the screen.",
    "middle_click": "Click the middle mouse button at a specified (x, y) pixel coordinate on the screen.",
    "double_click": "Double-click the left mouse button at a specified (x, y) pixel coordinate on the screen.",
    "triple_click": "Triple-click the left mouse button at a specified (x, y) pixel coordinate on the screen "
    "(simulated as double-click since it's the closest action).",
    "scroll": "Performs a scroll of the mouse scroll wheel.",
    "hscroll": "Performs a horizontal scroll (mapped to regular scroll).",
    "wait": "Wait specified seconds for the change to happen.",
    "terminate": "Terminate the current task and report its completion status.",
    "answer": "Answer a question.",
}

_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "keys": ("Required only by `action=key`.", "array"),
    "text": ("Required only by `action=type` and `action=answer`.", "string"),
    "coordinate": (
        "(x, y): The x (pixels from the left edge) and y (pixels from the top edge) coordinates to move the mouse to.",
        "array",
    ),
    "pixels": (
        "The amount of scrolling to perform. Positive values scroll up, negative values scroll down. Required only by "
        "`action=scroll` and `action=hscroll`.",
        "number",
    ),
    "time": ("The seconds to wait. Required only by `action=wait`.", "number"),
}

_XML_CALLS = """If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls
</IMPORTANT>"""  # noqa: E501

_TYPES: Mapping[Kind, str] = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def system_message(functions: Sequence[Function] = ()) -> str:
    """Return the message that tells a model of its tool, and of the desktop's functions as further tools."""
    listed = _listed(functions)
    return f"""You are a helpful assistant.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{listed}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def xml_system_message(functions: Sequence[Function] = ()) -> str:
    """Return the message of the same tools that the chat template of Qwen3.5 writes, for calls as XML."""
    return f"""# Tools

You have access to the following functions:

<tools>
{_listed(functions)}
</tools>

{_XML_CALLS}"""


def _listed(functions: Sequence[Function]) -> str:
    return "\n".join([_signature(TOOL, _DESCRIPTION, _parameters()), *map(signature, functions)])


def _signature(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    function = {"name": name, "description": description, "parameters": parameters}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _parameters() -> dict[str, Any]:
    actions = "\n".join(f"* `{name}`: {does}" for name, does in _ACTIONS.items())
    action = {
        "description": f"The action to perform. The available actions are:\n{actions}",
        "enum": list(_ACTIONS),
        "type": "string",
    }
    arguments = {name: {"description": says, "type": kind} for name, (says, kind) in _ARGUMENTS.items()}
    status = {
        "description": "The status of the task. Required only by `action=terminate`.",
        "type": "string",
        "enum": ["success", "failure"],
    }
    return {"properties": {"action": action, **arguments, "status": status}, "required": ["action"], "type": "object"}


def signature(function: Function) -> str:
    """Return a function of the desktop as a tool, in one line of JSON."""
    properties = {name: {"type": _TYPES[kind]} for name, kind in function.parameters.items()}
    parameters = {"properties": properties, "required": list(properties), "type": "object"}
    return _signature(function.name, function.does, parameters)
