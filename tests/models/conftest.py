from pathlib import Path

import pytest

from arpo.models.images import ImageProcessor
from arpo.models.tokenization import ChatTokenizer


@pytest.fixture(scope="session")
def chat(tiny_model: Path) -> ChatTokenizer:
    return ChatTokenizer(tiny_model)


@pytest.fixture
def images(tiny_model: Path) -> ImageProcessor:
    return ImageProcessor(tiny_model)
