import shutil
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer

from arpo.agent.actions import Click, Drag, TypeText
from arpo.agent.prompt import GRAMMARS, Prompt
from arpo.errors import ConfigError
from arpo.models.tokenization import BOX, ChatTokenizer, tokenize
from tests.exchanges import windowed
from tests.models.samples import trajectory
from tests.rollout.trajectories import foreign

QWEN_TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}"
    "<|im_end|>\n{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: "
    "{% endif %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}"
    "{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The real one in all that matters here: a default system message, a counter, and both kinds of content."""


def with_template(tiny_model, directory, template):
    shutil.copytree(tiny_model, directory, dirs_exist_ok=True)
    (directory / "chat_template.jinja").write_text(template)
    return directory


@pytest.fixture(params=["tiny", "qwen"])
def any_directory(request, tiny_model, tmp_path):
    return tiny_model if request.param == "tiny" else with_template(tiny_model, tmp_path, QWEN_TEMPLATE)


@pytest.mark.parametrize("prompt", [Prompt.compact(), Prompt.ui_tars()], ids=["compact", "ui_tars"])
def test_a_conversation_appended_turn_by_turn_equals_the_template_rendered_as_a_whole(any_directory, prompt):
    chat = ChatTokenizer(any_directory)
    texts = ["Thought: I look.\nAction: wait()", "Action: click(start_box='<|box_start|>(10,20)<|box_end|>')"]
    messages = prompt.messages("Click on the Save button.")
    ids = chat.first_prompt(messages)
    for text in texts:
        response = chat.encode_response(text)
        ids += response + chat.next_prompt(response)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": [{"type": "image"}]}]
    tokenizer = AutoTokenizer.from_pretrained(any_directory)
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ids == tuple(tokenizer(whole).input_ids)
    assert ids.count(chat.image_token_id) == 3


def test_a_response_that_was_cut_gets_its_end_from_the_next_prompt(chat):
    ended = chat.encode_response("Action: wait()")
    cut = ended[:-1]
    assert ended[-1] == chat.end_of_turn_id
    assert cut + chat.next_prompt(cut) == ended + chat.next_prompt(ended)
    assert chat.next_prompt(())[0] == chat.end_of_turn_id


def test_what_would_break_a_sequence_is_forbidden_and_nothing_else(chat, tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    names = ["<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"]
    names += ["<|image_pad|>", "<|video_pad|>"]
    assert len(tokenizer) == 600
    beyond = range(600, 640)  # 600 rounded up to a multiple of 64
    assert set(chat.forbidden_ids) == {*tokenizer.convert_tokens_to_ids(names), *beyond}
    assert list(chat.forbidden_ids) == sorted(chat.forbidden_ids)
    for number in chat.forbidden_ids:
        with pytest.raises(ValueError, match="never sampled"):
            chat.check_response((number, chat.end_of_turn_id))


@pytest.fixture(scope="module")
def wordy(tiny_model, tmp_path_factory):
    """The tiny tokenizer with tokens that are not special, as the real one has them; one begins as another does."""
    directory = shutil.copytree(tiny_model, tmp_path_factory.mktemp("wordy"), dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    names = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_prefix|>s")
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in names])
    tokenizer.save_pretrained(directory)
    return ChatTokenizer(directory)


@cache
def tokenizer_of(path):
    return AutoTokenizer.from_pretrained(path)


def special(chat, ids):
    """The ids of tokens that no text may spell."""
    added = set(tokenizer_of(chat.path).get_added_vocab().values())
    return [number for number in ids if number in added]


def texts_like_tokens(chat):
    names = sorted(tokenizer_of(chat.path).get_added_vocab())
    halves = [half for name in names for half in (name[: len(name) // 2], name[len(name) // 2 :])]
    letters = st.text(max_size=3) | st.sampled_from(["\ue000", "\ud83d", "\0", " ", "\n", "{{", "'", "start_box='"])
    return st.lists(st.sampled_from(names) | st.sampled_from(halves) | letters, max_size=8).map("".join)


@pytest.mark.parametrize("prompt", [Prompt.compact(), Prompt.ui_tars()], ids=["compact", "ui_tars"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_instruction_spells_a_special_token(wordy, prompt, data):
    text = data.draw(texts_like_tokens(wordy))
    ids = wordy.first_prompt(prompt.messages(text))
    assert special(wordy, ids) == special(wordy, wordy.first_prompt(prompt.messages("Click.")))
    whole = tokenizer_of(wordy.path).decode(ids)
    assert text.encode(errors="replace").decode() in whole  # nothing of it is lost


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_text_of_a_response_or_of_plain_messages_spells_a_special_token(wordy, data):
    text = data.draw(texts_like_tokens(wordy).filter(lambda text: not BOX.search(text)))
    ids = wordy.encode_response(text)
    assert special(wordy, ids) == [wordy.end_of_turn_id]
    assert wordy.decode(ids) == text.encode(errors="replace").decode()
    for content in (text, [{"type": "text", "text": text}]):
        plain = wordy.first_prompt([{"role": "system", "content": content}, {"role": "user", "content": content}])
        neutral = wordy.first_prompt([{"role": "system", "content": "x"}, {"role": "user", "content": "x"}])
        assert special(wordy, plain) == special(wordy, neutral)


def test_the_turns_of_a_prompt_cannot_be_ended_by_its_author_either(wordy):
    prompt = Prompt("Be brief.<|im_end|>", "<|image_pad|> <tool_call> {instruction}")
    found = special(wordy, wordy.first_prompt(prompt.messages("<tool_call>")))
    neutral = special(wordy, wordy.first_prompt(Prompt("Be brief.", "Do {instruction}").messages("it")))
    (tool_call,) = special(wordy, tokenizer_of(wordy.path)("<tool_call>").input_ids)
    assert found.count(tool_call) == 1  # that of the template, which may hold tokens that a response may hold
    assert [number for number in found if number != tool_call] == neutral


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        ("click(start_box='<|box_start|>(1,2)<|box_end|>')", 2),
        ("drag(start_box='<|box_start|>(1,2)<|box_end|>', end_box='<|box_start|>(3,4)<|box_end|>')", 4),
        ("type(content='<|box_start|>(1,2)<|box_end|>')", 0),
        ("Thought: <|box_start|>\nAction: click(start_box='(1,2)')", 0),
        (r"type(content='start_box=\'<|box_start|>(1,2)<|box_end|>\'')", 0),
        ("click(start_box='<|box_start|><|im_end|><|box_end|>')", 0),
    ],
)
def test_the_tokens_of_a_box_stand_around_the_point_of_an_action_alone(chat, text, boxes):
    ids = chat.encode_response(text)
    assert len(special(chat, ids)) == boxes + 1
    assert chat.decode(ids) == (text.replace("<|box_start|>", "").replace("<|box_end|>", "") if boxes else text)


@pytest.mark.parametrize("grammar", ["computer_use", "computer_use_xml"])
@pytest.mark.parametrize(
    ("action", "calls"), [(Click(5, 6), 1), (Drag(1, 2, 3, 4), 2), (TypeText("</tool_call>\n<tool_call>"), 1)], ids=str
)
def test_the_tokens_of_a_call_stand_around_it_alone_as_the_model_samples_them(wordy, action, calls, grammar):
    text = GRAMMARS[grammar].render(action, "As planned.")
    ids = wordy.encode_response(text)
    tags = special(wordy, tokenizer_of(wordy.path)("<tool_call></tool_call>").input_ids)
    assert special(wordy, ids) == [*tags * calls, wordy.end_of_turn_id]
    assert wordy.decode(ids) == text


@pytest.mark.parametrize(
    "text",
    [
        "Thought: so\n<tool_call>\nAction: wait()",
        "<tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>\n<function=f>\n</tool_call>",
    ],
)
def test_a_tag_without_a_call_is_text(wordy, text):
    assert special(wordy, wordy.encode_response(text)) == [wordy.end_of_turn_id]


def test_a_tokenizer_without_box_tokens_spells_them(tiny_model):
    chat = ChatTokenizer(tiny_model)
    chat._added = {name: number for name, number in chat._added.items() if "box" not in name}
    text = "click(start_box='<|box_start|>(1,2)<|box_end|>')"
    assert chat.decode(chat.encode_response(text)) == text


def test_sizes_follow_smart_resize(chat):
    assert chat.model_size(112, 140) == (112, 140)
    assert chat.image_tokens(112, 140) == 20  # 4 x 5 blocks of 28 pixels
    # 1920 x 1080 into 15,680 pixels: shrink = sqrt(2073600 / 15680) = 11.5; 166.96 -> 140, 93.9 -> 84; 5 x 3 blocks
    assert chat.model_size(1920, 1080) == (140, 84)
    assert chat.image_tokens(1920, 1080) == 15
    # five ids, two of them placeholders: 5 - 2 + 20 + 15
    assert chat.context_length((5, 12, 6, 12, 7), [(112, 140), (1920, 1080)]) == 38


def test_the_action_mask_is_true_exactly_on_sampled_tokens(chat):
    episode = trajectory(chat, (0, 1, 2), cut=True)
    (tokens,) = tokenize(episode, chat)
    sampled = tuple(i for exchange in episode.exchanges for i in exchange.response_ids)
    assert tuple(tokens.input_ids[tokens.action_mask].tolist()) == sampled
    assert len(tokens.sampler_logprobs) == episode.action_tokens == len(sampled)
    assert tokens.sampler_logprobs[:2].tolist() == pytest.approx([-0.5, -0.51])
    assert tokens.step_lengths == tuple(len(exchange.response_ids) for exchange in episode.exchanges)
    # The cut response has no sampled end; the end that closes its turn belongs to the prompt.
    assert ((tokens.input_ids == chat.end_of_turn_id) & tokens.action_mask).sum() == 2
    # Each placeholder is as long as its screenshot.
    assert int(tokens.image_mask.sum()) == 60
    assert not (tokens.image_mask & tokens.action_mask).any()
    assert tokens.screenshots == tuple(step.screenshot for step in episode.steps)
    ids = tuple(i for each in episode.exchanges for i in (*each.added_ids, *each.response_ids))
    assert len(tokens) == chat.context_length(ids, [(112, 140)] * 3)


@pytest.mark.parametrize("prompt", [Prompt.compact(), Prompt.ui_tars()], ids=["compact", "ui_tars"])
def test_a_window_is_the_template_rendered_without_the_screenshots_before_it(any_directory, prompt):
    """A user turn that held nothing but a screenshot goes with it; a text that stood beside it stays."""
    chat = ChatTokenizer(any_directory)
    texts = ["Action: wait()", "Thought: I look.\nAction: wait()", "Action: wait()"]
    messages = prompt.messages("Click on the Save button.")
    prompts, responses = [chat.first_prompt(messages)], []
    for text in texts:
        responses.append(chat.encode_response(text))
        prompts.append(chat.next_prompt(responses[-1]))
    if prompt.screenshot_apart:
        messages = messages[:-1]
    else:
        messages[-1]["content"] = [part for part in messages[-1]["content"] if part["type"] != "image"]
    shot = {"role": "user", "content": [{"type": "image"}]}
    said = [{"role": "assistant", "content": text} for text in texts]
    tokenizer = AutoTokenizer.from_pretrained(any_directory)
    kept = [*messages, said[0], said[1], shot, said[2], shot]
    whole = tokenizer.apply_chat_template(kept, add_generation_prompt=True, tokenize=False)
    seen = [*map(chat.without_screenshot, prompts[:2]), *prompts[2:]]
    ids = seen[0] + responses[0] + seen[1] + responses[1] + seen[2] + responses[2] + seen[3]
    assert ids == tuple(tokenizer(whole).input_ids)
    assert ids.count(chat.image_token_id) == 2


def test_a_prompt_without_its_screenshot_keeps_the_end_of_a_response_that_was_cut(chat):
    after = chat.without_screenshot(chat.next_prompt(chat.encode_response("Action: wait()")[:-1]))
    assert after[0] == chat.end_of_turn_id
    assert chat.image_token_id not in after


def test_a_window_makes_one_sequence_a_step_that_trains_the_last_response_alone(chat):
    episode = windowed(trajectory(chat, (0, 1, 2)), chat, 2)
    sequences = tokenize(episode, chat)
    shown = [tuple(step.screenshot for step in episode.steps[part]) for part in (slice(1), slice(2), slice(1, None))]
    assert [sequence.screenshots for sequence in sequences] == shown
    for sequence, exchange in zip(sequences, episode.exchanges, strict=True):
        assert tuple(sequence.input_ids[sequence.action_mask].tolist()) == exchange.response_ids
        assert sequence.action_mask[-len(exchange.response_ids) :].all()
        assert sequence.sampler_logprobs.tolist() == pytest.approx(list(exchange.sampler_logprobs))
        assert sequence.step_lengths == (len(exchange.response_ids),)
        assert int(sequence.image_mask.sum()) == 20 * len(sequence.screenshots)
    text = chat.decode(sequences[2].input_ids.tolist())
    assert all(step.response in text for step in episode.steps)  # what was said stays, whatever was seen


def test_a_tree_is_a_sequence_a_path_in_which_each_response_is_trained_once(chat):
    """Two pictures in a turn and none, a second answer, one that was cut, and two that are not trained."""
    image, size = chat.image_token_id, (112, 140)  # of 20 tokens
    made = foreign(size, image)
    first, second = tokenize(made, chat)
    asked = [1, *[image] * 20, 2, *[image] * 20, 3]
    assert first.input_ids.tolist() == [*asked, 40, 41, 8, 46]
    assert first.input_ids[first.action_mask].tolist() == [40, 41, 46]
    assert second.input_ids.tolist() == [*asked, 40, 41, 8, 43, 44, 13, *[image] * 20, 47, 48]
    assert second.input_ids[second.action_mask].tolist() == [43, 44, 47, 48]  # not 45, which is behind a stop
    assert [len(tokens.screenshots) for tokens in (first, second)] == [2, 3]
    assert second.sampler_logprobs.tolist() == pytest.approx([-0.9, -1.0, -1.4, -1.5])
    assert (first.spans, second.spans) == (((0, 2), (4, 5)), ((2, 4), (5, 7)))
    assert second.step_lengths == (2, 2)


def test_records_that_do_not_match_are_refused(chat):
    episode = trajectory(chat, (5,))
    (exchange,) = episode.exchanges
    no_image = tuple(i for i in exchange.added_ids if i != chat.image_token_id)
    sampled_image = (chat.image_token_id, *exchange.response_ids[1:])
    for exchanges, message in [
        ([replace(exchange, added_ids=no_image)], "exchange 0: 1 pictures but 0 image placeholders"),
        ([replace(exchange, response_ids=sampled_image)], "exchange 0: .* never sampled"),
        ([], "'0/0/5' has no exchanges"),
    ]:
        with pytest.raises(ValueError, match=message):
            tokenize(replace(episode, steps=(), exchanges=tuple(exchanges)), chat)


def test_a_missing_directory_is_a_sentence_and_not_a_stack(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot load a processor from .*nowhere"):
        ChatTokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: ",
        "<|im_start|>{{ messages | length }} messages<|im_end|>",
    ],
)
def test_a_template_without_turns_or_that_loses_an_image_is_refused(tiny_model, tmp_path, template):
    with pytest.raises(ConfigError, match="chat template"):
        ChatTokenizer(with_template(tiny_model, tmp_path, template))
    loses = QWEN_TEMPLATE.replace("== 'image'", "== 'image' and loop.first")
    chat = ChatTokenizer(with_template(tiny_model, tmp_path, loses))
    with pytest.raises(ValueError, match="1 images but"):
        chat.first_prompt(Prompt.compact().messages("Click."))
