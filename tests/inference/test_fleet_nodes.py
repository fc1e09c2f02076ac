"""A fleet on several nodes: in a file of its own, because a process has one Ray, and the fleets of others keep it."""

import asyncio

import pytest
import ray
from ray.cluster_utils import Cluster

from arpo.errors import ConfigError
from arpo.inference.fleet import FleetEngine
from arpo.inference.probe import ask
from tests.inference.echo import Who
from tests.inference.test_fleet import ASK

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.mark.slow
def test_replicas_get_the_first_gpus_of_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    head = {"num_cpus": 0, "num_gpus": 4, "include_dashboard": False}  # which takes a dozen processes to start
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=0, num_gpus=4)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        fleet = FleetEngine(Who, replicas=2, nodes=2, num_gpus=1)
        gpus = [reply.token_ids[0] for (reply,) in asyncio.run(ask(fleet, [ASK]))]
        assert sorted(gpus) == [0, 0, 1, 1]  # of four on each of two nodes
        asyncio.run(fleet.close())
        with pytest.raises(ConfigError, match=r"want 6 GPUs on 2 node\(s\), there are 4, 4"):
            FleetEngine(Who, replicas=3, nodes=2, num_gpus=2)
    finally:
        ray.shutdown()
        cluster.shutdown()
