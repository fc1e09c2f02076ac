"""Conversations as ids, against transformers' own rendering, and sampled ids as answers."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from arpo.endpoint.conversation import Ask, Message, Picture, Text, Thought, Tool, ToolCall, ToolResult
from arpo.endpoint.rendering import Renderer
from arpo.errors import RefusedError
from arpo.models.tokenization import BOX, CALL
from tests.models.test_tokenization import special, texts_like_tokens

PICTURE = Picture(b"", "k", 112, 140)
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "array"}, "b": {"type": "boolean"}}}
TOOL = Tool("click", "Click there.", SCHEMA)


def ask(*messages, tools=(), **options):
    return Ask(messages=messages, tools=tools, alias="policy", **options)


def user(*parts):
    return Message("user", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def said(*parts):
    return Message("assistant", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def result(*parts):
    return Message("tool", (ToolResult("c", tuple(Text(part) if isinstance(part, str) else part for part in parts)),))


CONVERSATION = (
    Message("system", (Text("Be brief."),)),
    user("Look: ", PICTURE, " there"),
    said(Thought("Hm."), "I click.", ToolCall("c", "click", '{"x": 3, "why": "é"}'), ToolCall("d", "click", "{}")),
    result("done", PICTURE),
    result("and done"),
    said("Well."),
    user("Go on."),
)
IMAGE = {"type": "image"}


def as_transformers_takes_it(thinks):
    calls = [{"x": 3, "why": "é"}, {}]
    functions = [{"type": "function", "function": {"name": "click", "arguments": call}} for call in calls]
    thought = {"reasoning_content": "Hm."} if thinks else {}
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look: "}, IMAGE, {"type": "text", "text": " there"}]},
        {"role": "assistant", "content": "I click.", "tool_calls": functions, **thought},
        {"role": "tool", "content": [{"type": "text", "text": "done"}, IMAGE]},
        {"role": "tool", "content": "and done"},
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": "Go on."},
    ]


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_5"])
@pytest.mark.parametrize("end", range(2, 8))
def test_ids_are_those_of_transformers(chats, name, end):
    chat = chats[name]
    tokenizer = AutoTokenizer.from_pretrained(chat.path)
    function = {"name": "click", "description": "Click there.", "parameters": SCHEMA}
    whole = tokenizer.apply_chat_template(
        as_transformers_takes_it(thinks=name == "qwen3_5")[:end],
        tools=[{"type": "function", "function": function}],
        add_generation_prompt=True,
        tokenize=False,
    )
    found = Renderer(chat).prompt(ask(*CONVERSATION[:end], tools=(TOOL,)), [])
    assert chat.spell(found.ids) == whole
    assert found.ids == tuple(tokenizer(whole).input_ids)
    assert found.ids.count(chat.image_token_id) == len(found.pictures) == (1 if end < 4 else 2)
    assert (found.parent, found.added) == (None, 0)


def test_a_template_without_tools_gets_them_as_qwens_own_prompt_writes_them(chats):
    chat = chats["plain"]
    text = chat.spell(Renderer(chat).prompt(ask(*CONVERSATION, tools=(TOOL,)), []).ids)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions")
    function = {"name": "click", "description": "Click there.", "parameters": SCHEMA}
    assert f"<tools>\n{json.dumps({'type': 'function', 'function': function})}\n</tools>" in text
    calls = '<tool_call>\n{"name": "click", "arguments": {"x": 3, "why": "é"}}\n</tool_call>'
    assert f"assistant\nI click.\n{calls}\n<tool_call>\n{{" in text
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    results = f"<tool_response>\ndone{image}\n</tool_response>\n<tool_response>\nand done\n</tool_response>"
    assert f"<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\nWell.<|im_end|>" in text
    alone = chat.spell(Renderer(chat).prompt(ask(user("Hi"), tools=(TOOL,)), []).ids)
    assert alone.startswith("<|im_start|>system\nYou are a helpful assistant.\n\n# Tools")


def test_white_space_at_the_ends_is_cut_where_the_template_cuts_it(chats):
    for name, expected in (("qwen3_5", "user\na\n b<|im_end|>"), ("qwen3_vl", "user\n a\n b \n<|im_end|>")):
        assert expected in chats[name].spell(Renderer(chats[name]).prompt(ask(user(" a\n b \n")), []).ids)


SYSTEM = Message("system", (Text("a"),))


@pytest.mark.parametrize(
    ("messages", "message"), [([user("x"), SYSTEM], "must be at the beginning"), ([result("x")], "No user query")]
)
def test_what_the_template_does_not_take_is_refused(chats, messages, message):
    with pytest.raises(RefusedError, match=f"chat template does not take this: .*{message}"):
        Renderer(chats["qwen3_5"]).prompt(ask(*messages), [])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_text_of_a_foreign_agent_spells_a_special_token(chat, renderer, data):
    def conversation(text):
        arguments = json.dumps({text("key"): text("a"), "inner": [{text("inner key"): text("b")}]})
        schema = {"properties": {text("property"): {"description": text("c"), "enum": [text("d")]}}}
        messages = [Message("system", (Text(text("s")),)), user("Do ", text("u"), PICTURE, text("v"))]
        messages += [said(Thought(text("t")), text("w"), ToolCall(text("i"), text("f"), arguments)), result(text("r"))]
        return ask(*messages, tools=(Tool(text("n"), text("e"), schema),))

    texts = texts_like_tokens(chat).filter(lambda text: not BOX.search(text) and not CALL.search(text))
    wild = special(chat, renderer.prompt(conversation(lambda _: data.draw(texts)), []).ids)
    tame = special(chat, renderer.prompt(conversation(lambda name: name), []).ids)
    # The template leaves out a thought that is empty.
    thought = [chat._added[tag] for tag in ("<think>", "</think>")]
    assert [number for number in wild if number not in thought] == [n for n in tame if n not in thought]
    assert all(wild.count(number) <= tame.count(number) for number in thought)


def test_the_tokens_of_a_box_and_of_a_call_are_tokens_in_a_turn_of_the_assistant_alone(chats):
    chat = chats["plain"]
    text = "click(start_box='<|box_start|>(1,2)<|box_end|>')\n<tool_call>\n{}\n</tool_call>"
    for message, tokens in ((user, 0), (said, 4), (result, 0)):
        with_text, without = (Renderer(chat).prompt(ask(user("x"), message(each)), []).ids for each in (text, "y"))
        assert len(special(chat, with_text)) - len(special(chat, without)) == tokens


# --- answers --------------------------------------------------------------------------------------------------------


def read(renderer, chat, text, *, finish="stop", ids=None, **options):
    ids = chat.encode_response(text) if ids is None else ids
    tools = options.pop("tools", (TOOL,))
    asked = ask(user("x"), tools=tools, **options)
    return renderer.read(ids, [-0.5] * len(ids), finish, ask=asked, name="e7", prompt_tokens=5)


JSON_CALL = '<tool_call>\n{"name": "click", "arguments": {"x": 3, "y": [1, "é"], "b": true}}\n</tool_call>'
XML_CALL = (
    "<tool_call>\n<function=click>\n<parameter=x>\n3\n</parameter>\n<parameter=y>\n[1, \"é\"]\n</parameter>\n"
    "<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>"
)  # fmt: skip


def json_call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def xml_call(name, **arguments):
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def call_of(renderer):
    return XML_CALL if renderer.thinks else JSON_CALL


def thinking(renderer, text, thought="Hm."):
    return f"{thought}\n</think>\n\n{text}" if renderer.thinks else text


def test_a_call_is_read_in_the_models_grammar_and_goes_back_to_the_same_ids(chat, renderer):
    sampled = thinking(renderer, f"I click.\n\n{call_of(renderer)}\n{call_of(renderer)}")
    answer = read(renderer, chat, sampled).answer
    assert (answer.text, answer.thought) == ("I click.", "Hm." if renderer.thinks else "")
    arguments = '{"x": 3, "y": [1, "é"], "b": true}'
    assert answer.tool_calls == (ToolCall("call_e7_0", "click", arguments), ToolCall("call_e7_1", "click", arguments))
    assert answer.finish == "tool_calls"
    again = renderer.prompt(ask(user("x"), Message("assistant", answer.parts()), result("ok")), [])
    turn = "I click.\n\n" if renderer.thinks else "I click.\n"
    assert f"{turn}{call_of(renderer)}\n{call_of(renderer)}<|im_end|>" in chat.spell(again.ids)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n{\"name\": \"click\"}\n</tool_call>",
        "<tool_call>\n{\"name\": \"click\", \"arguments\": {\"x\": 1e999}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"click\", \"arguments\": {\"x\": \"\\ud83d\"}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"\\ud83d\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n<function=click>\n<parameter=x>\n3\n</function>\n</tool_call>",
        "I call </tool_call>",
        "no call",
    ],
)  # fmt: skip
def test_what_is_no_call_stays_text(chat, renderer, text):
    answer = read(renderer, chat, thinking(renderer, text)).answer
    assert (answer.text, answer.tool_calls, answer.finish) == (text, (), "stop")


def test_calls_stay_text_where_the_agent_has_no_tools_or_forbids_them(chat, renderer):
    text = thinking(renderer, call_of(renderer))
    for options in ({"tools": ()}, {"reads_calls": False}):
        answer = read(renderer, chat, text, **options).answer
        assert (answer.text, answer.tool_calls) == (call_of(renderer), ())


@pytest.mark.parametrize(
    ("text", "thought", "rest"),
    [
        ("Hm.\n</think>\n\nYes", "Hm.", "Yes"),
        ("<think>\nHm.\n</think>\n\nYes", "Hm.", "Yes"),
        ("\n</think>\n\nYes </think>", "", "Yes </think>"),
        ("Hm. And", "Hm. And", ""),
    ],
)
def test_a_thought_is_apart_where_the_model_thinks_and_text_elsewhere(chats, text, thought, rest):
    found = read(Renderer(chats["qwen3_5"]), chats["qwen3_5"], text).answer
    assert (found.thought, found.text) == (thought, rest)
    plain = read(Renderer(chats["plain"]), chats["plain"], text).answer
    assert (plain.thought, plain.text) == ("", text)


def test_the_finish_is_the_engines_unless_the_agents_own_text_ends_the_answer(chat, renderer):
    text = thinking(renderer, "Action: wait()\nObs: none")
    cut = read(renderer, chat, text, finish="length", ids=chat.encode_response(text)[:-1])
    assert (cut.answer.finish, cut.answer.stopped_by, cut.exact) == ("length", None, True)
    ended = read(renderer, chat, text, finish="length", stop=("none", "\nObs:"))
    assert (ended.answer.text, ended.answer.finish, ended.answer.stopped_by) == ("Action: wait()", "stop", "\nObs:")
    assert ended.answer.completion_tokens == len(chat.encode_response(text))
    assert ended.ids == chat.encode_response(text)[: len(ended.ids)]
    assert len(ended.ids) < len(chat.encode_response(text)) - 3
    assert read(renderer, chat, text, stop=("Nothing",)).ids == chat.encode_response(text)


def test_an_end_within_a_token_is_no_exact_answer(chats):
    chat, renderer = chats["plain"], Renderer(chats["plain"])
    ids = chat.encode_response("click click")
    assert len(ids) == 4, "a word is one token, and so are a space and the end"
    inside = read(renderer, chat, "", ids=ids, stop=("ick",))
    assert (inside.answer.text, inside.exact, inside.ids) == ("cl", False, ids[:1])


def test_log_probabilities_are_those_of_delivered_tokens_where_they_are_asked_for(chats):
    chat, renderer = chats["plain"], Renderer(chats["plain"])
    found = read(renderer, chat, "wait wait", logprobs=True).answer.logprobs
    assert found[-1] == ("<|im_end|>", -0.5)
    assert "".join(text for text, _ in found) == "wait wait<|im_end|>"
    assert read(renderer, chat, "wait").answer.logprobs == ()
