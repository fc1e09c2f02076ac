"""What only vLLM has: caches that can go stale, a deterministic mode, and a process full of global state."""

import ast
import asyncio
import dataclasses
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL.PngImagePlugin import PngImageFile
from torch import nn

from arpo.errors import ConfigError, EngineError, WeightSyncError
from arpo.host.ray import RayRuntime
from arpo.inference.vllm import (
    ALWAYS,
    MAX_FORBIDDEN,
    REFUSED_ARGS,
    VllmEngine,
    _check_forbidden,
    _picture_limits,
    _set_environment,
    _with_processes,
)
from arpo.models.tokenization import ChatTokenizer
from tests.inference.conftest import Questions, Trainer
from tests.inference.loop import run, together
from tests.surfaces import PAGE, check_surface, surfaces

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("most_pixels", "named"), [(12_845_056, True), (2_116_800, False)])
def test_vllm_is_given_the_size_of_a_screen_where_its_own_largest_picture_holds_one(most_pixels, named):
    """It takes the smaller of each side, and of 2,116,800 pixels its largest picture is 1512 x 1400."""
    assert ("width" in str(_picture_limits(4, most_pixels))) == named


@pytest.mark.long
@pytest.mark.parametrize("threads", ["1", "2"])
def test_deterministic_means_every_bit(start, questions, monkeypatch, threads):
    # With one thread vLLM's CPU kernels happen to give the same bits for any batch; two are slow on busy cores.
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    engine = start(deterministic=True)
    # Later requests continue earlier ones and share their screenshots, which is what caches are for.
    requests = [questions.ask(n % 2, images=1 + n % 4, seed=n, max_tokens=4) for n in range(6)]
    in_order = [together(engine.generate(request))[0] for request in requests]
    for order in ([5, 4, 3, 2, 1, 0], [2, 5, 0, 3, 1, 4]):
        at_once = together(*(engine.generate(requests[n]) for n in order))
        assert [at_once[order.index(n)] for n in range(6)] == in_order


@pytest.mark.long
def test_starting_and_asking_leaves_the_process_as_it_was(start, questions):
    # Not Python's own generator: in tests, beartype draws from it.
    torch.manual_seed(1)
    np.random.seed(2)
    expected = (torch.rand(1).item(), np.random.random())
    torch.manual_seed(1)
    np.random.seed(2)
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    together(start(deterministic=True).generate(questions.ask()))
    assert (torch.rand(1).item(), np.random.random()) == expected
    assert torch.set_num_threads is set_num_threads
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "argument",
    [
        *("override_generation_config", "generation_config", "logits_processors", "logprobs_mode", "watermark_config"),
        *("speculative_config", "quantization", "kv_cache_dtype", "mm_encoder_attn_dtype", "mamba_ssm_cache_dtype"),
        *("hf_overrides", "lora_target_modules", "load_format", "mm_processor_kwargs", "dtype", "max_model_len"),
    ],
)
def test_another_policy_than_the_trainers_is_refused(start, argument):
    with pytest.raises(ConfigError, match=f"engine_args must not hold {argument}: "):
        start(engine_args={argument: None})


def test_more_forbidden_ids_than_vllms_newer_runner_bears_are_refused(monkeypatch):
    from vllm.v1.worker.gpu.sample.logit_bias import MAX_NUM_LOGIT_BIAS_TOKENS

    assert MAX_FORBIDDEN == MAX_NUM_LOGIT_BIAS_TOKENS
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    _check_forbidden(1024)
    with pytest.raises(ConfigError, match=r"has 1,025 token ids .* at most 1,024 .*VLLM_USE_V2_MODEL_RUNNER=0"):
        _check_forbidden(1025)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")  # the older one takes any number
    _check_forbidden(1025)


def gap_after_an_update(engine, request, trainer, *, seed):
    """Ask, send new weights and ask again; return how far the second answer is from the trainer's."""
    together(engine.generate(request))
    weights = trainer.changed(seed)
    trainer.load(weights)
    asyncio.run(engine.update_weights(weights.items(), 1))
    (response,) = together(engine.generate(request))
    return trainer.gap(request, response)


def test_vllm_starts_when_a_ray_that_is_starting_has_started(start, monkeypatch):
    """Both add environment variables and read them in native code, which crashes where they do so side by side."""
    from vllm.v1.engine.llm_engine import LLMEngine

    arrived = threading.Event()
    started: list[str] = []

    class Starting(RayRuntime):
        """Is still starting when vLLM arrives, and as long as no call waits."""

        def _start(self):
            arrived.wait()
            started.append("Ray")

        def wait_for_start(self):
            arrived.set()
            super().wait_for_start()

    def start_vllm(_):
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
def test_a_second_engine_waits_its_turn(start, questions):
    first = start()
    with pytest.raises(ConfigError, match="FleetEngine"):
        start()
    asyncio.run(first.close())
    assert not torch.distributed.is_initialized()
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(first.generate(questions.ask()))
    assert together(start().generate(questions.ask()))[0].token_ids


@pytest.mark.long
def test_weights_that_go_through_a_file_arrive(start, questions, trainer):
    """The way to several GPUs, here with the one worker there is."""

    class ThroughFile(VllmEngine):
        _load = VllmEngine._load_through_file

    engine = start(ThroughFile)
    assert gap_after_an_update(engine, questions.ask(1, images=3), trainer, seed=1) <= 1e-4


def test_no_cache_that_an_update_left_answers_for_the_new_weights(start, questions, trainer):
    """With everything skipped that empties caches: they are salted with the policy version."""

    class Forgetful(VllmEngine):
        def _reset_caches(self):
            """Nothing."""

    engine = start(Forgetful)
    request = questions.ask(2, images=3, max_tokens=8)
    assert gap_after_an_update(engine, request, trainer, seed=3) <= 1e-4


IN_THE_VISION_TOWER = (
    "visual.blocks.0.mlp.gate_proj.weight",
    "visual.deepstack_merger_list.1.linear_fc2.weight",
    "visual.merger.linear_fc2.weight",
)
"""A tensor of Qwen2.5-VL, one that Qwen3-VL alone has, and one of Qwen3.5."""


@pytest.mark.parametrize(
    "ends", [("layers.1.self_attn.k_proj.weight",), pytest.param(IN_THE_VISION_TOWER, marks=pytest.mark.long)]
)
def test_a_slice_of_a_fused_tensor_that_was_never_copied_is_found(start, trainer, ends):
    weights = trainer.changed(1)
    end = next(end for end in ends if any(name.endswith(end) for name in weights))
    (name,) = (name for name in weights if name.endswith(end))

    class Misses(VllmEngine):
        def _load(self, tensors):
            super()._load((key, tensor) for key, tensor in tensors if key != name)

    with pytest.raises(WeightSyncError, match="to policy version 1 the engine holds other weights"):
        asyncio.run(start(Misses).update_weights(weights.items(), 1))


def test_a_response_is_of_the_oldest_weights_that_made_a_token_of_it(start, questions):
    """By vLLM's own record, whatever version the caller knows when it comes (AReaL 1569). Ours lets no update in."""

    class UpdatedBetweenTokens(VllmEngine):
        def _step(self):
            if self._counts["steps"] == 4:
                self._stamp(1)
                self._version = 1
            return super()._step()

    engine = start(UpdatedBetweenTokens)
    request = questions.ask(max_tokens=12, temperature=0.0)
    before, after = (together(engine.generate(request))[0] for _ in range(2))
    assert len(before.token_ids) > 4
    assert (before.policy_version, after.policy_version) == (0, 1)


def test_a_screenshot_is_decoded_once(start, questions, monkeypatch):
    engine = start()
    decoded: list[int] = []
    decode = PngImageFile.load_prepare
    monkeypatch.setattr(PngImageFile, "load_prepare", lambda self: (decoded.append(1), decode(self))[1])
    together(engine.generate(questions.ask(1, images=2, seed=0)))
    assert len(decoded) == 2
    together(engine.generate(questions.ask(1, images=3, seed=1)))  # the next step: two known ones and a new one
    assert len(decoded) == 3


@pytest.mark.long
def test_limits_that_vllm_does_not_find_are_given_to_it(tiny_model, tmp_path, questions, trainer, start):
    path = shutil.copytree(tiny_model, tmp_path / "old")
    images = json.loads((path / "processor_config.json").read_text())
    size = images["image_processor"].pop("size")
    images["image_processor"]["size"] = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    (path / "processor_config.json").write_text(json.dumps(images))
    engine = start(path=path)
    request = questions.ask(1, images=2, temperature=0.0)
    (response,) = together(engine.generate(request))
    assert trainer.gap(request, response) < 1e-4


@pytest.mark.long
def test_a_cache_that_vllm_keeps_is_an_error_of_the_update(start, trainer):
    engine = start()
    reset = engine._engine.reset_prefix_cache
    engine._engine.reset_prefix_cache = lambda: reset() and False
    with pytest.raises(WeightSyncError, match="keeps keys and values of the old weights"):
        asyncio.run(engine.update_weights(trainer.weights().items(), 1))


@pytest.mark.long
@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="vLLM's kernel is one of AVX512-BF16")
def test_a_model_with_recurrent_layers_is_served_on_a_cpu_in_bfloat16_and_takes_updates(tiny_qwen35, closing):
    asks, trainer = Questions(ChatTokenizer(tiny_qwen35)), Trainer(tiny_qwen35)
    engine = closing(VllmEngine(tiny_qwen35, dtype="bfloat16", max_model_len=512, max_images=4, kv_cache_gb=0.125))
    for version in (1, 2):
        weights = {name: weight.bfloat16() for name, weight in trainer.changed(version, size=0.02).items()}
        run(engine.update_weights(weights.items(), version))
        trainer.load(weights)
        for number in range(3):
            request = asks.ask(number, images=1 + number)
            assert trainer.gap(request, run(engine.generate(request))) < 0.1


def test_vllms_own_arguments_pass_through(start):
    with pytest.raises(TypeError, match="no_such_argument"):
        start(engine_args={"no_such_argument": 1})


def test_an_engine_of_several_gpus_has_processes_and_not_the_actors_placement_group():
    several = {"tensor_parallel_size": 2}
    assert _with_processes(several) == {"distributed_executor_backend": "mp", **several}
    assert _with_processes({"pipeline_parallel_size": 2})["distributed_executor_backend"] == "mp"
    assert _with_processes({"distributed_executor_backend": "uni", **several})["distributed_executor_backend"] == "uni"
    for alone in ({}, {"tensor_parallel_size": 1}):
        assert _with_processes(alone) == alone


def test_triton_computes_float32_in_float32(monkeypatch):
    monkeypatch.setenv("TRITON_F32_DEFAULT", "")  # so that the variable is afterwards as it was
    monkeypatch.delenv("TRITON_F32_DEFAULT")
    _set_environment()
    assert os.environ["TRITON_F32_DEFAULT"] == "ieee"
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32")  # a person's choice stays
    _set_environment()
    assert os.environ["TRITON_F32_DEFAULT"] == "tf32"


# --- in a worker's process, on a model of our own


class Part(nn.Module):
    """Holds a parameter, a buffer, and tensors that are neither, as vLLM's Qwen3-VL holds DeepStack's stages."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.ones(2))
        self.stages = [torch.full((2,), 3.0), torch.full((2,), 4.0)]
        self.by_name = {"scale": torch.tensor(5.0), "deeper": [(torch.tensor(6.0), {"deepest": torch.tensor(7.0)})]}
        self.bare = torch.tensor(8.0)
        self.weight_view = [self.weight.detach()[:1]]
        self.kv_cache = torch.full((2,), 9.0)
        self.number, self.words = 1.0, ["a", None]

    def plain(self):
        (first, inner) = self.by_name["deeper"][0]
        return [*self.stages, self.by_name["scale"], first, inner["deepest"], self.bare]


def test_what_no_update_brings_is_after_a_sleep_what_it_was():
    from arpo.inference.vllm_worker import WeightAccess

    class Worker(WeightAccess):
        model = nn.Sequential(Part(), nn.Sequential(Part()))

        def get_model(self):
            return self.model

    worker = Worker()
    parts = [part for part in worker.model.modules() if isinstance(part, Part)]
    with torch.inference_mode():  # as vLLM makes larger stages in the middle of a step
        parts[1].stages = [torch.full((3,), 3.0), torch.full((3,), 4.0)]
    before = [tensor.clone() for part in parts for tensor in part.plain()]
    worker.keep_plain_tensors()
    with torch.inference_mode():
        for part in parts:
            for tensor in (*part.plain(), part.weight, part.table, part.kv_cache):
                tensor.fill_(torch.nan)
    worker.restore_plain_tensors()
    after = [tensor for part in parts for tensor in part.plain()]
    assert len(parts) == 2
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    for part in parts:  # an update brings the first, vLLM itself the second, and there is no memory yet for the third
        assert all(tensor.isnan().all() for tensor in (part.weight, part.weight_view[0], part.table, part.kv_cache))
    worker.restore_plain_tensors()  # nothing is written twice


# --- beyond vLLM's public interface; docs/upgrading.md says why, row by row


@pytest.mark.slow
@pytest.mark.parametrize("surface", surfaces("vLLM"))
def test_each_row_of_the_page_is_there(surface):
    check_surface(surface)


@pytest.mark.slow
def test_every_import_of_a_part_of_vllm_has_a_row():
    page = PAGE.read_text(encoding="utf-8")
    package = Path(__file__).parents[2] / "arpo" / "inference"
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in package.glob("*.py")]
    named = [
        f"{node.module}:{alias.name}" if node.module != "vllm.model_executor.layers" else node.module
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm.")
        for alias in node.names
    ]
    assert len(named) >= 6
    assert [name for name in named if name not in page] == []


@pytest.mark.slow
def test_vllm_takes_the_arguments_that_are_set_and_refused_and_reads_the_variables_that_are_set():
    from vllm import EngineArgs
    from vllm.envs import environment_variables

    known = {field.name for field in dataclasses.fields(EngineArgs)}
    assert set(ALWAYS) <= known
    assert {name for names in REFUSED_ARGS.values() for name in names} <= known | {"model_weights"}
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if "environment_variables" in line)
    assert {name for name in row.split("`") if name.startswith("VLLM_")} <= environment_variables.keys()
