"""Renderers with three chat templates around one tiny tokenizer, which has the tokens of tools and thoughts."""

import shutil
from pathlib import Path

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from arpo.endpoint.rendering import Renderer
from arpo.models.tokenization import ChatTokenizer
from tests.inference.loop import pytest_pyfunc_call  # noqa: F401 - which runs tests that are coroutines

TEMPLATES = Path(__file__).parent / "templates"
"""Written after those that are published with Qwen3-VL and Qwen3.5."""
TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def chat_of(tiny_model, directory, template):
    shutil.copytree(tiny_model, directory, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in TOKENS])
    tokenizer.save_pretrained(directory)
    if template:
        shutil.copy(TEMPLATES / f"{template}.jinja", directory / "chat_template.jinja")
    return ChatTokenizer(directory)


@pytest.fixture(scope="session")
def chats(tiny_model, tmp_path_factory):
    return {
        name: chat_of(tiny_model, tmp_path_factory.mktemp(name), name if "_" in name else "")
        for name in ("plain", "qwen3_vl", "qwen3_5")
    }


@pytest.fixture(scope="session", params=["plain", "qwen3_vl", "qwen3_5"])
def chat(request, chats):
    return chats[request.param]


@pytest.fixture(scope="session")
def renderer(chat):
    return Renderer(chat)


@pytest.fixture(scope="session")
def plain(chats):
    return chats["plain"]
