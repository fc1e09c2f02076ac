"""A fleet on several nodes: in a file of its own, because a process has one Ray, and the fleets of others keep it."""

import asyncio
from functools import partial

import pytest
import ray
from ray.cluster_utils import Cluster

from arpo.errors import ConfigError
from arpo.inference.fleet import FleetEngine
from tests.inference.gated import AskedRunner, Gated, Who, ask, events, seen, weights, whole
from tests.inference.loop import run
from tests.inference.talk import ask_each

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.slow
def test_replicas_get_the_first_gpus_of_every_node(monkeypatch):
    head = {"num_cpus": 0, "num_gpus": 4, "include_dashboard": False}  # which takes a dozen processes to start
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=0, num_gpus=4)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        fleet = FleetEngine(Who, replicas=2, nodes=2, num_gpus=1)
        gpus = [reply.token_ids[0] for reply in run(ask_each(fleet, ask(0)))]
        assert sorted(gpus) == [0, 0, 1, 1]  # of four on each of two nodes
        run(fleet.close())
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")  # after the nodes have started
        fleet = FleetEngine(AskedRunner, nodes=2, num_gpus=1)
        assert [reply.token_ids for reply in run(ask_each(fleet, ask(0)))] == [(0,), (0,)]
        run(fleet.close())
        with pytest.raises(ConfigError, match=r"want 6 GPUs on 2 node\(s\), there are 4, 4"):
            FleetEngine(Who, replicas=3, nodes=2, num_gpus=2)
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_a_node_that_dies_costs_nothing_but_time_and_one_that_joins_is_used(monkeypatch, tmp_path):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 1})
    node = cluster.add_node(num_cpus=0, num_gpus=1)

    async def dies(fleet):
        await fleet.update_weights(weights(1.0), 1)
        await fleet.wait_until_idle()
        slow = [asyncio.create_task(fleet.generate(ask(n, 1, 7, conversation=str(n)))) for n in range(2)]
        first = {pid for _, pid, _ in await seen(tmp_path, "asked", count=2)}
        assert len(first) == 2
        cluster.remove_node(node, allow_graceful=False)
        again = (await seen(tmp_path, "asked", count=3))[2]
        assert again[1] in first  # the one on the other node
        (tmp_path / "open_7").touch()
        assert {(await request).token_ids[0] for request in slow} == {again[1]}
        async with asyncio.timeout(60):  # there is no place to start another one, and no call waits for it
            await fleet.update_weights(weights(2.0), 2)
        assert (await fleet.generate(ask(2))).policy_version == 2
        return first

    async def joins(fleet, first):
        await whole(fleet)
        new = events(tmp_path, "starts")[-1][1]
        assert new not in first
        assert new in {(await fleet.generate(ask(n, conversation=str(n)))).token_ids[0] for n in range(10, 14)}
        answered = sorted(event for _, _, event in events(tmp_path, "answered"))
        assert answered[:2] == ["answered 0 by 1", "answered 1 by 1"]
        assert [event for _, pid, event in events(tmp_path, "loads") if pid == new] == ["loads 2"]

    try:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        fleet = FleetEngine(partial(Gated, tmp_path), nodes=2, num_gpus=1, sync="rolling", stall_s=20)
        first = run(dies(fleet))
        cluster.add_node(num_cpus=0, num_gpus=1)  # here, because it sets a handler of signals
        run(joins(fleet, first))
        run(fleet.close())
    finally:
        ray.shutdown()
        cluster.shutdown()
