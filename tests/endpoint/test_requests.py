"""Requests as harnesses write them, and what is refused of them."""

import copy
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.endpoint.conversation import Message, Text, Thought, Tool, ToolCall, ToolResult, canonical
from arpo.errors import RefusedError
from tests.endpoint.samples import ANSWERS, DIALECTS, STAMP, asking, parse, picturing, url

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
CONVERSATIONS = {
    "chat": {
        "model": "policy",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Look"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Hm.",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "done"}]},
            {"role": "assistant", "content": "Well."},
            {"role": "user", "content": "Go on."},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "does", "parameters": SCHEMA}}],
        "max_completion_tokens": 50,
        "stream": True,
    },
    "responses": {
        "model": "policy",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Look"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
            {"role": "user", "content": "Go on."},
        ],
        "tools": [{"type": "function", "name": "f", "description": "does", "parameters": SCHEMA, "strict": True}],
        "max_output_tokens": 50,
        "stream": True,
        "store": True,
    },
    "messages": {
        "model": "policy",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Look"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": ""},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "done"}]},
            {"role": "assistant", "content": "Well."},
            {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
        ],
        "tools": [{"name": "f", "description": "does", "input_schema": SCHEMA}],
        "max_tokens": 50,
        "stream": True,
    },
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_conversation_is_the_same_in_every_dialect(dialect):
    ask = parse(dialect, CONVERSATIONS[dialect])
    assert ask.messages == (
        Message("system", (Text("Be brief."),)),
        Message("user", (Text("Look"),)),
        Message("assistant", (Thought("Hm."), ToolCall("c1", "f", '{"x": 1}'))),
        Message("tool", (ToolResult("c1", (Text("done"),)),)),
        Message("assistant", (Text("Well."),)),
        Message("user", (Text("Go on."),)),
    )
    assert ask.tools == (Tool("f", "does", SCHEMA),)
    assert (ask.alias, ask.max_tokens, ask.stream, ask.n, ask.unhonoured) == ("policy", 50, True, 1, ())


def sent_back(dialect, answer):
    """Return the request of an agent that sends an answer back as it got it, and goes on."""
    said = json.loads(DIALECTS[dialect].reply([answer], STAMP))
    more = {"role": "user", "content": "Go on."}
    if dialect == "responses":
        return {"model": "policy", "input": [{"role": "user", "content": "Hi"}, *said["output"], more]}
    message = said["choices"][0]["message"] if dialect == "chat" else {"role": "assistant", "content": said["content"]}
    return asking(dialect, messages=[{"role": "user", "content": "Hi"}, message, more])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_sent_back_is_one_message_with_the_same_parts(dialect, answer):
    (said,) = [each for each in parse(dialect, sent_back(dialect, answer)).messages if each.role == "assistant"]
    assert (said.said(), said.said(Thought)) == (answer.text, answer.thought)
    assert [(each.id, each.name) for each in said.calls()] == [(each.id, each.name) for each in answer.tool_calls]
    # Anthropic's client sends them back as an object.
    assert [canonical(each.arguments) for each in said.calls()] == [canonical(c.arguments) for c in answer.tool_calls]


def test_a_thought_comes_back_in_the_field_in_which_openais_own_models_have_them_come_back():
    (item,) = json.loads(DIALECTS["responses"].reply([ANSWERS["all"]], STAMP))["output"][:1]
    for kept in ({"content": []}, {"content": None}, {}):
        back = {key: item[key] for key in item if key != "content"} | kept
        ask = parse("responses", {"input": [back], "include": ["reasoning.encrypted_content"]})
        assert ask.messages == (Message("assistant", (Thought("I think."),)),)
        assert ask.unhonoured == ()
    ask = parse("responses", {"input": [item | {"encrypted_content": None, "content": []}]})
    assert ask.messages == (Message("assistant", (Thought(""),)),)


def test_items_of_a_response_are_one_answer_as_long_as_they_come_in_its_order():
    item = {"type": "message", "role": "assistant"}
    said = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}, item | {"content": "b"}]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}
    ask = parse("responses", {"input": [*said, call, call, *said, item | {"content": "c"}]})
    assert [[type(part).__name__ for part in message.parts] for message in ask.messages] == [
        ["Thought", "Text", "ToolCall", "ToolCall"],
        ["Thought", "Text"],
        ["Text"],
    ]


def test_results_of_tools_come_before_what_the_user_says_beside_them():
    blocks = [{"type": "text", "text": "And now?"}, {"type": "tool_result", "tool_use_id": "c1"}]
    ask = parse("messages", asking("messages", messages=[{"role": "user", "content": blocks}]))
    assert ask.messages == (Message("tool", (ToolResult("c1", ()),)), Message("user", (Text("And now?"),)))


SAMPLING = {"temperature": 0.1, "top_p": 0.5, "mm_processor_kwargs": {"max_pixels": 1}, "chat_template": "{{x}}"}


@pytest.mark.parametrize(
    ("dialect", "options", "more"),
    [
        ("chat", {"seed": 1, "logit_bias": {"1": 100}, "response_format": {"type": "json_object"}}, []),
        ("chat", {"tool_choice": "required", "parallel_tool_calls": False}, []),
        ("chat", {"tool_choice": {"type": "function", "function": {"name": "f"}}, "frequency_penalty": 1}, []),
        ("responses", {"tool_choice": "required", "include": ["message.output_text.logprobs"]}, []),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}, ["text.format"]),
        ("messages", {"tool_choice": {"type": "any"}, "top_k": 4, "thinking": {"type": "enabled"}}, []),
    ],
)
def test_sampling_is_the_runs_and_what_is_not_honoured_is_named(dialect, options, more):
    ask = parse(dialect, asking(dialect, **SAMPLING, **options, user="ann", cache_control={}, top_a=None))
    assert sorted(ask.unhonoured) == sorted([*SAMPLING, *([] if more else options), *more])


def test_options_that_are_honoured():
    ask = parse("chat", asking("chat", n=3, stop=["a", "b"], logprobs=True, max_tokens=7, tool_choice="none"))
    assert (ask.n, ask.stop, ask.logprobs, ask.max_tokens, ask.reads_calls) == (3, ("a", "b"), True, 7, False)
    ask = parse("chat", asking("chat", stop="a", max_tokens=10**6, stream_options={"include_usage": True}))
    assert (ask.stop, ask.max_tokens, ask.stream_usage, ask.reads_calls) == (("a",), 10**6, True, True)
    assert parse("messages", asking("messages", stop_sequences=["x"])).stop == ("x",)
    assert not parse("messages", asking("messages", tool_choice={"type": "none"})).reads_calls
    assert not parse("responses", asking("responses", tool_choice="none")).reads_calls


CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[1]"}}]}
REFUSED = [
    ("chat", {"top_logprobs": 2}, "top_logprobs must be 0"),
    ("responses", {"top_logprobs": 2}, "top_logprobs must be 0"),
    ("responses", {"previous_response_id": "resp_1"}, "previous_response_id is not served.*send the whole"),
    ("responses", {"background": True}, "background is not served"),
    ("responses", {"tools": [{"type": "web_search"}]}, "type must be function, got 'web_search'"),
    ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "got 'item_reference'"),
    ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "type must be custom, got 'bash_20250124'"),
    ("messages", {"messages": [{"role": "assistant", "content": "I"}]}, "the last one must be the user's"),
    ("chat", {"functions": [{"name": "f"}]}, "give them as tools"),
    ("chat", {"n": 1000}, "n must be from 1 to 16, got 1000"),
    ("chat", {"n": 0}, "n must be from 1 to 16, got 0"),
    ("chat", {"max_tokens": 0}, "must be at least 1, got 0"),
    ("chat", {"stop": ["x"] * 17}, "stop must be from 0 to 16, got 17"),
    ("chat", {"stop": ""}, "no empty text"),
    ("chat", {"messages": []}, "messages must be from 1 to 8192, got 0"),
    ("chat", {"messages": [{"role": "function", "content": "x"}]}, "role must be one of .*got 'function'"),
    ("chat", {"messages": [{"role": "user", "content": 3}]}, r"Expected `str \| array \| null`, got `int`"),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "got 'input_audio'"),
    ("chat", {"messages": [CALLED]}, "arguments of the call 'c' must be an object, got list"),
    ("chat", {"tools": [{"type": "function", "function": {"name": " "}}]}, "name must be a text that is not empty"),
]


@pytest.mark.parametrize(("dialect", "options", "message"), REFUSED)
def test_what_is_not_served_is_refused_with_its_remedy(dialect, options, message):
    with pytest.raises(RefusedError, match=message) as caught:
        parse(dialect, asking(dialect) | options)
    assert caught.value.kind == "invalid"


def nested(levels):
    return '{"a":' * levels + "1" + "}" * levels


def with_schema(schema):
    tool = {"type": "function", "function": {"name": "f", "parameters": "S"}}
    return json.dumps(asking("chat", tools=[tool])).replace('"S"', schema).encode()


def with_arguments(arguments):
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    return asking("chat", messages=[{"role": "assistant", "tool_calls": [call]}])


MANY = json.dumps(asking("chat", messages=[{"role": "user", "content": "x"}] * 10**5)).encode()
WITHOUT_MEASURE = {
    "messages": (MANY, "got 100000"),
    "no message": (MANY.replace(b"x", b"x\\", 1), "must be an object in JSON"),
    "deep": (b'{"messages": ' + b"[" * 10**6, "must be an object in JSON"),
    "deep elsewhere": (b'{"other": ' + b"[" * 10**6, "must be an object in JSON"),
    "schema": (with_schema(nested(100)), "nested deeper than 64"),
    "deep schema": (with_schema(nested(10**5)), "must be an object in JSON"),
    "arguments": (with_arguments(nested(100)), "nested deeper than 64"),
    "deep arguments": (with_arguments("[" * 10**6), "arguments of the call 'c' must be an object in JSON"),
    "long": (b" " * 65 * 2**20, "more than 67108864"),
    "digits": (with_arguments('{"a": ' + "9" * 5000 + "}"), "arguments of the call 'c'"),
}


@pytest.mark.parametrize(("body", "message"), WITHOUT_MEASURE.values(), ids=WITHOUT_MEASURE)
def test_requests_without_measure_are_refused_at_once(body, message):
    start = time.perf_counter()
    with pytest.raises(RefusedError, match=message):
        parse("chat", body)
    assert time.perf_counter() - start < 2


def test_items_that_make_one_message_count_each():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    with pytest.raises(RefusedError, match="messages must be from 1 to 8192, got 9000"):
        parse("responses", {"input": [call] * 9000})


def test_a_body_that_is_too_long_has_a_status_of_its_own():
    with pytest.raises(RefusedError) as caught:
        parse("messages", b"{" * 101, body_bytes=100)
    assert caught.value.kind == "too_large"


# --- fuzz -----------------------------------------------------------------------------------------------------------

WORDS = ("text", "image_url", "input_image", "image", "tool_result", "tool_use", "thinking", "base64", "assistant")
WORDS += (
    "user",
    "tool",
    "function",
    "function_call",
    "reasoning",
    "message",
    "system",
    "\ud83d",
    "{",
    url(),
    url(b"x"),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("type", "content", "role", "text", "source", "url", "name")), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def places(value, path=()):
    """Return the paths to all that is inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def changed(value, path, new):
    if not path:
        return new
    made = copy.copy(value)
    made[path[0]] = changed(value[path[0]], path[1:], new)
    return made


def bodies(dialect):
    """Return requests in which one or two values are others."""

    def change(body):
        return st.tuples(st.sampled_from(places(body)), VALUES).map(lambda each: changed(body, *each))

    rich = CONVERSATIONS[dialect]
    rich = rich | {k: rich.get(k, []) + v for k, v in picturing(dialect, url()).items() if k != "model"}
    return change(rich) | change(rich).flatmap(change) | VALUES


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=300)
@given(data=st.data())
def test_whatever_a_request_holds_it_is_read_or_refused(dialect, data):
    body = json.dumps(data.draw(bodies(dialect))).encode()
    cut = data.draw(st.none() | st.integers(0, len(body)))
    try:
        said = [
            part for each in parse(dialect, body[:cut]).messages if each.role == "assistant" for part in each.parts
        ]
    except RefusedError as error:
        DIALECTS[dialect].error(error)
        return
    assert all(isinstance(part, Text | Thought | ToolCall) for part in said)
