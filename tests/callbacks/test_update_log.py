"""The file that every update leaves for the viewer."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from arpo.callbacks.update_log import UpdateLog, update_record
from arpo.errors import ConfigError
from arpo.modules.token_record import TokenRecord
from arpo.rollout.updates import read_update, update_path
from arpo.types import RolloutBatch
from tests.callbacks.support import IdleModule, fit, make_group, make_trajectory


class Watched(IdleModule):
    """Notes in which iterations it was asked to measure what came after."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        if self.measures_after:
            self.asked.append(batch.iteration)
        self.last_tokens = TokenRecord()
        self.last_tokens.weigh(
            judged((number, member, 0), [10.0 * number + member] * trajectory.action_tokens)
            for number, group in enumerate(batch.groups)
            for member, trajectory in enumerate(group.trajectories)
        )


def judged(key, advantages):
    return SimpleNamespace(key=key, advantages=torch.tensor(advantages))


def test_every_iteration_leaves_what_it_learned_from(tmp_path, make_collector):
    collector = make_collector(start=False)
    fit(tmp_path, collector, [UpdateLog()], iterations=2, module=Watched())
    for iteration in range(2):
        record = read_update(update_path(tmp_path / "trajectories", iteration))
        assert (record.iteration, record.policy_version) == (iteration, iteration)
        members = [member for group in record.groups for member in group.members]
        stored = {t.id: t for t in collector.runtime.store.read("train", iteration)}
        assert set(members) == set(stored)
        assert record.offsets.tolist() == [0, *torch.tensor([stored[m].action_tokens for m in members]).cumsum(0)]
        first = len(record.groups[0].members)
        assert record.advantages.tolist() == [*range(first), *(10 + n for n in range(len(members) - first))]


@pytest.mark.parametrize(("every", "asked"), [(2, [0, 1, 3]), (0, []), (1, [0, 1, 2, 3])])
def test_the_policy_is_asked_again_after_the_first_update_and_every_few(tmp_path, make_collector, every, asked):
    module = Watched()
    callback = UpdateLog(after_every_n_iterations=every)
    fit(tmp_path, make_collector(start=False), [callback], iterations=4, module=module)
    assert module.asked == asked


def test_a_run_that_goes_on_forgets_the_updates_that_it_takes_again(tmp_path, make_collector):
    stale = update_path(tmp_path / "trajectories", 5)
    stale.parent.mkdir(parents=True)
    stale.touch()
    fit(tmp_path, make_collector(start=False), [UpdateLog()], iterations=1, module=Watched())
    assert [path.name for path in stale.parent.iterdir()] == ["iteration_000000.safetensors"]


def test_a_negative_number_is_refused():
    with pytest.raises(ConfigError, match="after_every_n_iterations"):
        UpdateLog(after_every_n_iterations=-1)


def test_tokens_stand_in_the_order_of_trajectories_and_steps_and_what_is_unknown_is_nan():
    one, two = make_trajectory(["a", "b"], id="3/0/0"), make_trajectory(["a"], id="1/0/1")  # 6 and 3 tokens
    tokens = TokenRecord()
    tokens._rows = {"logprobs": {(0, 1, 0): torch.tensor([-1.0, -2.0, -3.0])}}
    tokens.weigh([judged((0, 0, 0), [0.0] * 6), judged((0, 1, 0), [1.5] * 3)])
    late = make_trajectory(["a"], id="2/0/0")
    batch = RolloutBatch(3, 4, [make_group(one, two, injected=(1,))], leftovers=[make_group(late)])
    record = update_record(batch, tokens)
    assert record.groups[0].members == ("3/0/0", "1/0/1")
    assert record.groups[0].injected == (1,)
    assert record.left_out == ("2/0/0",)
    assert record.offsets.tolist() == [0, 6, 9]
    assert record.numbers["logprobs"][6:].tolist() == [-1.0, -2.0, -3.0]
    assert np.isnan(record.numbers["logprobs"][:6]).all()


def test_the_sequences_of_a_window_are_put_one_after_the_other():
    from dataclasses import replace

    windowed = replace(make_trajectory(["a", "b"], id="3/0/0"), image_window=1)
    tokens = TokenRecord()
    tokens._rows = {"entropy": {(0, 0, 1): torch.tensor([4.0, 5.0, 6.0]), (0, 0, 0): torch.tensor([1.0, 2.0, 3.0])}}
    record = update_record(RolloutBatch(3, 3, [make_group(windowed)]), tokens)
    assert record.numbers["entropy"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
