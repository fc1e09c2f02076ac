import json

import pytest

from arpo.agent.functions import Function
from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import parse_action
from arpo.errors import ConfigError


def test_the_first_screenshot_is_a_message_of_its_own_unless_the_prompt_is_compact():
    system, text, image = Prompt.ui_tars().messages("Open {this} file")
    assert system == {"role": "system", "content": [{"type": "text", "text": "You are a helpful assistant."}]}
    assert text["role"] == "user"
    assert text["content"][0]["text"].endswith("## User Instruction\nOpen {this} file\n")
    assert image == {"role": "user", "content": [{"type": "image"}]}
    assert Prompt.official().system == "Your are a helpful assistant."  # a typing error, the only difference
    assert Prompt.official().template == Prompt.ui_tars().template
    user = {"role": "user", "content": [{"type": "text", "text": "say {instruction}"}, {"type": "image"}]}
    assert Prompt.compact().messages("say {instruction}") == [user]
    assert Prompt("", "{json} {instruction}").messages("x")[0]["content"][0]["text"] == "{json} x"


def test_a_prompt_of_calls_lists_the_tool_and_the_functions_of_the_desktop_as_its_grammar_has_them():
    function = Function("files.write", {"path": "str", "n": "int"}, "Writes a file ✓.")
    system, xml = Prompt.computer_use([function]).system, Prompt.computer_use_xml([function]).system
    listed = [text.split("<tools>\n")[1].split("\n</tools>")[0] for text in (system, xml)]
    assert listed[0] == listed[1]
    assert "Writes a file ✓." in listed[0]  # as the chat template writes it
    tools = [json.loads(line)["function"] for line in listed[0].splitlines()]
    assert [tool["name"] for tool in tools] == ["computer_use", "files.write"]
    assert tools[0]["parameters"]["properties"]["action"]["enum"][3] == "left_click"
    assert tools[1]["parameters"]["properties"] == {"path": {"type": "string"}, "n": {"type": "integer"}}
    user = {"role": "user", "content": [{"type": "text", "text": "Do it."}, {"type": "image"}]}
    assert Prompt.computer_use([function]).messages("Do it.")[1:] == [user]
    assert xml.startswith("# Tools\n\nYou have access to the following functions:\n\n<tools>\n{")
    assert xml.endswith("</IMPORTANT>")
    for name in ("computer_use", "computer_use_xml"):
        assert getattr(Prompt, name)().grammar == name
        compact = getattr(Prompt, f"compact_{name}")
        line, _, rest = compact([function]).template.partition("\n")
        assert json.loads(line)["function"]["parameters"]["required"] == ["path", "n"]
        assert rest == compact().template == "{instruction}"


def test_the_prompt_names_only_actions_that_the_parser_knows():
    space = Prompt.ui_tars().template.split("## Action Space")[1].split("## Note")[0]
    for call in space.split():
        name, bracket, _ = call.partition("(")
        if bracket and name.isidentifier():
            example = {
                "hotkey": "hotkey(key='a')",
                "type": "type(content='xxx')",
                "scroll": "scroll(direction='up')",
                "wait": "wait()",
                "finished": "finished(content='xxx')",
                "drag": "drag(start_box='(1,2)', end_box='(3,4)')",
            }.get(name, f"{name}(start_box='<|box_start|>(1,2)<|box_end|>')")
            parse_action(example)


@pytest.mark.parametrize("template", ["", "no place", "{instruction} {instruction}"])
def test_a_template_must_have_one_place_for_the_instruction(template):
    with pytest.raises(ConfigError, match="exactly once"):
        Prompt("", template)
