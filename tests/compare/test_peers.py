"""Other tools' statistics agree with the plain definition of each."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.rows import StageRows
from parity.compare.statistics import NXDI_ATOL, STATISTICS, Measurement
from parity.metrics import measure
from parity.policy import OWN, Row, Tolerance
from parity.policy import STATISTICS as NAMES
from parity.stages import declared

RNG = np.random.default_rng(2)
GOLDEN = RNG.normal(size=(12, 2000)).astype(np.float32)
ROW = Row(stages="*", judge="none", reason="only measured")


def value(
    statistic: str, device: np.ndarray, golden: np.ndarray = GOLDEN, floor: np.ndarray | None = None, row=ROW
) -> float:
    """A statistic of a device tensor; the floor is 0.01 off everywhere unless given."""
    floor = golden + np.float32(0.01) if floor is None else floor
    label = np.arange(len(golden))
    rows = StageRows(declared(1, 1)["target.logits"], golden, device, floor, label, label, label)
    measured = measure(golden, device, row_axes=1, ulps=True)
    return STATISTICS[statistic](Measurement(rows, measured, measure(golden, floor, row_axes=1), row))


def test_every_statistic_a_policy_may_bound_has_one_maker():
    assert set(NAMES) == set(OWN) | set(STATISTICS)


def test_pcc_is_numpys_correlation_and_ignores_scale_and_bias():
    device = 3 * GOLDEN + 1 + 0.5 * RNG.normal(size=GOLDEN.shape).astype(np.float32)
    expected = np.corrcoef(GOLDEN.ravel().astype(np.float64), device.ravel().astype(np.float64))[0, 1]
    assert value("pearson_distance", device) == pytest.approx(1 - expected, abs=1e-9)
    assert value("pearson_distance", 3 * GOLDEN + 1) == pytest.approx(0, abs=1e-9)


def test_pcc_of_a_constant_is_not_a_pass():
    assert value("pearson_distance", np.full_like(GOLDEN, 0.5)) == 1.0


def test_the_r_ratio_is_one_norm_over_another():
    assert value("r_ratio", GOLDEN - np.float32(0.02)) == pytest.approx(2, rel=1e-4)
    assert value("r_ratio", GOLDEN + 1, floor=GOLDEN) == np.inf
    assert value("r_ratio", GOLDEN, floor=GOLDEN) == 0.0


def test_tolerance_is_assert_closes():
    row = replace_row(tolerances={"float32": Tolerance(rtol=0.01, atol=0.001)})
    edge = GOLDEN + (0.001 + 0.01 * np.abs(GOLDEN)).astype(np.float32)
    assert value("beyond_tolerance", edge, row=row) == pytest.approx(1, rel=1e-3)


def replace_row(**changes) -> Row:
    return ROW.model_copy(update=changes)


def test_top_errors_are_over_the_largest_of_the_top_and_without_the_shift():
    golden = np.sort(GOLDEN, axis=1)
    device = golden.copy()
    device[0, -3] += 0.05
    expected = (0.05 - NXDI_ATOL) / golden[0, -1]
    assert value("top5_error", device + 7, golden) == pytest.approx(expected, rel=0.01)
    device[1, 10] += 0.05
    assert value("top1000_error", device, golden) == pytest.approx(expected, rel=0.01)
    assert value("all_error", device, golden) > 0


def test_the_share_of_the_top_that_is_missed():
    assert value("top5_missed", GOLDEN) == 0.0
    assert value("top1_missed", -GOLDEN) == 1.0


def test_ulp_statistics_count_distances():
    device = GOLDEN.copy()
    device[0, 0] = np.nextafter(np.nextafter(device[0, 0], np.float32(9)), np.float32(9))
    assert value("ulp_max", device) == 2
    assert value("ulp_beyond", device) == pytest.approx(1 / GOLDEN.size)
    assert value("ulp_beyond", device, row=replace_row(ulp=3)) == 0


def test_a_nan_is_out_of_every_tolerance():
    device = GOLDEN.copy()
    device[3, 3] = np.nan
    row = replace_row(tolerances={"float32": Tolerance(rtol=0.01, atol=0.001)})
    assert value("beyond_tolerance", device, row=row) == np.inf
