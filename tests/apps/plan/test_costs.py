"""Sums for Qwen2.5-VL-7B, with the arithmetic."""

from collections import Counter
from dataclasses import replace

import pytest
from transformers import Qwen2_5_VLConfig, Qwen3_5Config, Qwen3VLConfig

from arpo.apps.plan.costs import (
    Case,
    Offloaded,
    Weights,
    Work,
    cache_bytes,
    disk_gib,
    forward_flops,
    host_gib,
    kv_bytes,
    offload_seconds,
    selective_mfu,
    serving,
    sleep_seconds,
    sync_seconds,
    update_flops,
    update_seconds,
)
from arpo.apps.plan.hardware import Gpu, HostSpeeds, Layout
from arpo.apps.plan.longest import WorstCaseTrajectory

SHAPE = Qwen2_5_VLConfig(
    text_config={
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    vision_config={"hidden_size": 1280, "fullatt_block_indexes": [7, 15, 23, 31]},
)
GPU = Gpu(name="G", memory_gib=80, bf16_tflops=1000, peer_gb_s=400, host_gb_s=50, network_gb_s=25)
LONGEST = WorstCaseTrajectory(65536, 15, 8192, (1920, 1080), image_tokens=2691)
ALL = Weights(8 * 10**9, 8 * 10**9, 6 * 10**9, 10**9, 10**9, train_vision=True, lora=False)
ADAPTERS = Weights(8 * 10**9, 10**8, 6 * 10**9, 10**9, 10**9, train_vision=False, lora=True)
WORK = Work(trajectories=16, minibatches=2, epochs=1, iterations=10, reference=False, environments=16)
SPLIT = Layout("split", "fsdp", gpus=8, nodes=1, engine_gpus=1)
SPEEDS = HostSpeeds(store=16, pageable=8, nodes=1, sleep=1.6, wake=8)
COLOCATED = Layout("colocated", "fsdp", gpus=8, nodes=1, engine_gpus=1)


WINDOWED = WorstCaseTrajectory(600, 3, 50, (1920, 1080), image_tokens=100, image_window=2)
"""Room for 600 tokens: two screenshots of 100, and three responses of 50 after a prompt of 250. The first step has
250 + 100 + 50 = 400 tokens with one screenshot, the second 250 + 200 + 100, the third 250 + 200 + 150."""
G = 2**30


def case(weights=ALL, longest=LONGEST, work=WORK, layout=COLOCATED) -> Case:
    return Case(SHAPE, weights, longest, work, layout, GPU)


def test_a_forward_is_two_operations_a_parameter_and_token_and_attention():
    flops = forward_flops(SHAPE, ALL, LONGEST)
    sampled, patches = 65536 - 1 - 15 * 2691, 4 * 2691
    assert flops.language == pytest.approx(2 * 6e9 * 65536 + 2 * 1e9 * sampled)
    assert flops.attention == pytest.approx(2 * 65536**2 * 3584 * 28)
    assert flops.vision == pytest.approx(15 * (2 * 1e9 * patches + 4 * patches**2 * 1280 * 4))
    assert flops.forward == flops.language + flops.attention + flops.vision
    # of a windowed trajectory a sequence a step, each with the pictures that it sees
    flops = forward_flops(SHAPE, ALL, WINDOWED)
    assert flops.language == pytest.approx(2 * 6e9 * (400 + 550 + 600) + 2 * 1e9 * 150)
    assert flops.attention == pytest.approx(2 * (400**2 + 550**2 + 600**2) * 3584 * 28)
    assert flops.vision == pytest.approx((1 + 2 + 2) * (2 * 1e9 * 400 + 4 * 400**2 * 1280 * 4))


def test_an_update_is_a_forward_half_of_another_one_and_a_backward():
    flops = forward_flops(SHAPE, ALL, LONGEST)
    # old log-probabilities of the second of two minibatches
    assert update_flops(case(ALL, LONGEST, WORK)) == pytest.approx((1.5 + 2) * flops.forward)
    # A second epoch has other minibatches, and needs those of the first minibatch too, but no others anew.
    assert update_flops(case(ALL, LONGEST, replace(WORK, epochs=2))) == pytest.approx((1 + 2 * 3) * flops.forward)
    # A frozen weight gets no gradient, but attention has no weights: its two inputs always get theirs.
    adapters = 1.5 * flops.forward + flops.language + 2 * flops.attention
    assert update_flops(case(ADAPTERS, LONGEST, WORK)) == pytest.approx(adapters)
    # A choice by entropy costs the forward that the first minibatch would not need.
    assert update_flops(case(ALL, LONGEST, replace(WORK, kept_steps=0.8))) == pytest.approx((2 + 2) * flops.forward)
    # Of sequences of one step all of them before; then forward, reference and backward (2) of four in five.
    flops, chosen = forward_flops(SHAPE, ALL, WINDOWED), replace(WORK, kept_steps=0.8, reference=True)
    assert update_flops(case(ALL, WINDOWED, chosen)) == pytest.approx((1 + 0.8 * (2 + 2)) * flops.forward)


def test_attention_that_is_not_repeated_takes_no_time():
    flops = forward_flops(SHAPE, ADAPTERS, LONGEST)
    # One forward and a half, the backward, and the forward again, of which a frozen vision tower has no part.
    full = 1.5 * flops.forward + flops.language + 2 * flops.attention + flops.language + flops.attention
    assert 0.3 / selective_mfu(0.3, case(ADAPTERS)) == pytest.approx(1 - flops.attention / full)


def test_the_busiest_rank_says_how_long_updates_and_their_offloading_take():
    # two minibatches of 8; 7 ranks: 2 in a row each; 350 TFLOP a second at an MFU of 0.35
    assert update_seconds(700e12, case(longest=LONGEST, layout=SPLIT), mfu=0.35) == pytest.approx(2 * 2 * 2.0)
    assert update_seconds(700e12, case(longest=LONGEST, layout=COLOCATED), mfu=0.35) == pytest.approx(2 * 1 * 2.0)
    # 16 trajectories of 3 sequences in two minibatches are 24; 7 ranks: 4 in a row, each a third of 700 TFLOP
    assert update_seconds(700e12, case(longest=WINDOWED, layout=SPLIT), mfu=0.35) == pytest.approx(2 * 4 * 2.0 / 3)
    # At 50 GB a second: moments once in a minibatch, the inputs of blocks of each sequence, both ways.
    for longest, layout, in_a_row in ((LONGEST, SPLIT, 2), (LONGEST, COLOCATED, 1), (WINDOWED, SPLIT, 4)):
        seconds = 2 * 2 * (10 + in_a_row * 15) / 50
        assert offload_seconds(AWAY, case(longest=longest, layout=layout)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("layout", "fleet", "seconds"),
    [
        # 16 GB: 0.04 s between GPUs, 0.32 s over PCIe, 1 s into the store, 2 s from there, wherever engines are
        (SPLIT, True, [0.04, 0.32, 1.0, 2.0]),
        (COLOCATED, True, [0.04, 0.32, 1.0, 2.0]),
        # at 25 GB a second between GPUs of several nodes, and at 1 between their object stores
        (replace(COLOCATED, nodes=2), True, [0.64, 0.32, 1.0, 16.0, 2.0]),
        # inside of one process it stays on its GPU
        (Layout("colocated", "single", gpus=1, nodes=1, engine_gpus=0), False, [0.04]),
    ],
    ids=["split", "colocated", "two_nodes", "one_process"],
)
def test_a_sync_takes_the_links_between_its_places(layout, fleet, seconds):
    assert (case().sync_bytes, case(ADAPTERS).sync_bytes) == (16 * 10**9, 2 * 10**8)  # in bfloat16
    legs = sync_seconds(case(layout=layout, work=replace(WORK, fleet=fleet)), SPEEDS)
    assert list(legs.values()) == pytest.approx(seconds)


def test_where_all_weights_are_shared_a_sync_moves_none_and_a_trainer_reads_what_it_does_not_share():
    shared = replace(ALL, shared_bytes=32 * 10**9, moves=False)  # in float32
    alone = Layout("colocated", "single", gpus=1, nodes=1, engine_gpus=0)
    assert case(shared).sync_bytes == 0
    assert sum(sync_seconds(case(shared, layout=alone), SPEEDS).values()) == 0
    partly = replace(ADAPTERS, shared_bytes=15 * 10**9)
    assert case(partly).sync_bytes == 2 * 10**8  # the adapter has to go there
    for weights, read in ((ADAPTERS, 16e9), (partly, 1e9), (shared, 0)):
        assert host_gib(case(weights, layout=alone), Offloaded(), 1.0)["weights while they are loaded"] == read / G


def test_engines_that_sleep_beside_adapters_take_their_base_to_the_host_and_back():
    asleep = replace(WORK, sleeps=True)
    # 16 GB at 1.6 and at 8 GB a second
    assert sleep_seconds(case(ADAPTERS, work=asleep), SPEEDS) == pytest.approx(10 + 2)
    assert sleep_seconds(case(ADAPTERS, work=asleep, layout=PAIRS), SPEEDS) == pytest.approx(6)
    assert sleep_seconds(case(work=asleep), SPEEDS) == sleep_seconds(case(ADAPTERS, layout=SPLIT), SPEEDS) == 0


def test_the_allocators_cache_is_a_share_of_what_comes_and_goes():
    peak = Counter({"parameters": 100, "optimizer": 50, "activations": 20, "temporaries": 10, "logits": 2})
    assert cache_bytes(peak, 0.25) == 8


def test_an_engine_alone_or_on_several_gpus_has_the_rest_of_its_share_for_keys_and_values():
    # two of them, 28 layers, 4 heads of 128, 2 bytes
    assert kv_bytes(SHAPE) == 2 * 28 * 4 * 128 * 2 == 57_344
    # 72 GiB - 14.9 of weights - 2.2 of workspace = 54.9 GiB: 15.7 times 65,536 x 57,344 bytes = 3.5 GiB
    alone = serving(case(), share=0.9)
    assert alone.kv_gib == pytest.approx(54.89, abs=0.01)
    assert alone.contexts == 15
    assert serving(case(), share=0.25).contexts == 0
    assert alone.context_gib == 65_536 * 57_344 / G
    assert alone.with_share(0.5 * 80) == serving(case(), share=0.5)
    # 72 GiB - 14.9 / 2 of weights - 2.2 of workspace = 62.3 GiB: 35.6 times half of 3.5 GiB
    pair = serving(case(layout=replace(COLOCATED, gpus_of_engine=2)), share=0.9)
    assert pair.weights_gib == pytest.approx(16e9 / G / 2)
    assert pair.contexts == 35
    # There are four heads of keys: on eight GPUs each is there twice.
    kv = [serving(case(layout=replace(COLOCATED, gpus_of_engine=gpus)), share=0.9) for gpus in (4, 8)]
    assert kv[1].contexts == pytest.approx(kv[0].contexts * kv[1].kv_gib / kv[0].kv_gib, abs=1)


def test_heads_may_be_wider_than_their_share_of_the_hidden_size_and_recurrent_layers_keep_no_keys_and_values():
    text = {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
    # Qwen3-VL-4B: 36 layers, 8 key-value heads of 128, where 2,560 / 32 would be 80
    assert kv_bytes(Qwen3VLConfig(text_config=text | {"head_dim": 128})) == 2 * 36 * 8 * 128 * 2 == 147_456
    # Qwen3.5-4B: 8 of 32 layers attend, with 4 key-value heads of 256; of 16 heads each
    text |= {"num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256}
    shape = Qwen3_5Config(text_config=text)
    assert kv_bytes(shape) == 2 * 8 * 4 * 256 * 2 == 32_768
    assert forward_flops(shape, ALL, LONGEST).attention == 2 * sum(n**2 for n in LONGEST.lengths) * 16 * 256 * 8


STORE, FILES = "weights in Ray's object store", "weights in the files of engines with several GPUs"
SEEN, ASLEEP = "visual tokens of an update", "engines' weights while they sleep"
CACHES = "engines and their picture caches"
PAIRS = replace(COLOCATED, gpus_of_engine=2)
AWAY = Offloaded(optimizer=10e9, activations=15e9)
PICTURE = 2691 * 4 * 14 * 14 * 3 * 2 * 2  # tokens x patches x pixels x frames x bytes
HOST = [
    # 8 billion parameters and 0.1 billion of adapters, 2 bytes each, however many engines there are
    (STORE, {}, {}, 0),
    (STORE, {}, {"fleet": True}, 16e9),
    (STORE, {"weights": ADAPTERS}, {"fleet": True}, 2e8),
    # engines of several GPUs read an update from files that are copies
    (FILES, {"layout": PAIRS}, {"fleet": True}, 2 * 4 * 16e9),
    (FILES, {"layout": PAIRS, "weights": ADAPTERS}, {"fleet": True}, 0),
    (FILES, {}, {"fleet": True}, 0),
    # 8 engines of two episodes each, of 15 screenshots in bfloat16, or of the 5 that a response sees
    (CACHES, {}, {}, 8 * (3 * G + 2 * 15 * PICTURE)),
    (CACHES, {"longest": replace(LONGEST, image_window=5)}, {}, 8 * (3 * G + 10 * PICTURE)),
    ("moments of the optimizer, offloaded", {"layout": SPLIT}, {}, 7 * 10e9),
    ("activations, offloaded", {"layout": SPLIT}, {}, 7 * 15e9),
    # 256 trajectories of 15 screenshots of 2,691 tokens x 4 patches x 14 x 14 x 3 bytes
    ("pictures prepared for an update", {}, {"trajectories": 256}, 256 * 15 * 2691 * 4 * 14 * 14 * 3),
    # of a frozen vision tower, where a rank has room: 34.5 GiB a rank, which keeps 16 at most
    (SEEN, {"weights": ADAPTERS}, {"trajectories": 16}, 16 * 15 * 2691 * 3584 * 2),
    (SEEN, {"weights": ADAPTERS}, {"trajectories": 1024}, 0),
    (SEEN, {}, {}, 0),
    # 1.5 GiB for each of the base beside adapters
    (ASLEEP, {"weights": ADAPTERS}, {"sleeps": True}, 8 * 1.5 * 16e9),
    (ASLEEP, {"weights": ADAPTERS}, {}, 0),
    (ASLEEP, {}, {"sleeps": True}, 0),
]


@pytest.mark.parametrize(("row", "changed", "work", "size"), HOST)
def test_the_memory_of_the_first_node_by_its_use(row, changed, work, size):
    run = case(**changed, work=replace(WORK, **work))
    assert host_gib(run, AWAY, screenshot_mb=1.0, asleep=1.5)[row] == pytest.approx(size / G)


def test_a_checkpoint_holds_what_is_trained_and_its_moments():
    found = disk_gib(case(work=WORK), keep=3, screenshot_mb=1.0)
    # 12 bytes a parameter, three files and one in the making; 10 x 16 x 15 screenshots of 1 MB; 7 numbers of 4 bytes
    # of the 65536 - 1 - 15 x 2691 = 25170 sampled tokens of each of the 160 trajectories
    figures = [4 * 12 * 8e9 / G, 2400e6 / G, 160 * 25_170 * 28 / G]
    assert list(found.values()) == pytest.approx(figures)
    without = disk_gib(case(work=replace(WORK, recorded=False)), keep=3, screenshot_mb=1.0)
    assert list(without.values()) == pytest.approx([*figures[:2], 0.0])
