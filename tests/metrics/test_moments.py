"""The figures of one pair from its sums: against the same in float64 from the elements, and at their edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.metrics.moments import Moments, cosine_distance

RANDOM = np.random.default_rng(5)
GOLDEN = RANDOM.normal(3, 2, 400)
ERROR = RANDOM.normal(0.1, 1e-3, 400)


def moments(golden: np.ndarray, error: np.ndarray) -> Moments:
    """From the totals that a row table has: n, sums of golden and error, and of their products."""
    g, e = golden, error
    return Moments.of(np.array([g.size, g.sum(), e.sum(), 0, e @ e, g @ g, g @ e, 0]))


def test_every_sum_is_that_of_the_elements():
    found = moments(GOLDEN, ERROR)
    centred = GOLDEN - GOLDEN.mean()
    assert (found.n, found.golden_mean, found.error_mean) == (
        400,
        pytest.approx(GOLDEN.mean()),
        pytest.approx(ERROR.mean()),
    )
    assert found.variance == pytest.approx(centred @ centred)
    assert found.covariance == pytest.approx(centred @ ERROR, rel=1e-6)
    assert found.device_sq == pytest.approx((GOLDEN + ERROR) @ (GOLDEN + ERROR))
    assert found.dot == pytest.approx(GOLDEN @ (GOLDEN + ERROR))


@pytest.mark.parametrize(
    ("golden", "error", "doubtful"),
    [
        (GOLDEN, ERROR, False),
        (np.full(400, 3.0), GOLDEN, True),  # the golden alone is constant
        (GOLDEN, 5 - GOLDEN, True),  # the device alone is
        (GOLDEN, 1e-9 * ERROR - GOLDEN, True),  # the device is next to nothing
    ],
)
def test_a_side_that_cancels_is_doubtful_whichever_it_is(golden, error, doubtful):
    assert moments(golden, error).doubtful is doubtful


@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("size", [1e-6, 0.3, 0.49, 0.51, 1.0, 3.0])
def test_the_cosine_distance_is_that_of_the_vectors_for_small_errors_and_large_ones(size, scale):
    golden, error = scale * GOLDEN, RANDOM.normal(0, 1, 400)
    error *= size * np.linalg.norm(golden) / np.linalg.norm(error)
    true = golden.astype(np.longdouble)
    device = true + error
    due = 1 - true @ device / np.sqrt((true @ true) * (device @ device))
    assert cosine_distance(moments(golden, error)) == pytest.approx(float(due), rel=1e-5, abs=0)


def test_sums_that_overflow_leave_the_largest_doubt_of_a_direction():
    found = moments(GOLDEN, ERROR)
    assert cosine_distance(replace(found, dot=np.nan, error_sq=np.inf)) == 1.0


def test_a_device_much_smaller_than_its_golden_is_read_again_as_are_constant_sides():
    """Sums of the golden [1, -1, 2] and the device [1, -1, 1], then of one that nearly vanishes, or hardly varies."""
    plain = Moments(3, 2 / 3, -1 / 3, 6.0, 3.0, 1.0, -2.0, 4.0, 6 - 4 / 3, 0.0)
    assert not plain.doubtful
    assert replace(plain, device_sq=5e-7).doubtful
    assert replace(plain, variance=5e-7).doubtful
    assert replace(plain, device_sq=1 / 3).doubtful, "the device is its mean everywhere"
