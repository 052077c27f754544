"""Row floors and quantiles, against NumPy's own and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.rows import HALF_ULP, NOISY, pooled_ratio, quantile, row_floors, same_rows


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, NOISY, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_a_quantile_is_numpys(share, count):
    values = np.random.default_rng(count).exponential(size=count)
    assert quantile(values, share) == pytest.approx(np.quantile(values, share), rel=1e-12)


def test_a_quantile_beside_infinity_is_finite_up_to_the_last_finite_value():
    values = np.array([1.0, 2.0, np.inf])
    assert quantile(values, 0.5) == 2.0 and quantile(values, 0.6) == np.inf


def test_a_rows_floor_is_its_own_the_typical_or_half_a_ulp():
    floors = row_floors(np.array([0.0, 0.01, 0.02, 0.5]), np.array([False, False, False, True]))
    assert floors.tolist() == [0.01, 0.01, 0.02, 0.5]
    assert row_floors(np.zeros(3), np.zeros(3, bool)).tolist() == [HALF_ULP] * 3
    assert row_floors(np.array([1e-5, 0.3]), np.array([True, True])).tolist() == [HALF_ULP, 0.3]


def test_a_pooled_ratio_weighs_rows_by_their_size():
    error, floor, weight = np.array([0.1, 0.3]), np.array([0.1, 0.1]), np.array([3.0, 1.0])
    assert pooled_ratio(error, floor, weight) == pytest.approx(np.sqrt((0.03 + 0.09) / 0.04))
    assert pooled_ratio(np.array([np.inf]), np.array([1.0]), np.array([0.0])) == np.inf
    assert pooled_ratio(np.array([0.1]), np.array([0.1]), np.array([0.0])) == 0.0


def test_rows_are_the_same_in_every_element():
    one = np.arange(12.0).reshape(3, 2, 2)
    other = one.copy()
    other[1, 1, 0] += 1
    assert same_rows(one, other).tolist() == [True, False, True]
