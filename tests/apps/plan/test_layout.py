import pytest

from arpo.apps.plan.layout import Layout
from arpo.errors import ConfigError


def test_split_gpus_train_or_serve():
    layout = Layout("split", "fsdp", gpus=16, nodes=2, engine_gpus=2)
    assert (layout.trainers, layout.engines) == (14, 2)


def test_colocated_gpus_do_both():
    layout = Layout("colocated", "fsdp", gpus=8, nodes=1, engine_gpus=1)
    assert (layout.trainers, layout.engines) == (8, 8)


def test_one_process_trains_on_one_gpu_however_many_there_are():
    assert Layout("split", "single", gpus=8, nodes=1, engine_gpus=1).trainers == 1


def test_an_engine_may_be_several_gpus():
    layout = Layout("colocated", "fsdp", gpus=8, nodes=1, engine_gpus=0, gpus_of_engine=4)
    assert (layout.engines, layout.replicas) == (8, 2)


def test_a_layout_that_leaves_no_gpu_to_train_says_what_to_take():
    with pytest.raises(ConfigError, match="gpus=1 leaves none to train, because 1 serve: take layout=colocated"):
        Layout("split", "ddp", gpus=1, nodes=1, engine_gpus=1)


def test_gpus_are_spread_evenly_over_nodes():
    with pytest.raises(ConfigError, match="gpus=7 must be a multiple of 2, the number of nodes"):
        Layout("split", "ddp", gpus=7, nodes=2, engine_gpus=2)


def test_an_unknown_division_is_refused():
    with pytest.raises(ConfigError, match="layout must be one of split, colocated, got 'mixed'"):
        Layout("mixed", "ddp", gpus=8, nodes=1, engine_gpus=1)
