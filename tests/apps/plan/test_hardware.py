import pytest

from arpo.apps.plan.hardware import Gpu, Layout
from arpo.errors import ConfigError


@pytest.mark.parametrize(
    ("layout", "trainers", "engines", "replicas"),
    [
        (Layout("split", "fsdp", gpus=16, nodes=2, engine_gpus=2), 14, 2, 2),
        (Layout("colocated", "fsdp", gpus=8, nodes=1, engine_gpus=1), 8, 8, 8),  # they do both
        (Layout("split", "single", gpus=8, nodes=1, engine_gpus=1), 1, 1, 1),  # one process trains on one GPU
        (Layout("colocated", "fsdp", gpus=8, nodes=1, engine_gpus=0, gpus_of_engine=4), 8, 8, 2),
    ],
)
def test_gpus_train_or_serve(layout, trainers, engines, replicas):
    assert (layout.trainers, layout.engines, layout.replicas) == (trainers, engines, replicas)


def test_a_gpu_without_a_speed_is_refused():
    with pytest.raises(ConfigError, match=r"peer_gb_s must be above 0, got 0"):
        Gpu(name="G", memory_gib=80, bf16_tflops=1000, peer_gb_s=0, host_gb_s=50, network_gb_s=25)
