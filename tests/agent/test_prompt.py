import pytest

from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import parse_action
from arpo.errors import ConfigError


def test_the_first_screenshot_is_a_message_of_its_own():
    system, text, image = Prompt.ui_tars().messages("Open {this} file")
    assert system == {"role": "system", "content": [{"type": "text", "text": "You are a helpful assistant."}]}
    assert text["role"] == "user"
    assert text["content"][0]["text"].endswith("## User Instruction\nOpen {this} file\n")
    assert image == {"role": "user", "content": [{"type": "image"}]}


def test_the_official_prompt_differs_by_the_typing_error_alone():
    assert Prompt.official().system == "Your are a helpful assistant."
    assert Prompt.official().template == Prompt.ui_tars().template


def test_the_compact_prompt_is_the_instruction_and_the_screenshot():
    assert Prompt.compact().messages("Click ok") == [
        {"role": "user", "content": [{"type": "text", "text": "Click ok"}, {"type": "image"}]}
    ]


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


def test_braces_in_template_and_instruction_stay():
    assert Prompt("", "{json} {instruction}").messages("x")[0]["content"][0]["text"] == "{json} x"
    assert Prompt.compact().messages("say {instruction}")[0]["content"][0]["text"] == "say {instruction}"


@pytest.mark.parametrize("template", ["", "no place", "{instruction} {instruction}"])
def test_a_template_must_have_one_place_for_the_instruction(template):
    with pytest.raises(ConfigError, match="exactly once"):
        Prompt("", template)
