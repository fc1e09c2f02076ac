import os
import subprocess
import sys

from arpo.rollout.seeds import derive_seed


def test_a_seed_is_the_same_today_and_tomorrow():
    # printf '[0, 1, "task", 2, 3]' | sha256sum: the first 16 digits, as a number, halved
    assert derive_seed(0, 1, "task", 2, 3) == 3760556890114695063


def test_a_seed_is_the_same_in_another_process():
    command = "from arpo.rollout.seeds import derive_seed; print(derive_seed(5, 'täsk', 1))"
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    printed = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True, env=environment).stdout
    assert int(printed) == derive_seed(5, "täsk", 1)


def test_every_part_counts_with_its_type_and_its_borders():
    parts = [(1, 2), (2, 1), (12,), ("1", 2), (1, "2"), ("12",), ("1", "2"), (1, 2, 0), ()]
    assert len({derive_seed(*part) for part in parts}) == len(parts)


def test_a_seed_fits_63_bits():
    seeds = [derive_seed(number) for number in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62  # and uses them
