"""What was sampled stands in later contexts as it was sampled, and a conversation continues what it begins with."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arpo.endpoint.conversation import Message, Picture, Text, Thought, ToolCall
from arpo.endpoint.rendering import Renderer
from arpo.endpoint.splicing import Sampled
from arpo.models.tokenization import ChatTokenizer
from tests.endpoint.test_rendering import TOOL, ask, call_of, read, result, said, thinking, user

SHOTS = [Picture(b"", f"shot {number}", 112, 140) for number in range(3)]


def drifting(chat, text, cuts=(1, 3, 4)):
    """Return ids that decode to a text, and are not those into which the text is encoded."""
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    return tuple(number for piece in pieces for number in chat.encode_response(piece)[:-1])


def sample(renderer, chat, asked, past, text, *, ids=None, ended=True, **options):
    """Let a text be sampled for a request, and return it as the past remembers it."""
    prompt = renderer.prompt(asked, past)
    ids = (*drifting(chat, text), *([chat.end_of_turn_id] if ended else [])) if ids is None else ids
    reading = read(renderer, chat, "", ids=ids, **options)
    return Sampled(f"e{len(past)}", prompt.ids, tuple(picture.key for picture in prompt.pictures), reading)


def echo(sampled):
    return Message("assistant", sampled.reading.answer.parts())


@pytest.mark.parametrize("history", ["template", "verbatim"])
def test_an_agent_that_only_appends_continues_its_chain_at_every_turn(chat, history):
    """One task, and calls until it is done: the template keeps thoughts as long as the user says nothing new."""
    renderer = Renderer(chat, history)
    messages, past = [user("Do it.", SHOTS[0])], []
    for turn in range(5):
        asked = ask(*messages, tools=(TOOL,))
        prompt = renderer.prompt(asked, past)
        assert prompt.parent == (past[-1].name if past else None)
        assert prompt.spliced == tuple(each.name for each in past)
        if past:
            so_far = past[-1].prompt_ids + past[-1].reading.ids
            assert (prompt.ids[: prompt.added], prompt.added) == (so_far, len(so_far))
        text = thinking(renderer, f"Turn {turn}.\n{call_of(renderer)}", thought=f"T{turn}")
        past.append(sample(renderer, chat, asked, past, text, ended=turn != 2))
        assert past[-1].prompt_ids == prompt.ids
        messages += [echo(past[-1]), result(f"done {turn}", SHOTS[turn % 3])]


HARMLESS = {
    "as it was": lambda message: message,
    "stripped": lambda message: replace(
        message, parts=tuple(Text(p.text.strip()) if isinstance(p, Text) else p for p in message.parts)
    ),
    "other names": lambda message: with_calls(message, lambda call: replace(call, id="mine")),
    "other order": lambda message: with_calls(
        message, lambda call: replace(call, arguments=json.dumps(dict(reversed(json.loads(call.arguments).items()))))
    ),
    "no spaces": lambda message: with_calls(
        message, lambda call: replace(call, arguments=json.dumps(json.loads(call.arguments), separators=(",", ":")))
    ),
}
HARMFUL = {
    "another text": lambda message: Message("assistant", (Text("I did."), *message.calls())),
    "no calls": lambda message: Message("assistant", tuple(p for p in message.parts if not isinstance(p, ToolCall))),
    "another value": lambda message: with_calls(message, lambda call: replace(call, arguments='{"x": 4}')),
    "a float": lambda message: with_calls(
        message, lambda call: replace(call, arguments=call.arguments.replace("3", "3.0"))
    ),
    "another function": lambda message: with_calls(message, lambda call: replace(call, name="tap")),
}


def with_calls(message, change):
    return Message("assistant", tuple(change(p) if isinstance(p, ToolCall) else p for p in message.parts))


@pytest.mark.parametrize("name", HARMLESS | HARMFUL)
def test_what_says_the_same_continues_and_what_says_something_else_forks(chat, renderer, name):
    asked = ask(user("Do it."), tools=(TOOL,))
    first = sample(renderer, chat, asked, [], thinking(renderer, f"So.\n{call_of(renderer)}"))
    message = (HARMLESS | HARMFUL)[name](echo(first))
    prompt = renderer.prompt(ask(*asked.messages, message, result("ok"), tools=(TOOL,)), [first])
    assert prompt.parent == ("e0" if name in HARMLESS else None)
    if name in HARMFUL:
        assert prompt == renderer.prompt(ask(*asked.messages, message, result("ok"), tools=(TOOL,)), [])


def test_the_tokens_of_a_box_may_come_back_as_they_were_left_out_or_written(chats):
    chat, renderer = chats["plain"], Renderer(chats["plain"])
    text = "Action: click(start_box='<|box_start|>(10,20)<|box_end|>')"
    first = sample(renderer, chat, ask(user("x")), [], "", ids=chat.encode_response(text))
    assert first.reading.answer.text == "Action: click(start_box='(10,20)')"
    for said_again in (text, first.reading.answer.text):
        assert renderer.prompt(ask(user("x"), said(said_again), user("y")), [first]).parent == "e0"
    assert renderer.prompt(ask(user("x"), said(text.replace("20", "21")), user("y")), [first]).parent is None


def test_the_same_ids_with_another_picture_are_another_context(renderer, chat):
    first = sample(renderer, chat, ask(user("x", SHOTS[0])), [], thinking(renderer, "Yes"))
    for shot, parent in ((SHOTS[0], "e0"), (SHOTS[1], None)):
        prompt = renderer.prompt(ask(user("x", shot), echo(first), result("y", SHOTS[2])), [first])
        assert prompt.parent == parent
        assert prompt.pictures == (shot, SHOTS[2])
        assert prompt.spliced == ("e0",)  # it says the same there: its ids are context


def test_a_window_keeps_what_was_sampled_in_a_context_that_forks(chats):
    chat, renderer = chats["plain"], Renderer(chats["plain"])
    messages, past = [user("Do it."), user(SHOTS[0])], []
    for turn in range(2):
        past.append(sample(renderer, chat, ask(*messages), past, f"Action: wait({turn})"))
        messages += [echo(past[-1]), user(SHOTS[turn + 1])]
    prompt = renderer.prompt(ask(messages[0], *messages[2:]), past)  # the first picture is gone
    assert (prompt.parent, prompt.added, prompt.spliced) == (None, 0, ("e0", "e1"))
    for each in past:
        body = list(each.reading.ids)
        assert any(list(prompt.ids[at : at + len(body)]) == body for at in range(len(prompt.ids)))


def test_a_turn_that_was_edited_is_context_behind_the_last_that_was_not(chats):
    chat, renderer = chats["plain"], Renderer(chats["plain"])
    messages, past = [user("Do it.")], []
    for turn in range(3):
        past.append(sample(renderer, chat, ask(*messages), past, f"Action: wait({turn})"))
        messages += [echo(past[-1]), user(f"{turn}")]
    messages[3] = said("Action: wait(9)")
    prompt = renderer.prompt(ask(*messages), past)
    assert (prompt.parent, prompt.spliced) == ("e0", ("e0", None, "e2"))
    assert prompt.ids[: prompt.added] == past[0].prompt_ids + past[0].reading.ids


def test_an_answer_that_the_agents_own_text_cut_continues_at_the_cut_unless_that_lies_in_a_token(chats):
    chat, renderer = chats["plain"], Renderer(chats["plain"])
    for stop, parent in (("\nObs", "e0"), ("ick", None)):
        ids = chat.encode_response("Action: wait()\nObs: click click")
        first = sample(renderer, chat, ask(user("x")), [], "", ids=ids, stop=(stop,))
        prompt = renderer.prompt(ask(user("x"), echo(first), user("Obs: real")), [first])
        assert prompt.parent == parent
        assert "click" not in chat.spell(prompt.ids)


@pytest.mark.parametrize(
    ("history", "sent_back", "user_speaks", "parent"),
    [
        ("template", True, False, "e0"),
        ("template", True, True, None),  # the template drops thoughts before the last query
        ("template", False, False, None),  # the agent has dropped it
        ("verbatim", True, True, "e0"),
        ("verbatim", False, True, "e0"),
    ],
)
def test_old_thoughts_stay_as_the_history_says(chats, history, sent_back, user_speaks, parent):
    chat, renderer = chats["qwen3_5"], Renderer(chats["qwen3_5"], history)
    asked = ask(user("x"), tools=(TOOL,))
    first = sample(renderer, chat, asked, [], thinking(renderer, call_of(renderer)))
    message = echo(first) if sent_back else Message("assistant", echo(first).calls())
    more = [result("ok"), *([user("And?")] if user_speaks else [])]
    prompt = renderer.prompt(ask(*asked.messages, message, *more, tools=(TOOL,)), [first])
    assert prompt.parent == parent
    assert ("Hm." in chat.spell(prompt.ids)) == (parent is not None)


def test_a_model_that_begins_its_thought_itself_keeps_it_as_long_as_the_template_does(chats, tmp_path):
    shutil.copytree(chats["qwen3_vl"].path, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "chat_template.jinja"
    bare = "assistant\\n' + shown"
    kept = "message.reasoning_content and (loop.last or messages[-1].role == 'tool')"
    thought = f"assistant\\n' + ('<think>' + message.reasoning_content + '</think>' if {kept} else '') + shown"
    template = file.read_text("utf-8")
    assert bare in template
    file.write_text(template.replace(bare, thought), "utf-8")
    chat = ChatTokenizer(tmp_path)
    renderer = Renderer(chat)
    first = sample(renderer, chat, ask(user("x")), [], "<think>Hm.</think>Yes")
    assert (first.reading.answer.thought, first.reading.answer.text) == ("Hm.", "Yes")
    for more, parent in ((result("y"), "e0"), (user("y"), None)):
        prompt = renderer.prompt(ask(user("x"), echo(first), more), [first])
        assert prompt.parent == parent
        assert ("Hm." in chat.spell(prompt.ids)) == (parent is not None)


def test_a_thought_within_the_text_is_the_same_thought(chats):
    chat, renderer = chats["qwen3_5"], Renderer(chats["qwen3_5"])
    first = sample(renderer, chat, ask(user("x")), [], thinking(renderer, "Yes"))
    prompt = renderer.prompt(ask(user("x"), said("<think>\nHm.\n</think>\n\nYes"), result("y")), [first])
    assert prompt.parent == "e0"


# --- any history ----------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(
    ["", "Yes", "So.", " So.\n", "Action: wait()", "click(start_box='<|box_start|>(1,2)<|box_end|>')"]
)


@st.composite
def edited(draw, messages):
    """A history in which a few messages are gone, new, in another place or changed."""
    made = list(messages)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(made) - 1))
        edit = draw(
            st.sampled_from(["drop", "twice", "text", "thought", "picture", "calls", "insert", "strip", "swap"])
        )
        message, kinds = made[at], HARMLESS | HARMFUL
        if edit == "drop" and len(made) > 2:
            del made[at]
        elif edit == "twice":
            made.insert(at, message)
        elif edit == "insert":
            made.insert(at + 1, draw(st.sampled_from([user("more"), user(SHOTS[2]), said("So."), result("So.")])))
        elif edit == "swap":
            made[at], made[-1] = made[-1], made[at]
        elif edit == "picture":
            parts = [draw(st.sampled_from(SHOTS)) if isinstance(part, Picture) else part for part in message.parts]
            made[at] = Message(message.role, tuple(parts))
        elif message.role == "assistant" and edit == "thought":
            made[at] = Message("assistant", tuple(part for part in message.parts if not isinstance(part, Thought)))
        elif message.role == "assistant":
            made[at] = kinds[draw(st.sampled_from(sorted(kinds)))](message)
    return made if any(message.role == "user" for message in made) else [user("x"), *made]


def squeezed(text):
    """Return a text without what may differ where the same is said."""
    return "".join(text.replace("<|box_start|>", "").replace("<|box_end|>", "").split())


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("history", ["template", "verbatim"])
def test_however_a_history_is_edited_no_continuation_is_wrong(chat, history, data):
    renderer, past = Renderer(chat, history), []
    messages = [user("Do it.", SHOTS[0])]
    for _ in range(5):
        messages = data.draw(edited(messages))
        asked = ask(*messages, tools=(TOOL,))
        prompt = renderer.prompt(asked, past)
        check(renderer, chat, asked, past, prompt, verbatim=history == "verbatim")
        body = data.draw(TEXTS) + data.draw(st.sampled_from(["", f"\n{call_of(renderer)}"]))
        text = thinking(renderer, body, thought=data.draw(st.sampled_from(["", "Hm."])))
        cuts = data.draw(st.lists(st.integers(0, 60), max_size=4))
        ended = [chat.end_of_turn_id] if data.draw(st.booleans()) else []
        stop = data.draw(st.sampled_from([(), ("wait",), ("o",)]))
        past.append(sample(renderer, chat, asked, past, text, ids=(*drifting(chat, text, cuts), *ended), stop=stop))
        messages += [echo(past[-1]), data.draw(st.sampled_from([result("ok"), user("And?"), user(SHOTS[1])]))]


def check(renderer, chat, asked, past, prompt, *, verbatim):
    known = {each.name: each for each in past}
    assert prompt.pictures == tuple(asked.pictures())
    assert prompt.ids.count(chat.image_token_id) == len(prompt.pictures)
    if prompt.parent is not None:
        parent = known[prompt.parent]
        so_far = parent.prompt_ids + parent.reading.ids
        assert prompt.ids[: len(so_far)] == so_far
        assert prompt.added == len(so_far)
        assert parent.pictures == tuple(picture.key for picture in prompt.pictures[: len(parent.pictures)])
    written = renderer.prompt(asked, [])
    answers = [message for message in asked.messages if message.role == "assistant"]
    delivered = [known[name].reading.answer.tool_calls for name in prompt.spliced if name]
    given = [message.calls() for message, name in zip(answers, prompt.spliced, strict=True) if name]
    # The engine reads what the agent says, as the template writes it, but for the order and the spaces of arguments.
    if not verbatim and [[c.arguments for c in each] for each in given] == [
        [c.arguments for c in d] for d in delivered
    ]:
        assert squeezed(chat.spell(prompt.ids)) == squeezed(chat.spell(written.ids))
    # Turn by turn: what was sampled, id by id, or what the template writes.
    turns, expected = turns_of(chat, prompt.ids), turns_of(chat, written.ids)
    for name, message, turn, rendered in zip(prompt.spliced, answers, turns, expected, strict=True):
        if name is None:
            assert turn == rendered
            continue
        sampled = known[name].reading
        assert turn == chat.header + tuple(number for number in sampled.ids if number != chat.end_of_turn_id)
        assert sampled.exact
        assert squeezed(message.said()) == squeezed(sampled.answer.text)
        assert [json.loads(call.arguments) for call in message.calls()] == [
            json.loads(call.arguments) for call in sampled.answer.tool_calls
        ]
        assert message.said(Thought) in ({sampled.answer.thought, ""} if verbatim else {sampled.answer.thought})


def turns_of(chat, ids):
    """Return the assistant's turns, but for the last, which is to come."""
    starts = [at for at, number in enumerate(ids) if number == chat.header[0]]
    starts = [at for at in starts if chat.spell(ids[at : at + 12]).startswith("<|im_start|>assistant\n")]
    return [ids[at : ids.index(chat.end_of_turn_id, at)] for at in starts[:-1]]
