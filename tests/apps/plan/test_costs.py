"""Sums for Qwen2.5-VL-7B, with the arithmetic."""

from collections import Counter
from dataclasses import replace

import pytest
from transformers import Qwen2_5_VLConfig

from arpo.apps.plan.costs import (
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
    sync_bytes,
    sync_seconds,
    update_flops,
    update_seconds,
)
from arpo.apps.plan.hardware import Gpu, HostSpeeds
from arpo.apps.plan.layout import Layout
from arpo.apps.plan.longest import Longest

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
LONGEST = Longest(65536, 15, 8192, (1920, 1080), image_tokens=2691)
ALL = Weights(8 * 10**9, 8 * 10**9, 6 * 10**9, 10**9, 10**9, train_vision=True, lora=False)
ADAPTERS = Weights(8 * 10**9, 10**8, 6 * 10**9, 10**9, 10**9, train_vision=False, lora=True)
WORK = Work(trajectories=16, minibatches=2, epochs=1, iterations=10, reference=False, environments=16)
SPLIT = Layout("split", "fsdp", gpus=8, nodes=1, engine_gpus=1)
SPEEDS = HostSpeeds(store=16, pageable=8, nodes=1, sleep=1.6, wake=8)
COLOCATED = Layout("colocated", "fsdp", gpus=8, nodes=1, engine_gpus=1)


def test_a_token_of_the_7b_has_57_kb_of_keys_and_values():
    # two of them, 28 layers, 4 heads of 128, 2 bytes
    assert kv_bytes(SHAPE) == 2 * 28 * 4 * 128 * 2 == 57_344


def test_a_forward_is_two_operations_a_parameter_and_token_and_attention():
    flops = forward_flops(SHAPE, ALL, LONGEST)
    sampled = 65536 - 1 - 15 * 2691
    assert flops.language == pytest.approx(2 * 6e9 * 65536 + 2 * 1e9 * sampled)
    assert flops.attention == pytest.approx(2 * 65536**2 * 3584 * 28)
    patches = 4 * 2691
    assert flops.vision == pytest.approx(15 * (2 * 1e9 * patches + 4 * patches**2 * 1280 * 4))
    assert flops.forward == flops.language + flops.attention + flops.vision


def test_an_update_is_a_forward_half_of_another_one_and_a_backward():
    flops = forward_flops(SHAPE, ALL, LONGEST)
    # old log-probabilities of the second of two minibatches
    assert update_flops(SHAPE, ALL, LONGEST, WORK) == pytest.approx((1.5 + 2) * flops.forward)
    # A frozen weight gets no gradient, but attention has no weights: its two inputs always get theirs.
    adapters = 1.5 * flops.forward + flops.language + 2 * flops.attention
    assert update_flops(SHAPE, ADAPTERS, LONGEST, WORK) == pytest.approx(adapters)


def test_attention_that_is_not_repeated_takes_no_time():
    flops = forward_flops(SHAPE, ADAPTERS, LONGEST)
    # One forward and a half, the backward, and the forward again, of which a frozen vision tower has no part.
    full = 1.5 * flops.forward + flops.language + 2 * flops.attention + flops.language + flops.attention
    mfu = selective_mfu(0.3, SHAPE, ADAPTERS, LONGEST, WORK)
    assert 0.3 / mfu == pytest.approx(1 - flops.attention / full)


def test_a_windowed_trajectory_is_a_sequence_a_step_each_with_the_pictures_that_it_sees():
    # Room for 600 tokens: two screenshots of 100, and three responses of 50 after a prompt of 250. With one screenshot
    # the first step has 250 + 100 + 50 = 400 tokens, the second 250 + 200 + 100, the third 250 + 200 + 150.
    windowed = Longest(600, 3, 50, (1920, 1080), image_tokens=100, image_window=2)
    flops = forward_flops(SHAPE, ALL, windowed)
    assert flops.language == pytest.approx(2 * 6e9 * (400 + 550 + 600) + 2 * 1e9 * 150)
    assert flops.attention == pytest.approx(2 * (400**2 + 550**2 + 600**2) * 3584 * 28)
    assert flops.vision == pytest.approx((1 + 2 + 2) * (2 * 1e9 * 400 + 4 * 400**2 * 1280 * 4))


def test_sequences_are_dealt_out_one_by_one():
    windowed = Longest(600, 3, 50, (1920, 1080), image_tokens=100, image_window=2)
    # 16 trajectories of 3 sequences in two minibatches are 24; 7 ranks: 4 in a row, each a third of 700 TFLOP
    assert update_seconds(700e12, windowed, WORK, SPLIT, GPU, mfu=0.35) == pytest.approx(2 * 4 * 2.0 / 3)
    offloaded = Offloaded(activations=15e9)
    assert offload_seconds(offloaded, windowed, WORK, SPLIT, GPU) == pytest.approx(2 * 2 * 4 * 15 / 50)


def test_a_choice_by_entropy_costs_the_forward_that_the_first_minibatch_would_not_need():
    flops = forward_flops(SHAPE, ALL, LONGEST)
    chosen = replace(WORK, kept_steps=0.8)
    assert update_flops(SHAPE, ALL, LONGEST, chosen) == pytest.approx((2 + 2) * flops.forward)


def test_of_sequences_of_one_step_the_update_computes_those_that_were_chosen():
    windowed = Longest(600, 3, 50, (1920, 1080), image_tokens=100, image_window=2)
    flops, chosen = forward_flops(SHAPE, ALL, windowed), replace(WORK, kept_steps=0.8, reference=True)
    # all of them before; then forward, reference and backward (2) of four in five
    assert update_flops(SHAPE, ALL, windowed, chosen) == pytest.approx((1 + 0.8 * (2 + 2)) * flops.forward)


def test_a_fleet_reads_weights_or_adapters_from_the_object_store_of_the_node():
    found = [
        host_gib(SHAPE, weights, LONGEST, replace(WORK, fleet=fleet), SPLIT, Offloaded(), 1.0)
        for weights, fleet in ((ALL, False), (ALL, True), (ADAPTERS, True))
    ]
    # 8 billion parameters and 0.1 billion of adapters, 2 bytes each, however many engines there are
    assert [row["weights in Ray's object store"] for row in found] == pytest.approx([0, 16e9 / 2**30, 2e8 / 2**30])


def test_an_engine_keeps_no_more_pictures_of_an_episode_than_a_response_sees():
    windowed = replace(LONGEST, image_window=5)
    found = host_gib(SHAPE, ALL, windowed, WORK, COLOCATED, Offloaded(), 1.0)
    kept = 2 * 5 * 2691 * 4 * 14 * 14 * 3 * 2 * 2 / 2**30  # two episodes an engine, 5 screenshots each
    assert found["engines and their picture caches"] == pytest.approx(8 * (3 + kept))


def test_what_is_offloaded_travels_to_the_host_and_back():
    offloaded = Offloaded(optimizer=10e9, activations=15e9)
    # Two minibatches of 8 at 50 GB a second: moments once, the inputs of blocks of each trajectory, both ways.
    assert offload_seconds(offloaded, LONGEST, WORK, SPLIT, GPU) == pytest.approx(2 * 2 * (10 + 2 * 15) / 50)
    assert offload_seconds(offloaded, LONGEST, WORK, COLOCATED, GPU) == pytest.approx(2 * 2 * (10 + 15) / 50)
    host = host_gib(SHAPE, ALL, LONGEST, WORK, SPLIT, offloaded, screenshot_mb=1.0)
    assert host["moments of the optimizer, offloaded"] == pytest.approx(7 * 10e9 / 2**30)
    assert host["activations, offloaded"] == pytest.approx(7 * 15e9 / 2**30)


def test_eight_trajectories_on_seven_ranks_take_as_long_as_two_in_a_row():
    # two minibatches of 8; 7 ranks: 2 in a row each; 350 TFLOP a second at an MFU of 0.35
    assert update_seconds(700e12, LONGEST, WORK, SPLIT, GPU, mfu=0.35) == pytest.approx(2 * 2 * 2.0)
    assert update_seconds(700e12, LONGEST, WORK, COLOCATED, GPU, mfu=0.35) == pytest.approx(2 * 1 * 2.0)


def test_a_sync_carries_weights_or_adapters_in_bfloat16():
    assert sync_bytes(ALL) == 16 * 10**9
    assert sync_bytes(ADAPTERS) == 2 * 10**8


@pytest.mark.parametrize("layout", [SPLIT, COLOCATED])
def test_a_sync_to_a_fleet_goes_through_the_host_wherever_its_engines_are(layout):
    # 16 GB: 0.04 s between GPUs, 0.32 s over PCIe, 1 s into the store, 2 s from there
    legs = sync_seconds(sync_bytes(ALL), layout, replace(WORK, fleet=True), GPU, SPEEDS)
    assert list(legs.values()) == pytest.approx([0.04, 0.32, 1.0, 2.0])


def test_a_sync_to_other_nodes_crosses_their_network_twice():
    legs = sync_seconds(sync_bytes(ALL), replace(COLOCATED, nodes=2), replace(WORK, fleet=True), GPU, SPEEDS)
    # 16 GB at 25 GB a second between GPUs, and at 1 between object stores
    assert list(legs.values()) == pytest.approx([0.64, 0.32, 1.0, 16.0, 2.0])


def test_a_sync_inside_of_one_process_stays_on_its_gpu():
    alone = Layout("colocated", "single", gpus=1, nodes=1, engine_gpus=0)
    assert sync_seconds(sync_bytes(ALL), alone, WORK, GPU, SPEEDS) == pytest.approx({"to the engine": 0.04})


def test_engines_that_sleep_beside_adapters_take_their_base_to_the_host_and_back():
    asleep = replace(WORK, sleeps=True)
    # 16 GB at 1.6 and at 8 GB a second
    assert sleep_seconds(ADAPTERS, COLOCATED, asleep, SPEEDS) == pytest.approx(10 + 2)
    assert sleep_seconds(ADAPTERS, replace(COLOCATED, gpus_of_engine=2), asleep, SPEEDS) == pytest.approx(6)
    assert sleep_seconds(ALL, COLOCATED, asleep, SPEEDS) == sleep_seconds(ADAPTERS, SPLIT, WORK, SPEEDS) == 0


def test_the_allocators_cache_is_a_share_of_what_comes_and_goes():
    peak = Counter({"parameters": 100, "optimizer": 50, "activations": 20, "temporaries": 10, "logits": 2})
    assert cache_bytes(peak, 0.25) == 8


def test_an_engine_has_the_rest_of_its_share_for_keys_and_values():
    # 72 GiB - 14.9 of weights - 2.2 of workspace = 54.9 GiB: 15.7 times 65,536 x 57,344 bytes = 3.5 GiB
    alone = serving(SHAPE, ALL, LONGEST, GPU, share=0.9)
    assert alone.kv_gib == pytest.approx(54.89, abs=0.01)
    assert alone.contexts == 15
    assert serving(SHAPE, ALL, LONGEST, GPU, share=0.25).contexts == 0


def test_an_engine_keeps_the_pictures_of_its_episodes_in_bfloat16():
    found = host_gib(SHAPE, ALL, LONGEST, WORK, COLOCATED, Offloaded(), 1.0)
    # 8 engines of two episodes each, 15 screenshots of 2,691 tokens x 4 patches x 14 x 14 x 3 x 2 frames x 2 bytes
    kept = 2 * 15 * 2691 * 4 * 14 * 14 * 3 * 2 * 2 / 2**30
    assert found["engines and their picture caches"] == pytest.approx(8 * (3 + kept))


def test_an_engine_on_several_gpus_divides_its_weights_keys_and_values():
    # 72 GiB - 14.9 / 2 of weights - 2.2 of workspace = 62.3 GiB: 35.6 times half of 3.5 GiB
    pair = serving(SHAPE, ALL, LONGEST, GPU, share=0.9, gpus=2)
    assert pair.weights_gib == pytest.approx(16e9 / 2**30 / 2)
    assert pair.contexts == 35
    # There are four heads of keys: on eight GPUs each is there twice.
    kv = [serving(SHAPE, ALL, LONGEST, GPU, share=0.9, gpus=gpus) for gpus in (4, 8)]
    assert kv[1].contexts == pytest.approx(kv[0].contexts * kv[1].kv_gib / kv[0].kv_gib, abs=1)


def test_the_pictures_of_a_whole_update_are_kept_while_it_lasts():
    found = host_gib(SHAPE, ALL, LONGEST, replace(WORK, trajectories=256), COLOCATED, Offloaded(), 1.0)
    # 256 trajectories of 15 screenshots of 2,691 tokens x 4 patches x 14 x 14 x 3 bytes
    pictures = 256 * 15 * 2691 * 4 * 14 * 14 * 3 / 2**30
    assert found["pictures prepared for an update"] == pytest.approx(pictures)


def test_what_a_frozen_vision_tower_makes_of_an_update_is_kept_where_a_rank_has_room():
    few, many = (
        host_gib(SHAPE, ADAPTERS, LONGEST, replace(WORK, trajectories=count), COLOCATED, Offloaded(), 1.0)
        for count in (16, 1024)
    )
    assert few["visual tokens of an update"] == pytest.approx(16 * 15 * 2691 * 3584 * 2 / 2**30)
    assert many["visual tokens of an update"] == 0  # 34.5 GiB a rank; it keeps 16 at most
    assert host_gib(SHAPE, ALL, LONGEST, WORK, COLOCATED, Offloaded(), 1.0)["visual tokens of an update"] == 0


def test_beside_adapters_the_base_of_an_engine_that_sleeps_waits_on_the_host():
    found = [
        host_gib(SHAPE, weights, LONGEST, replace(WORK, sleeps=sleeps), COLOCATED, Offloaded(), 1.0, asleep=1.5)
        for weights, sleeps in ((ALL, True), (ADAPTERS, True), (ADAPTERS, False))
    ]
    kept = 8 * 1.5 * 16e9 / 2**30
    assert [row["engines' weights while they sleep"] for row in found] == pytest.approx([0, kept, 0])


def test_engines_of_several_gpus_read_an_update_from_files_that_are_copies():
    pairs = replace(COLOCATED, gpus_of_engine=2)
    found = [
        host_gib(SHAPE, weights, LONGEST, replace(WORK, fleet=True), layout, Offloaded(), 1.0)
        for weights, layout in ((ALL, pairs), (ADAPTERS, pairs), (ALL, COLOCATED))
    ]
    files = [row["weights in the files of engines with several GPUs"] for row in found]
    assert files == pytest.approx([2 * 4 * 16e9 / 2**30, 0, 0])


def test_a_checkpoint_holds_what_is_trained_and_its_moments():
    found = disk_gib(ALL, LONGEST, WORK, keep=3, screenshot_mb=1.0)
    # 12 bytes a parameter, three files and one in the making; 10 x 16 x 15 screenshots of 1 MB; 7 numbers of 4 bytes
    # of the 65536 - 1 - 15 x 2691 = 25170 sampled tokens of each of the 160 trajectories
    figures = [4 * 12 * 8e9 / 2**30, 2400e6 / 2**30, 160 * 25_170 * 28 / 2**30]
    assert list(found.values()) == pytest.approx(figures)
    without = disk_gib(ALL, LONGEST, replace(WORK, recorded=False), keep=3, screenshot_mb=1.0)
    assert list(without.values()) == pytest.approx([*figures[:2], 0.0])
