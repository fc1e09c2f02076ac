"""The vocabulary, chat template and processor that are published with Qwen2.5-VL, against transformers' own."""

import json
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, AutoTokenizer

from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import parse_response
from arpo.models.collate import TokenBatch, collate
from arpo.models.images import ImageProcessor
from arpo.models.tokenization import ChatTokenizer, tokenize
from arpo.types import Outcome, Step, Trajectory
from benchmarks.gpu_session.published import UnavailableError, write_companions
from tests.exchanges import in_turn
from tests.models.samples import screenshot

pytestmark = pytest.mark.slow  # of the download

ARCHITECTURE: dict[str, Any] = {
    "text_config": {
        "vocab_size": 152064,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
    },
    "vision_config": {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 64},
}
"""Two small layers; the vocabulary, which is all that matters here, is the real one's."""
SCREEN = (1920, 1080)
ANSWERS = (
    "Thought: I click on 保存 😀.\nAction: click(start_box='<|box_start|>(966,546)<|box_end|>')",
    "Action: drag(start_box='<|box_start|>(1,2)<|box_end|>', end_box='<|box_start|>(1931,1091)<|box_end|>')",
    r"Thought: Ich tippe.  Two spaces. Action: type(content='It\'s \"5 €\"\n\\alpha\tb 你好，世界 👩‍🚀🇩🇪\n')",
    "Action: hotkey(key='ctrl shift t')",
    "Action: scroll(start_box='<|box_start|>(500,500)<|box_end|>', direction='down')",
    "Action: finished(content='<think> is text, <tool_call> and <|im_end|> are too')",
)
CALLS = tuple(
    f'{thought}<tool_call>\n{{"name": "computer_use", "arguments": {made}}}\n</tool_call>'
    for thought, arguments in (
        ("I click on 保存 😀.\n", {"action": "left_click", "coordinate": [503, 512]}),
        ("", {"action": "key", "keys": ["ctrl", "s"]}),
        ("Ich tippe.  Two spaces.\n", {"action": "type", "text": 'It\'s "5 €"\n\tb 你好，世界 👩‍🚀🇩🇪\n'}),
        ("Down.\n\n", {"action": "scroll", "coordinate": [500, 500], "pixels": -5}),
        ("Done.\n", {"action": "terminate", "status": "success"}),
    )
    for made in [json.dumps(arguments, ensure_ascii=False)]
)
QWEN3_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}{%- for content in message.content %}"
    "{%- if content.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif 'text' in content %}{{- content.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Written after the one of Qwen3-VL, without its tools: it adds no system message."""


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """A directory with everything that is published with Qwen2.5-VL but weights."""
    return written(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory):
    """The same with the four words and the chat template of Qwen3-VL, whose model is another family."""
    path = written(tmp_path_factory.mktemp("qwen3"), qwen3=True)
    (path / "chat_template.json").unlink()
    (path / "chat_template.jinja").write_text(QWEN3_TEMPLATE, encoding="utf-8")
    return path


def written(directory, *, qwen3=False):
    try:
        return write_companions(directory, ARCHITECTURE, qwen3=qwen3)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def real_chat(published):
    return ChatTokenizer(published)


@pytest.fixture(scope="session")
def processor(published):
    return AutoProcessor.from_pretrained(published)


def played(chat, answers):
    """An episode with an answer to each of as many screenshots of 1080p, and its messages."""
    messages = Prompt.ui_tars().messages("Save the file 报告.txt.")
    prompt, steps, turns, shots = chat.first_prompt(messages), [], [], {}
    for number, text in enumerate(answers):
        key, png = screenshot(number, *SCREEN)
        ids = chat.encode_response(text)
        shots[key] = png
        steps.append(Step(key, *SCREEN, text))
        turns.append((prompt, ids, (-1.0,) * len(ids)))
        prompt = chat.next_prompt(ids)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": [{"type": "image"}]}]
    ended = {"outcome": Outcome.MAX_STEPS, "task_reward": 0.0, "format_reward": 0.0, "screenshots": shots}
    trajectory = Trajectory("real", "real", "", "", 0, **in_turn(steps, *turns), **ended)
    return trajectory, messages[:-1]


@dataclass(frozen=True, slots=True, eq=False)
class Both:
    """An episode of three screenshots of 1080p, as the trainer reads it and as the processor of transformers does."""

    trajectory: Trajectory
    batch: TokenBatch
    theirs: Any


@pytest.fixture(scope="session")
def both(published, real_chat, processor):
    trajectory, messages = played(real_chat, ANSWERS[:3])
    theirs = processor(
        text=[processor.apply_chat_template(messages, tokenize=False)],
        images=[Image.open(BytesIO(png)) for png in trajectory.screenshots.values()],
        return_tensors="pt",
        return_mm_token_type_ids=True,
    )
    batch = collate(tokenize(trajectory, real_chat), trajectory.screenshots, ImageProcessor(published))
    return Both(trajectory, batch, theirs)


def test_ids_are_those_of_transformers_but_for_the_newline_behind_the_last_turn(both, real_chat):
    *ids, newline = both.theirs.input_ids[0].tolist()
    assert both.batch.input_ids[0].tolist() == ids
    assert real_chat.decode([newline]) == "\n"
    assert int(both.batch.image_mask.sum()) == 3 * 2691


def test_pixel_values_are_those_of_transformers_bit_for_bit(both, published):
    images = ImageProcessor(published)
    ours = [images(key, png).pixel_values for key, png in both.trajectory.screenshots.items()]
    assert torch.equal(torch.cat(ours), both.theirs.pixel_values)
    assert both.theirs.image_grid_thw.tolist() == [list(grid) for grid in both.batch.image_grid] == [[1, 78, 138]] * 3


def test_fifteen_screenshots_leave_room_for_responses(real_chat):
    """A screenshot of 1080p is 69 by 39 blocks of 28 pixels: 2,691 tokens."""
    prompts = real_chat.first_prompt(Prompt.ui_tars().messages("Open Chrome.")) + 14 * real_chat.next_prompt(())
    assert real_chat.image_tokens(*SCREEN) == 69 * 39 == 2691
    # 311 with the three of the instruction, 13 of each later turn; in each placeholder's place a screenshot
    assert real_chat.context_length(prompts, [SCREEN] * 15) == 311 + 14 * 13 + 15 * 2690 == 40_843


def test_what_is_never_sampled_is_seven_tokens_and_rows_without_a_word(real_chat, qwen3):
    # 152,064 rows for 151,665 words leave 399; <|endoftext|> and six of pictures and turns are special
    assert len(real_chat.forbidden_ids) == 406
    assert real_chat.forbidden_ids[:2] == (151643, 151644)
    assert real_chat.forbidden_ids[2:7] == (151652, 151653, 151654, 151655, 151656)
    assert real_chat.forbidden_ids[7:] == tuple(range(151665, 152064))
    # The words of Qwen3-VL are four more.
    assert AutoTokenizer.from_pretrained(qwen3).convert_tokens_to_ids("</think>") == 151668
    assert len(ChatTokenizer(qwen3).forbidden_ids) == 7 + 152064 - 151669


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_of_ui_tars_survives_the_round_trip(real_chat, processor, text):
    ids = real_chat.encode_response(text)
    read = real_chat.decode(ids)
    assert read == text.replace("<|box_start|>", "").replace("<|box_end|>", "")
    assert parse_response(read).actions == parse_response(text).actions
    if "<|im_end|>" not in text:  # which is text here, and ends a turn there
        assert ids == tuple(processor.tokenizer(text + "<|im_end|>").input_ids)


@pytest.mark.parametrize(
    ("prompt", "answers"), [(Prompt.ui_tars(), ANSWERS[:5]), (Prompt.computer_use(), CALLS)], ids=["text", "calls"]
)
def test_five_turns_of_qwen3_vl_have_the_ids_of_transformers(qwen3, prompt, answers):
    chat = ChatTokenizer(qwen3)
    messages = prompt.messages("打开 Chrome 😀.")
    ids = chat.first_prompt(messages)
    for text in answers:
        response = chat.encode_response(text)
        ids += response + chat.next_prompt(response)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": [{"type": "image"}]}]
    tokenizer = AutoTokenizer.from_pretrained(qwen3)
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ids == tuple(tokenizer(whole).input_ids)
