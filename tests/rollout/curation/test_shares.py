"""Shares of parts: over many draws, in each iteration, and from a checkpoint on."""

import json
from collections import Counter

import pytest

from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.fake_phone import FakePhone, fake_phone_tasks
from arpo.envs.mixture import MixedPool, mixed_tasks, part_of
from arpo.envs.pool.pool import EnvPool
from arpo.errors import ConfigError
from arpo.rollout.curation.shares import SharedTasks
from arpo.rollout.sampler import TaskStatistics
from tests.envs.planned_faults import Fault
from tests.envs.pool.support import faulty_desktop
from tests.inference.scripted import ScriptedEngine

TASKS = mixed_tasks({"a": fake_tasks(3), "b": fake_tasks(8), "c": fake_phone_tasks(2)})
SHARES = {"a": 2, "b": 1.5, "c": 0.5}


def shared(shares=SHARES, seed=1):
    return SharedTasks(TASKS, 8, seed, shares=shares)


def drawn(sampler, count):
    return [sampler.next(TaskStatistics()).task.id for _ in range(count)]


def test_every_iteration_has_the_shares_and_each_part_has_epochs_of_its_own():
    ids = drawn(shared(), 400)
    for begin in range(0, 400, 8):
        assert Counter(map(part_of, ids[begin : begin + 8])) == {"a": 4, "b": 3, "c": 1}
    for part, size in (("a", 3), ("b", 8), ("c", 2)):
        own = [task_id for task_id in ids if part_of(task_id) == part]
        epochs = {tuple(own[begin : begin + size]) for begin in range(0, len(own) - size, size)}
        assert len(epochs) > 1
        assert all(len(set(epoch)) == size for epoch in epochs)
    uneven = drawn(shared({"a": 1, "b": 3.3, "c": 0.07}), 4370)
    assert Counter(map(part_of, uneven)) == {"a": 1000, "b": 3300, "c": 70}
    for wrong, refusal in (({"a": 1}, "shares has a, and .* parts a, b, c"), (SHARES | {"b": 0}, "be above 0")):
        with pytest.raises(ConfigError, match=refusal):
            shared(wrong)


def test_the_order_is_the_seeds_and_a_restored_sampler_goes_on_exactly():
    assert drawn(shared(), 30) == drawn(shared(), 30) != drawn(shared(seed=2), 30)
    sampler, restored = shared(), shared()
    drawn(sampler, 13)
    restored.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert drawn(restored, 50) == drawn(sampler, 50)


def test_an_iteration_goes_on_without_the_groups_of_a_part_that_fails(chat, make_collector):
    tasks = mixed_tasks({"desktop": fake_tasks(2), "phone": fake_phone_tasks(2), "toy": fake_tasks(2, seed=3)})
    makers = {"desktop": FakeDesktop, "phone": FakePhone, "toy": faulty_desktop(Fault("error", "reset"))}

    def make_pool(_, *, size, **settings):
        return MixedPool({part: EnvPool(make, size=1, **settings) for part, make in makers.items()}, size)

    waiting = ScriptedEngine(chat, lambda request: "Action: wait()")
    batch = make_collector(engine=waiting, make_pool=make_pool).collect(tasks, policy_version=0, iteration=0)
    assert [group.task for group in batch.groups] == tasks[:4]
    assert (batch.metrics["rollout/dropped_episodes"], batch.metrics["env/toy/faults"]) == (8, 24)  # three attempts
    assert batch.metrics["env/desktop/faults"] == batch.metrics["env/phone/faults"] == 0
