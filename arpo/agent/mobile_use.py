"""The tool by which Qwen's models operate a phone, whose calls are written and read as those of `computer_use`.

    <tool_call>
    {"name": "mobile_use", "arguments": {"action": "swipe", "coordinate": [500, 800], "coordinate2": [500, 200]}}
    </tool_call>

The actions and their arguments are those of Qwen's cookbook (QwenLM/Qwen3-VL, cookbooks/mobile_agent.ipynb).
"""

from collections.abc import Mapping
from typing import Any

from arpo.agent.actions import Action, Click, Fail, Finished, Press, TypeText, Wait
from arpo.agent.computer_use import COMPUTER, Rule, Tool, Writer, read_place, read_string, write_place
from arpo.agent.phone import Back, Home, LongPress, OpenApp, Swipe
from arpo.agent.response import ParseErrorKind, read_key, refuse

_BUTTONS: Mapping[str, Action] = {"Back": Back(), "Home": Home(), "Menu": Press("apps"), "Enter": Press("enter")}
_ENDS = ("coordinate", "coordinate2")


def _button(given: Mapping[str, Any]) -> Action:
    name = read_string(given, "button").strip().capitalize()
    if name not in _BUTTONS:
        refuse(ParseErrorKind.BAD_ARGUMENT, f"unknown button {name[:40]!r}; known are {', '.join(_BUTTONS)}")
    return _BUTTONS[name]


def _clicked(action: Click) -> list[dict[str, Any]]:
    if (action.button, action.count) != ("left", 1) or not action.start:
        raise ValueError(f"mobile_use has no action for {action}")
    return [{"action": "click", **write_place(action.x, action.y)}]


_RULES: Mapping[str, Rule] = {
    "click": Rule(lambda given: Click(*read_place(given)), ("coordinate",)),
    "long_press": Rule(lambda given: LongPress(*read_place(given)), ("coordinate",)),
    "swipe": Rule(lambda given: Swipe(*read_place(given), *read_place(given, "coordinate2")), _ENDS),
    "key": Rule(lambda given: Press(read_key(read_string(given, "text"))), ("text",)),
    "system_button": Rule(_button, ("button",)),
    "open": Rule(lambda given: OpenApp(read_string(given, "text")), ("text",)),
    **{name: COMPUTER.rules[name] for name in ("type", "wait", "terminate", "answer")},
}
_WRITERS: Mapping[type, Writer] = {
    Click: _clicked,
    LongPress: lambda action: [{"action": "long_press", **write_place(action.x, action.y), "time": 2}],
    Swipe: lambda action: [
        {"action": "swipe", **write_place(action.x, action.y), **write_place(action.to_x, action.to_y, "coordinate2")}
    ],
    Press: lambda action: [{"action": "key", "text": action.key}],
    Back: lambda _: [{"action": "system_button", "button": "Back"}],
    Home: lambda _: [{"action": "system_button", "button": "Home"}],
    OpenApp: lambda action: [{"action": "open", "text": action.app}],
    **{kind: COMPUTER.writers[kind] for kind in (TypeText, Wait, Finished, Fail)},
}
PHONE = Tool("mobile_use", _RULES, _WRITERS, others={"text", "button", "coordinate2"})
