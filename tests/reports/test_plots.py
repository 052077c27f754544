"""Where marks stand, and how figures are written."""

from __future__ import annotations

from math import inf, nan

import pytest

from parity.gates.acceptance_interval import mean_limits
from parity.nightly.records import HeatMap, Landmarks
from parity.reports.page.figures import figure, legend, level, seconds, signed
from parity.reports.page.heatmap import _picture
from parity.reports.page.plots import DrawingSize, Scale, round_steps, trend


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00"),
        (0.97, "0.97"),
        (44.44, "44.4"),
        (221.2, "221"),
        (1.2e-6, "1.2e-6"),
        (-0.08, "−0.08"),
        (None, "–"),
        (inf, "infinite"),
        (nan, "not a number"),
    ],
)
def test_figures_have_three_digits(value, text):
    assert figure(value) == text


def test_durations_and_differences_have_their_unit():
    assert [seconds(0.00339), seconds(21.1), seconds(264)] == ["3.39 ms", "21.1 s", "4.4 min"]
    assert signed(-0.083) == "−8.3%"


def test_colours_change_at_the_policys_bounds_and_a_value_without_size_has_its_own():
    assert [level(x, "x noise") for x in (0.5, 1.5, 1.51, 3.0, 3.01, 1e9)] == ["h0", "h2", "h3", "h3", "h4", "h6"]
    assert [level(x, "relative L2") for x in (1e-5, 1.1e-5)] == ["h2", "h3"]
    assert level(inf, "x noise") == level(nan, "x noise") == "hx"
    assert [shade for shade, _ in legend("x noise")] == ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "hx"]


def test_a_heat_map_draws_runs_of_one_colour_and_leaves_gaps():
    one = HeatMap(
        family="f",
        mode="local",
        unit="x noise",
        layers=(0, 1),
        positions=(0, 4, 8, 12),
        x=((0.9, 0.9, None, 5.0), (None,) * 4),
    )
    picture = _picture(one, [{"verdict": "fail", "bad_rows": 0, "first": None}], Landmarks())
    assert picture.paths == (("h1", "M0 0h2v1h-2z"), ("h4", "M3 0h1v1h-1z"))
    assert picture.says == "f, fail: largest 5.00 x noise in layer 0 from position 12"
    assert [(line.middle, line.largest, line.position) for line in picture.lines] == [
        ("0.90", "5.00", "12"),
        ("no row", "", ""),
    ]


def test_a_scale_keeps_marks_inside_and_has_round_ticks():
    scale = Scale(1.0, 5.0, width=100, margin=10)
    assert [scale(x) for x in (0, 1, 3, 5, 9)] == [10, 10, 50, 90, 90]
    assert round_steps(0, 1.57) == [0, 0.5, 1.0, 1.5]
    assert round_steps(3, 3) == [3]


def test_a_trend_marks_the_night_of_the_change_and_its_band():
    drawn = trend([1.0, 1.0, 5.0], (0.9, 1.1), 2, DrawingSize(width=109, height=50))
    (_, y0), (x1, y1), (x2, y2) = drawn.points
    assert x1 < drawn.change < x2 and y2 < y0 == y1
    assert drawn.band[0] <= y0 <= drawn.band[0] + drawn.band[1]
    assert trend([1.0]).points[0][1] == trend([1.0, 1.0]).points[0][1], "a flat line is in the middle"
    assert trend([1.0, inf]).points[1][1] == 4.0 and trend([nan]).points


def test_a_prompts_limits_hold_its_mean_and_one_round_says_nothing():
    low, high = mean_limits([1, 2, 5, 1, 3], 1, 5)
    assert 1 <= low < 2.4 < high <= 5
    assert mean_limits([2], 1, 5) == (1, 5)
