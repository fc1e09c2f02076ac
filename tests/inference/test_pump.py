"""The thread behind the real engines, with an engine that is a list."""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from arpo.agent.coordinates import smart_resize
from arpo.errors import EngineError, EngineGoneError, WeightSyncError
from arpo.inference import pump
from arpo.inference.engine import GenerateRequest, Response, Sampling
from arpo.inference.pump import ThreadedEngine, checked
from arpo.models.vision.patches import picture_size
from tests.inference.conftest import screenshot, together

SHAPES = {"model.norm.weight": (4,), "visual.merger.weight": (2, 4)}


class ListEngine(ThreadedEngine):
    """Finishes a request after as many steps as it has tokens to make; notes what happens in which thread."""

    def __init__(self, *, max_in_flight: int = 8, broken: str = "") -> None:
        super().__init__(max_in_flight=max_in_flight, shapes={})
        self.broken = broken
        self.events: list[str] = []
        self.threads: set[str] = set()
        self.most = 0
        self.running: dict[str, int] = {}
        self.go = threading.Event()
        self.go.set()
        self._launch()

    def note(self, event: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.events.append(event)
        if self.broken == event:
            raise RuntimeError(f"{event} broke")

    def _start(self) -> None:
        self.note("start")

    def _add(self, key: str, request: GenerateRequest) -> None:
        if not request.prompt_ids:
            raise EngineError("an empty prompt")
        self.running[key] = request.sampling.max_tokens

    def _step(self) -> Sequence[tuple[str, Response]]:
        self.go.wait()
        self.note("step")
        self.most = max(self.most, len(self.running))
        self.running = {key: left - 1 for key, left in self.running.items()}
        done = [key for key, left in self.running.items() if left <= 0]
        for key in done:
            del self.running[key]
        return [(key, Response((1,), (0.0,), "stop", self._version)) for key in done]

    def _abort(self, key: str) -> None:
        self.note("abort")
        del self.running[key]

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.note("load")
        assert not self.running

    def _checksum(self, names: Sequence[str]) -> int:
        return 0  # of no tensors

    def _reset_caches(self) -> None:
        self.note("reset")

    def _suspend(self) -> None:
        self.note("suspend")
        assert not self.running

    def _wake_weights(self) -> None:
        self.note("wake weights")

    def _wake_cache(self) -> None:
        self.note("wake cache")

    def _stop(self) -> None:
        self.note("stop")


def ask(tokens: int = 1) -> GenerateRequest:
    return GenerateRequest((1,), (), Sampling(max_tokens=tokens))


def test_requests_share_steps_and_every_call_is_made_by_one_thread(closing: Any) -> None:
    engine = closing(ListEngine())
    engine.go.clear()

    async def scene() -> None:
        tasks = [asyncio.create_task(engine.generate(ask(10))) for _ in range(5)]
        await asyncio.sleep(0.01)
        engine.go.set()
        await asyncio.gather(*tasks)

    asyncio.run(scene())
    # The first step may have begun with one request; the others joined it on the way.
    assert engine.most == 5
    assert engine.events.count("step") <= 11
    assert engine.threads == {"ListEngine"}


def test_no_more_requests_run_than_allowed(closing: Any) -> None:
    engine = closing(ListEngine(max_in_flight=2))
    together(*(engine.generate(ask(3)) for _ in range(7)))
    assert engine.most <= 2


class Shapes(list[tuple[str, torch.Tensor]]):
    """Tensors that say their shapes beforehand."""

    shapes = {"model.norm.weight": (4,), "visual.merger.weight": (3, 4)}  # noqa: RUF012


def test_names_and_shapes_are_matched_before_any_tensor_is_loaded_and_the_engine_goes_on(closing: Any) -> None:
    engine = closing(ListEngine())
    engine._shapes = SHAPES
    with pytest.raises(WeightSyncError, match=r"'visual.merger.weight' is \(3, 4\)"):
        asyncio.run(engine.update_weights(Shapes(), 1))
    assert "load" not in engine.events
    assert asyncio.run(engine.generate(ask())).policy_version == 0


def test_steps_and_waiting_are_counted(closing: Any) -> None:
    engine = closing(ListEngine(max_in_flight=1))
    together(*(engine.generate(ask(3)) for _ in range(2)))
    counters = engine.counters()
    assert counters["engine/steps"] == 6
    assert counters["engine/waiting_s"] > 0


def test_an_update_is_loaded_between_requests_and_caches_are_reset_after_it(closing: Any) -> None:
    engine = closing(ListEngine())
    engine.go.clear()

    async def scene() -> list[int]:
        before = [asyncio.create_task(engine.generate(ask(4))) for _ in range(3)]
        await asyncio.sleep(0.01)
        update = asyncio.create_task(engine.update_weights([], 5))
        await asyncio.sleep(0)
        after = [asyncio.create_task(engine.generate(ask())) for _ in range(3)]
        await asyncio.sleep(0.01)
        engine.go.set()
        await update
        return [response.policy_version for response in await asyncio.gather(*before, *after)]

    assert asyncio.run(scene()) == [0, 0, 0, 5, 5, 5]
    assert engine.events[engine.events.index("load") + 1] == "reset"


def test_a_refused_request_fails_alone(closing: Any) -> None:
    engine = closing(ListEngine())

    async def scene() -> list[object]:
        empty = GenerateRequest((), (), Sampling())
        return await asyncio.gather(engine.generate(empty), engine.generate(ask()), return_exceptions=True)

    failed, answered = asyncio.run(scene())
    assert isinstance(failed, EngineError)
    assert isinstance(answered, Response)


class Measuring(ListEngine):
    """Measures pictures as vLLM's front does, by the sizes that their headers say."""

    def _add(self, key: str, request: GenerateRequest) -> None:
        for png in request.images:
            smart_resize(*picture_size(png), factor=28, min_pixels=3136, max_pixels=15_680)
        super()._add(key, request)


@pytest.mark.parametrize("size", [(600, 2), (2, 600), (100_000, 1)])
def test_a_picture_of_an_impossible_size_fails_its_request_alone(closing: Any, size: tuple[int, int]) -> None:
    engine = closing(Measuring())
    odd = GenerateRequest(
        (1,), (screenshot(0, 140, 112)[:16] + b"".join(side.to_bytes(4) for side in size),), Sampling()
    )
    with pytest.raises(EngineError, match="at most 200 times longer than wide") as caught:
        asyncio.run(engine.generate(odd))
    assert not isinstance(caught.value, EngineGoneError)
    assert asyncio.run(engine.generate(ask())).token_ids == (1,)


def test_an_error_of_the_start_is_raised_by_the_constructor() -> None:
    with pytest.raises(RuntimeError, match="start broke"):
        ListEngine(broken="start")


def test_when_the_engine_dies_everyone_gets_an_error_and_it_is_freed(closing: Any) -> None:
    engine = closing(ListEngine(broken="step", max_in_flight=2))
    engine.go.clear()

    async def scene() -> list[object]:
        asked = [asyncio.create_task(engine.generate(ask())) for _ in range(4)]
        asked.append(asyncio.create_task(engine.update_weights([], 1)))
        await asyncio.sleep(0.01)
        engine.go.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(scene())
    assert [str(answer) for answer in answers] == ["the engine is dead: RuntimeError: step broke"] * 5
    assert all(isinstance(answer, EngineError) for answer in answers)
    assert engine.events[-1] == "stop"
    with pytest.raises(EngineError, match="step broke"):
        asyncio.run(engine.generate(ask()))


def test_a_failed_update_says_so_and_ends_the_engine(closing: Any) -> None:
    engine = closing(ListEngine(broken="load"))
    with pytest.raises(WeightSyncError, match="load broke"):
        asyncio.run(engine.update_weights([], 1))
    with pytest.raises(EngineError, match="dead"):
        asyncio.run(engine.generate(ask()))


def test_closing_fails_what_is_in_flight_and_can_be_done_twice() -> None:
    engine = ListEngine()

    async def scene() -> object:
        asked = asyncio.create_task(engine.generate(ask(10**9)))
        await asyncio.sleep(0.01)
        await asyncio.gather(engine.close(), engine.close())
        (answer,) = await asyncio.gather(asked, return_exceptions=True)
        return answer

    answer = asyncio.run(scene())
    assert isinstance(answer, EngineError)
    assert str(answer) == "the engine is closed"
    assert engine.events.count("stop") == 1


def test_an_engine_that_is_blocked_in_a_step_is_closed_all_the_same(
    closing: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pump, "CLOSE_S", 0.2)
    engine = closing(ListEngine())
    engine.go.clear()

    async def scene() -> None:
        asked = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0.01)
        await asyncio.wait_for(engine.close(), 30)
        asked.cancel()

    asyncio.run(scene())
    assert "thread is blocked" in caplog.text
    engine.go.set()


def test_a_cancelled_request_leaves_the_engine(closing: Any) -> None:
    engine = closing(ListEngine())

    async def scene() -> Response:
        gone = asyncio.create_task(engine.generate(ask(10**9)))
        await asyncio.sleep(0.01)
        gone.cancel()
        return await engine.generate(ask(3))

    assert asyncio.run(scene()).token_ids == (1,)
    assert "abort" in engine.events
    assert not engine.running


def test_an_update_that_is_cancelled_before_its_turn_is_left_out(closing: Any) -> None:
    engine = closing(ListEngine())
    engine.go.clear()

    async def scene() -> Response:
        before = asyncio.create_task(engine.generate(ask(2)))
        await asyncio.sleep(0.01)
        update = asyncio.create_task(engine.update_weights([], 5))
        await asyncio.sleep(0.01)
        update.cancel()
        await asyncio.gather(update, return_exceptions=True)
        engine.go.set()
        await before
        return await engine.generate(ask())

    assert asyncio.run(scene()).policy_version == 0
    assert "load" not in engine.events


def test_an_engine_sleeps_when_nothing_is_in_flight_and_wakes_weights_before_caches(closing: Any) -> None:
    engine = closing(ListEngine())
    engine.go.clear()

    async def scene() -> None:
        before = asyncio.create_task(engine.generate(ask(3)))
        await asyncio.sleep(0.01)
        sleep = asyncio.create_task(engine.sleep())
        await asyncio.sleep(0)
        late = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0.01)
        engine.go.set()
        await before
        await sleep
        await engine.sleep()  # twice is once
        with pytest.raises(EngineError, match="sleeps until the next weight update"):
            await late
        await engine.update_weights([], 1)
        assert (await engine.generate(ask())).policy_version == 1
        await engine.update_weights([], 2)

    asyncio.run(scene())
    awake = ["load", "reset"]
    # start, three steps of the first request, and later one of the second
    assert engine.events == [
        *["start", "step", "step", "step", "suspend"],
        *["wake weights", "load", "wake cache", "reset", "step", *awake],
    ]


def test_an_engine_that_cannot_sleep_says_so_and_is_dead(closing: Any) -> None:
    engine = closing(ListEngine(broken="suspend"))
    with pytest.raises(EngineError, match="could not go to sleep: suspend broke"):
        asyncio.run(engine.sleep())
    with pytest.raises(EngineGoneError, match="is dead"):
        asyncio.run(engine.generate(ask()))


def test_a_missing_tensor_is_an_error_at_the_end() -> None:
    with pytest.raises(WeightSyncError, match=r"1 of 2 tensors are missing from the update: visual\.merger\.weight"):
        list(checked([("model.norm.weight", torch.zeros(4))], SHAPES))


def test_an_unknown_tensor_is_an_error() -> None:
    with pytest.raises(WeightSyncError, match=r"no tensor 'model\.nrm\.weight'"):
        list(checked([("model.nrm.weight", torch.zeros(4))], SHAPES))


def test_another_shape_is_an_error() -> None:
    with pytest.raises(WeightSyncError, match=r"is \(5,\), 'model\.norm\.weight' of the model is \(4,\)"):
        list(checked([("model.norm.weight", torch.zeros(5))], SHAPES))


def test_a_tied_output_layer_may_be_given_and_is_left_out() -> None:
    whole = [(name, torch.zeros(shape)) for name, shape in SHAPES.items()]
    assert [name for name, _ in checked([*whole, ("lm_head.weight", torch.zeros(9))], SHAPES)] == list(SHAPES)
