"""Whatever a model writes is a tuple of actions or an `ActionParseError`, nothing else."""

import random
import typing
from collections import Counter

from arpo.agent.actions import Action
from arpo.agent.coordinates import CoordinateFrame
from arpo.agent.error_kinds import ParseErrorKind
from arpo.agent.parser import parse_response
from arpo.agent.pyautogui import to_pyautogui
from arpo.agent.render import render
from arpo.errors import ActionParseError

RESPONSES = 20_000
KINDS = typing.get_args(Action)
FRAME = CoordinateFrame(1920, 1080, 1932, 1092)

CALLS = [
    "click(start_box='(966,546)')",
    "left_double(start_box='<|box_start|>(1,2)<|box_end|>')",
    "right_single(point='<point>3 4</point>')",
    "hover(start_box=[5, 6])",
    "drag(start_box='(1,2)', end_box='(3,4,5,6)')",
    "scroll(start_box='(1,2)', direction='left')",
    "hotkey(key='ctrl+shift+t')",
    "press(key='enter')",
    "keydown(key='shift')",
    "keyup(key='a')",
    "type(content='it\\'s \"so\"\\n')",
    'type(content="żółw\n\n你好")',
    "wait() # a moment",
    "finished(content='done')",
    "call_user()",
    "error_env()",
    "type(content='print('a')  # note')",
    "type(content='df.to_csv('a.csv', index=False)\n')",
    "type(text='it's', start_box='(1,2)')",
    "wait(time=2)",
    "release(key='ctrl+ page down')",
    "click(start_box='（１，２')",
    "call(function='files.write', path='a', text='it\\'s', n=-3, all=true)",
]
FRAGMENTS = [
    *"()[]{}'\"\\,=<>#\n\r\t +-.:;0123456789eE_%\x00\x1b\u2028é你🐢\ud800",
    "nan", "inf", "1e999", "-0", "<|box_start|>", "<|box_end|>", "<point>", "</point>", "<|im_end|>", "Thought:",
    "Action:", "\nAction: ", "Reflection:", "Action_Summary:", "start_box=", "end_box=", "content='", "')", "key='",
    "direction=", "__import__('os')", "lambda: 0", "\\x41", "\\N{DASH}", "'''", '"""', "\n\n", "ctrl", "+-+-",
    "9" * 50, "')", "') #", "')\n", "', point='(1,2)", "', b='", "Action：", "</Output>", "```", "wait(",
]  # fmt: skip


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at] + rng.choice(FRAGMENTS) + text[at:]
            case 1:
                text = text[:at] + text[at + rng.randint(1, 5) :]
            case 2:
                text = text[:at] + text[at + 1 : at + 10][::-1] + text[at + 10 :]
            case 3:
                text = text[:at]
    return text


def response(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return "".join(rng.choices(FRAGMENTS + CALLS, k=rng.randint(0, 30)))
    header = rng.choice(("", "Thought: I click.\n", "Reflection: no. Action_Summary: yes. ", "Action_Summary: so\n"))
    separator = rng.choice(("\n\n", "\n", "; ", " "))
    return mutated(f"{header}Action: {separator.join(rng.choices(CALLS, k=rng.choice((1, 1, 1, 2, 3))))}", rng)


def test_twenty_thousand_responses_give_actions_or_the_error():
    rng = random.Random(20250529)
    outcomes: Counter[str] = Counter()
    for _ in range(RESPONSES):
        text = response(rng)
        try:
            parsed = parse_response(text)
        except ActionParseError as error:
            outcomes[error.kind] += 1
            continue
        assert parsed.actions
        assert all(isinstance(action, KINDS) for action in parsed.actions)
        outcomes["actions"] += 1
        if outcomes["actions"] % 20 == 0:  # what was read can also be written and performed
            for action in parsed.actions:
                render(action)
                compile(to_pyautogui(FRAME.to_screen(action)), "guest", "exec")
    # The generator reaches both sides, and every kind but the one that a million characters need.
    assert outcomes["actions"] > RESPONSES // 5
    assert set(outcomes) == {"actions", *ParseErrorKind} - {ParseErrorKind.TOO_LONG}
