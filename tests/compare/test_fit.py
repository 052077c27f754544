"""Scale and bias: seen where they are, not seen where rounding only looks like them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.compare.rows import HALF_ULP
from parity.compare.sketch_line import line_fit
from parity.compare.statistics import LEAST, SIGMAS, LineFit, beyond, clustered, fit
from parity.metrics import sums as at

RNG = np.random.default_rng(5)


def tensor(rows: int = 400, columns: int = 64) -> np.ndarray:
    """A golden whose rows differ in size by a hundred."""
    return (RNG.normal(size=(rows, columns)) * np.geomspace(0.1, 10, rows)[:, None]).astype(np.float32)


def noisy(golden: np.ndarray, relative: float = 0.004) -> np.ndarray:
    size = np.sqrt((golden**2).mean(axis=1, keepdims=True))
    return golden + (relative * size * RNG.normal(size=golden.shape)).astype(np.float32)


def seen(golden: np.ndarray, device: np.ndarray, floor: np.ndarray | None = None) -> tuple[float, float]:
    return beyond(fit(golden, device), fit(golden, noisy(golden) if floor is None else floor))


@pytest.mark.parametrize("columns", [False, True])
def test_sums_of_rows_have_the_line_of_their_elements(columns):
    """A row of zeros and one that is not finite among them: neither has a part in it."""
    golden = tensor(30, 8).astype(np.float64)
    golden[7], size = 0, np.sqrt((golden**2).mean(axis=1, keepdims=True))
    device = 1.003 * noisy(golden) + 0.002 * size
    device[4], device[7] = np.nan, 0.1
    error, table = device - golden, np.zeros((30, at.WIDTH))
    table[:, at.N], table[:, at.G], table[:, at.E] = 8, golden.sum(axis=1), error.sum(axis=1)
    products = (error**2, golden**2, golden * error)
    table[:, at.EE], table[:, at.GG], table[:, at.GE] = (part.sum(axis=1) for part in products)
    line, whole = line_fit(table, 8, columns), fit(golden, device)
    assert (line.scale, line.bias, line.noise) == pytest.approx((whole.scale, whole.bias, whole.noise), rel=1e-4)
    size[[4, 7]] = np.inf
    golden[4], error[4] = 0, 0
    x, e = golden / size, error / size
    left = e - line.scale * x - line.bias
    slope = (left * (x - x.mean())).sum(axis=1) / (x.size * x.var())
    shared = np.sqrt((left**2).mean() / 8) if columns else 0
    errors = (clustered(part, line.noise) for part in (slope, left.sum(axis=1) / x.size - x.mean() * slope))
    assert (line.scale_error, line.bias_error) == pytest.approx([np.hypot(one, shared) for one in errors], rel=1e-6)


@pytest.mark.parametrize(
    ("errors", "noise", "scale", "bias"),
    [((3e-3, 4e-3), 0, 1.9, 3.7), ((3e-3, 4e-3), 0.1, 0.95, 3.7), ((0, 0), 0, 0.0095 / LEAST, 0.0185 / LEAST)],
)
def test_what_a_device_is_off_beyond_the_floor_is_in_standard_errors_of_both(errors, noise, scale, bias):
    device = LineFit(-0.0105, 0.0205, errors[0], errors[1], 9)
    floor = LineFit(0.001, -0.002, errors[1], errors[0], noise)
    assert beyond(device, floor) == pytest.approx((scale, bias))
    assert beyond(floor, device) == (0, 0)


def test_a_clean_device_shows_neither():
    golden = tensor()
    assert max(max(seen(golden, noisy(golden))) for _ in range(50)) < SIGMAS


def test_a_scale_of_1_001_shows_and_is_no_bias():
    golden = tensor()
    scale, bias = seen(golden, 1.001 * noisy(golden))
    assert scale > SIGMAS > bias


def test_a_bias_shows_and_is_no_scale():
    golden = tensor()
    size = np.sqrt((golden**2).mean(axis=1, keepdims=True))
    scale, bias = seen(golden, noisy(golden) + np.float32(0.001) * size)
    assert bias > SIGMAS > scale


def test_the_fit_is_the_least_squares_line_of_standardised_rows():
    golden = tensor(30, 8)
    device = noisy(golden)
    size = np.sqrt((golden.astype(np.float64) ** 2).mean(axis=1, keepdims=True))
    slope, intercept = np.polyfit((golden / size).ravel(), (device / size).ravel(), 1)
    found = fit(golden, device)
    assert found.scale == pytest.approx(slope - 1, abs=1e-6) and found.bias == pytest.approx(intercept, abs=1e-6)


def test_an_error_that_every_row_shares_is_no_bias():
    golden = tensor()
    size = np.sqrt((golden**2).mean(axis=1, keepdims=True))
    column = RNG.normal(size=golden.shape[1]).astype(np.float32) * np.float32(0.004)
    assert seen(golden, noisy(golden) + size * column)[1] < SIGMAS


def test_what_the_reference_does_itself_is_no_fault():
    golden = tensor()
    assert seen(golden, 1.001 * noisy(golden), floor=1.001 * noisy(golden))[0] < SIGMAS


@pytest.mark.parametrize("shape", [(1, 64), (2, 64), (400, 1), (1, 1)])
def test_few_rows_or_columns_convict_nobody_of_noise(shape):
    golden = tensor(*shape)
    for _ in range(200):
        assert max(seen(golden, noisy(golden))) < SIGMAS


def test_rounding_once_is_neither():
    golden = tensor(2000)
    rounded = golden.astype(ml_dtypes.bfloat16)
    assert max(seen(golden, rounded, floor=golden)) < SIGMAS


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_constant_golden_has_no_scale(value):
    golden = np.full((10, 8), value, np.float32)
    found = fit(golden, golden + np.float32(0.25))
    assert found.scale == 0.0 and np.isfinite([found.bias, found.scale_error, found.bias_error]).all()


def test_nan_is_left_to_the_structure():
    golden = tensor(10, 8)
    device = golden.copy()
    device[3, 3], device[4, 4] = np.nan, np.inf
    assert fit(golden, device).scale == 0.0


def test_the_smallest_standard_error_is_half_of_half_a_ulp_at_five():
    golden = tensor(50)
    scale, _ = seen(golden, np.float32(1 + HALF_ULP / 2) * golden, floor=golden)
    assert scale == pytest.approx(SIGMAS, rel=0.01)


@pytest.mark.parametrize(("share", "convicted"), [(2.0, False), (10.0, True)])
def test_a_noisy_floor_excuses_a_shrinkage_of_second_order_and_no_more(share, convicted):
    golden, noise = tensor(4000), 0.02
    device = np.float32(1 - share * noise**2) * noisy(golden, noise / 4)
    assert (seen(golden, device, floor=noisy(golden, noise))[0] > SIGMAS) == convicted


def test_a_device_s_own_noise_excuses_no_scale():
    golden = tensor(4000)
    size = np.float32(1 - 0.03**2)
    assert seen(golden, size * noisy(golden, 0.03), floor=noisy(golden))[0] > SIGMAS


@pytest.mark.parametrize("spread", [0.0, 1e-4, 0.01])
@pytest.mark.parametrize("columns", [False, True])
def test_sums_of_a_golden_that_is_nearly_constant_have_no_scale(spread, columns):
    """A variance below a millionth says nothing of a slope: none is fitted, and its error is counted at a millionth."""
    golden = 0.5 + 0.5 * spread * np.tile([1.0, -1.0], (10, 4))
    error = 0.25 + 0.01 * RNG.normal(size=(10, 8))
    table = np.zeros((10, at.WIDTH))
    table[:, at.N], table[:, at.G], table[:, at.E] = 8, golden.sum(axis=1), error.sum(axis=1)
    products = (error**2, golden**2, golden * error)
    table[:, at.EE], table[:, at.GG], table[:, at.GE] = (part.sum(axis=1) for part in products)
    line, size = line_fit(table, 8, columns), np.sqrt((golden**2).mean(axis=1, keepdims=True))
    x, e = golden / size, error / size
    slope = ((e * x).mean() - x.mean() * e.mean()) / x.var() if spread > 0.001 else 0.0
    left = e - slope * x - (e.mean() - slope * x.mean())
    steps = (left * (x - x.mean())).sum(axis=1) / max(x.size * x.var(), 1e-6 * x.size)
    shared = np.sqrt((left**2).mean() / 8) if columns else 0
    parts = (steps, left.sum(axis=1) / x.size - x.mean() * steps)
    assert (line.scale, line.bias) == pytest.approx((slope, e.mean() - slope * x.mean()), rel=1e-6, abs=1e-9)
    errors = [np.hypot(clustered(part, line.noise), shared) for part in parts]
    assert (line.scale_error, line.bias_error) == pytest.approx(errors, rel=1e-4)


@pytest.mark.parametrize(("spread", "sloped"), [(1e-4, False), (0.01, True)])
def test_elements_of_a_golden_that_is_nearly_constant_have_no_scale_either(spread, sloped):
    golden = 0.5 + 0.5 * spread * np.tile([1.0, -1.0], (10, 4))
    device = golden + 0.25 + 0.01 * np.tile([1.0, -1.0], (10, 4))
    assert (fit(golden, device).scale != 0) is sloped


def test_nothing_but_rows_that_are_not_finite_is_no_line():
    table = np.zeros((3, at.WIDTH))
    table[:, at.GG], table[:, at.EE] = 8, np.inf
    assert (line_fit(table, 8, True).scale, line_fit(table, 8, True).bias, line_fit(table, 8, True).noise) == (0, 0, 0)


def test_a_standard_error_of_three_clusters_is_theirs_and_of_two_what_coherent_ones_have():
    assert clustered(np.array([0.1, 0.1]), 30.0) == pytest.approx(30 / 2**0.5)
    assert clustered(np.full(2, 1e-9), 30.0) == pytest.approx(30 / 2**0.5)
    assert clustered(np.full(3, 1e-9), 30.0) < 1
    assert clustered(np.full(3, 1e3), 30.0) == pytest.approx(30 / 3**0.5)
