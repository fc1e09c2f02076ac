"""The thread behind real engines, with an engine that is a list, and the checksum of their weights."""

import asyncio
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from arpo.agent.actions import smart_resize
from arpo.errors import EngineError, EngineGoneError, RequestError, WeightSyncError
from arpo.inference import pump
from arpo.inference.engine import GenerateRequest, Response, Sampling
from arpo.inference.hf import HfEngine
from arpo.inference.pump import ChecksummedTensors, ThreadedEngine, checksum, combine_checksums, matched
from arpo.models.policy import Policy
from arpo.models.vision.tower import picture_size
from tests.inference.conftest import screenshot

SHAPES = {"model.norm.weight": (4,), "visual.merger.weight": (2, 4)}


class ListEngine(ThreadedEngine):
    """Finishes a request after as many steps as it has tokens to make; notes what happens in which thread."""

    def __init__(self, *, max_in_flight=8, broken=""):
        super().__init__(max_in_flight=max_in_flight, shapes={})
        self.broken = broken
        self.events: list[str] = []
        self.threads: set[str] = set()
        self.most = 0
        self.running: dict[str, int] = {}
        self.go = threading.Event()
        self.go.set()
        self._launch()

    def note(self, event):
        self.threads.add(threading.current_thread().name)
        self.events.append(event)
        if self.broken == event:
            raise RuntimeError(f"{event} broke")

    def _start(self):
        self.note("start")

    def _add(self, key, request):
        if not request.prompt_ids:
            raise EngineError("an empty prompt")
        for png in request.images:  # as vLLM's front does, by the sizes that their headers say
            smart_resize(*picture_size(png), factor=28, min_pixels=3136, max_pixels=15_680)
        self.running[key] = request.sampling.max_tokens

    def _step(self):
        self.go.wait()
        self.note("step")
        self.most = max(self.most, len(self.running))
        self.running = {key: left - 1 for key, left in self.running.items()}
        done = [key for key, left in self.running.items() if left <= 0]
        for key in done:
            del self.running[key]
        return [(key, Response((1,), (0.0,), "stop", self._version)) for key in done]

    def _abort(self, key):
        self.note("abort")
        del self.running[key]

    def _load(self, tensors):
        self.note("load")
        assert not self.running

    def _checksum(self, names):
        return 0  # of no tensors

    def _reset_caches(self):
        self.note("reset")

    def _suspend(self):
        self.note("suspend")
        assert not self.running

    def _wake_weights(self):
        self.note("wake weights")

    def _wake_cache(self):
        self.note("wake cache")

    def _stop(self):
        self.note("stop")


def ask(tokens=1):
    return GenerateRequest((1,), (), Sampling(max_tokens=tokens))


async def held(engine, *coroutines):
    """Ask in turn while the engine's thread stands still, and return the tasks; `engine.go.set()` lets it go on."""
    engine.go.clear()
    tasks = []
    for coroutine in coroutines:
        tasks.append(asyncio.create_task(coroutine))
        await asyncio.sleep(0.01)
    return tasks


async def test_requests_share_steps_and_every_call_is_made_by_one_thread(closing):
    engine = closing(ListEngine())
    tasks = await held(engine, *(engine.generate(ask(10)) for _ in range(5)))
    engine.go.set()
    await asyncio.gather(*tasks)
    # The first step may have begun with one request; the others joined it on the way.
    assert engine.most == 5
    assert engine.events.count("step") <= 11
    assert engine.threads == {"ListEngine"}


async def test_no_more_requests_run_than_allowed_and_steps_and_waiting_are_counted(closing):
    engine = closing(ListEngine(max_in_flight=1))
    await asyncio.gather(*(engine.generate(ask(3)) for _ in range(4)))
    assert engine.most == 1
    counters = engine.counters()
    assert counters["engine/steps"] == 12
    assert counters["engine/waiting_s"] > 0


async def test_names_and_shapes_are_matched_before_any_tensor_is_loaded_and_the_engine_goes_on(closing):
    engine = closing(ListEngine())
    engine._shapes = SHAPES
    with pytest.raises(WeightSyncError, match=r"'visual.merger.weight' is \(3, 4\)"):
        await engine.update_weights(SimpleNamespace(shapes=SHAPES | {"visual.merger.weight": (3, 4)}), 1)
    assert "load" not in engine.events
    assert (await engine.generate(ask())).policy_version == 0


async def test_an_update_is_loaded_between_requests_and_caches_are_reset_after_it(closing):
    engine = closing(ListEngine())
    before, after = ([engine.generate(ask(tokens)) for _ in range(3)] for tokens in (4, 1))
    tasks = await held(engine, *before, engine.update_weights([], 5), *after)
    engine.go.set()
    await tasks.pop(3)
    assert [response.policy_version for response in await asyncio.gather(*tasks)] == [0, 0, 0, 5, 5, 5]
    assert engine.events[engine.events.index("load") + 1] == "reset"


async def test_a_refused_request_fails_alone(closing):
    engine = closing(ListEngine())
    picture = screenshot(0)[:16] + bytes((0, 0, 2, 88, 0, 0, 0, 2))  # of 600 x 2 pixels
    empty, odd = replace(ask(), prompt_ids=()), replace(ask(), images=(picture,))
    asked = (engine.generate(request) for request in (empty, odd, ask()))
    refused, unmeasured, answered = await asyncio.gather(*asked, return_exceptions=True)
    assert (type(refused), type(unmeasured)) == (EngineError, RequestError)
    assert "at most 200 times longer than wide" in str(unmeasured)
    assert isinstance(answered, Response)


def test_an_error_of_the_start_is_raised_by_the_constructor():
    with pytest.raises(RuntimeError, match="start broke"):
        ListEngine(broken="start")


async def test_when_the_engine_dies_everyone_gets_an_error_and_it_is_freed(closing):
    engine = closing(ListEngine(broken="step", max_in_flight=2))
    asked = await held(engine, *(engine.generate(ask()) for _ in range(4)), engine.update_weights([], 1))
    engine.go.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["the engine is dead: RuntimeError: step broke"] * 5
    assert all(isinstance(answer, EngineError) for answer in answers)
    assert engine.events[-1] == "stop"
    with pytest.raises(EngineError, match="step broke"):
        await engine.generate(ask())


async def test_closing_fails_what_is_in_flight_and_can_be_done_twice():
    engine = ListEngine()
    asked = asyncio.create_task(engine.generate(ask(10**9)))
    await asyncio.sleep(0.01)
    await asyncio.gather(engine.close(), engine.close())
    with pytest.raises(EngineError, match=r"^the engine is closed$"):
        await asked
    assert engine.events.count("stop") == 1


async def test_an_engine_that_is_blocked_in_a_step_is_closed_all_the_same(closing, monkeypatch, caplog):
    monkeypatch.setattr(pump, "CLOSE_S", 0.2)
    engine = closing(ListEngine())
    (asked,) = await held(engine, engine.generate(ask()))
    await asyncio.wait_for(engine.close(), 30)
    asked.cancel()
    assert "thread is blocked" in caplog.text
    engine.go.set()


async def test_a_cancelled_request_leaves_the_engine(closing):
    engine = closing(ListEngine())
    gone = asyncio.create_task(engine.generate(ask(10**9)))
    await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)  # from here on the engine's thread can see it
    assert (await engine.generate(ask(3))).token_ids == (1,)
    assert "abort" in engine.events
    assert not engine.running


async def test_an_update_that_is_cancelled_before_its_turn_is_left_out(closing):
    engine = closing(ListEngine())
    before, update = await held(engine, engine.generate(ask(2)), engine.update_weights([], 5))
    update.cancel()
    await asyncio.gather(update, return_exceptions=True)
    engine.go.set()
    await before
    assert (await engine.generate(ask())).policy_version == 0
    assert "load" not in engine.events


async def test_an_engine_sleeps_when_nothing_is_in_flight_and_wakes_weights_before_caches(closing):
    engine = closing(ListEngine())
    before, sleep, late = await held(engine, engine.generate(ask(3)), engine.sleep(), engine.generate(ask()))
    engine.go.set()
    await before
    await sleep
    await engine.sleep()  # twice is once
    with pytest.raises(EngineError, match="sleeps until the next weight update"):
        await late
    await engine.update_weights([], 1)
    assert (await engine.generate(ask())).policy_version == 1
    await engine.update_weights([], 2)
    # start, three steps of the first request, and later one of the second
    assert engine.events == [
        *["start", "step", "step", "step", "suspend"],
        *["wake weights", "load", "wake cache", "reset", "step", "load", "reset"],
    ]


@pytest.mark.parametrize(
    ("broken", "error", "sentence"),
    [("suspend", EngineError, "could not go to sleep: suspend broke"), ("load", WeightSyncError, "load broke")],
)
async def test_an_engine_that_cannot_sleep_or_load_says_so_and_is_dead(closing, broken, error, sentence):
    engine = closing(ListEngine(broken=broken))
    with pytest.raises(error, match=sentence):
        await (engine.sleep() if broken == "suspend" else engine.update_weights([], 1))
    with pytest.raises(EngineGoneError, match="is dead"):
        await engine.generate(ask())


class HoldingEngine(ListEngine):
    """Computes with tensors that a policy may be views of, and with an adapter on them."""

    def __init__(self):
        self.held = {name: torch.ones(shape) for name, shape in SHAPES.items()}
        self.adapter: dict[str, Tensor] = {}
        super().__init__()
        self._shapes = SHAPES

    def _weights(self):
        return dict(self.held)

    def _load(self, tensors):
        super()._load(tensors)
        for name, tensor in tensors:
            (self.held[name].copy_ if name in self.held else partial(self.adapter.__setitem__, name))(tensor)

    def _checksum(self, names):
        return combine_checksums((name, checksum((self.held | self.adapter)[name])) for name in names)


ADAPTER = {"model.norm.lora_A.weight": torch.ones(2), "model.norm.lora_B.weight": torch.ones(4, 2)}
NORM, MERGER = SHAPES


async def test_an_update_of_tensors_that_the_engine_computes_with_loads_none(closing):
    engine = closing(HoldingEngine())
    own = await engine.weights()
    assert await engine.weights() is own
    for version in (1, 2):
        await engine.sleep()
        own[NORM].add_(1.0)  # while it sleeps
        await engine.update_weights(own.items(), version)
        await engine.generate(ask())
    assert "load" not in engine.events
    assert engine.counters()["engine/moved_bytes"] == 0
    own[MERGER][1, 3] += 1.0
    with pytest.raises(EngineError, match="changed while it answered"):
        await engine.sleep()


async def test_an_engine_that_no_longer_computes_with_what_it_shares_is_dead(closing):
    engine = closing(HoldingEngine())
    own = await engine.weights()
    engine.held[MERGER] = engine.held[MERGER].clone()
    await engine.sleep()
    with pytest.raises(
        WeightSyncError, match=r"than those that it shares with the policy: set engine\.one_copy=false"
    ):
        await engine.update_weights(own.items(), 1)


@pytest.mark.parametrize("taken", [(NORM,), (MERGER,), ()])
async def test_of_an_update_that_shares_a_part_the_rest_is_sent_and_the_whole_compared(closing, taken):
    engine = closing(HoldingEngine())
    own = await engine.weights()
    policy = {name: own[name] if name in taken else torch.full(shape, 2.0) for name, shape in SHAPES.items()}
    await engine.update_weights(policy.items(), 1)
    assert engine.counters()["engine/moved_bytes"] == sum(policy[name].nbytes for name in SHAPES if name not in taken)
    assert all(torch.equal(engine.held[name], each) for name, each in policy.items())
    engine.held[MERGER].add_(1.0)
    if not taken:  # what the engine does with its own is compared when it is sent the next
        await engine.update_weights(policy.items(), 2)
        return
    with pytest.raises(WeightSyncError, match="changed while it answered"):
        await engine.update_weights(policy.items(), 2)


async def test_the_base_of_an_adapter_is_compared_from_the_first_one_on_where_it_is_shared(closing):
    alone, shared = closing(HoldingEngine()), closing(HoldingEngine())
    own = await shared.weights()
    for engine in (alone, shared):
        await engine.update_weights(ADAPTER.items(), 1)
        await engine.update_weights(ADAPTER.items(), 2)
        engine.held[NORM].add_(1.0)
    assert shared.counters()["engine/moved_bytes"] == 2 * sum(each.nbytes for each in ADAPTER.values())
    await alone.update_weights(ADAPTER.items(), 3)
    with pytest.raises(WeightSyncError, match="changed while it answered"):
        await shared.update_weights(ADAPTER.items(), 3)
    assert own[NORM].tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        ("model.norm.weight", 4, r"1 of 2 tensors are missing from the update: visual\.merger\.weight"),
        ("model.nrm.weight", 4, r"no tensor 'model\.nrm\.weight'"),
        ("model.norm.weight", 5, r"is \(5,\), 'model\.norm\.weight' of the model is \(4,\)"),
    ],
)
def test_tensors_that_are_not_the_model_s_are_an_error(name, size, sentence):
    with pytest.raises(WeightSyncError, match=sentence):
        list(matched([(name, torch.zeros(size))], SHAPES))


def test_a_tied_output_layer_may_be_given_and_is_left_out():
    whole = [(name, torch.zeros(shape)) for name, shape in SHAPES.items()]
    assert [name for name, _ in matched([*whole, ("lm_head.weight", torch.zeros(9))], SHAPES)] == list(SHAPES)


FORMATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@FORMATS
def test_slices_of_a_fused_and_padded_tensor_add_up_to_what_it_was_made_of(dtype):
    fused = torch.cat([random(6, 4, dtype=dtype), torch.zeros(2, 4, dtype=dtype)]).T
    parts = random(6, 4, dtype=dtype).split(2)
    sliced = [(f"layers.3.{name}", checksum(part)) for name, part in zip("qkv", parts, strict=True)]
    assert combine_checksums([("layers.3.qkv", checksum(fused))]) == combine_checksums(sliced)


@FORMATS
def test_one_bit_of_one_element_changes_it_and_so_do_two_changes_that_cancel_out(dtype):
    whole = random(100, dtype=dtype)
    bits = whole.clone().view(torch.int32 if dtype == torch.float32 else torch.int16)
    bits[17] ^= 1
    assert int(checksum(bits.view(dtype))) != int(checksum(whole))
    bits[18] += 1  # one element a step up and another one a step down
    bits[17] = whole.view(bits.dtype)[17] - 1
    assert int(checksum(bits.view(dtype))) != int(checksum(whole))


def test_two_layers_that_are_exchanged_change_it():
    first, second = checksum(random(10)), checksum(torch.ones(10))
    sound = combine_checksums([("model.layers.0.mlp.weight", first), ("model.layers.1.mlp.weight", second)])
    assert combine_checksums([("model.layers.0.mlp.weight", second), ("model.layers.1.mlp.weight", first)]) != sound


def test_what_is_received_counts_in_the_format_of_the_engine():
    received = ChecksummedTensors([("a", random(10)), ("b", torch.ones(3))], torch.bfloat16)
    assert [name for name, _ in received] == received.names == ["a", "b"]
    rounded = [("a", checksum(random(10).bfloat16())), ("b", checksum(torch.ones(3)))]
    assert received.checksum == combine_checksums(rounded)


class Misses(HfEngine):
    end: ClassVar[str] = "layers.0.mlp.up_proj.weight"

    def _load(self, tensors):
        super()._load((name, tensor) for name, tensor in tensors if not name.endswith(self.end))


class OneBehind(HfEngine):
    """Serves the weights of the update before, with the number of the new ones."""

    _before: list[tuple[str, Tensor]] | None = None

    def _load(self, tensors):
        new = [(name, tensor.clone()) for name, tensor in tensors]
        super()._load(self._before or new)
        self._before = new


@FORMATS
@pytest.mark.parametrize("rate", [pytest.param(7e-4, marks=pytest.mark.long), 1e-5])
@pytest.mark.parametrize(("engine", "caught_at"), [(HfEngine, None), (Misses, 1), (OneBehind, 2)])
async def test_only_an_engine_that_is_partly_old_is_caught(tiny_model, closing, engine, caught_at, dtype, rate):
    served = closing(engine(tiny_model, dtype=str(dtype).removeprefix("torch.")))
    policy = Policy(tiny_model)
    for version in range(1, (caught_at or 4) + 1):
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(rate * torch.randn(weight.shape).sign())
        update = served.update_weights(policy.checkpoint_tensors(), version)
        if version == caught_at:
            with pytest.raises(WeightSyncError, match=f"to policy version {version} the engine holds other weights"):
                await update
        else:
            await update
