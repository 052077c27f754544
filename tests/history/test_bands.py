"""The statistics behind the verdicts, against SciPy's and against what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from parity.history import statistics, steps
from parity.history.series import HALF_WIDTHS
from parity.policy import shipped


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape)


def test_more_figures_need_more_and_more_nights_need_less():
    few, many = statistics.limits(100), statistics.limits(25_000)
    assert (many >= few).all() and many[0] > few[0]
    assert (np.diff(many) <= 0).all() and many[-1] == statistics.OUTSIDE


def test_a_limit_spends_what_it_may():
    level = statistics.ALARMS / (1_000 * statistics.RUN)
    found = statistics.limits(1_000)
    for nights in (1, 2, 3, 4):
        clean = 0.95 * stats.t.sf(found[nights - 1], 3) + 0.05 * stats.norm.sf(found[nights - 1] / 10)
        assert clean**nights == pytest.approx(level, rel=0.05 * nights)


def test_a_scale_is_no_less_than_any_of_its_views():
    values = np.ones((20, 1))
    assert statistics.scale(values)[0] == 0
    values[3] = 7.0  # one outlier of 20 nights that are the same
    assert statistics.scale(values)[0] == pytest.approx(1.0)
    assert np.quantile(statistics.scale(random(14, 20_000)) * (1 + statistics.SHORT / 14), 0.05) == pytest.approx(
        1, abs=0.05
    )


def test_trends_are_as_scipy_has_them():
    values = random(25, 4) + np.arange(25)[:, None] * [0, 0.05, 0.1, -0.2]
    nights = np.arange(25)
    pairs = 25 * 24 / 2
    for place, found in enumerate(statistics.kendall(values)):
        rising = stats.kendalltau(nights, values[:, place], variant="b").statistic * pairs
        assert found == pytest.approx((rising - np.sign(rising)) / np.sqrt(25 * 24 * 55 / 18))
        slope, *_ = stats.theilslopes(values[:, place], nights)
        assert statistics.line(values[:, place])[0] == pytest.approx(slope)


def test_a_split_is_where_the_level_changes():
    values = random(30) + np.repeat([0, 6], [17, 13])
    assert statistics.split(values) == 17


def test_levels_follow_each_other():
    values = np.repeat([1.0, 2.0, 1.0, 3.0], [15, 4, 11, 2])
    found = steps.levels(values, steps.BandRule(lambda centre: 0.1, np.float64(0), statistics.limits(100)))
    assert [(one.first, one.end, one.centre) for one in found] == [
        (0, 15, 1.0),
        (15, 19, 2.0),
        (19, 30, 1.0),
        (30, 32, 3.0),
    ]


def test_the_least_widths_leave_the_bounds_room():
    """A band wider than the bound would leave nothing to tell that the gates do not."""
    import tomllib

    row = tomllib.loads(shipped()["bfloat16"].read_text())["row"][-1]
    for name in ("l2", "worst_row", "largest", "scale", "bias"):
        widths = [one.absolute for (_, unit), one in HALF_WIDTHS[name].items() if unit != "relative"]
        assert max(widths) < row[name]["ok"]
