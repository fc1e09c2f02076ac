"""What a model may answer, what is read, and why: each row has its source beside it."""

import pytest

from arpo.agent.actions import (
    CallUser,
    Click,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    Press,
    Scroll,
    TypeText,
    Wait,
)
from arpo.agent.ui_tars import parse_response
from tests.agent.corpus import read

PARSER = "bytedance/UI-TARS codes/ui_tars/action_parser.py"
PARSER_TEST = "bytedance/UI-TARS codes/tests/action_parser_test.py, inference_test.py"
PROMPT = "bytedance/UI-TARS codes/ui_tars/prompt.py"
TRAINING = "bytedance/UI-TARS data/training_example.json"
DESKTOP = "UI-TARS-desktop packages/ui-tars/action-parser/src/actionParser.ts"
DESKTOP_TEST = "UI-TARS-desktop packages/ui-tars/action-parser/test/actionParser.test.ts"
DESKTOP2_TEST = "UI-TARS-desktop multimodal/gui-agent/action-parser/test"
DESKTOP_PROMPT = "UI-TARS-desktop apps/ui-tars/src/main/agent/prompts.ts"
OPERATOR = "UI-TARS-desktop packages/ui-tars/operators/nut-js/src/index.ts"
NAMES = "UI-TARS-desktop multimodal/gui-agent/shared/src/utils/actions.ts"
SEEN = "written by models, reported in public"
WHOLE = "reasoning: a text is typed whole or refused"
SENSE = "reasoning: what it says is plain"

WHOLE_TEXTS = [
    "d['a'] = f('b')", "move(point='a', start_box='b')", "print('a')\nprint('b')\n", "print('a')\r\nprint('b')",
    "it's 'a')\nand more", "a\n\n# heading\nb", "sorry :-( it's late", ":(", "click(start_box='(1,2)')",
    "run click(start_box='(1,2)') now", "Action: wait()", "a\nAction: wait() # x", "</Output>", "a\x00\x1b\u2028b",
    "\ud800", "  f(x)) (  ", "5' pipe, f('b') # c", "print('a', flush=True)", "print('a', flush=True)\nprint()",
]  # fmt: skip
"""Texts with bare quotes, brackets and calls in them, each of which is typed whole ..."""
NO_TEXTS = [
    "type(content='print(b'a', flush=True)", "type(content='x = 'a', b=2",
    'type(content="a") # b", start_box=\'(1,2)\')', "type(content='=A1&'", "type(content='print(x'",
    "type(content='a')\nand that's it')", "wait(time='2\nclick(start_box='(1,2)')", "type(content='a') # b')",
    "type(content='a')\n# b')", "type(content='it's') # see ('x')", "type(content='a')\nwait() # b')",
    "type(content='print('a')", "type(content='it's'", "type(content='git commit -m '", "type(content=''",
    "type(content='print('a')\nclick(start_box='(1,2)')", "type(content='a') Action: wait()",
    "type(content='a\\', start_box='(1,2)')", "type(content='C:\\')",
]  # fmt: skip
"""... and calls of which two readings would type different texts, or which are cut."""
CALLS = [
    # Where typed text ends: bare quotes in it.
    (r"type(content='df.to_csv('a.csv', index=False)\n')", TypeText("df.to_csv('a.csv', index=False)\n"), SEEN),
    ("type(content='open('f.txt', encoding='utf-8')')", TypeText("open('f.txt', encoding='utf-8')"), SEEN),
    ("type(content='print('a')  # note')", TypeText("print('a')  # note"), SEEN),
    (r"type(content='echo $(date +'%F') # today\n')", TypeText("echo $(date +'%F') # today\n"), SEEN),
    ("type(content='it's')", TypeText("it's"), PARSER),
    (r"type(content='it\'s')", TypeText("it's"), PROMPT),
    (r"type(content='say \"hi\"')", TypeText('say "hi"'), PROMPT),
    ("type(content='xxx') # Use escape characters \\', \\\", and \\n in content part.", TypeText("xxx"), PROMPT),
    ("type(content='it's') # don't stop", TypeText("it's"), PROMPT),
    ('type(content="say "hi" now")', TypeText('say "hi" now'), WHOLE),
    ('type(content="print("a", end="")  # c\\n")', TypeText('print("a", end="")  # c\n'), WHOLE),
    ("type(content='print(x, end='')\\n')", TypeText("print(x, end='')\n"), WHOLE),
    ("type(content='print(x, end='') # c\\n')", TypeText("print(x, end='') # c\n"), WHOLE),
    ("type(content='plt.plot(x, label='a', color='r')\\n')", TypeText("plt.plot(x, label='a', color='r')\n"), WHOLE),
    ("type(content='UPDATE t SET a='1', b='2';\\n')", TypeText("UPDATE t SET a='1', b='2';\n"), WHOLE),
    ("type(content='awk '{print $1}' f | grep 'x' # c\\n')", TypeText("awk '{print $1}' f | grep 'x' # c\n"), WHOLE),
    ("type(content='git commit -m 'fix: a (b)'\\n')", TypeText("git commit -m 'fix: a (b)'\n"), WHOLE),
    ("type(content='print(b'abc')  # c\\nx')", TypeText("print(b'abc')  # c\nx"), WHOLE),
    (r"type(content='a\nclick(start_box=\'(1,2)\')')", TypeText("a\nclick(start_box='(1,2)')"), PROMPT),
    (r"type(content='C:\Users\x41\N')", TypeText(r"C:\Users\x41\N"), PARSER),
    (r"type(content='C:\\n')", TypeText(r"C:\n"), PARSER),
    # ... and where two readings would type different texts, or the text is cut.
    ("type(content='a', content='b')", "bad_argument", WHOLE),
    ("type(content='a', clear='true')", "bad_argument", WHOLE),
    # One argument more.
    ("call_user(content='please log in')", CallUser(), SEEN),
    ("call_user(content='it's locked, I can't go on')", CallUser(), SEEN),
    ("type(content='pop', start_box='<|box_start|>(1,2)<|box_end|>')", TypeText("pop"), TRAINING),
    ("type(content='it's', start_box='(1,2)')", TypeText("it's"), TRAINING),
    ("type(content='a', start_box=(1,2))", TypeText("a"), NAMES),
    ("type(start_box='(1,2)', content='it's')", TypeText("it's"), TRAINING),
    ("type(text='Hello', start_box='(300,400)')", TypeText("Hello"), DESKTOP_TEST),
    ("type(content='pop', start_box='')", TypeText("pop"), TRAINING),
    ("type(content='it's', start_box='(1,2)', end_box='(3,4)')", TypeText("it's"), PARSER),
    ("type(content='it's', clear=True)", TypeText("it's"), PARSER),
    ("type(content='a', time=0.5, clear=True) # it's", TypeText("a"), PARSER),
    ("call_user('help, it's locked')", CallUser(), PARSER),
    ("finished('done')", Finished(), PARSER),
    ("wait('2')", Wait(), PARSER),
    ("type('hello')", "missing_argument", PARSER),
    ("click('(1,2)')", "missing_argument", PARSER),
    ("wait(seconds='5')", Wait(), PARSER),
    ("wait(2.5s)", Wait(), PARSER),
    ("finished(content='done', start_box='(1,2)')", Finished("done"), PARSER),
    ("click(start_box='(1,2)', end_box='(3,4)')", Click(1, 2), DESKTOP),
    ("click(start_box='(1,2)', button='left')", Click(1, 2), NAMES),
    ("scroll(start_box='(1,2)', direction='down', amount=3)", Scroll("down", 1, 2), PARSER),
    ("hotkey(key='ctrl c', time='1')", Hotkey(("ctrl", "c")), PARSER),
    ("error_env(content='no network')", Fail(), PARSER),
    ("click(start_box='(1,2)', button='right')", "bad_argument", "reasoning: it says another button"),
    ("click(start_box='(1,2)', start_box='(3,4)')", "bad_argument", PARSER),
    ("click(start_box='(1,2)', point='(3,4)')", "bad_argument", PARSER),
    ("click(end_box='[130,226]')", "missing_argument", "reasoning: the desktop clicks an end; nothing says where"),
    # The last bracket is missing.
    ("click(start_box='(1,2)'", Click(1, 2), PARSER),
    ("wait(", Wait(), PARSER),
    ("wait( # Sleep for 5s", Wait(), PROMPT),
    ("finished(", Finished(), PARSER),
    ("type(content='hello'", TypeText("hello"), PARSER),
    (r"type(content='hello\n'", TypeText("hello\n"), PARSER),
    ("type(content='a', start_box='(1,2)'", TypeText("a"), PARSER),
    ("drag(start_box='(1,2)', end_box='(3,4)'", Drag(1, 2, 3, 4), PARSER),
    ("click(start_box='(1,2)',", Click(1, 2), PARSER),
    ("click(start_box=(1,2)", Click(1, 2), PARSER),
    ("click(start_box='(1,2)", "bad_syntax", "reasoning: a string that is cut"),
    ("click(start_box=(1,2", "bad_syntax", "reasoning: a position that is cut"),
    ("scroll(start_box='(1,2)', direc", "bad_syntax", "reasoning: an argument that is cut"),
    ("click(", "missing_argument", PARSER),
    ("wait", "bad_syntax", PARSER),
    # Positions.
    ("click(start_box='(100,200'", Click(100, 200), PARSER),
    ("click(start_box='(100,200')", Click(100, 200), PARSER),
    ("click(start_box='100,200)')", Click(100, 200), PARSER),
    ("click(start_box='[100,200')", Click(100, 200), DESKTOP),
    ("click(start_box='((100,200)')", Click(100, 200), PARSER),
    ("click(start_box='(100,200]')", Click(100, 200), DESKTOP),
    ("click(start_box='（１００，２００）')", Click(100, 200), SEEN),
    ("click(start_box='１００，２００')", Click(100, 200), SEEN),
    ("click(start_box='(100，200')", Click(100, 200), SEEN),
    ("click(start_box='(１００.5、200)')", Click(100.5, 200), SEEN),
    ("click(start_box='[348, 333, 928, 365]')", Click(638, 349), DESKTOP_TEST),  # (348 + 928) / 2, (333 + 365) / 2
    ("click(point='<point>10 20</point>'')", Click(10, 20), PROMPT),
    ("drag(start_point='<point>1 2</point>', end_point='<point>3 4</point>')", Drag(1, 2, 3, 4), PROMPT),
    ("drag(start='(1, 1)', end='(2, 2)')", Drag(1, 1, 2, 2), NAMES),
    ("click(start_box='')", "missing_argument", DESKTOP2_TEST),
    ("click(start_box='[]')", "bad_box", DESKTOP2_TEST),
    ("click(start_box='(100')", "bad_box", SENSE),
    ("click(start_box='(100(200')", "bad_box", "reasoning: the Python parser reads 100200 there"),
    ("click(start_box='(²,³)')", "bad_box", "reasoning: nor are exponents"),
    # Keys.
    ("hotkey(key='ctrl c')", Hotkey(("ctrl", "c")), PROMPT),
    ("hotkey(hotkey='ctrl v')", Hotkey(("ctrl", "v")), PARSER_TEST),
    ("hotkey(\nhotkey='ctrl v'\n)", Hotkey(("ctrl", "v")), PARSER_TEST),
    ("hotkey(key='ctrl+ c')", Hotkey(("ctrl", "c")), OPERATOR),
    ("hotkey(key='CTRL++L')", Hotkey(("ctrl", "l")), OPERATOR),
    ("hotkey(key='ctrl+ shift- t')", Hotkey(("ctrl", "shift", "t")), OPERATOR),
    ("hotkey(key='ctrl++')", Hotkey(("ctrl", "+")), SENSE),
    ("hotkey(key='ctrl shift plus')", Hotkey(("ctrl", "shift", "+")), SENSE),
    ("hotkey(key='+')", Hotkey(("+",)), SENSE),
    ("hotkey(key='ctrl-z')", Hotkey(("ctrl", "z")), SENSE),
    ("hotkey(key='command A')", Hotkey(("win", "a")), OPERATOR),
    ("hotkey(key='A')", Hotkey(("A",)), SENSE),
    ("hotkey(key='ctrl + -')", Hotkey(("ctrl", "-")), SENSE),
    ("hotkey(key='page down')", Hotkey(("pagedown",)), OPERATOR),
    ("hotkey(key='ctrl page down')", Hotkey(("ctrl", "pagedown")), OPERATOR),
    ("hotkey(key='arrowdown')", Hotkey(("down",)), PARSER),
    ("hotkey(key='print screen')", Hotkey(("printscreen",)), SENSE),
    ("hotkey(key='ctrl left')", Hotkey(("ctrl", "left")), "reasoning: two keys, though `ctrlleft` is one"),
    ("hotkey(key='f 5')", Hotkey(("f", "5")), "reasoning: likewise"),
    ("press(key='ctrl')", Press("ctrl"), DESKTOP_PROMPT),
    ("press(press='enter')", Press("enter"), PARSER),
    ("press(key='ctrl c')", "bad_argument", DESKTOP_PROMPT),
    ("keydown(key='page down')", KeyDown("pagedown"), SENSE),
    ("hotkey(key='page sideways')", "bad_argument", SENSE),
    ("hotkey(key='ctrl, c')", "bad_argument", SENSE),
    # Names.
    ("release(key='ctrl')", KeyUp("ctrl"), DESKTOP_PROMPT),
    ("keyup(key='ctrl')", KeyUp("ctrl"), PARSER),
    ("left_click(start_box='(1,2)')", Click(1, 2), OPERATOR),
    ("left_single(start_box='(1,2)')", Click(1, 2), PARSER),
    ("double_click(start_box='(1,2)')", Click(1, 2, count=2), OPERATOR),
    ("right_click(point='<point>1 2</point>')", Click(1, 2, button="right"), OPERATOR),
    ("middle_click(start_box='(1,2)')", Click(1, 2, button="middle"), SENSE),
    ("mouse_move(start_box='(1,2)')", Hover(1, 2), OPERATOR),
    ("left_click_drag(start_box='(1,2)', end_box='(3,4)')", Drag(1, 2, 3, 4), OPERATOR),
    ("select(start_box='(1,2)', end_box='(3,4)')", Drag(1, 2, 3, 4), OPERATOR),
    ("open_app(app_name='x')", "unknown_action", "reasoning: of the prompt for phones"),
    ("Click(start_box='(1,2)')", "unknown_action", PARSER),
]


@pytest.mark.parametrize(("call", "expected", "source"), CALLS)
def test_a_call_is_read_as_its_source_says(call, expected, source):
    assert read(f"Thought: t\nAction: {call}") == expected
    assert read(f"Action: {call}") == expected


def test_a_text_is_typed_whole_or_refused():
    for text in WHOLE_TEXTS:
        call = f"Action: type(content='{text}')"
        assert read(f"Thought: t\n{call}") == read(call) == TypeText(text)
    for call in NO_TEXTS:
        assert read(f"Thought: t\nAction: {call}") == read(f"Action: {call}") == "bad_syntax", call


FOUR = "click(point='<point>403 81</point>')\n\ntype(content='a')\n\nhotkey(key='enter')\n\nclick(point='(1,2)')"
RESPONSES = [
    (f"Thought: I search.\nAction: {FOUR}", (Click(403, 81), TypeText("a"), Hotkey(("enter",)), Click(1, 2)),
     DESKTOP2_TEST),
    ("Action: click(start_box='(100,200)')\n\ntype(text='Hello', start_box='(300,400)')",
     (Click(100, 200), TypeText("Hello")), DESKTOP_TEST),
    ("Action: type(content='it's')\n\nhotkey(key='enter')", (TypeText("it's"), Hotkey(("enter",))), PARSER),
    ("Action: type(content='it's')\nwait()\nclick(start_box='(1,2)')", (TypeText("it's"), Wait(), Click(1, 2)), SENSE),
    ("Action: type(content='a')\r\nwait()\r\n", (TypeText("a"), Wait()), SENSE),
    ("Action: type(content='it's') # then\n\n# and\nwait()", (TypeText("it's"), Wait()), PROMPT),
    ("Action: click(start_box='(1,2)'\nwait()", (Click(1, 2), Wait()), SENSE),
    ("Action: wait(\nwait(", (Wait(), Wait()), SENSE),
    ("Action: type(content='a'\nwait()", "bad_syntax", WHOLE),
    ("Action: type(content='a')\nfoo(x='b')", "unknown_action", WHOLE),
    ("Action：click(start_box='(100,200)')", Click(100, 200), DESKTOP_TEST),
    ("\n\nAction：click(start_box='<bbox>191 21 191 21</bbox>')", Click(191, 21), DESKTOP_TEST),
    ("Thought：我点击。\nAction：wait()", Wait(), DESKTOP),
    ('click(start_box="(100,200)")', Click(100, 200), DESKTOP_TEST),
    ("wait() # a moment\n\nfinished(content='it's done')", (Wait(), Finished("it's done")), DESKTOP),
    ("type(content='I think. Action is near')", TypeText("I think. Action is near"), DESKTOP),
    ("I will wait() for it.", "no_action", "reasoning: prose is no action"),
    ("Thought: I wait.\nwait()", "no_action", "reasoning: a thought may name an action; the desktop reads none here"),
    ("wait()\nThat is all.", "no_action", "reasoning: prose is no action"),
    ("wait", "no_action", "reasoning: prose is no action"),
    ("# wait()", "no_action", "reasoning: prose is no action"),
    ("sorry(content='I cannot')", "no_action", "reasoning: prose is no action"),
    ("Thought: Empty action\nAction:", "no_action", DESKTOP2_TEST),
    ("<Thought>so</Thought>\nAction_Summary: Click\nAction: click(start_box='(100,200)')\n</Output>", Click(100, 200),
     DESKTOP_TEST),
    ("<think>Hmm</think>\n<computer_env>\nAction: click(point='<point>400 435</point>')\n</computer_env>",
     Click(400, 435), DESKTOP2_TEST),
    ("<think>'Action' or not?</think>\nThought: so\nAction: click(point='<point>510 150</point>')", Click(510, 150),
     DESKTOP_TEST),
    ("```\nThought: so\nAction: wait()\n```", Wait(), PROMPT),
    ("Thought: xxx\n    Action: click(start_box='(197,525)')", Click(197, 525), PARSER_TEST),
    ("Action: click(point='<point>1 2</point>')[EOS]", Click(1, 2), PARSER),
    ("Thought: Action: wait()\nAction: call_user()", CallUser(), PARSER),
    ("Action: wait() Action: call_user()", CallUser(), PARSER),
    ("Action: type(content='a')\nAction: type(content='b')", TypeText("b"), PARSER),
    ("I act. Action: type(content='note Action: none')", TypeText("note Action: none"), SENSE),
    ("Thought: t\nAction: type(content='a')\nAction: wait()\nAction: type(content='b')", TypeText("b"), PARSER),
    ("Thought: t\nAction: type(content='see:\nAction: type(content='b')')", "bad_syntax", WHOLE),
    ("Thought: t\nAction: type(content='see:\nAction: hotkey(key='b')", "bad_syntax", WHOLE),
    ("Thought: t\nAction: type(content='it's\nAction: type(content='b')\nwait()", "bad_syntax", WHOLE),
]  # fmt: skip


@pytest.mark.parametrize(("response", "expected", "source"), RESPONSES)
def test_a_response_is_read_as_its_source_says(response, expected, source):
    assert read(response) == expected


@pytest.mark.parametrize(
    ("before", "thought", "source"),
    [
        ("Thought: test\n", "test", PARSER_TEST),
        ("Thought: my Action: is clear,\nand long.\n", "my Action: is clear,\nand long.", PARSER),
        ("Thought： 我点击\n", "我点击", DESKTOP),
        ("Reflection: It failed.\nAction_Summary: Try again.\n", "Try again.", PARSER),
        ("Reflection：a Action_Summary：b\n", "b", PARSER),
        ("Action_Summary: Wait a bit. ", "Wait a bit.", PARSER),
        ("Reflection: It failed.\n", "It failed.", "reasoning: the authors' parsers lose it"),
        ("Thought: a\nReflection: b\nAction_Summary: c\n", "a\nReflection: b\nAction_Summary: c", SENSE),
        ("Reflection: a\nThought: b\n", "b", DESKTOP),
        ("Sure! Thought: so ", "so", PARSER),
        ("No label here.\n", "", PARSER),
    ],
)
def test_what_is_said_before_the_action_is_kept(before, thought, source):
    parsed = parse_response(f"{before}Action: wait()")
    assert (parsed.thought, parsed.actions) == (thought, (Wait(),))


def test_there_are_many_cases_and_no_case_twice():
    calls = [*(call for call, _, _ in CALLS), *(f"type(content='{text}')" for text in WHOLE_TEXTS), *NO_TEXTS]
    answers = [*(f"Action: {call}" for call in calls), *(response for response, _, _ in RESPONSES)]
    assert len(set(answers)) == len(answers) >= 150
