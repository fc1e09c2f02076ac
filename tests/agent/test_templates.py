"""A script's responses are letter for letter what a model's own chat template makes of the same calls."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from arpo.agent import actions
from arpo.agent.computer_use import calls_of
from arpo.agent.grammar import GRAMMARS, GrammarName
from tests.agent.corpus import EACH

QWEN3_VL = (
    "{%- set said = messages[0] -%}{{ said.content }}{%- for call in said.tool_calls -%}"
    "{%- if said.content or not loop.first %}{{ '\\n' }}{% endif -%}"
    '{{ \'<tool_call>\\n{"name": "\' + call.name + \'", "arguments": \' }}{{ call.arguments | tojson }}'
    "{{ '}\\n</tool_call>' }}{%- endfor -%}"
)
"""Written after what the published template does with the turn of an assistant, as the next one."""
QWEN3_5 = (
    "{%- set said = messages[0] -%}{{ said.content }}{%- for call in said.tool_calls -%}"
    "{%- if loop.first and said.content %}{{ '\\n\\n' }}{% elif not loop.first %}{{ '\\n' }}{% endif -%}"
    "{{ '<tool_call>\\n<function=' + call.name + '>\\n' }}{%- for name, value in call.arguments | items -%}"
    "{{ '<parameter=' + name + '>\\n' }}"
    "{%- if value is sequence and value is not string %}{{ value | tojson }}{% else %}{{ value | string }}{% endif -%}"
    "{{ '\\n</parameter>\\n' }}{%- endfor -%}{{ '</function>\\n</tool_call>' }}{%- endfor -%}"
)
CALLS = actions.Call("mousepad.write", {"text": "42", "n": 3, "by": 0.5, "all": True, "path": 'it\'s "so" ✓'})
TEMPLATES: list[tuple[GrammarName, str]] = [("computer_use", QWEN3_VL), ("computer_use_xml", QWEN3_5)]


def rendered(template: str, thought: str, *said: actions.Action) -> str:
    calls = [{"name": name, "arguments": dict(given)} for name, given in calls_of(*said)]
    message: list[dict[str, Any]] = [{"role": "assistant", "content": thought, "tool_calls": calls}]
    texts, _ = render_jinja_template(conversations=[message], chat_template=template)  # type: ignore[arg-type]
    return str(texts[0])


@pytest.mark.parametrize(("grammar", "template"), TEMPLATES)
@pytest.mark.parametrize("thought", ["", "I see 报告."])
def test_each_action_is_written_as_the_template_writes_it(grammar, template, thought):
    for action in (CALLS, actions.Drag(1, 2, 3, 4), *(action for _, action in EACH)):
        assert GRAMMARS[grammar].render(action, thought) == rendered(template, thought, action)


@pytest.mark.parametrize(("grammar", "template"), TEMPLATES)
def test_several_actions_are_written_as_the_template_writes_them(grammar, template):
    said = (actions.Click(1, 2.5), CALLS, actions.Finished())
    assert GRAMMARS[grammar].render(said[0], "So.", *said[1:]) == rendered(template, "So.", *said)
