import pytest

from arpo.models.images import ImageProcessor
from arpo.models.tokenization import ChatTokenizer


@pytest.fixture(scope="session")
def chat(tiny_model):
    return ChatTokenizer(tiny_model)


@pytest.fixture
def images(tiny_model):
    return ImageProcessor(tiny_model)
