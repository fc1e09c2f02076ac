"""What only engines in other processes have: the way there, their number, and the death of a process."""

import asyncio
import gc
import random
import weakref
from dataclasses import replace
from functools import partial

import pytest
import ray
import torch

from arpo.errors import ConfigError, EngineError, WeightSyncError
from arpo.host.ray import RAY
from arpo.host.trial import on_trial
from arpo.inference.engine import GenerateRequest, Response, Sampling
from arpo.inference.fleet import FleetEngine
from arpo.inference.hf import HfEngine
from arpo.inference.remote import Snapshot
from tests.inference.conftest import on_a_cpu_by_vllm, screenshot
from tests.inference.gated import Echo, Who, ask, ended, missed, no_engine, until, whole
from tests.inference.loop import run, together
from tests.inference.talk import ask_each, pulses

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("one_ray")]

ASK = ask(0)


def weights():
    yield "bf16", torch.full((2, 3), 0.5, dtype=torch.bfloat16)
    yield "scalar", torch.tensor(4.0)
    # Two of 40 MB fill more than one bucket.
    yield "large", torch.ones(10 * 2**20)
    yield "transposed", torch.ones(2**11, 5 * 2**10).T


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The file of what the engines of `two` write."""
    return tmp_path_factory.mktemp("two") / "engines.log"


@pytest.fixture(scope="module")
def two(log):
    fleet = FleetEngine(Who, replicas=2, log=str(log))
    yield fleet
    run(fleet.close())


def test_weights_of_any_type_and_size_arrive(two):
    run(two.update_weights(weights(), 3))
    response = run(two.generate(ASK))
    # 6 x 0.5 + 4 + 2 x 10 * 2^20
    assert response.logprobs == (3 + 4 + 2 * 10 * 2**20,)
    assert response.policy_version == 3


def test_what_the_engines_write_is_in_a_file(two, log):
    assert log.read_text(encoding="utf-8").count("ready") == 2


@pytest.mark.long
async def test_a_folder_that_another_node_lacks_costs_no_engine_and_a_fleet_closed_twice_lets_go_of_ray_once(tmp_path):
    fleet = FleetEngine(Echo, log=str(tmp_path / "nowhere" / "engines.log"))
    users = RAY._users
    await asyncio.gather(fleet.close(), fleet.close())
    assert RAY._users == users - 1
    await fleet.close()
    assert RAY._users == users - 1


@pytest.mark.long
def test_an_engine_that_refuses_its_arguments_says_so(tiny_model):
    with pytest.raises(ConfigError, match="max_batch"):
        FleetEngine(lambda: HfEngine(tiny_model, max_batch=0))


@pytest.mark.long
def test_an_error_of_a_library_at_the_start_is_one_sentence_of_ours():
    with pytest.raises(EngineError, match=r"did not start in its Ray actor: RuntimeError: .*unknown quantization fp0"):
        FleetEngine(no_engine)


def test_gpus_that_this_machine_lacks_are_missed_before_ray_starts(monkeypatch):
    with pytest.raises(ConfigError, match=r"want 99 GPUs.*or set num_gpus=0"), on_trial():
        FleetEngine(Echo, num_gpus=99)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with on_trial():
        FleetEngine(Echo, num_gpus=99)  # Ray knows what the cluster has


def pid(response):
    return response.token_ids[-1]


def test_an_episode_stays_with_its_replica_and_every_replica_is_counted(two):
    before = two.counters()
    first, other, again = (pid(together(two.generate(ask(0, conversation=name)))[0]) for name in ("a", "b", "a"))
    assert first == again != other
    grown = {name: value - before.get(name, 0) for name, value in two.counters().items()}
    assert grown["engine/replica_0/requests"] == 2
    assert grown["engine/replica_1/requests"] == 1
    assert grown["engine/replica_0/in_flight_s"] > 0 <= grown["engine/replica_0/waiting_s"]


def test_the_bytes_of_an_update_are_written_once_for_all_replicas(two, monkeypatch):
    events: list[object] = []
    put = ray.put

    def counted(value):
        events.append("put")
        return put(value)

    def read():
        for name, tensor in weights():
            events.append(name)
            yield name, tensor

    monkeypatch.setattr(ray, "put", counted)
    run(two.update_weights(read(), 5))
    # In order, once, and a bucket is closed when it holds 32 MB: both of 40 MB do.
    assert events == ["bf16", "scalar", "large", "put", "transposed", "put"]
    answers = run(ask_each(two, ASK))
    assert [(reply.logprobs, reply.policy_version) for reply in answers] == [((3 + 4 + 2 * 10 * 2**20,), 5)] * 2
    assert len({pid(reply) for reply in answers}) == 2


class Bucket:
    """A bucket in the object store."""


@pytest.mark.parametrize("room", [0, 1])
def test_a_store_without_room_for_the_weights_says_so_and_keeps_none_of_them(monkeypatch, room):
    written: list[weakref.ref[Bucket]] = []

    def put(value):
        if len(written) == room:
            raise ray.exceptions.OutOfDiskError("the disk of the store is full")
        bucket = Bucket()
        written.append(weakref.ref(bucket))
        return bucket

    monkeypatch.setattr(ray, "put", put)
    with pytest.raises(WeightSyncError, match="into Ray's object store: the disk of the store is full") as caught:
        Snapshot.of([("large", torch.ones(10 * 2**20)), ("rest", torch.ones(1))], 5)  # a bucket, and what is left
    assert caught.value.__cause__ is not None
    assert [bucket() for bucket in written] == [None] * room


def test_every_replica_sleeps_and_is_woken_by_the_next_update(two):
    run(two.sleep())
    for replica in two.replicas:
        with pytest.raises(EngineError, match="asleep"):
            run(replica.ask(ASK))
    run(two.update_weights(weights(), 6))
    assert len(run(ask_each(two, ASK))) == 2


@pytest.mark.long
async def test_a_replica_that_dies_between_requests_disturbs_neither_sleep_nor_update_nor_end_and_comes_back():
    fleet = FleetEngine(Who, replicas=2)
    await fleet.update_weights(weights(), 1)
    for work in (fleet.sleep, partial(fleet.update_weights, weights(), 2)):
        dead = fleet.replicas[0].actor
        ray.kill(dead)  # unknown to the fleet
        await ended(dead)
        await work()
        await missed(fleet, dead)
    await whole(fleet)
    assert [reply.policy_version for reply in await ask_each(fleet, ASK)] == [2, 2]
    fleet.replicas[0].kill()
    await fleet.close()
    assert 1 <= fleet.counters()["engine/restarts"] <= 3


def test_the_bytes_of_an_update_are_free_before_those_of_the_next_are_written(two):
    held: list[int] = []

    def read():
        held.extend(known.version for known in gc.get_objects() if type(known) is Snapshot)
        yield from weights()

    run(two.update_weights(weights(), 41))
    run(two.update_weights(read(), 42))
    assert 41 not in held


async def an_answer_of(version, answered):
    await until(lambda: any(response.policy_version == version for _, response in answered))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("sync", ["global", "rolling"])
async def test_two_replicas_of_vllm_serve_the_trainer_s_weights_after_every_sync(tiny_model, questions, trainer, sync):
    """Conversations with screenshots go on all the time, so that every cache is full when weights change."""
    from arpo.inference.vllm import VllmEngine

    on_a_cpu_by_vllm(tiny_model)
    options = {"max_model_len": 512, "max_num_seqs": 4, "max_images": 2, "kv_cache_gb": 0.0625}
    fleet = FleetEngine(partial(VllmEngine, tiny_model, **options), replicas=2, sync=sync)
    probes = [questions.ask(number, images=2, seed=number) for number in range(8)]
    weights = [trainer.first_weights, trainer.changed(1), trainer.changed(2)]
    answered: list[tuple[GenerateRequest, Response]] = []

    async def talk(name, until):
        number = 0
        while not until.is_set():
            request = questions.ask(number % 3, images=1 + number % 2, seed=number)
            answered.append((request, await fleet.generate(replace(request, conversation=name))))
            number += 1

    until, gaps = asyncio.Event(), []
    talks = [asyncio.create_task(talk(name, until)) for name in "abc"]
    for version in (1, 2):
        await an_answer_of(version - 1, answered)
        trainer.load(weights[version])
        await fleet.update_weights(weights[version].items(), version)
        await fleet.wait_until_idle()
        for request in probes:
            gaps.append([trainer.gap(request, response) for response in await ask_each(fleet, request)])
    await an_answer_of(2, answered)
    until.set()
    await asyncio.gather(*talks)
    assert [len(found) for found in gaps] == [2] * 16
    assert max(map(max, gaps)) < 1e-4
    for version in (0, 1, 2):  # no response of mixed or unknown weights
        trainer.load(weights[version])
        of_version = [pair for pair in answered if pair[1].policy_version == version]
        assert of_version
        assert max(trainer.gap(*pair) for pair in of_version) < 1e-4
    for figures in await pulses(fleet):
        assert figures["engine/cached_prompt_tokens"] > 0
        assert figures["engine/cached_pictures"] < figures["engine/pictures"]
    await fleet.close()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.engine
async def test_staying_computes_at_most_60_percent_of_the_prompt_tokens_that_moving_does(tiny_model, questions):
    """Eight episodes of eight screenshots, which come back from their desktops in another order at every step."""
    from arpo.inference.vllm import VllmEngine

    on_a_cpu_by_vllm(tiny_model)
    options = {"max_model_len": 4096, "max_num_seqs": 8, "max_images": 8}
    fleet = FleetEngine(partial(VllmEngine, tiny_model, **options), replicas=2)

    chat = questions.chat

    def step(episode, screenshots):
        """A context that grows by a screenshot and a thought each time: long, for whole blocks alone are cached."""
        given = questions.ask(episode)
        ids, pictures = given.prompt_ids, [screenshot(100 * episode)]
        for turn in range(1, screenshots):
            thought = chat.encode_response(f"{episode} {turn} " + "Action: wait() " * 130)
            ids += thought + chat.next_prompt(thought)
            pictures.append(screenshot(100 * episode + turn))
        return GenerateRequest(ids, tuple(pictures), Sampling(max_tokens=1))

    async def computed():
        return sum(of["engine/prompt_tokens"] - of["engine/cached_prompt_tokens"] for of in await pulses(fleet))

    async def play(episodes, stay):
        before, shuffled = await computed(), random.Random(0)
        for screenshots in range(1, 9):
            order = shuffled.sample(episodes, len(episodes))
            steps = [replace(step(n, screenshots), conversation=str(n) if stay else "") for n in order]
            await asyncio.gather(*map(fleet.generate, steps))
        return await computed() - before

    staying, changing = await play(range(8), stay=True), await play(range(8, 16), stay=False)
    await fleet.close()
    assert staying / changing <= 0.6, f"{staying:.0f} of {changing:.0f}"
