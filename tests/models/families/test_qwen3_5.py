"""Qwen3.5: its tiny model, Gated DeltaNet in batches, and what is special about its published files."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoProcessor, Qwen3_5ForConditionalGeneration

from arpo.models.checkpoint import CheckpointWeights
from arpo.models.families.qwen3_5 import FAMILY
from arpo.models.policy import Policy
from arpo.models.tokenization import ChatTokenizer, tokenize
from tests.models.samples import trajectory
from tests.models.test_policy import assert_plain

THINKING = (
    "{%- set ns = namespace(last=0) %}{%- for message in messages %}{%- if message.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' and loop.index0 > ns.last %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}{%- for content in message.content %}"
    "{%- if content.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif 'text' in content %}{{- content.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)
"""Written after the published one, without its tools: the last response alone keeps its thought."""


@pytest.fixture(scope="module")
def model(tiny_qwen35):
    return Qwen3_5ForConditionalGeneration.from_pretrained(tiny_qwen35).eval()


def test_logprobs_and_gradients_of_a_padded_batch_are_those_of_transformers_row_by_row(tiny_qwen35):
    policy = Policy(tiny_qwen35)
    (tokens,) = tokenize(trajectory(policy.chat, (0, 1, 2)), policy.chat)
    assert len(tokens) > 64  # more than one chunk of the delta rule
    states = [name for name, _ in policy.model.named_parameters() if "linear_attn" in name]
    assert len(states) == 9  # five linear layers, the convolution, the norm, the decay and its bias
    assert_plain(policy)


def test_the_directory_loads_like_a_real_checkpoint(tiny_qwen35, model):
    processor = AutoProcessor.from_pretrained(tiny_qwen35)
    assert type(processor).__name__ == FAMILY.processor_class
    assert processor.image_processor.patch_size == 16
    assert 0.8e6 < model.num_parameters() < 1.2e6
    text = model.config.text_config
    assert text.layer_types == ["linear_attention", "full_attention"]
    assert FAMILY.attention_layers(model.config) == 1
    assert text.rope_parameters["mrope_interleaved"]
    assert text.rope_parameters["partial_rotary_factor"] == 0.5


def test_a_number_is_one_token_though_transformers_own_class_would_split_it(tiny_qwen35):
    chat = ChatTokenizer(tiny_qwen35)
    assert len(chat._tokenizer.encode("999")) == 3
    assert all(len(chat.encode_response(str(number))) == 2 for number in range(1000))  # and the end of the turn


def test_the_head_that_guesses_further_tokens_is_no_part_of_a_policy(tiny_qwen35, tmp_path):
    path = Path(shutil.copytree(tiny_qwen35, tmp_path / "published"))
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {"mtp.fc.weight": torch.zeros(2, 2)}, path / "model.safetensors", {"format": "pt"})
    assert CheckpointWeights(path).shapes == CheckpointWeights(tiny_qwen35).shapes
    assert dict(Policy(path).checkpoint_tensors()).keys() == CheckpointWeights(path).shapes.keys()


@pytest.mark.parametrize("start", ["<think>\n", "<think>\n\n</think>\n\n"], ids=["opens", "closes"])
def test_what_a_template_says_of_the_thought_of_a_response_to_come_is_taken(tiny_qwen35, tmp_path, start):
    path = Path(shutil.copytree(tiny_qwen35, tmp_path / "thinking"))
    template = THINKING.replace("assistant\n<think>\n'", f"assistant\n{start}'")
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    plain, chat = ChatTokenizer(tiny_qwen35), ChatTokenizer(path)
    thought = plain._encode(start)
    user = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]
    assert chat.first_prompt(user) == plain.first_prompt(user) + thought
    response = chat.encode_response("x</think>Action: wait()")
    assert chat.next_prompt(response) == plain.next_prompt(response) + thought
    # as the template writes the last turn of a conversation: a script's response has an empty thought
    whole = chat.render([*user, {"role": "assistant", "content": "Wait."}])
    written = chat.decode(chat.first_prompt(user)) + chat.scripted("Wait.")
    assert whole.partition("<think>")[2].startswith(written.partition("<think>")[2])
    assert plain.scripted("Wait.") == "Wait."
    assert chat.scripted("Why?</think>Wait.") == "Why?</think>Wait."
    blind, expected = (each.without_screenshot(each.next_prompt(response)) for each in (chat, plain))
    assert blind == expected + thought
