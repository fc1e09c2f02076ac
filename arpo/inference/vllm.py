"""An engine that is vLLM in this process, on CPU and GPU, with continuous batching and in-place weight updates."""

import gc
import io
import json
import logging
import os
import random
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from arpo.bounds import AtLeastOne, checked
from arpo.errors import ConfigError, RequestError, WeightSyncError
from arpo.host.ray import RAY, SHARED_MEMORY
from arpo.host.trial import before_start
from arpo.inference.engine import GREEDY, GenerateRequest, Response, check_context
from arpo.inference.pump import MODULUS, ThreadedEngine, base_name, check_length, check_request, has_adapter
from arpo.models.checkpoint import CheckpointWeights
from arpo.models.policy import dtype_of
from arpo.models.processor import is_recurrent
from arpo.models.tokenization import ChatTokenizer
from arpo.types import screenshot_key

log = logging.getLogger(__name__)

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks for which vLLM reserves memory."""
LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1}
"""Arguments of vLLM for one adapter at a time: a new one drives the old one out."""
MEMORY = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
"""A directory for files between processes."""
REFUSED_ARGS: Mapping[str, Sequence[str]] = {
    "responses are sampled from all tokens at the temperature, and their log-probabilities are of that distribution. "
    "Where top-p, top-k, a penalty, a draft or a watermark change it, no correction weighs in what is missing": (
        *("logprobs_mode", "generation_config", "override_generation_config", "logits_processors"),
        *("speculative_config", "spec_method", "spec_model", "spec_tokens", "watermark_config"),
    ),
    "a quantized engine holds other weights, keys or states than the policy that learns, which no checksum can "
    "compare; leave it out, and serve in dtype=bfloat16": (
        *("quantization", "quantization_config", "kv_cache_dtype", "lora_dtype", "mm_encoder_attn_dtype"),
        *("mamba_cache_dtype", "mamba_ssm_cache_dtype", "enable_mamba_cache_stochastic_rounding"),
    ),
    "the engine would serve another model than the trainer's, whose directory alone describes it": (
        *("model", "model_weights", "hf_config_path", "hf_overrides", "model_class_overrides", "load_format"),
        *("default_mm_loras", "lora_target_modules", "mm_processor_kwargs", "worker_extension_cls"),
    ),
    "the engine has an argument of its own for it": (
        *("dtype", "max_model_len", "max_num_seqs", "limit_mm_per_prompt", "enable_sleep_mode"),
        *("enable_lora", "max_lora_rank"),
    ),
}
"""Arguments of vLLM's `EngineArgs` that an engine refuses, by the reason."""
MAX_FORBIDDEN = 1024
"""Token ids with a bias in a request to vLLM's newer model runner (v1/worker/gpu/sample/logit_bias.py)."""
CPU_KV_CACHE_GB = 0.25
BATCHED_TOKENS = 8192
"""Tokens of one step on a GPU. vLLM's own 2048 are fewer than one screenshot of 1080p has."""
SCREEN = (1920, 1080)
"""The largest screenshots: those of OSWorld."""
ALWAYS: dict[str, Any] = {
    "logprobs_mode": "processed_logprobs",
    "hf_overrides": {"head_dtype": "float32"},  # as the trainer's: see arpo.models.policy.Float32Head
    "generation_config": "vllm",  # a checkpoint's top-p or penalties would make the log-probabilities lie
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
    "seed": 0,
    "worker_extension_cls": "arpo.inference.vllm_worker.WeightAccess",
}


@checked
class VllmEngine(ThreadedEngine):
    """vLLM's engine core in a thread of this process.

    A start sets the environment variables that vLLM reads (unless set), and on CPU turns `torch.compile` off for the
    whole process: compiling vLLM's small helpers takes longer than a tiny run. The random state of the process is left
    as it was, and so is `torch.set_num_threads`, which vLLM replaces by a function that does nothing. On CPU the
    engine's thread has `OMP_NUM_THREADS` OpenMP threads, or 1 where that is not set (a tiny model is several times
    slower with 2), and the trainer's keeps its own number.
    """

    def __init__(  # noqa: PLR0913 - one argument a line of the configuration
        self,
        path: str | Path,
        *,
        dtype: str = "float32",
        max_model_len: AtLeastOne = 4096,
        max_num_seqs: AtLeastOne = 32,
        max_images: AtLeastOne = 16,
        kv_cache_gb: float | None = None,
        deterministic: bool = False,
        lora_rank: int | None = None,
        screenshots: AtLeastOne = 256,
        sleeps: bool = False,
        one_copy: bool = True,
        engine_args: Mapping[str, object] | None = None,
    ) -> None:
        """Start the engine with the weights at `path` as policy version 0; this takes seconds on CPU.

        Args:
            path: A `from_pretrained` directory.
            dtype: `float32` or `bfloat16`, of weights and computation.
            max_model_len: Tokens of prompt, images and response together.
            max_num_seqs: Requests that run at once; more wait.
            max_images: Images of one request at most.
            kv_cache_gb: GiB of the KV cache; None is 0.25 on CPU, and on a GPU what `gpu_memory_utilization` leaves.
            deterministic: Whether responses are the same bit for bit whatever else is in flight. Requests then run
                one by one without any cache of activations, so this is for tests and tiny runs.
            lora_rank: Rank of the adapter that every update brings; None where updates bring all weights.
            screenshots: Screenshots in use at once, of the episodes that this engine serves: so many stay preprocessed
                in host memory, 25 MB each at 1080p in bfloat16. With fewer, an episode's next step prepares its whole
                history again.
            sleeps: Whether `sleep` gives the GPU's memory back; the weights under an adapter wait in host memory.
            one_copy: Whether a policy of this process may be views of the weights, where they do not sleep.
            engine_args: Further arguments of vLLM's `EngineArgs`, such as `tensor_parallel_size`,
                `gpu_memory_utilization` or `enforce_eager`; not those of `REFUSED_ARGS`.
        """
        for reason, names in REFUSED_ARGS.items():
            if refused := [name for name in names if name in (engine_args or {})]:
                raise ConfigError(f"engine_args must not hold {', '.join(refused)}: {reason}")
        check_context(path, max_model_len)
        _check_process(path, dtype, lora_rank)
        before_start()
        self._chat = ChatTokenizer(path)
        _check_forbidden(len(self._chat.forbidden_ids))
        at_once = 1 if deterministic else max_num_seqs
        super().__init__(max_in_flight=at_once, shapes=CheckpointWeights(path).shapes, dtype=dtype_of(dtype))
        self._max_images = max_images
        self._max_model_len = max_model_len
        self._deterministic = deterministic
        self._lora_rank = lora_rank
        self._adapter: Any = None
        self._sleeps = sleeps and torch.cuda.is_available()
        self._one_copy = one_copy and not self._sleeps and not has_several_processes(engine_args or {})
        self._forbidden = dict.fromkeys(self._chat.forbidden_ids, float("-inf"))
        # The largest screenshot as vLLM caches it: three numbers a pixel, as often as in a film.
        frames, size = self._chat.pictures.frames, self._chat.model_size(*SCREEN)
        picture = prod(size) * 3 * frames * dtype_of(dtype).itemsize
        self._arguments: dict[str, Any] = {
            "model": str(path),
            "dtype": dtype,
            "max_model_len": max_model_len,
            "max_num_seqs": at_once,
            "limit_mm_per_prompt": _picture_limits(max_images, self._chat.pictures.sizes.max_pixels),
            "enable_prefix_caching": not deterministic,
            "mm_processor_cache_gb": screenshots * picture / 2**30,
            "mm_processor_kwargs": self._chat.pictures.missing_limits or None,
            "enable_sleep_mode": self._sleeps,
            **ALWAYS,
            **_device_arguments(kv_cache_gb, at_once, max_model_len),
            **({} if lora_rank is None else LORA | {"max_lora_rank": min(r for r in LORA_RANKS if r >= lora_rank)}),
            **_with_processes(engine_args or {}),
        }
        self._engine: Any = None
        threads = torch.get_num_threads()
        self._launch()
        torch.set_num_threads(threads)

    def _check(self, request: GenerateRequest) -> None:
        check_request(request, self._chat.image_token_id, self._shapes[self._chat.family.embedding][0])
        if len(request.images) > self._max_images:
            raise RequestError(f"the prompt has {len(request.images)} images, the engine takes {self._max_images}")

    def _start(self) -> None:
        _set_environment()
        set_num_threads = torch.set_num_threads
        if not torch.cuda.is_available():
            set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        with _random_state_kept():
            from vllm import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            RAY.wait_for_start()  # the import, which takes longest, may go on beside it
            gc.freeze()  # each start collects garbage three times, and would look at all that was imported
            self._engine = LLMEngine.from_engine_args(EngineArgs(**self._arguments))
        self._stamp(0)
        torch.set_num_threads = set_num_threads

    def _add(self, key: str, request: GenerateRequest) -> None:
        from vllm.exceptions import VLLMValidationError
        from vllm.multimodal.media import MediaWithBytes

        self._check_pictures(request.images)
        images = [_open(png) for png in request.images]
        length = self._chat.context_length(request.prompt_ids, [image.size for image in images])
        check_length(length, self._max_model_len)
        # Salted, so that no cache can answer for another policy version, whatever it kept.
        salt = str(self._version)
        prompt: dict[str, Any] = {"prompt_token_ids": list(request.prompt_ids), "cache_salt": salt}
        if images:
            # Wrapped, because a bare picture is decoded every time, known or not.
            wrapped = [MediaWithBytes(image, png) for image, png in zip(images, request.images, strict=True)]
            prompt["multi_modal_data"] = {"image": wrapped}
            prompt["multi_modal_uuids"] = {"image": [f"{screenshot_key(png)}-{salt}" for png in request.images]}
        try:
            (rendered,) = self._engine.renderer.render_cmpl([prompt])
            self._engine.add_request(key, rendered, self._sampling(request), lora_request=self._adapter)
        except (VLLMValidationError, ValueError) as error:
            raise RequestError(f"vLLM refused the request: {error}") from error
        if (pictures := self._engine.renderer.stat_mm_cache()) is not None:
            self._counts["pictures"] += pictures.queries
            self._counts["cached_pictures"] += pictures.hits

    def _sampling(self, request: GenerateRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        return SamplingParams(
            temperature=sampling.temperature if sampling.temperature >= GREEDY else 0.0,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            logprobs=0,
            logit_bias=self._forbidden,
            ignore_eos=True,
            stop_token_ids=[self._chat.end_of_turn_id],
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _step(self) -> Sequence[tuple[str, Response]]:
        # vLLM's sampler draws from the process's generator even where every request has its own seed.
        with torch.random.fork_rng(devices=[], enabled=self._deterministic):
            finished = [self._response(output) for output in self._engine.step() if output.finished]
        if finished and self._deterministic:
            self._engine.reset_encoder_cache()
        return finished

    def _response(self, output: Any) -> tuple[str, Response]:
        completion = output.outputs[0]
        ids = tuple(completion.token_ids)
        logprobs = tuple(words[token].logprob for words, token in zip(completion.logprobs, ids, strict=True))
        self._counts["prompt_tokens"] += len(output.prompt_token_ids)
        self._counts["cached_prompt_tokens"] += output.num_cached_tokens or 0
        oldest = min(int(span.version) for span in completion.weight_versions)  # vLLM's own record
        return output.request_id, Response(ids, logprobs, completion.finish_reason, oldest)

    def _stamp(self, version: int) -> None:
        self._engine.set_weight_version(str(version))

    def _abort(self, key: str) -> None:
        self._engine.abort_request([key])

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        if self._lora_rank is not None:
            self._load_adapter(dict(tensors))
        elif self._engine.vllm_config.parallel_config.world_size == 1:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        else:
            self._load_through_file(tensors)

    def _load_through_file(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Send weights to workers in other processes, which tensors in a call do not reach."""
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            file = str(Path(directory) / "weights.safetensors")
            # Cloned, because a tied head is the same tensor twice, which a file refuses.
            save_file(
                {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors}, file
            )
            self._engine.collective_rpc("load_file", args=(file,))

    def _load_adapter(self, tensors: dict[str, Tensor]) -> None:
        """Serve an adapter in the place of the one before, under a number of its own, which vLLM's caches know."""
        from vllm.lora.request import LoRARequest

        names = {base_name(name).split(".")[-2] for name in tensors if base_name(name) != name}
        if not names:
            raise WeightSyncError(f"an engine with lora_rank={self._lora_rank} takes adapters, got all weights")
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            # The files of PEFT, which every worker reads. B has the scale in it already: alpha / r is 1.
            config = {"r": self._lora_rank, "lora_alpha": self._lora_rank, "target_modules": sorted(names)}
            (Path(directory) / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
            file = {f"base_model.model.{name}": tensor.cpu().contiguous() for name, tensor in tensors.items()}
            save_file(file, Path(directory) / "adapter_model.safetensors")
            number = self._adapter.lora_int_id + 1 if self._adapter else 1
            adapter = LoRARequest(f"update {number}", number, directory)
            if not self._engine.add_lora(adapter):
                raise WeightSyncError(f"vLLM did not take adapter {number}")
            self._adapter = adapter

    def _checksum(self, names: Sequence[str]) -> int:
        parts: list[dict[str, int]] = self._engine.collective_rpc("checksums", args=(has_adapter(names),))
        found: defaultdict[str, set[int]] = defaultdict(set)
        for name, value in (item for part in parts for item in part.items()):
            found[name].add(value)  # what several GPUs hold alike counts once, and their shards add up
        return sum(sum(values) for values in found.values()) % MODULUS

    def _weights(self) -> Mapping[str, Tensor]:
        if not self._one_copy:
            return {}
        try:
            (places,) = self._engine.collective_rpc("places", args=(self._shapes, os.getpid()))
        except Exception as error:  # noqa: BLE001 - of a loader that takes no tensors without memory
            log.warning(
                "the policy has weights of its own: vLLM does not say where it has those of this model: %s", error
            )
            return {}
        if not places:
            log.warning(
                "the policy has weights of its own: vLLM runs in another process; unset "
                "VLLM_ENABLE_V1_MULTIPROCESSING, or set engine.one_copy=false"
            )
        return dict(places)

    def _reset_caches(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise WeightSyncError("vLLM keeps keys and values of the old weights, because something still uses them")
        self._engine.reset_mm_cache()
        self._engine.reset_encoder_cache()

    def _suspend(self) -> None:
        if self._sleeps:
            # Level 1 copies the weights to the host, and level 2 forgets them: an update brings them, or the adapter.
            if self._lora_rank is None:
                self._engine.collective_rpc("keep_plain_tensors")
            self._engine.sleep(level=2 if self._lora_rank is None else 1)

    def _wake_weights(self) -> None:
        if self._sleeps:
            self._engine.wake_up(["weights"])
            self._engine.collective_rpc("restore_plain_tensors")

    def _wake_cache(self) -> None:
        if self._sleeps:
            self._engine.wake_up(["kv_cache"])

    def _stop(self) -> None:
        if self._engine is None:
            return
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._engine.engine_core.shutdown()
        self._engine = None
        cleanup_dist_env_and_memory()


def _check_process(path: str | Path, dtype: str, lora_rank: int | None) -> None:
    """Check that this machine and this process can serve a model in a number format, and with adapters."""
    computation, on_gpu = dtype_of(dtype), torch.cuda.is_available()
    if lora_rank is not None and not 1 <= lora_rank <= max(LORA_RANKS):
        raise ConfigError(f"lora_rank must be null or from 1 to {max(LORA_RANKS)}, got {lora_rank}")
    if lora_rank is not None and computation == torch.float32 and on_gpu:
        raise ConfigError(f"vLLM's LoRA kernels on a GPU compute in bfloat16: set dtype=bfloat16, got {dtype}")
    if torch.distributed.is_initialized():
        raise ConfigError(
            "torch.distributed is already initialised in this process and vLLM needs its own; "
            "host the engine in arpo.inference.fleet.FleetEngine"
        )
    if not on_gpu and (computation == torch.float32 or lora_rank is not None) and is_recurrent(path):
        raise ConfigError(
            f"vLLM computes the recurrent layers of '{path}' on a CPU in bfloat16 alone, and without LoRA (here: "
            f"dtype={dtype}, lora_rank={lora_rank}): set engine=hf"
        )


def _check_forbidden(number: int) -> None:
    if number > MAX_FORBIDDEN and os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "0":
        raise ConfigError(
            f"the policy has {number:,} token ids that are never sampled, and vLLM's newer model runner forbids at "
            f"most {MAX_FORBIDDEN:,} in a request: set VLLM_USE_V2_MODEL_RUNNER=0, or engine=hf"
        )


def _picture_limits(max_images: int, most_pixels: int) -> dict[str, object]:
    """Return the limits of one request, and the size of the picture by which vLLM measures its memory.

    Without a size, vLLM takes the largest picture of the processor, nearly a square, of up to 16,384 tokens. It cuts a
    size to that picture, side by side: where a screen does not fit into it, less than a screen would be measured.
    """
    size = {"width": SCREEN[0], "height": SCREEN[1]} if most_pixels >= max(SCREEN) ** 2 else {}
    return {"image": {"count": max_images, **size}, "video": 0}


def _device_arguments(kv_cache_gb: float | None, max_num_seqs: int, max_model_len: int) -> dict[str, Any]:
    if torch.cuda.is_available():
        memory = {} if kv_cache_gb is None else {"kv_cache_memory_bytes": int(kv_cache_gb * 2**30)}
        return memory | {"max_num_batched_tokens": max(BATCHED_TOKENS, max_num_seqs)}
    return {
        "kv_cache_memory_bytes": int((kv_cache_gb or CPU_KV_CACHE_GB) * 2**30),
        "block_size": 32,  # of 128, the default on CPU, a tiny prompt never fills one, and nothing would be cached
        # One step must be able to take every prompt whole: vLLM samples after a partial one as well, then turns the
        # request's generator back, which on CPU raises "CPU Generator does not use offset" and ends the engine.
        "max_num_batched_tokens": max_num_seqs * max_model_len,
        "enforce_eager": True,
    }


def has_several_processes(engine_args: Mapping[str, object]) -> bool:
    """Return whether an engine has a process for each of several GPUs, which weights reach by a file."""
    return any(engine_args.get(name, 1) != 1 for name in ("tensor_parallel_size", "pipeline_parallel_size"))


def _with_processes(engine_args: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments, and for an engine of several GPUs that each has a process of this node.

    In an actor with GPUs vLLM would take the actor's placement group for its own, and refuse it for its one bundle.
    """
    backend = {"distributed_executor_backend": "mp"} if has_several_processes(engine_args) else {}
    return backend | dict(engine_args)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Undo the seeding of every generator of the process that starting vLLM does."""
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(python)
    np.random.set_state(arrays)


def _set_environment() -> None:
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # Its warnings on a CPU are of no use. On a GPU one of them is that weights were not loaded.
        "VLLM_LOGGING_LEVEL": "WARNING" if torch.cuda.is_available() else "ERROR",
        "HF_HUB_OFFLINE": "1",
        # vLLM's attention for float32 is Triton's, which by default computes in TF32: ten bits of a number, and gaps
        # above what is accepted in float32. Products of bfloat16 are left alone by this.
        "TRITON_F32_DEFAULT": "ieee",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")
    if not torch.cuda.is_available():
        logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # it warns that a CPU has no Triton
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
        torch._dynamo.config.disable = os.environ["TORCH_COMPILE_DISABLE"] == "1"


def _open(png: bytes) -> Image.Image:
    """Return the screenshot as RGB; a PNG that is already RGB is decoded only if vLLM has not seen it before."""
    image = Image.open(io.BytesIO(png))
    return image if image.mode == "RGB" else image.convert("RGB")
