"""Every metric against the float64 oracle, in both kernels, whatever the cut into tiles."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.metrics import measure
from parity.metrics.record import plain_numbers
from tests.metrics import strategies as draw
from tests.metrics.oracle import DTYPES, Oracle

CLOSE = {"rel": 1e-6, "abs": 1e-300}


def both(test):
    """Run a property over pairs, kernels and chunk sizes; the fused kernel sees the dtypes it knows."""
    numpy = st.tuples(draw.pairs(), st.just("numpy"))
    fused = st.tuples(draw.pairs(dtypes=draw.FUSED), st.just("fused"))
    return settings(max_examples=60, deadline=None)(given(numpy | fused, draw.chunks)(test))


def measured(case, chunk, **options):
    (golden, device), engine = case
    return measure(golden, device, engine=engine, chunk=chunk, **options), Oracle(golden, device)


@both
def test_absolute_errors_match_the_oracle(case, chunk):
    metrics, oracle = measured(case, chunk)
    assert metrics.count == oracle.e.size
    if metrics.count:
        assert metrics.max_abs == pytest.approx(np.abs(oracle.e).max(), **CLOSE)
        assert metrics.mean_abs == pytest.approx(np.abs(oracle.e).mean(), **CLOSE)


@both
def test_relative_l2_matches_the_oracle(case, chunk):
    metrics, oracle = measured(case, chunk)
    assert metrics.rel_l2 == pytest.approx(oracle.rel_l2(), **CLOSE)


@both
def test_cosine_distance_matches_the_oracle_in_extended_precision(case, chunk):
    metrics, oracle = measured(case, chunk)
    tiny = 1e-15 if 4 * (oracle.e**2).sum() <= (oracle.g**2).sum() else 1e-12
    assert metrics.cosine_distance == pytest.approx(oracle.cosine_distance(), rel=1e-6, abs=tiny)


@both
def test_ulp_histogram_counts_every_finite_pair_in_its_bucket(case, chunk):
    metrics, oracle = measured(case, chunk, ulps=True)
    ulps = oracle.ulps()
    expected = np.bincount([u.bit_length() for u in ulps], minlength=65)
    assert metrics.ulps.histogram == tuple(expected)
    assert metrics.ulps.largest == min(max(ulps, default=0), 2**63 - 1)
    assert sum(metrics.ulps.histogram) == metrics.count


@both
def test_worst_element_holds_the_largest_error(case, chunk):
    metrics, oracle = measured(case, chunk)
    worst = metrics.worst_element
    if not metrics.count:
        assert worst is None
        return
    golden, device = case[0]
    assert (worst.golden, worst.device) == (float(golden[worst.index]), float(device[worst.index]))
    assert abs(worst.device - worst.golden) == pytest.approx(np.abs(oracle.e).max(), **CLOSE)


@both
def test_rows_match_the_oracle_for_every_number_of_row_axes(case, chunk):
    ndim = case[0][0].ndim
    for row_axes in (None, *range(ndim + 1)):
        metrics, oracle = measured(case, chunk, row_axes=row_axes)
        expected = oracle.rows_rel_l2(max(ndim - 1, 0) if row_axes is None else row_axes)
        np.testing.assert_allclose(metrics.rows.rel_l2, expected, rtol=1e-6)
        if metrics.count:
            assert metrics.worst_row.rel_l2 == pytest.approx(expected.max(), **CLOSE)
            assert expected[metrics.worst_row.index] == pytest.approx(expected.max(), **CLOSE)


@both
def test_nonfinite_elements_are_counted_and_located(case, chunk):
    metrics, _ = measured(case, chunk)
    g, d = (side.astype(np.float64) for side in case[0])
    agree = (g == d) | (np.isnan(g) & np.isnan(d)) | (np.isfinite(g) & np.isfinite(d))
    found = metrics.nonfinite
    assert (found.golden_nan, found.golden_inf) == (np.isnan(g).sum(), np.isinf(g).sum())
    assert (found.device_nan, found.device_inf) == (np.isnan(d).sum(), np.isinf(d).sum())
    assert found.mismatches == np.count_nonzero(~agree)
    assert found.first == (tuple(np.argwhere(~agree)[0].tolist()) if not agree.all() else None)


@both
def test_constant_sides_are_flagged(case, chunk):
    metrics, oracle = measured(case, chunk)
    several = oracle.g.size > 1
    device = case[0][1]
    assert metrics.golden_constant == bool(several and np.ptp(oracle.g) == 0)
    finite = device.astype(np.float64)[np.isfinite(device.astype(np.float64))]
    assert metrics.device_constant == bool(several and np.ptp(finite) == 0)


def as_json(metrics):
    """Everything measured, as strict JSON."""
    rows = {"table": metrics.rows.table.tolist(), "rel_l2": metrics.rows.rel_l2.tolist()}
    return json.dumps(plain_numbers({**asdict(metrics), "rows": rows, "cosine": metrics.cosine}), allow_nan=False)


@both
def test_no_metric_is_ever_nan_and_all_of_it_is_strict_json(case, chunk):
    metrics, _ = measured(case, chunk, ulps=True)
    assert '"nan"' not in as_json(metrics)


@settings(max_examples=60, deadline=None)
@given(draw.pairs(), draw.chunks, st.integers(1, 3))
def test_threads_change_nothing(pair, chunk, threads):
    alone = measure(*pair, chunk=chunk, threads=1, engine="numpy", ulps=True)
    assert as_json(measure(*pair, chunk=chunk, threads=threads, engine="numpy", ulps=True)) == as_json(alone)


@pytest.mark.parametrize("golden", DTYPES, ids=str)
@pytest.mark.parametrize("device", DTYPES, ids=str)
def test_a_long_row_crosses_block_and_chunk_boundaries(golden, device):
    random = np.random.default_rng(7)
    values = random.standard_normal((3, 5003))
    pair = values.astype(golden), (values + 1e-3 * random.standard_normal(values.shape)).astype(device)
    oracle = Oracle(*pair)
    buckets = np.bincount([u.bit_length() for u in oracle.ulps()], minlength=65)
    for chunk in (1000, 2048, 5003, 1 << 20):
        for engine in ("numpy", "fused") if {golden, device} <= set(draw.FUSED) else ("numpy",):
            metrics = measure(*pair, chunk=chunk, engine=engine, ulps=True)
            assert metrics.rel_l2 == pytest.approx(oracle.rel_l2(), **CLOSE)
            assert metrics.worst_element.abs == pytest.approx(np.abs(oracle.e).max(), **CLOSE)
            assert metrics.ulps.histogram == tuple(buckets)
