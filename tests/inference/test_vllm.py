"""What only vLLM has: caches that can go stale, a deterministic mode, and a process full of global state."""

import asyncio
import dataclasses
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL.PngImagePlugin import PngImageFile

from arpo.errors import ConfigError, EngineError, WeightSyncError
from arpo.host.ray import RayRuntime
from arpo.inference.engine import GenerateRequest
from arpo.models.tokenization import ChatTokenizer
from tests.inference.conftest import Questions, Trainer, on_a_cpu_by_vllm, run, together

pytestmark = pytest.mark.engine


@pytest.fixture
def start(tiny_model: Path, closing: Callable[[Any], Any]) -> Callable[..., Any]:
    from arpo.inference.vllm import VllmEngine

    on_a_cpu_by_vllm(tiny_model)

    def make(engine_class: Any = VllmEngine, **arguments: Any) -> Any:
        return closing(engine_class(tiny_model, max_model_len=512, max_images=4, kv_cache_gb=0.125, **arguments))

    return make


@pytest.mark.parametrize(("most_pixels", "named"), [(12_845_056, True), (2_116_800, False)])
def test_vllm_is_given_the_size_of_a_screen_where_its_own_largest_picture_holds_one(
    most_pixels: int, named: bool
) -> None:
    """It takes the smaller of each side, and of 2,116,800 pixels its largest picture is 1512 x 1400."""
    from arpo.inference.vllm import _picture_limits

    assert ("width" in str(_picture_limits(4, most_pixels))) == named


@pytest.mark.long
@pytest.mark.parametrize("threads", ["1", "2"])
def test_deterministic_means_every_bit(
    start: Callable[..., Any], questions: Questions, monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    # With one thread vLLM's CPU kernels happen to give the same bits for any batch; with two they do not, but two
    # spin against each other for minutes where the cores are busy.
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    engine = start(deterministic=True)
    # Later requests continue earlier ones and share their screenshots, which is what caches are for.
    requests = [questions.ask(n % 2, images=1 + n % 4, seed=n, max_tokens=4) for n in range(6)]
    in_order = [together(engine.generate(request))[0] for request in requests]
    for order in ([5, 4, 3, 2, 1, 0], [2, 5, 0, 3, 1, 4]):
        at_once = together(*(engine.generate(requests[n]) for n in order))
        assert [at_once[order.index(n)] for n in range(6)] == in_order


@pytest.mark.long
def test_starting_and_asking_leaves_the_process_as_it_was(start: Callable[..., Any], questions: Questions) -> None:
    # Not Python's own generator: in tests, beartype draws from it.
    torch.manual_seed(1)
    np.random.seed(2)
    expected = (torch.rand(1).item(), np.random.random())
    torch.manual_seed(1)
    np.random.seed(2)
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    engine = start(deterministic=True)
    together(engine.generate(questions.ask()))
    assert (torch.rand(1).item(), np.random.random()) == expected
    assert torch.set_num_threads is set_num_threads
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "argument",
    [
        {"override_generation_config": {"top_p": 0.9}},
        {"generation_config": "auto"},
        {"logits_processors": ["mine:TopK"]},
        {"logprobs_mode": "raw_logprobs"},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"watermark_config": {"key": 1}},
        {"quantization": "fp8"},
        {"kv_cache_dtype": "fp8"},
        {"mm_encoder_attn_dtype": "fp8"},
        {"mamba_ssm_cache_dtype": "bfloat16"},
        {"hf_overrides": None},  # which has the head in float32
        {"lora_target_modules": ["q_proj"]},
        {"load_format": "dummy"},
        {"mm_processor_kwargs": {"max_pixels": 3136}},
        {"dtype": "float16"},
        {"max_model_len": 64},
    ],
    ids=lambda argument: next(iter(argument)),
)
def test_another_policy_than_the_trainers_is_refused(start: Callable[..., Any], argument: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"engine_args must not hold {next(iter(argument))}: "):
        start(engine_args=argument)


def test_what_an_engine_refuses_are_arguments_of_vllm() -> None:
    from vllm import EngineArgs

    from arpo.inference.vllm import REFUSED_ARGS

    known = {field.name for field in dataclasses.fields(EngineArgs)}
    assert not {name for names in REFUSED_ARGS.values() for name in names} - known


def test_more_forbidden_ids_than_vllms_newer_runner_bears_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu.sample.logit_bias import MAX_NUM_LOGIT_BIAS_TOKENS

    from arpo.inference.vllm import MAX_FORBIDDEN, _check_forbidden

    assert MAX_FORBIDDEN == MAX_NUM_LOGIT_BIAS_TOKENS
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    _check_forbidden(1024)
    with pytest.raises(ConfigError, match=r"has 1,025 token ids .* at most 1,024 .*VLLM_USE_V2_MODEL_RUNNER=0"):
        _check_forbidden(1025)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")  # the older one takes any number
    _check_forbidden(1025)


def gap_after_an_update(engine: Any, request: GenerateRequest, trainer: Trainer, *, seed: int) -> float:
    """Ask, send new weights and ask again; return how far the second answer is from the trainer's."""
    together(engine.generate(request))
    weights = trainer.changed(seed)
    trainer.load(weights)
    asyncio.run(engine.update_weights(weights.items(), 1))
    (response,) = together(engine.generate(request))
    return trainer.gap(request, response)


def test_vllm_starts_when_a_ray_that_is_starting_has_started(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both add environment variables and read them in native code, which crashes where they do so side by side."""
    from vllm.v1.engine.llm_engine import LLMEngine

    arrived = threading.Event()
    started: list[str] = []

    class Starting(RayRuntime):
        """Is still starting when vLLM arrives, and as long as no call waits."""

        def _start(self) -> None:
            arrived.wait()
            started.append("Ray")

        def wait_for_start(self) -> None:
            arrived.set()
            super().wait_for_start()

    def start_vllm(_: object) -> None:
        started.append("vLLM")
        arrived.set()
        raise ConfigError("no vLLM here")

    ray = Starting()
    under_way = ray.submit(ray._start)
    monkeypatch.setattr("arpo.inference.vllm.RAY", ray)
    monkeypatch.setattr(LLMEngine, "from_engine_args", start_vllm)
    with pytest.raises(ConfigError, match="no vLLM here"):
        start()
    under_way.result()
    assert started == ["Ray", "vLLM"]


@pytest.mark.long
def test_a_second_engine_waits_its_turn(start: Callable[..., Any], questions: Questions) -> None:
    first = start()
    with pytest.raises(ConfigError, match="FleetEngine"):
        start()
    asyncio.run(first.close())
    assert not torch.distributed.is_initialized()
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(first.generate(questions.ask()))
    second = start()
    assert together(second.generate(questions.ask()))[0].token_ids


@pytest.mark.long
def test_weights_that_go_through_a_file_arrive(
    start: Callable[..., Any], questions: Questions, trainer: Trainer
) -> None:
    """The way to several GPUs, here with the one worker there is."""
    from arpo.inference.vllm import VllmEngine

    class ThroughFile(VllmEngine):
        _load_in_place = VllmEngine._load_through_file

    engine = start(ThroughFile)
    request = questions.ask(1, images=3)
    assert gap_after_an_update(engine, request, trainer, seed=1) <= 1e-4


def test_no_cache_that_an_update_left_answers_for_the_new_weights(
    start: Callable[..., Any], questions: Questions, trainer: Trainer
) -> None:
    """With everything skipped that empties caches: they are salted with the policy version."""
    from arpo.inference.vllm import VllmEngine

    class Forgetful(VllmEngine):
        def _reset_caches(self) -> None:
            """Nothing."""

    engine = start(Forgetful)
    request = questions.ask(2, images=3, max_tokens=8)
    assert gap_after_an_update(engine, request, trainer, seed=3) <= 1e-4


IN_THE_VISION_TOWER = ("visual.blocks.0.mlp.gate_proj.weight", "visual.deepstack_merger_list.1.linear_fc2.weight")
"""A tensor of Qwen2.5-VL, and one of Qwen3-VL."""


@pytest.mark.parametrize(
    "ends", [("layers.1.self_attn.k_proj.weight",), pytest.param(IN_THE_VISION_TOWER, marks=pytest.mark.long)]
)
def test_a_slice_of_a_fused_tensor_that_was_never_copied_is_found(
    start: Callable[..., Any], trainer: Trainer, ends: tuple[str, ...]
) -> None:
    from arpo.inference.vllm import VllmEngine

    weights = trainer.changed(1)
    (name,) = (name for name in weights if name.endswith(ends))

    class Misses(VllmEngine):
        def _load(self, tensors: Any) -> None:
            super()._load((key, tensor) for key, tensor in tensors if key != name)

    with pytest.raises(WeightSyncError, match="to policy version 1 the engine holds other weights"):
        asyncio.run(start(Misses).update_weights(weights.items(), 1))


def test_a_response_is_of_the_oldest_weights_that_made_a_token_of_it(
    start: Callable[..., Any], questions: Questions
) -> None:
    """By vLLM's own record, whatever version the caller knows when it comes (AReaL 1569). Ours lets no update in."""
    from arpo.inference.vllm import VllmEngine

    class UpdatedBetweenTokens(VllmEngine):
        def _step(self) -> Any:
            if self._counts["steps"] == 4:
                self._stamp(1)
                self._version = 1
            return super()._step()

    engine = start(UpdatedBetweenTokens)
    request = questions.ask(max_tokens=12, temperature=0.0)
    before, after = (together(engine.generate(request))[0] for _ in range(2))
    assert len(before.token_ids) > 4
    assert (before.policy_version, after.policy_version) == (0, 1)


def test_a_screenshot_is_decoded_once(
    start: Callable[..., Any], questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start()
    decoded: list[int] = []
    decode = PngImageFile.load_prepare
    monkeypatch.setattr(PngImageFile, "load_prepare", lambda self: (decoded.append(1), decode(self))[1])
    together(engine.generate(questions.ask(1, images=2, seed=0)))
    assert len(decoded) == 2
    together(engine.generate(questions.ask(1, images=3, seed=1)))  # the next step: two known ones and a new one
    assert len(decoded) == 3


@pytest.mark.long
def test_limits_that_vllm_does_not_find_in_the_checkpoint_are_given_to_it(
    tiny_model: Path, tmp_path: Path, questions: Questions, trainer: Trainer, closing: Callable[[Any], Any]
) -> None:
    from arpo.inference.vllm import VllmEngine

    on_a_cpu_by_vllm(tiny_model)
    path = shutil.copytree(tiny_model, tmp_path / "old")
    images = json.loads((path / "processor_config.json").read_text())
    size = images["image_processor"].pop("size")
    images["image_processor"]["size"] = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    (path / "processor_config.json").write_text(json.dumps(images))
    engine = closing(VllmEngine(path, max_model_len=512, max_images=4, kv_cache_gb=0.125))
    request = questions.ask(1, images=2, temperature=0.0)
    (response,) = together(engine.generate(request))
    assert trainer.gap(request, response) < 1e-4


@pytest.mark.long
def test_a_cache_that_vllm_keeps_is_an_error_of_the_update(start: Callable[..., Any], trainer: Trainer) -> None:
    engine = start()
    reset = engine._engine.reset_prefix_cache
    engine._engine.reset_prefix_cache = lambda: reset() and False
    with pytest.raises(WeightSyncError, match="keeps keys and values of the old weights"):
        asyncio.run(engine.update_weights(trainer.weights().items(), 1))


@pytest.mark.long
@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="vLLM's kernel is one of AVX512-BF16")
def test_a_model_with_recurrent_layers_is_served_on_a_cpu_in_bfloat16_and_takes_updates(
    tiny_qwen35: Path, closing: Callable[[Any], Any]
) -> None:
    from arpo.inference.vllm import VllmEngine

    asks, trainer = Questions(ChatTokenizer(tiny_qwen35)), Trainer(tiny_qwen35)
    engine = closing(VllmEngine(tiny_qwen35, dtype="bfloat16", max_model_len=512, max_images=4, kv_cache_gb=0.125))
    for version in (1, 2):
        weights = {name: weight.bfloat16() for name, weight in trainer.changed(version, size=0.02).items()}
        run(engine.update_weights(weights.items(), version))
        trainer.load(weights)
        for number in range(3):
            request = asks.ask(number, images=1 + number)
            assert trainer.gap(request, run(engine.generate(request))) < 0.1


def test_vllms_own_arguments_pass_through(start: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="no_such_argument"):
        start(engine_args={"no_such_argument": 1})


def test_an_engine_of_several_gpus_has_processes_and_not_the_actors_placement_group() -> None:
    from arpo.inference.vllm import _with_processes

    several = {"tensor_parallel_size": 2}
    assert _with_processes(several) == {"distributed_executor_backend": "mp", **several}
    assert _with_processes({"pipeline_parallel_size": 2})["distributed_executor_backend"] == "mp"
    assert _with_processes({"distributed_executor_backend": "uni", **several})["distributed_executor_backend"] == "uni"
    for alone in ({}, {"tensor_parallel_size": 1}):
        assert _with_processes(alone) == alone


def test_triton_computes_float32_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    from arpo.inference.vllm import _set_environment

    monkeypatch.setenv("TRITON_F32_DEFAULT", "")  # so that the variable is afterwards as it was
    monkeypatch.delenv("TRITON_F32_DEFAULT")
    _set_environment()
    assert os.environ["TRITON_F32_DEFAULT"] == "ieee"
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32")  # a person's choice stays
    _set_environment()
    assert os.environ["TRITON_F32_DEFAULT"] == "tf32"
