"""Curves over iterations, and their picture."""

import pytest
from PIL import Image

from arpo.apps.comparison.curves import COLORS, Panel, curves, draw, standard_error

ROWS_OF_TWO = [
    {"arm": "ARPO", "iteration": 1, "success": 0.2},
    {"arm": "ARPO", "iteration": 1, "success": "0.4"},  # as from a file
    {"arm": "ARPO", "iteration": 2, "success": 0.5},
    {"arm": "GRPO", "iteration": 1, "success": 0.1},
]


def test_a_curve_has_the_values_of_all_seeds_and_a_band_of_their_standard_error():
    assert curves(ROWS_OF_TWO, "success") == {"ARPO": {1: [0.2, 0.4], 2: [0.5]}, "GRPO": {1: [0.1]}}
    # s of 0.2 and 0.4 is 0.1414214, over sqrt(2) it is 0.1; one value has none
    assert [standard_error(values) for values in ([0.2, 0.4], [0.5])] == [pytest.approx(0.1), 0]


@pytest.mark.parametrize("nothing", [None, "", float("nan"), "nan", float("inf")])
def test_what_was_not_measured_is_left_out(nothing):
    rows = [*ROWS_OF_TWO, {"arm": "ARPO", "iteration": 1, "success": nothing}, {"arm": "other", "iteration": 1}]
    assert curves(rows, "success") == curves(ROWS_OF_TWO, "success")


def test_a_picture_has_a_panel_a_metric_and_shows_all_arms(tmp_path):
    draw(ROWS_OF_TWO, [Panel("success", "success (%)", 100)], "A study", tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as one:
        assert one.format == "PNG"
        colors = {color for _, color in one.convert("RGB").getcolors(one.width * one.height)}
    assert tuple(bytes.fromhex(COLORS[0][1:])) in colors
    draw(ROWS_OF_TWO, [Panel("success", "a"), Panel("success", "b")], "A study", tmp_path / "two.png")
    with Image.open(tmp_path / "two.png") as two:
        assert two.width == 2 * one.width
