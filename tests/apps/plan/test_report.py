"""What helps a run that does not fit: settings alone, and the fewest together."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from arpo.apps.plan.costs import Serving
from arpo.apps.plan.hardware import GIB
from arpo.apps.plan.report import LARGEST_SET, MOST_ATTEMPTS, Plan, advise
from tests.apps.plan.test_command import PLAN

PARTS = {"parameters": 6.0, "optimizer": 8.0, "activations": 12.0}
LEFT = {
    "offloaded": {"optimizer": 0.0},
    "checkpointed": {"activations": 0.5},
    "sharded": {"parameters": 0.5, "optimizer": 0.5},
    "adapters": {"optimizer": 0.1, "parameters": 0.5},
    "shorter": {"activations": 0.5},
    "spent": {"parameters": 1.5},
}
"""The share of each part that a setting leaves, the least loss first."""


def world(memory_gib: float, tried: list[Sequence[str]], *, serves: bool = True) -> Callable[[Sequence[str]], Plan]:
    def attempt(settings: Sequence[str]) -> Plan | None:
        tried.append(tuple(settings))
        if "broken" in settings:
            return None
        peak = Counter({part: gib * GIB for part, gib in PARTS.items()})
        for name in settings:
            for part, left in LEFT.get(name, {}).items():
                peak[part] *= left
        fits = serves or "split" in settings
        serving = Serving(1.0, 0.0, 1.0, 1.0, 1.0 if fits else -1.0, int(bool(fits)), 1.0)
        case = replace(PLAN.case, gpu=replace(PLAN.case.gpu, memory_gib=memory_gib))
        return replace(PLAN, case=case, peak=peak, cache_gib=0.0, reserve_gib=0.0, serving=serving)

    return attempt


@pytest.mark.parametrize(
    ("memory_gib", "expected"),
    [
        (16.0, "adapters"),  # 3 + 0.8 + 12
        (12.0, "offloaded checkpointed"),  # 6 + 0 + 6; with adapters it would fit too, at a greater loss
        (9.0, "offloaded checkpointed sharded"),  # 3 + 0 + 6
        (6.0, "offloaded checkpointed sharded shorter"),  # 3 + 0 + 3
    ],
)
def test_the_fewest_settings_that_fit_are_told_and_of_these_the_least_loss(memory_gib, expected):
    attempt = world(memory_gib, tried := [])
    (header, *rows), said = advise(attempt([]), [*LEFT, "broken"], attempt)
    assert header[0] == "setting"
    told = [name for name, _, _ in rows]
    if len(expected.split()) == 1:
        assert (told[0], said) == (expected, "each setting alone")
        assert rows[0][1:] == ("15.8 GiB", attempt([expected]).verdict())
    else:
        assert (told[-1], said) == (expected, "each setting alone, and the fewest found to fit together")
        assert len(tried) == 1 + len(LEFT) + 1 + 1  # one set was enough
    assert "spent" not in told


def test_where_no_set_fits_that_is_said_and_an_engine_that_does_not_fit_needs_room():
    attempt = world(1.0, tried := [])
    rows, said = advise(attempt([]), list(LEFT), attempt)
    assert len(rows) == 1 + 3
    assert said == f"each setting alone; no set of up to {LARGEST_SET} of those that are known was found to fit"
    assert len(tried) == 1 + len(LEFT)  # none was expected to
    attempt = world(18.0, [], serves=False)
    rows, _ = advise(attempt([]), [*LEFT, "split"], attempt)
    assert rows[-1][0] == "offloaded split"


def test_a_part_that_is_nearly_nothing_at_the_first_peak_rules_no_set_out():
    peaks = {
        (): {"optimizer": 30.0, "temporaries": 0.03},
        ("offloaded",): {"optimizer": 10.0, "temporaries": 20.0},  # the peak is elsewhere then
        ("adapters",): {"optimizer": 8.0, "temporaries": 18.0},
        ("offloaded", "adapters"): {"optimizer": 2.0, "temporaries": 12.0},
    }
    usual = world(16.0, [])

    def attempt(settings: Sequence[str]) -> Plan:
        peak = Counter({part: gib * GIB for part, gib in peaks[tuple(settings)].items()})
        return replace(usual([]), peak=peak)

    rows, _ = advise(attempt([]), ["offloaded", "adapters"], attempt)
    assert rows[-1][:2] == ("offloaded adapters", "14.0 GiB")


def test_one_hundredth_of_a_share_is_a_setting():
    plan = beside(20.0, [])(["offloaded", "checkpointed"])
    assert plan is not None
    for gib in (23.5, 39.4, 79.2, 139.8):
        case = replace(plan.case, gpu=replace(plan.case.gpu, memory_gib=gib))
        own = replace(plan, case=case, serving=plan.serving.with_share(0.5 * gib), engine_gib=0.5 * gib)
        room = replace(own, reserve_gib=0.508 * gib - 12.0)  # 0.49 is left
        assert room.troubles()
        found = room.divided()
        assert found is not None
        assert room.left_share == 0.49
        assert found.serving.share_gib == pytest.approx(0.49 * gib)


def test_sets_of_which_plans_are_made_are_few():
    usual = world(25.0, tried := [])

    def attempt(settings: Sequence[str]) -> Plan | None:
        return replace(usual(settings), reserve_gib=99.0) if settings else usual(settings)

    advise(replace(usual([]), reserve_gib=0.0), list(LEFT), attempt)
    assert len([settings for settings in tried if len(settings) > 1]) == MOST_ATTEMPTS


def beside(memory_gib: float, tried: list[Sequence[str]]) -> Callable[[Sequence[str]], Plan | None]:
    """Plans of a run whose engine has 20 GiB of the GPU of its trainer: 4 of weights and workspace, 2 a context."""
    without = world(memory_gib, tried)

    def attempt(settings: Sequence[str]) -> Plan | None:
        plan = without(settings)
        serving = Serving(20.0, 0.0, 3.0, 1.0, 16.0, 8, 2.0)
        return plan and replace(plan, engine_gib=20.0, serving=serving, share_key="share")

    return attempt


@pytest.mark.parametrize(
    ("memory_gib", "expected"),
    [
        (40.0, "share=0.35"),  # 40 - 26 = 14 GiB: five contexts
        (30.0, "offloaded share=0.4"),  # 30 - 18 = 12: of 26 no context would fit
        (20.0, "offloaded checkpointed share=0.4"),  # 20 - 12 = 8: two contexts; of 18 none
        (12.0, "offloaded checkpointed sharded share=0.25"),  # 12 - 9 = 3 is too little
    ],
)
def test_an_engine_gets_what_the_trainer_leaves_with_the_settings_beside_it(memory_gib, expected):
    attempt = beside(memory_gib, tried := [])
    rows, said = advise(attempt([]), list(LEFT), attempt)
    together = {names: verdict for names, _, verdict in rows[1:]}
    if memory_gib == 12.0:  # the next set, of 3 + 0 + 3 GiB, would be of five
        assert said.startswith("each setting alone; no set of up to 4")
        return
    assert expected in together
    assert together[expected].startswith("It fits: ")
    assert not any("share" in name for names in tried for name in names)  # it needs no simulation
    alone = len(expected.split()) == 1
    assert said == "each setting alone" + ("" if alone else ", and the fewest found to fit together")


def test_two_settings_are_found_of_which_neither_trains_nor_serves_alone():
    """A shorter context lets the trainer fit, and its engine serve, only where the share shrinks with it."""
    attempt = beside(30.0, [])
    rows, _ = advise(attempt([]), ["shorter", "spent"], attempt)
    assert rows[-1][0] == "shorter share=0.33"  # 30 - 20 = 10 GiB
    rows, said = advise(attempt([]), ["spent"], attempt)
    assert "no set" in said
