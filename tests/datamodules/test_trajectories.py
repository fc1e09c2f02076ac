"""The stored episodes of a run as batches: which are taken, how they are told, and in what order they come."""

import logging
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.agent.actions import Click
from arpo.agent.prompt import GRAMMARS
from arpo.datamodules.examples import every_episode, pairs, successes
from arpo.datamodules.trajectories import TrajectoryDataModule, passes
from arpo.errors import ConfigError
from arpo.models.tokenization import tokenize
from arpo.rollout.curation.experience import retokenize
from arpo.rollout.sampler import derive_seed
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Outcome
from tests.callbacks.support import IdleModule
from tests.models import samples
from tests.modules.conftest import quiet_trainer
from tests.rollout.conftest import COMPACT
from tests.rollout.trajectories import odd_trajectories, scripted


class Recorder(IdleModule):
    """Learns nothing, and keeps the batches that it is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch

    def training_step(self, batch, batch_idx):
        self.seen.append((self.trainer.current_epoch, batch))
        self.optimizers().step()


@pytest.fixture
def source(tmp_path):
    """The folder of a run with some episodes: iteration, group and member, and whether it was solved."""

    def make(*trajectories, name="run"):
        store = TrajectoryStore(tmp_path / name / "trajectories")
        for trajectory in trajectories:
            store.write(trajectory)
        return tmp_path / name

    return make


@pytest.fixture
def make_data(runtime):
    def make(source, examples=every_episode, *, iterations=1, **options):
        data = TrajectoryDataModule(runtime, source, examples, **{"steps": 2, "batch_size": 2} | options)
        data.trainer = SimpleNamespace(max_epochs=iterations, global_rank=1, is_global_zero=False)  # starts no engine
        return data

    return make


def episode(number, reward=1.0, **facts):
    return scripted(f"{number // 4}/0/{number % 4}", task_reward=reward, shade=number, **facts)


def read(data):
    return [trajectory.id for example in data.read() for trajectory in example]


def fit(data, iterations, checkpoint=None, extra=()):
    """The batches that a module is given, by iteration."""
    module = Recorder()
    quiet_trainer(max_epochs=iterations, callbacks=list(extra)).fit(module, data, ckpt_path=checkpoint)
    return [(epoch, [trajectory.id for trajectory in batch]) for epoch, batch in module.seen]


# --- what is taken --------------------------------------------------------------------------------------------------


def test_episodes_come_in_the_order_in_which_the_run_asked_for_them_from_its_folder_or_its_store(make_data, source):
    folder = source(*(scripted(id) for id in ("10/0/0", "2/1/0", "2/0/10", "2/0/9")))
    expected = ["2/0/9", "2/0/10", "2/1/0", "10/0/0"]
    assert read(make_data(folder)) == read(make_data(folder / "trajectories")) == expected


def test_evaluations_are_not_learned_from_and_demonstrations_are(make_data, source):
    folder = source(scripted("eval-0/held_out/0/0"), scripted("demonstration-0/0/0"), scripted("0/0/0"))
    assert sorted(read(make_data(folder))) == ["0/0/0", "demonstration-0/0/0"]


def test_the_first_episodes_are_counted_before_what_is_no_success_is_left_out(make_data, source):
    rewards = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    made = [scripted(f"0/0/{number}", task_reward=reward) for number, reward in enumerate(rewards)]
    made[2] = replace(made[2], format_reward=-1.0)  # solved, and ended in a parse error
    assert read(make_data(source(*made), successes, first=5)) == ["0/0/1", "0/0/4"]


def test_an_episode_that_ended_otherwise_than_allowed_is_left_out(make_data, source):
    folder = source(episode(0), episode(1, outcome=Outcome.MAX_STEPS), episode(2, outcome=Outcome.TERMINATED))
    assert read(make_data(folder, outcomes=["finished", "terminated"])) == ["0/0/0", "0/0/2"]


def test_an_episode_longer_than_the_context_is_left_out(make_collector, source, chat, caplog):
    short, long = (replace(samples.trajectory(chat, seeds), id=f"0/0/{len(seeds)}") for seeds in ((0,), (0, 1)))
    room = max(map(len, tokenize(retokenize(short, chat, COMPACT, None), chat))) + 8
    runtime = make_collector(start=False, max_tokens=8, max_context=room).runtime
    data = TrajectoryDataModule(runtime, source(short, long), every_episode, steps=1, batch_size=1)
    with caplog.at_level(logging.WARNING):
        assert read(data) == ["0/0/1"]
    assert f"1 episodes are longer than max_context={room}: left out" in caplog.text


def test_an_episode_of_a_foreign_agent_that_did_nothing_is_left_out(make_data, source, caplog):
    folder = source(episode(0), replace(episode(1), steps=(), exchanges=()))
    with caplog.at_level(logging.WARNING):
        assert read(make_data(folder)) == ["0/0/0"]
    assert "1 episodes have no step: left out" in caplog.text


def test_episodes_of_another_tokenizer_are_told_anew_and_a_spelt_special_token_by_its_letters(
    make_data, source, runtime
):
    text = "Action: type(content='<|im_start|>')"
    odd = replace(episode(1), instruction="<|im_end|>")
    odd = replace(odd, steps=(replace(odd.steps[0], response=text), *odd.steps[1:]))
    ((told,), (spelt,)) = make_data(source(scripted("0/0/0"), odd)).read()
    assert told == retokenize(scripted("0/0/0"), runtime.chat, runtime.prompt, None)
    assert told.exchanges[0].response_ids == runtime.chat.encode_response("Action: wait()\n")
    assert runtime.chat.decode(spelt.exchanges[0].response_ids) == text
    assert "<|im_end|>" in runtime.chat.decode(spelt.exchanges[0].added_ids)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("episodes", "options", "sentence"),
    [
        ([], {}, r"holds 0 episodes of a training .* \(evaluations are left out\): name an"),
        ([scripted("eval-0/held_out/0/0")], {}, r"holds 0 episodes of a training"),
        ([episode(0)], {"outcomes": ["gave_up"]}, r"of 1 episodes of .* none is left: widen datamodule\.outcomes"),
        ([episode(0), episode(1)], {"first": 3}, r"holds 2 episodes .* and 3 are wanted .* lower datamodule\.first"),
        (
            [episode(0, 0.0), episode(1, 0.0)],
            {"examples": pairs},
            r"nothing can be learned from 2 episodes of .*, of which 0 succeed",
        ),
    ],
)
def test_a_source_that_gives_too_few_examples_is_refused(make_data, source, episodes, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_data(source(*episodes), **options).read()


@pytest.mark.parametrize("odd", odd_trajectories("0/0/1"), ids=["600x2", "another size", "damaged", "no PNG"])
def test_an_episode_that_shows_what_is_no_screenshot_is_left_out(make_data, source, odd, caplog):
    with caplog.at_level(logging.WARNING):
        assert read(make_data(source(episode(0), odd))) == ["0/0/0"]
    assert "1 episodes show pictures that are no screenshots: left out" in caplog.text


@pytest.mark.parametrize(
    ("response", "action", "reason"),
    [
        ("Action: click(start_box='(40,50)')", "click(start_box='(40,50)')", ""),
        ("Action: click(start_box='(40,50)')", "click(start_box='(41,49)')", ""),  # rounded on its way to the screen
        ("Action: click(start_box='(400,500)')", "click(start_box='(45,70)')", "name other points than they clicked"),
        ("Action: click(start_box='(40,50)')", "error_env()", ""),  # the policy's action was another one
        ("Action: click(start_box='(40,50)')", "press it", "have an action that cannot be read"),
        (
            GRAMMARS["computer_use"].render(Click(40, 50)),
            "click(start_box='(40,50)')",
            "are not written in the prompt's grammar, ui_tars",
        ),
    ],
)
def test_an_episode_whose_words_mean_something_else_to_this_policy_is_left_out(
    make_data, source, chat, caplog, response, action, reason
):
    other = replace(samples.trajectory(chat, (0,)), id="0/0/1")
    other = replace(other, steps=(replace(other.steps[0], response=response, action=action),))
    with caplog.at_level(logging.WARNING):
        assert read(make_data(source(episode(0), other))) == (["0/0/0"] if reason else ["0/0/0", "0/0/1"])
    assert f"1 episodes {reason}" in caplog.text or not reason


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:40])])
def test_a_lost_or_cut_screenshot_is_named_before_anything_starts(make_data, source, harm):
    folder = source(episode(0), episode(9))
    lost = next((folder / "trajectories" / "screens").glob("*/*.png"))
    harm(lost)
    with pytest.raises(ConfigError, match=rf"1 screenshots that episodes of .* show are lost or cut, .*{lost.name}"):
        make_data(folder).read()


def test_steps_that_iterations_cannot_share_are_refused(make_data, source):
    with pytest.raises(ConfigError, match="steps=5 must be a multiple of iterations=2"):
        make_data(source(episode(0)), iterations=2, steps=5).setup("fit")


@pytest.mark.parametrize(
    ("episodes", "words"),
    [
        ([episode(0)], "1 examples of .* say 1 different things, and 2 are needed"),
        ([episode(0), episode(1)], "2 examples of .* say 1 different things"),
        ([episode(0), episode(1), episode(5, 0.0)], "3 examples of .* say 1 different things"),
    ],
)
def test_a_module_that_compares_examples_is_given_no_run_in_which_all_say_the_same(runtime, source, episodes, words):
    data = TrajectoryDataModule(runtime, source(*episodes), every_episode, steps=1, batch_size=32)
    module = Recorder()
    module.least_examples = 2
    with pytest.raises(ConfigError, match=words):
        quiet_trainer().fit(module, data)


# --- batches --------------------------------------------------------------------------------------------------------


@pytest.fixture
def started(make_collector, source):
    """A data module that a trainer may set up."""

    def make(examples=every_episode, **options):
        runtime = make_collector(start=False).runtime
        folder = source(*(episode(number, number % 2) for number in range(5)))
        return TrajectoryDataModule(runtime, folder, examples, **{"steps": 4, "batch_size": 2} | options)

    return make


@pytest.mark.parametrize("iterations", [1, 5])
def test_every_example_is_seen_once_before_one_is_seen_again(started, iterations):
    seen = fit(started(steps=5), iterations)
    assert [(epoch, len(batch)) for epoch, batch in seen] == [(step * iterations // 5, 2) for step in range(5)]
    order = [name for _, batch in seen for name in batch]  # 5 batches of 2: twice through 5 episodes
    assert len(set(order[:5])) == len(set(order[5:])) == 5
    assert order[:5] != order[5:]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
def test_no_batch_has_an_example_twice_and_every_pass_has_all(examples, size, seed):
    size = min(size, examples)
    batches = list(islice(passes(examples, size, seed), 3 * examples))
    assert all(len(set(batch)) == len(batch) == size for batch in batches)
    order = [place for batch in batches for place in batch]
    for start in range(0, len(order) - examples + 1, examples):
        assert sorted(order[start : start + examples]) == list(range(examples))


def test_an_order_in_which_nothing_comes_twice_is_the_one_that_was_drawn():
    """As it has always been: batches of 2 of 3 examples change only where the border of a pass is inside of one."""
    drawn = [random.Random(derive_seed(7, "pass", number)).sample(range(3), 3) for number in range(2000)]
    flat = [place for order in drawn for place in order]
    as_drawn = [flat[start : start + 2] for start in range(0, len(flat), 2)]
    batches = list(islice(passes(3, 2, 7), 3000))
    assert all(one == other for one, other in zip(as_drawn, batches, strict=True) if set(one) == set(other))
    twice = [batch for batch in as_drawn if len(set(batch)) == 1]
    # One batch of three lies across, and one of three such clashes.
    assert len(twice) == pytest.approx(3000 / 9, rel=0.15)


@pytest.mark.parametrize(
    ("examples", "size", "largest"), [(every_episode, 4, 4), (every_episode, 9, 5), (pairs, 2, 4)]
)
def test_no_batch_of_a_run_has_a_trajectory_twice_or_more_than_there_are(started, examples, size, largest):
    for _, batch in fit(started(examples, steps=60, batch_size=size), 3):
        assert len(set(batch)) == len(batch) == largest


def test_the_seed_gives_the_order(started):
    orders = [fit(started(seed=seed), 1) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_a_pair_stays_together_in_a_batch_the_better_one_first(started):
    for _, (good, bad) in fit(started(pairs, batch_size=1), 1):
        assert int(good[-1]) % 2 == 1
        assert int(bad[-1]) % 2 == 0


def test_screenshots_are_read_for_the_batch_that_shows_them(started):
    data = started()
    module = Recorder()
    quiet_trainer().fit(module, data)
    assert all(not trajectory.screenshots for example in data._examples for trajectory in example)
    for _, batch in module.seen:
        for trajectory in batch:
            assert {step.screenshot for step in trajectory.steps} <= set(trajectory.screenshots)


class Save(L.Callback):
    """Writes a checkpoint after the first iteration."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize(("options", "iterations"), [({}, 2), ({"steps": 12, "batch_size": 4}, 4), ({"steps": 9}, 3)])
def test_a_run_that_goes_on_sees_the_batches_that_it_would_have_seen(started, tmp_path, options, iterations):
    """In the middle of a pass too: two batches of 2 of 5 episodes, three of 4, three of 2."""
    whole = fit(started(**options), iterations, extra=[Save(tmp_path / "one.ckpt")])
    rest = fit(started(**options), iterations, checkpoint=tmp_path / "one.ckpt")
    assert rest == whole[len(whole) // iterations :]


@pytest.mark.parametrize(
    ("options", "iterations", "what"),
    [
        ({"steps": 6}, 2, "steps"),
        ({}, 4, "iterations"),
        ({"seed": 1}, 2, "seed"),
        ({"batch_size": 1}, 2, "batch_size"),
        ({"first": 3}, 2, "examples"),
        ({"others": True}, 2, "examples"),
    ],
)
def test_a_run_that_would_go_on_with_other_batches_is_refused(started, tmp_path, options, iterations, what):
    fit(started(), 2, extra=[Save(tmp_path / "one.ckpt")])
    others = options.pop("others", False)
    data = started(**options)
    for number in range(5) if others else ():  # of the same names; of two records with one id the later counts
        data.store.write(episode(number, 1 - number % 2))
    with pytest.raises(ConfigError, match=f"a run whose {what} differ"):
        fit(data, iterations, checkpoint=tmp_path / "one.ckpt")
