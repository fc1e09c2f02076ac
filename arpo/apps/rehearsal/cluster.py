"""A Ray cluster of several nodes that one machine plays."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from arpo.host.ray import OBJECT_STORE_BYTES, patiently, settle_environment


@contextmanager
def ray_nodes(resources: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Start a Ray cluster and yield its address; its processes end with the block.

    Its files lie in `TMPDIR`, which a session makes short, because sockets are among them. A process that joins needs
    this one's `RAY_AUTH_MODE` and `RAY_AUTH_TOKEN`.

    Args:
        resources: Of each node, such as `docker:10.0.0.1`; the first one is the head.
    """
    from ray._raylet import Config  # type: ignore[attr-defined]  # a compiled module, whose names nobody declares
    from ray.cluster_utils import Cluster

    settle_environment()
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # as a Ray of one node does; nobody without the token may join
    Config.initialize("")  # Ray has read its settings when it was imported
    head, *others = [
        {"num_cpus": 0, "num_gpus": 0, "resources": dict(room), "object_store_memory": OBJECT_STORE_BYTES}
        for room in resources
    ]
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args={**head, "include_dashboard": False}))
    try:
        for other in others:
            patiently(partial(cluster.add_node, **other))
        yield cluster.address
    finally:
        cluster.shutdown()
