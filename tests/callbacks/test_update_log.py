"""The file that every update leaves for the viewer."""

import pytest
import torch

from arpo.callbacks.update_log import UpdateLog
from arpo.errors import ConfigError
from arpo.rollout.updates import read_update, update_path
from tests.callbacks.support import IdleModule, fit


class Watched(IdleModule):
    """Notes in which iterations it was asked to measure what came after."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        if self.measures_after:
            self.asked.append(batch.iteration)


def test_every_iteration_leaves_what_it_learned_from(tmp_path, make_collector):
    stale = update_path(tmp_path / "trajectories", 5)  # of a run that goes on from an earlier iteration
    stale.parent.mkdir(parents=True)
    stale.touch()
    collector = make_collector(start=False)
    fit(tmp_path, collector, [UpdateLog()], iterations=2, module=Watched())
    assert not stale.exists()
    for iteration in range(2):
        record = read_update(update_path(tmp_path / "trajectories", iteration))
        assert (record.iteration, record.policy_version) == (iteration, iteration)
        members = [member for group in record.groups for member in group.members]
        stored = {t.id: t for t in collector.runtime.store.read("train", iteration)}
        assert set(members) == set(stored)
        assert record.offsets.tolist() == [0, *torch.tensor([stored[m].action_tokens for m in members]).cumsum(0)]
        first = len(record.groups[0].members)
        assert record.advantages.tolist() == [*range(first), *(10 + n for n in range(len(members) - first))]


@pytest.mark.parametrize(("every", "asked"), [(2, [0, 1, 3]), (0, [])])
def test_the_policy_is_asked_again_after_the_first_update_and_every_few(tmp_path, make_collector, every, asked):
    module = Watched()
    callback = UpdateLog(after_every_n_iterations=every)
    fit(tmp_path, make_collector(start=False), [callback], iterations=4, module=module)
    assert module.asked == asked


def test_a_negative_number_is_refused():
    with pytest.raises(ConfigError, match="after_every_n_iterations"):
        UpdateLog(after_every_n_iterations=-1)
