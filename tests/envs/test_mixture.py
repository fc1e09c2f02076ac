"""A mixture: tasks, pools and limits of each part, and a part that fails while others go on."""

import asyncio

import pytest

from arpo.envs.fake import fake_tasks
from arpo.envs.fake_phone import FakePhone, fake_phone_tasks
from arpo.envs.mixture import MixedPool, mixed_tasks
from arpo.errors import ConfigError, EnvError
from arpo.run import rules
from arpo.run.build import build
from arpo.run.check import default_eval_lists
from arpo.run.resume import differences
from arpo.run.rules import check_rules
from arpo.types import Task
from tests.composed import composed, plain
from tests.envs.planned_faults import Fault
from tests.envs.pool.support import fail, faulty_desktop, make_pool, solve, until, with_pool

DESKTOP, PHONE = mixed_tasks({"desktop": fake_tasks(3)}), mixed_tasks({"phone": fake_phone_tasks(4)})


class Phone(FakePhone):
    """Knows nothing of a mixture, and can neither be built nor reset while there is no power."""

    power = True

    def __init__(self):
        super().__init__()
        self.reset(fake_phone_tasks(1)[0])

    def reset(self, task):
        if not Phone.power:
            raise EnvError("reset", "no power")
        assert task in fake_phone_tasks(4), task
        return super().reset(task)


def mixture(phone, **more):
    return MixedPool({"desktop": make_pool(size=2), "phone": phone, **more}, 4)


def test_tasks_name_their_part_and_have_its_limit_unless_they_have_their_own():
    own = [Task("a/1", "click", "a", {"x": 1}), Task("a/2", "", "b", max_steps=3)]
    assert mixed_tasks({"desktop": own, "phone": [Task("1", "")]}, {"desktop": 9}) == [
        Task("desktop/a/1", "click", "desktop/a", {"x": 1}, max_steps=9),
        Task("desktop/a/2", "", "desktop/b", max_steps=3),
        Task("phone/1", "", "phone/"),
    ]
    assert len({task.id for task in mixed_tasks({"left": own, "right": own})}) == 4
    with pytest.raises(ConfigError, match="max_steps has tablet, and the parts are desktop"):
        mixed_tasks({"desktop": own}, {"tablet": 3})
    with pytest.raises(ConfigError, match="without a slash, got 'a/b'"):
        mixed_tasks({"a/b": []})


def test_each_part_plays_its_own_tasks_under_its_own_deadlines_and_one_that_hangs_holds_nothing_up():
    async def scenario(pool):
        stuck = asyncio.create_task(fail(pool, Task("toy/fake/click/0", "", config=DESKTOP[0].config)))
        assert await asyncio.gather(*(solve(pool, task) for task in (*DESKTOP, *PHONE))) == [1.0] * 7
        assert (await stuck).kind == "timeout"
        with pytest.raises(
            ConfigError, match="'fake/click/0' is of no part of this mixture, which has desktop, phone"
        ):
            await solve(pool, fake_tasks(1)[0])
        await until(lambda: pool.states()["idle"] == 4)

    hangs = make_pool(faulty_desktop(Fault("hang", "step", attempts=1)), step_timeout_s=0.2)
    pool = mixture(make_pool(Phone), toy=hangs)
    with_pool(pool, scenario)
    counters = pool.counters()
    assert [counters[f"env/{place}episodes"] for place in ("", "desktop/", "phone/", "toy/")] == [7, 3, 4, 0]
    assert [counters[f"env/{part}/faults"] for part in pool.parts] == [0, 0, 1]


def test_a_part_that_loses_all_environments_fails_alone_and_comes_back(monkeypatch):
    async def scenario(pool):
        monkeypatch.setattr(Phone, "power", False)
        assert (await fail(pool, PHONE[0])).kind == "reset"
        await until(lambda: pool.states()["lost"] == 1)
        failed = await asyncio.gather(*(fail(pool, task) for task in PHONE))
        assert [(error.kind, str(error)[:10]) for error in failed] == [("crash", "part phone")] * 4
        assert await asyncio.gather(*(solve(pool, task) for task in DESKTOP)) == [1.0] * 3
        await until(lambda: not pool.states()["lost"] and not pool._restarts)  # it was started again, in vain
        monkeypatch.undo()
        assert (await fail(pool, PHONE[0])).kind == "crash"  # and is once more
        await until(lambda: pool.states()["idle"] == 3)
        return await solve(pool, PHONE[0])

    assert with_pool(mixture(make_pool(Phone, reset_timeout_s=0.4)), scenario) == 1.0


def test_a_mixture_begins_with_every_part_and_ends_where_all_are_lost_or_it_is_closed(monkeypatch, caplog):
    async def scenario(pool):
        monkeypatch.setattr(Phone, "power", False)
        await asyncio.gather(*(fail(pool, task) for task in (DESKTOP[0], PHONE[0])))
        await until(lambda: pool.states()["lost"] == 2)
        for refusal in ("no environment is left", "not running"):
            with pytest.raises(ConfigError, match=refusal):
                await solve(pool, PHONE[0])
            await pool.close()

    parts = {part: make_pool(Phone, reset_timeout_s=0.3) for part in ("desktop", "phone")}
    with_pool(MixedPool(parts, 2), scenario)
    with pytest.raises(EnvError, match="no power"):  # it is still off
        with_pool(pool := mixture(make_pool(Phone)), None)
    assert "part phone does not come up" in caplog.text
    assert sum(pool.states().values()) == 0


def test_a_mixture_with_fewer_episodes_at_once_than_environments_says_so(caplog):
    mixture(make_pool(Phone))
    assert caplog.text == ""
    mixture(make_pool(Phone, size=3))
    assert "size=4 episodes at once leave some of the 5 environments of the parts idle" in caplog.text


def test_the_example_is_a_pool_and_a_sampler_of_two_parts_that_are_judged_apart():
    cfg = composed("experiment=smoke_mixture", "env.parts.phone.size=2")
    pool, tasks = build(cfg.env), build(cfg.datamodule.sampler).tasks
    assert ({part: own.size for part, own in pool.parts.items()}, pool.size) == ({"desktop": 8, "phone": 2}, 10)
    assert {task.max_steps for task in tasks.values() if task.id.startswith("desktop/")} == {4}
    assert default_eval_lists(cfg.tasks) == ["train", "held_out_desktop", "held_out_phone"]
    for part in pool.parts:
        judged = build(cfg.callbacks.evaluation.tasks[f"held_out_{part}"])
        assert all(task.id.startswith(f"{part}/") and task.id not in tasks for task in judged)
    warm = composed(f"experiment={cfg.tiny.warmstart}", model=None)
    assert (warm.tasks, warm.prompt) == (cfg.tasks, cfg.prompt)
    assert warm.rollout.settings.max_steps == cfg.rollout.settings.max_steps


def test_pages_desktops_and_toys_have_their_own_deadlines_and_ask_for_the_image_of_the_desktops():
    cfg = composed("env=mixture", "tasks=mixture", "env.parts.office.make_env.image=mine", "curriculum=shares")
    check_rules(cfg, [rules.tasks_suit_the_environment])
    assert plain(cfg)["requires"] == {"docker": True, "image": "mine"}
    assert (cfg.env.size, cfg.env.parts.pages.step_timeout_s, cfg.env.parts.office.step_timeout_s) == (28, 20, 60)
    assert cfg.datamodule.sampler.shares == {"pages": 2, "office": 1, "toys": 1}


@pytest.mark.parametrize(
    ("word", "refusal"),
    [
        ("~env.parts.phone", r"train\.parts\.phone: env\.parts has no part of this name, but desktop"),
        ("env.parts.phone.make_env._target_=arpo.envs.fake.Fake", r"parts\.phone are tasks of fake_phone, .* fake"),
        ("rollout.settings.max_steps=5", r"train\.max_steps\.phone=7 is more than rollout\.settings\.max_steps=5"),
        ("tasks=fake", "tasks.train are tasks of fake, which the environment mixture cannot run"),
        ("env=fake", "tasks.train are tasks of mixture, which the environment fake cannot run"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_starts(word, refusal):
    with pytest.raises(ConfigError, match=refusal):
        check_rules(composed("env=fake_mixture", "tasks=fake_mixture", word), [rules.tasks_suit_the_environment])


def test_a_run_goes_on_with_other_numbers_of_environments_and_not_with_other_environments():
    number, kind = "env.parts.phone.size=3", "+env.parts.desktop.make_env.width=200"
    run, more, other = (plain(composed("env=fake_mixture", *words)) for words in ((), (number,), (kind,)))
    assert list(differences(run, more)) == []
    assert [key for key, *_ in differences(run, other)] == ["env.parts.desktop.make_env.width"]
