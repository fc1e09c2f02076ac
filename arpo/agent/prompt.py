"""The messages that a model reads before the first screenshot."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from arpo.agent.functions import Function
from arpo.agent.grammar import GrammarName
from arpo.agent.tools import signature, system_message, xml_system_message
from arpo.errors import ConfigError, check_one_of

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
        check_one_of(GrammarName, grammar=self.grammar)
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
        return cls(system_message(functions), _PLACEHOLDER, False, "computer_use", functions)

    @classmethod
    def compact_computer_use(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the shortest prompt for calls of that tool, for tiny models; functions are tools beside it."""
        return cls("", _listed(map(signature, functions)) + _PLACEHOLDER, False, "computer_use", functions)

    @classmethod
    def computer_use_xml(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the prompt by which Qwen3.5 operates a desktop: calls of the same tool, as XML."""
        return cls(xml_system_message(functions), _PLACEHOLDER, False, "computer_use_xml", functions)

    @classmethod
    def compact_computer_use_xml(cls, functions: Sequence[Function] = ()) -> Self:
        """Return the shortest prompt for such calls, for tiny models; functions are tools beside it."""
        return cls("", _listed(map(signature, functions)) + _PLACEHOLDER, False, "computer_use_xml", functions)

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
