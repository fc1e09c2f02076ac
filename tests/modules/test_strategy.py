"""What the sharded strategy says and takes; what it does is in tests/invariant."""

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.accelerators import CPUAccelerator

from arpo.errors import CheckpointError
from arpo.modules.strategy import ShardedStrategy, checksum, is_whole


@pytest.fixture
def strategy():
    strategy = ShardedStrategy(timedelta(seconds=60))
    strategy._lightning_module = strategy.model = torch.nn.Linear(2, 2)
    return strategy


def test_ranks_that_gather_weights_wait_for_each_other_as_long_as_the_strategy_says(strategy, monkeypatch):
    """And not for the ten minutes of NCCL's default, which a group of the mesh's own would have."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(free.getsockname()[1]))):
            monkeypatch.setenv(name, value)
    strategy.accelerator, strategy.cluster_environment = CPUAccelerator(), LightningEnvironment()
    strategy.parallel_devices = [torch.device("cpu")]
    try:
        strategy.setup_environment()
        group = strategy.device_mesh["data_parallel"].get_group()
        assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=60)
    finally:
        dist.destroy_process_group()


def test_a_file_is_refused_in_place_of_a_folder(strategy, tmp_path):
    path = tmp_path / "iteration_000001.ckpt"
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"000001\.ckpt is a file, written without trainer=fsdp"):
        strategy.load_checkpoint(path)


def test_to_read_the_state_of_an_optimizer_takes_no_step(strategy):
    optimizer = torch.optim.AdamW(strategy.model.parameters())
    assert strategy.optimizer_state(optimizer) == {}
    assert not optimizer.state


def test_a_checksum_is_that_of_the_whole_file_and_a_folder_without_any_is_not_whole(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"123456789")
    monkeypatch.setattr("arpo.modules.strategy.CHUNK_BYTES", 4)
    assert checksum(tmp_path / "file") == "cbf43926"  # the check value of CRC-32
    assert not is_whole(tmp_path)


def test_a_folder_that_a_rank_does_not_see_holds_no_checkpoint(strategy, tmp_path):
    strategy.parallel_devices = [torch.device("cpu")]
    strategy.cluster_environment = LightningEnvironment()
    strategy._check_shared(tmp_path)
    with pytest.raises(CheckpointError, match="put the run's folder on a file system that all nodes share"):
        strategy._check_shared(tmp_path / "of another node")
