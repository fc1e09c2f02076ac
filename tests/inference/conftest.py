"""Requests with screenshots, and the trainer's side of every comparison: a plain transformers forward pass."""

import gc
import io
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arpo.host.ray import RAY
from arpo.inference.engine import GenerateRequest, Sampling
from arpo.inference.fleet import FleetEngine
from arpo.inference.hf import HfEngine
from arpo.inference.vllm import VllmEngine
from arpo.models.processor import is_recurrent
from arpo.models.tokenization import ChatTokenizer
from tests.inference.loop import pytest_pyfunc_call, run  # noqa: F401 - which runs tests that are coroutines


def screenshot(number, width=140, height=112):
    """A PNG that is different for every number."""
    generator = np.random.default_rng(number)
    pixels = np.full((height, width, 3), generator.integers(0, 255, 3), dtype=np.uint8)
    for _ in range(6):
        x, y = generator.integers(0, width - 40), generator.integers(0, height - 20)
        pixels[y : y + 20, x : x + 40] = generator.integers(0, 255, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


class Questions:
    """Makes requests: conversations of one screenshot a turn."""

    def __init__(self, chat):
        self.chat = chat

    def ask(self, number=0, *, images=1, temperature=1.0, max_tokens=16, seed=0):
        words = [{"type": "text", "text": f"Task {number}: click on the Save button."}, {"type": "image"}]
        ids = self.chat.first_prompt([{"role": "user", "content": words}])
        for turn in range(images - 1):
            response = self.chat.encode_response(f"Action: click(start_box='({number},{turn})')")
            ids += response + self.chat.next_prompt(response)
        pngs = tuple(screenshot(100 * number + turn) for turn in range(images))
        return GenerateRequest(ids, pngs, Sampling(temperature, max_tokens, seed))


class Trainer:
    """The same checkpoint in plain transformers."""

    def __init__(self, path):
        from transformers import AutoImageProcessor, AutoModelForImageTextToText

        self.chat = ChatTokenizer(path)
        self._images = AutoImageProcessor.from_pretrained(path)
        self._model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
        self.first_weights = self.weights()

    def weights(self):
        named = self.chat.family.checkpoint_name
        return {named(name): tensor.detach().clone() for name, tensor in self._model.named_parameters()}

    def load(self, weights):
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(weights[self.chat.family.checkpoint_name(name)])

    def changed(self, seed, size=0.05):
        """The first weights with noise on all of them, the vision tower's too."""
        generator = torch.Generator().manual_seed(seed)
        first = self.first_weights.items()
        return {name: tensor + size * torch.randn(tensor.shape, generator=generator) for name, tensor in first}

    def distributions(self, request, response):
        """Log-probabilities of every word at each sampled position."""
        pictures = [Image.open(io.BytesIO(png)) for png in request.images]
        inputs = self._images(images=pictures, return_tensors="pt")
        lengths = iter((inputs["image_grid_thw"].prod(-1) // self._images.merge_size**2).tolist())
        image = self.chat.image_token_id
        prompt = [i for given in request.prompt_ids for i in [given] * (next(lengths) if given == image else 1)]
        ids = torch.tensor([[*prompt, *response.token_ids]])
        with torch.no_grad():
            logits = self._model(
                input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=(ids == image).long(), **inputs
            ).logits[0, len(prompt) - 1 : -1]
        logits[:, list(self.chat.forbidden_ids)] = -torch.inf
        return torch.log_softmax(logits / (request.sampling.temperature or 1.0), dim=-1)

    def gap(self, request, response):
        """The largest difference between the response's log-probabilities and ours."""
        ours = self.distributions(request, response)
        chosen = ours.gather(1, torch.tensor(response.token_ids)[:, None])[:, 0]
        return float((chosen - torch.tensor(response.logprobs)).abs().max())


OTHERS = {"qwen3_vl": "tiny_qwen3", "qwen3_5": "tiny_qwen35"}


@pytest.fixture(
    scope="session", params=["qwen2_5_vl", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
)
def tiny_model(request, tiny_model):
    """The tiny model of each family, in the place of that which other tests have."""
    directory: Path = request.getfixturevalue(OTHERS[request.param]) if request.param in OTHERS else tiny_model
    return directory


@pytest.fixture
def start(tiny_model, closing):
    """Starts an engine of a class, alone or in an actor, which is closed when the test ends."""

    def make(engine=VllmEngine, path=tiny_model, *, fleet=False, **options):
        if engine is not HfEngine:
            on_a_cpu_by_vllm(path)
            look_for_kernels_once()
            keep_imports_from_collections()
            options = {"max_images": 4, "kv_cache_gb": 0.125} | options
        make_engine = partial(engine, path, max_model_len=512, **options)
        return closing(FleetEngine(make_engine) if fleet else make_engine())

    return make


@cache
def look_for_kernels_once():
    """Let vLLM put its kernels for a CPU into all modules once a process, which takes half of a start's time."""
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.register_triton_kernel_overrides = staticmethod(cache(CpuPlatform.register_triton_kernel_overrides))


@cache
def keep_imports_from_collections():
    """Let the collections of garbage at each start and end of vLLM look at no module, which takes most of their time.

    What an engine made is not frozen with them: it is collected when the engine has ended.
    """
    from vllm.v1.engine import core
    from vllm.v1.worker import cpu_worker  # noqa: F401 - which imports what computes a model

    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = core.freeze_gc_heap = lambda: None


def on_a_cpu_by_vllm(path):
    """Skip a test of vLLM in float32 where it has no kernel for a model."""
    if not torch.cuda.is_available() and is_recurrent(path):
        pytest.skip("vLLM's kernel of Gated DeltaNet for a CPU takes bfloat16 alone, and no LoRA")


@pytest.fixture(scope="session")
def chat(tiny_model):
    return ChatTokenizer(tiny_model)


@pytest.fixture(scope="session")
def questions(chat):
    return Questions(chat)


@pytest.fixture(scope="session")
def _trainer(tiny_model):
    return Trainer(tiny_model)


@pytest.fixture
def trainer(_trainer):
    yield _trainer
    _trainer.load(_trainer.first_weights)


@pytest.fixture(scope="package")
def one_ray():
    """One Ray for all fleets of this folder, each of which would start its own: that takes seconds."""
    RAY.acquire().result()
    yield
    RAY.release().result()


@pytest.fixture
def closing():
    """Closes every engine passed to it when the test ends."""
    engines: list[Any] = []

    def remember(engine):
        engines.append(engine)
        return engine

    yield remember
    for engine in engines:
        run(engine.close())
