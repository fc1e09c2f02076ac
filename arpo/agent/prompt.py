"""The messages that a model reads before the first screenshot."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from arpo.agent.computer_use import TOOL
from arpo.agent.functions import Function, Kind
from arpo.agent.grammar import GrammarName
from arpo.bounds import checked
from arpo.errors import ConfigError

_PLACEHOLDER = "{instruction}"

# The computer-use prompt that UI-TARS-1.5 was trained with. Any change to it, of a single space, is another prompt.
_UI_TARS = r"""You are a GUI agent. You are given a task and your action history, with screenshots. You need to perform the next action to complete the task.

## Output Format
```
Thought: ...
Action: ...
```

## Action Space

click(start_box='<|box_start|>(x1,y1)<|box_end|>')
left_double(start_box='<|box_start|>(x1,y1)<|box_end|>')
right_single(start_box='<|box_start|>(x1,y1)<|box_end|>')
drag(start_box='<|box_start|>(x1,y1)<|box_end|>', end_box='<|box_start|>(x3,y3)<|box_end|>')
hotkey(key='')
type(content='xxx') # Use escape characters \', \", and \n in content part to ensure we can parse the content in normal python string format. If you want to submit your input, use \n at the end of content.
scroll(start_box='<|box_start|>(x1,y1)<|box_end|>', direction='down or up or right or left')
wait() #Sleep for 5s and take a screenshot to check for any changes.
finished(content='xxx') # Use escape characters \', \", and \n in content part to ensure we can parse the content in normal python string format.

## Note
- Use English in `Thought` and `Action` part.
- Write a small plan and finally summarize your next action (with its target element) in one sentence in `Thought` part.

## User Instruction
{instruction}
"""  # noqa: E501
_AFTER_THE_ACTIONS = "\n## Note\n"


def _ui_tars(functions: Sequence[Function]) -> str:
    return _UI_TARS.replace(_AFTER_THE_ACTIONS, _listed(functions) + _AFTER_THE_ACTIONS)


def _listed(functions: Iterable[Function | str]) -> str:
    return "".join(f"{function}\n" for function in functions)


# The tool `computer_use` for a screen of 1000 x 1000, from Qwen's cookbook (QwenLM/Qwen3-VL,
# cookbooks/utils/agent_function_call.py). Any change to it is another prompt, too.
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


class PromptText(str):
    """The text of a message, of which `foreign` alone comes from outside: a task's instruction, which is never markup.

    What stands around it was written for the model, and may hold tokens of its grammar, such as those of a box.
    """

    before: str
    foreign: str
    behind: str

    def __new__(cls, before: str, foreign: str = "", behind: str = "") -> Self:
        """Return the text of three parts."""
        text = super().__new__(cls, before + foreign + behind)
        text.before, text.foreign, text.behind = before, foreign, behind
        return text


@checked
@dataclass(frozen=True, slots=True)
class Prompt:
    """The messages before the first response.

    The named prompts list the functions of the desktop among the actions, where it has some; without, they are the
    same character by character.
    """

    system: str
    """The system message; none when empty."""
    template: str
    """The user message, with `{instruction}` where the instruction goes."""
    screenshot_apart: bool = True
    """True if the first screenshot is a message of its own, or follows the text in the same message."""
    grammar: GrammarName = "ui_tars"
    """The grammar of the responses."""
    functions: Sequence[Function] = ()
    """The functions of the desktop that it lists."""

    def __post_init__(self) -> None:
        if self.template.count(_PLACEHOLDER) != 1:
            raise ConfigError(f"a prompt template must contain {_PLACEHOLDER} exactly once, got {self.template!r}")

    @classmethod
    def ui_tars(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the computer-use prompt of UI-TARS-1.5."""
        return cls("You are a helpful assistant.", _ui_tars(functions), functions=functions)

    @classmethod
    def official(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the same prompt as ARPO's own code writes it, with the typing error in its system message."""
        return cls("Your are a helpful assistant.", _ui_tars(functions), functions=functions)

    @classmethod
    def compact(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the shortest prompt, for tiny models that know only one task family."""
        return cls("", _listed(functions) + _PLACEHOLDER, screenshot_apart=False, functions=functions)

    @classmethod
    def computer_use(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the prompt by which Qwen3-VL operates a desktop: calls of one tool, in thousandths of the screen."""
        return cls(_system_message(functions), _PLACEHOLDER, False, "computer_use", functions)

    @classmethod
    def compact_computer_use(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the shortest prompt for calls of that tool, for tiny models; functions are tools beside it."""
        return cls("", _listed(map(_tool, functions)) + _PLACEHOLDER, False, "computer_use", functions)

    @classmethod
    def computer_use_xml(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the prompt by which Qwen3.5 operates a desktop: calls of the same tool, as XML."""
        return cls(_xml_system_message(functions), _PLACEHOLDER, False, "computer_use_xml", functions)

    @classmethod
    def compact_computer_use_xml(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the shortest prompt for such calls, for tiny models; functions are tools beside it."""
        return cls("", _listed(map(_tool, functions)) + _PLACEHOLDER, False, "computer_use_xml", functions)

    def messages(self, instruction: str) -> list[dict[str, Any]]:
        """Return chat messages that end with the first screenshot, ready for the chat template."""
        # Not `format`: instructions and templates may hold braces of their own.
        before, _, behind = self.template.partition(_PLACEHOLDER)
        text = {"type": "text", "text": PromptText(before, instruction, behind)}
        image = {"type": "image"}
        contents = [[text], [image]] if self.screenshot_apart else [[text, image]]
        users = [{"role": "user", "content": content} for content in contents]
        if not self.system:
            return users
        return [{"role": "system", "content": [{"type": "text", "text": PromptText(self.system)}]}, *users]


def _system_message(functions: Sequence[Function] = ()) -> str:
    """Return the message that qwen-agent makes of the tool, and of the desktop's functions as further tools."""
    return f"""You are a helpful assistant.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{_tools(functions)}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def _xml_system_message(functions: Sequence[Function] = ()) -> str:
    """Return the message of the same tools that the chat template of Qwen3.5 writes, for calls as XML."""
    return f"""# Tools

You have access to the following functions:

<tools>
{_tools(functions)}
</tools>

{_XML_CALLS}"""


def _tools(functions: Sequence[Function]) -> str:
    return "\n".join([_signature(TOOL, _DESCRIPTION, _parameters()), *map(_tool, functions)])


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


def _tool(function: Function) -> str:
    """Return a function of the desktop as a tool, in one line of JSON."""
    properties = {name: {"type": _TYPES[kind]} for name, kind in function.parameters.items()}
    parameters = {"properties": properties, "required": list(properties), "type": "object"}
    return _signature(function.name, function.does, parameters)
