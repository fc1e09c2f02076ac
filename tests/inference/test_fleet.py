"""What only engines in other processes have: the way there, their number, and the death of a process."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Lock

import pytest
import ray
import torch
from torch import Tensor

from arpo.errors import ConfigError, EngineError, EngineGoneError, WeightSyncError
from arpo.host.trial import on_trial
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response, Sampling
from arpo.inference.fleet import FleetEngine
from arpo.inference.hf import HfEngine
from arpo.inference.probe import ask
from tests.inference.conftest import Questions, Trainer, together
from tests.inference.echo import Echo, Who

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("one_ray")]

ASK = GenerateRequest((1,), (), Sampling())


def weights() -> Iterator[tuple[str, Tensor]]:
    yield "bf16", torch.full((2, 3), 0.5, dtype=torch.bfloat16)
    yield "scalar", torch.tensor(4.0)
    # Two of 40 MB fill more than one bucket.
    yield "large", torch.ones(10 * 2**20)
    yield "transposed", torch.ones(2**11, 5 * 2**10).T


def broken_weights() -> Iterator[tuple[str, Tensor]]:
    yield "scalar", torch.tensor(4.0)
    raise RuntimeError("the trainer has no more memory")


def test_weights_of_any_type_and_size_arrive_and_a_dead_process_is_an_engine_error() -> None:
    engine = FleetEngine(Echo)
    asyncio.run(engine.update_weights(weights(), 3))
    response = asyncio.run(engine.generate(ASK))
    # 6 x 0.5 + 4 + 2 x 10 * 2^20
    assert response.logprobs == (3 + 4 + 2 * 10 * 2**20,)
    assert response.policy_version == 3
    with pytest.raises(WeightSyncError, match="in the middle") as caught:
        asyncio.run(engine.update_weights(broken_weights(), 4))
    assert "no more memory" in str(caught.value.__context__)
    with pytest.raises(EngineError, match="actor failed"):
        asyncio.run(engine.generate(GenerateRequest((13,), (), Sampling())))
    with pytest.raises(EngineError):
        asyncio.run(engine.close())
    asyncio.run(engine.close())


def test_an_engine_that_refuses_its_arguments_says_so(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="max_batch"):
        FleetEngine(lambda: HfEngine(tiny_model, max_batch=0))


def no_engine() -> InferenceEngine:
    error = RuntimeError("unknown quantization fp0")
    error.args += (Lock(),)  # which nobody can send to another process
    raise error


def test_an_error_of_a_library_at_the_start_is_one_sentence_of_ours() -> None:
    with pytest.raises(EngineError, match=r"did not start in its Ray actor: RuntimeError: .*unknown quantization fp0"):
        FleetEngine(no_engine)


@pytest.mark.parametrize("wrong", [{"num_gpus": -1}, {"threads": 0}, {"replicas": 0}, {"nodes": 0}])
def test_impossible_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be at least"):
        FleetEngine(Echo, **wrong)


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"want 99 GPUs.*or set num_gpus=0"):
        FleetEngine(Echo, num_gpus=99)


def test_gpus_that_this_machine_lacks_are_missed_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="want 99 GPUs"), on_trial():
        FleetEngine(Echo, num_gpus=99)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with on_trial():
        FleetEngine(Echo, num_gpus=99)  # Ray knows what the cluster has


def named(conversation: str, *prompt: int) -> GenerateRequest:
    return GenerateRequest(prompt or (1,), (), Sampling(), conversation)


@pytest.fixture(scope="module")
def two() -> Iterator[FleetEngine]:
    fleet = FleetEngine(Who, replicas=2)
    yield fleet
    asyncio.run(fleet.close())


def pid(response: Response) -> int:
    return response.token_ids[-1]


def test_an_episode_stays_with_its_replica_and_every_replica_is_counted(two: FleetEngine) -> None:
    before = two.counters()
    first, other, again = (pid(together(two.generate(named(name)))[0]) for name in ("a", "b", "a"))
    assert first == again != other
    grown = {name: value - before.get(name, 0) for name, value in two.counters().items()}
    assert grown["engine/replica_0/requests"] == 2
    assert grown["engine/replica_1/requests"] == 1
    assert grown["engine/replica_0/in_flight_s"] > 0 <= grown["engine/replica_0/waiting_s"]


def test_a_bucket_is_put_once_and_every_replica_has_read_it_before_the_next(
    two: FleetEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    put = ray.put

    def counted(value: object) -> object:
        events.append("put")
        return put(value)

    def read() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights():
            events.append(name)
            yield name, tensor

    monkeypatch.setattr(ray, "put", counted)
    asyncio.run(two.update_weights(read(), 5))
    # In order, once, and a bucket is closed when it holds 32 MB: both of 40 MB do.
    assert events == ["bf16", "scalar", "large", "put", "transposed", "put"]
    answers = asyncio.run(ask(two, [ASK]))
    assert [(reply.logprobs, reply.policy_version) for (reply,) in answers] == [((3 + 4 + 2 * 10 * 2**20,), 5)] * 2
    assert len({pid(reply) for (reply,) in answers}) == 2


def test_every_replica_sleeps_and_is_woken_by_the_next_update(two: FleetEngine) -> None:
    asyncio.run(two.sleep())
    for replica in two.replicas:
        with pytest.raises(EngineError, match="asleep"):
            asyncio.run(replica.generate(ASK))
    asyncio.run(two.update_weights(weights(), 6))
    assert len(asyncio.run(ask(two, [ASK]))) == 2


def test_an_update_that_breaks_reaches_no_replica_and_is_the_trainer_s_error(two: FleetEngine) -> None:
    with pytest.raises(WeightSyncError, match="in the middle"):
        asyncio.run(two.update_weights(broken_weights(), 7))
    assert together(two.generate(ASK))[0].policy_version != 7


def test_the_episodes_of_a_dead_replica_go_to_another_one() -> None:
    fleet = FleetEngine(Who, replicas=2)
    home = pid(together(fleet.generate(named("a")))[0])
    with pytest.raises(EngineGoneError, match="actor failed"):
        together(fleet.generate(named("a", 13)))
    assert pid(together(fleet.generate(named("a")))[0]) != home
    assert len(fleet.replicas) == 1
    asyncio.run(fleet.update_weights(weights(), 1))  # those that are left go on
    with pytest.raises(EngineGoneError):
        together(fleet.generate(named("a", 13)))
    with pytest.raises(EngineGoneError, match="every replica"):
        together(fleet.generate(named("a")))
    with pytest.raises(EngineError):
        asyncio.run(fleet.close())


def test_a_replica_that_dies_between_requests_is_left_out_of_updates_and_of_the_end() -> None:
    fleet = FleetEngine(Who, replicas=3)
    for left in (2, 1):
        dead = fleet.replicas[0]
        with pytest.raises(EngineGoneError):
            asyncio.run(dead.generate(named("", 13)))  # past the fleet, which learns nothing of it
        asyncio.run(fleet.sleep() if left == 2 else fleet.update_weights(weights(), 1))
        assert len(fleet.replicas) == left
        assert dead not in fleet.replicas
    asyncio.run(fleet.update_weights(weights(), 2))
    assert together(fleet.generate(ASK))[0].policy_version == 2
    asyncio.run(fleet.close())


@pytest.mark.slow
@pytest.mark.engine
def test_two_replicas_of_vllm_serve_the_trainer_s_weights_after_every_sync(
    tiny_model: Path, questions: Questions, trainer: Trainer
) -> None:
    from arpo.inference.vllm import VllmEngine

    options = {"max_model_len": 512, "max_num_seqs": 4, "max_images": 2, "kv_cache_gb": 0.0625}
    fleet = FleetEngine(partial(VllmEngine, tiny_model, **options), replicas=2)
    requests = [questions.ask(number, images=1 + number, seed=number) for number in range(2)]
    for version in (1, 2):
        asyncio.run(fleet.sleep())
        changed = trainer.changed(version)
        trainer.load(changed)
        asyncio.run(fleet.update_weights(changed.items(), version))
        for responses in asyncio.run(ask(fleet, requests)):
            assert [response.policy_version for response in responses] == [version] * 2
            assert max(map(trainer.gap, requests, responses)) < 1e-4
    asyncio.run(fleet.close())
