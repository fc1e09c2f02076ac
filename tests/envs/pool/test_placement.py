"""Environments go where an engine is, and no more of them than a node has said."""

import pytest

from arpo.envs.pool.ray import Placement
from arpo.errors import ConfigError

CLUSTER = {"CPU": 64.0, "docker:10.0.0.2": 2.0, "docker:10.0.0.3": 3.0, "node:10.0.0.2": 1.0}


def test_workers_spread_over_nodes_by_the_room_that_is_left():
    placement = Placement("docker", lambda: CLUSTER)
    taken = [placement.take(1) for _ in range(5)]
    # 3 and 2 left: .3; 2 and 2: the first; 2 and 1: .3; 1 and 1: the first; 1 and 0: .3
    assert [name[-1] for name in taken] == ["3", "2", "3", "2", "3"]


def test_a_full_cluster_is_refused_with_what_each_node_has_and_what_to_type():
    placement = Placement("docker", lambda: CLUSTER)
    placement.take(2)
    room = r"room for 3 more.*docker:10\.0\.0\.2 \(2 left\), docker:10\.0\.0\.3 \(1 left\)"
    with pytest.raises(ConfigError, match=room):
        placement.take(3)
    none = r"nodes with an engine: none\. Start each.*HEAD:6379.*or lower size or envs_per_worker"
    with pytest.raises(ConfigError, match=none):
        Placement("docker", lambda: {"CPU": 8.0}).take(1)


def test_what_is_freed_can_be_taken_again_a_node_that_joins_is_used_and_one_that_left_is_not():
    cluster = {"docker:10.0.0.2": 1.0}
    placement = Placement("docker", lambda: cluster)
    for _ in range(2):
        assert placement.take(1) == "docker:10.0.0.2"
        with pytest.raises(ConfigError):
            placement.take(1)
        placement.free("docker:10.0.0.2", 1)
    del cluster["docker:10.0.0.2"]
    cluster["docker:10.0.0.3"] = 1.0
    assert placement.take(1) == "docker:10.0.0.3"
    with pytest.raises(ConfigError):
        placement.take(1)
