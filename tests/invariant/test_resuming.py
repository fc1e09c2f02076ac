"""A sharded run goes on from its checkpoint as if it had never stopped, on as many ranks as there are then."""

import os
import resource
import shutil
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
from torch.multiprocessing import ProcessExitedException
from torch.testing import assert_close

from arpo.callbacks.checkpoint import is_valid, load_policy, newest_checkpoint
from arpo.models.policy import Policy
from arpo.modules.offload import OffloadedAdamW
from arpo.modules.strategy import CHECKSUMS, REST, ShardedStrategy
from arpo.types import RolloutBatch
from tests.invariant.ranks import on_ranks, train_saving

pytestmark = pytest.mark.slow


class WithoutMoments(ShardedStrategy):
    """Forgets the optimizer's moments in every checkpoint that it loads."""

    def load_checkpoint(self, checkpoint_path, weights_only=None):
        rest = super().load_checkpoint(checkpoint_path, weights_only)
        for state in self.optimizers[0].state.values():
            state["exp_avg"].zero_()
            state["exp_avg_sq"].zero_()
        return rest


class DieInCheckpoint(L.Callback):
    """Lets the kernel end rank 0 with the byte of its shards that is one too many; its parent ends the others."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint) -> None:
        if trainer.global_rank == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))


def go(model, batches, folder, ranks, resume, case="arpo", **how) -> None:
    """Train on so many ranks, with a checkpoint after every iteration."""
    on_ranks(ranks, partial(train_saving, **how), model, batches, folder, "fsdp", ranks, case, resume)


def go_on_alike(model: str, loaded: list[RolloutBatch], at: Path) -> None:
    """Train, go on from the second iteration, and go on from it after a kill in the checkpoint of the third."""
    second = at / "alone" / "iteration_000002.ckpt"
    go(model, loaded[:5], at / "alone", 2, None)
    go(model, loaded[:5], at / "again", 2, second)
    with pytest.raises(ProcessExitedException, match="SIGXFSZ"):
        go(model, loaded[:3], at / "killed", 2, second, extra=[DieInCheckpoint()])
    os.symlink(second, at / "killed" / second.name)
    (at / "left").write_text("\n".join(path.name for path in (at / "killed").iterdir()))
    go(model, loaded[:5], at / "killed", 2, newest_checkpoint(at / "killed"))


def go_on_otherwise(model: str, everything: list[RolloutBatch], at: Path) -> None:
    """Go on from the second iteration with moments elsewhere or nowhere, on more and fewer ranks, and from nothing."""
    loaded, idle = everything[:5], everything[5:]
    second = at / "alone" / "iteration_000002.ckpt"
    go(model, loaded, at / "forgot", 2, second, how=lambda way: WithoutMoments(timedelta(seconds=60)))
    go(model, loaded[:4], at / "offloaded", 2, second, optimizer=OffloadedAdamW)
    go(model, loaded, at / "from host", 2, at / "offloaded" / "iteration_000004.ckpt")
    go(model, loaded[:4], at / "four", 4, second)
    go(model, loaded, at / "one", 1, at / "four" / "iteration_000004.ckpt")
    go(model, idle, at / "idle", 2, None, "scarce")
    go(model, idle, at / "idle again", 2, at / "idle" / "iteration_000001.ckpt", "scarce")


@pytest.fixture(scope="module")
def batches(make_group):
    """Five iterations, and two of another run: nothing to learn, so the optimizer has no state, and then something."""
    return [
        RolloutBatch(0, 0, [make_group(1.0, 0.0, 0.0), make_group(0.0, 1.0, first=5)]),
        RolloutBatch(1, 1, [make_group(1.0, 0.0, first=9)]),
        RolloutBatch(2, 2, [make_group(0.0, 0.0, first=5), make_group(0.0, 1.0, first=3)]),
        RolloutBatch(3, 3, [make_group(1.0, 0.0, first=13)]),
        RolloutBatch(4, 4, [make_group(0.0, 1.0, 0.0, first=17)]),
        RolloutBatch(0, 0, [make_group(0.0, 0.0, first=21)]),
        RolloutBatch(1, 1, [make_group(1.0, 0.0, first=23)]),
    ]


@pytest.fixture(scope="module")
def directory(batches, tiny_model, tmp_path_factory, forks):
    """What a run leaves, one that goes on after iteration 2 of 5, and one that was killed before it did."""
    at = tmp_path_factory.mktemp("resuming")
    forks.call(go_on_alike, tiny_model, batches, at)
    return at


@pytest.fixture(scope="module")
def otherwise(directory, batches, tiny_model, forks):
    forks.call(go_on_otherwise, tiny_model, batches, directory)
    return directory


@pytest.fixture(scope="module")
def end(directory):
    def of(name: str, ranks: int = 2) -> dict[str, torch.Tensor]:
        result = torch.load(f"{directory / name}.arpo.fsdp{ranks}.0", weights_only=True)
        assert result["version"] == 5
        return result["weights"]

    return of


@pytest.mark.parametrize("name", ["again", "killed"])
def test_on_the_same_ranks_it_ends_bit_for_bit_alike_also_after_a_kill_in_a_checkpoint(directory, end, name):
    assert_same(end(name), end("alone"))
    left = (directory / "left").read_text().split("\n")
    assert sorted(left) == ["iteration_000002.ckpt", "iteration_000003.ckpt.partial"]  # by the kill


@pytest.mark.long
@pytest.mark.usefixtures("otherwise")
def test_moments_go_to_the_host_and_back_bit_for_bit_and_other_ranks_end_alike(end):
    assert_same(end("from host"), end("alone"))  # iterations 3 and 4 of 5 with moments on the host
    forgot, on_four_and_one = end("forgot"), end("one", 1)
    for name, weight in end("alone").items():
        assert_close(on_four_and_one[name], weight, rtol=0, atol=1e-6)
    # without the moments it would end elsewhere
    assert max((forgot[name] - weight).abs().max() for name, weight in end("alone").items()) > 1e-5


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, weight in other.items():
        assert torch.equal(one[name], weight), name


@pytest.mark.long
def test_before_the_first_step_of_the_optimizer_there_are_no_moments_to_go_on_with(otherwise):
    paths = [f"{otherwise / name}.scarce.fsdp2.0" for name in ("idle", "idle again")]
    assert_same(*(torch.load(path, weights_only=True)["weights"] for path in paths))


def test_every_rank_wrote_its_part_and_the_names_are_those_of_parameters(directory):
    folder = directory / "alone" / "iteration_000005.ckpt"
    parts = [f"__{rank}_0.distcp" for rank in (0, 1)]
    assert {path.name for path in folder.iterdir()} == {*parts, ".metadata", REST, CHECKSUMS}
    first, second = ((folder / part).stat().st_size for part in parts)
    assert first == pytest.approx(second, rel=0.2)


@pytest.mark.parametrize("file", ["__1_0.distcp", ".metadata", REST, CHECKSUMS])
@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
def test_a_damaged_folder_is_passed_over(directory, tmp_path, file, damage):
    older, newer = tmp_path / "iteration_000001.ckpt", tmp_path / "iteration_000002.ckpt"
    for copy in (older, newer):
        shutil.copytree(directory / "alone" / "iteration_000005.ckpt", copy)
    content = bytearray((newer / file).read_bytes())
    content[len(content) // 2] ^= 1
    match damage:
        case "torn":
            (newer / file).write_bytes(content[: len(content) // 2])
        case "flipped":
            (newer / file).write_bytes(content)
        case "gone":
            (newer / file).unlink()
    assert is_valid(older)
    assert not is_valid(newer)
    assert newest_checkpoint(tmp_path) == older


def test_one_process_reads_the_policy_of_a_folder(directory, end, tiny_model):
    policy = Policy(tiny_model)
    load_policy(policy, directory / "alone" / "iteration_000005.ckpt")
    assert_same(dict(policy.named_parameters()), end("alone"))
