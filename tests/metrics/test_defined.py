"""Degenerate inputs have the results the docstrings promise; wrong ones raise."""

from __future__ import annotations

from importlib.util import find_spec, module_from_spec
from math import inf

import ml_dtypes
import numpy as np
import pytest

from parity.metrics import measure, stream, sums
from tests.metrics.oracle import BFLOAT16

ENGINES = pytest.mark.parametrize("engine", ("numpy", "fused"))
ONES = np.ones((2, 3), np.float32)


@ENGINES
def test_equal_tensors_have_no_error(engine):
    metrics = measure(ONES * 3, ONES * 3, engine=engine, ulps=True)
    assert (metrics.rel_l2, metrics.cosine_distance) == (0.0, 0.0)
    assert metrics.ulps.histogram[0] == 6 and metrics.ulps.largest == 0


@ENGINES
def test_a_zero_golden_with_an_error_is_infinitely_wrong(engine):
    metrics = measure(ONES * 0, ONES, engine=engine)
    assert (metrics.rel_l2, metrics.cosine_distance) == (inf, 1.0)
    assert metrics.worst_row.rel_l2 == inf


@ENGINES
def test_two_zero_tensors_agree(engine):
    metrics = measure(ONES * 0, ONES * 0, engine=engine)
    assert (metrics.rel_l2, metrics.cosine_distance) == (0.0, 0.0)


@ENGINES
def test_a_zero_device_is_wrong_by_all_of_the_golden(engine):
    metrics = measure(ONES * 7, ONES * 0, engine=engine)
    assert (metrics.rel_l2, metrics.cosine_distance) == (1.0, 1.0)
    assert metrics.device_constant


@ENGINES
def test_a_constant_golden_is_told_from_a_device_that_varies(engine):
    metrics = measure(ONES * 0.1, ONES * np.float32(0.1) + np.arange(3, dtype=np.float32), engine=engine)
    assert metrics.golden_constant and not metrics.device_constant


@ENGINES
def test_ulps_are_counted_only_where_asked_for(engine):
    counted, plain = (measure(ONES, ONES * 1.5, engine=engine, ulps=ulps) for ulps in (True, False))
    assert plain.ulps is None and sum(counted.ulps.histogram) == 6
    assert {**vars(counted), "ulps": None, "rows": None} == {**vars(plain), "rows": None}
    assert (counted.rows.table == plain.rows.table).all()


@ENGINES
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_an_empty_tensor_gives_no_evidence(engine, shape):
    metrics = measure(np.empty(shape, np.float32), np.empty(shape, np.float32), engine=engine)
    assert (metrics.count, metrics.rel_l2, metrics.worst_element, metrics.worst_row) == (0, 0.0, None, None)


@ENGINES
def test_a_tensor_of_nans_gives_no_evidence_and_says_so(engine):
    metrics = measure(ONES * np.nan, ONES, engine=engine)
    assert (metrics.count, metrics.worst_element) == (0, None)
    assert (metrics.nonfinite.golden_nan, metrics.nonfinite.mismatches) == (6, 6)
    assert metrics.nonfinite.first == (0, 0)


@ENGINES
def test_the_same_infinity_on_both_sides_is_no_mismatch(engine):
    golden = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    assert measure(golden, golden, engine=engine).nonfinite.mismatches == 0
    assert measure(golden, -golden, engine=engine).nonfinite.mismatches == 2


@ENGINES
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_differences_beyond_float32_are_measured(engine, dtype):
    top = ml_dtypes.finfo(dtype).max
    golden = np.array([0, 0, top, top, 1], dtype)
    metrics = measure(golden, -golden, engine=engine)
    assert metrics.max_abs == pytest.approx(2.0 * float(top))
    assert metrics.mean_abs == pytest.approx(0.8 * float(top))
    assert metrics.worst_element.index == (2,)


@ENGINES
def test_bfloat16_far_apart_keeps_its_sums(engine):
    golden = np.array([2.0**20, 1.0078125, -(2.0**20)], BFLOAT16)
    device = np.array([1.0078125, 2.0**20, 1.0078125], BFLOAT16)
    apart = device.astype(np.float64) - golden.astype(np.float64)
    metrics = measure(golden, device, engine=engine)
    assert metrics.mean_abs == pytest.approx(np.abs(apart).mean(), rel=1e-6)
    assert metrics.rel_l2 == pytest.approx(np.linalg.norm(apart) / np.linalg.norm(golden.astype(np.float64)), rel=1e-6)


def test_float64_beyond_its_squares_is_out_of_bounds_and_not_nan():
    metrics = measure(np.array([1e200, 2e200]), np.array([-1e200, 1e308]))
    assert metrics.rel_l2 == inf and metrics.cosine_distance >= 0


@ENGINES
def test_a_scalar_is_one_row(engine):
    metrics = measure(np.float32(2), np.float32(1), engine=engine)
    assert (metrics.rel_l2, metrics.worst_element.index, metrics.worst_row.index) == (0.5, (), ())


@ENGINES
def test_ulps_count_in_the_coarser_dtype(engine):
    golden = np.array([1.0 + 2**-9], np.float32)
    device = np.array([1.0], BFLOAT16)
    metrics = measure(golden, device, engine=engine, ulps=True)
    assert (metrics.ulps.unit, metrics.ulps.largest) == ("bfloat16", 0)
    assert metrics.max_abs == 2**-9


@ENGINES
def test_opposite_signs_are_far_apart_in_ulps(engine):
    metrics = measure(np.array([2.0], np.float32), np.array([-2.0], np.float32), engine=engine, ulps=True)
    assert metrics.ulps.largest == 2**31 and metrics.ulps.histogram[32] == 1


def test_ulp_share_reads_the_histogram_at_its_bounds():
    ulps = measure(np.ones(4, np.float32), np.nextafter(np.ones(4, np.float32), np.float32(2)), ulps=True).ulps
    assert (ulps.share(0), ulps.share(1), ulps.share(3)) == (0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="no bucket bound"):
        ulps.share(2)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="golden has shape"):
        measure(np.ones(3), np.ones(4))


@pytest.mark.parametrize("row_axes", [3, -1])
def test_row_axes_must_fit(row_axes):
    with pytest.raises(ValueError, match="row axes"):
        measure(ONES, ONES, row_axes=row_axes)


def test_integers_are_sent_to_the_exact_metrics():
    with pytest.raises(TypeError, match="golden has dtype int64"):
        measure(np.arange(3), np.arange(3))


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="engine"):
        measure(ONES, ONES, engine="gpu")
    with pytest.raises(ValueError, match="fused"):
        measure(ONES.astype(np.float16), ONES, engine="fused")


def test_a_memory_mapped_pair_is_measured_without_reading_it_whole(tmp_path):
    pair = [np.memmap(tmp_path / side, np.float32, "w+", shape=(64, 128)) for side in "gd"]
    pair[1][:] = 1
    assert measure(*pair, chunk=512).mean_abs == 1.0


def test_numba_is_left_alone_until_there_is_enough_to_measure(monkeypatch):
    monkeypatch.setattr(stream, "_measured", 0)
    small = np.dtype(np.float32)
    assert stream.kernel(small, small, stream.WARM_UP - 1, "auto") is sums.fold
    assert stream.kernel(small, small, 1, "auto") is not sums.fold


def test_columns_that_move_are_refused_by_the_code_that_was_compiled_with_the_old_ones(monkeypatch):
    """Numba's cache is renewed by a change of fused.py alone: it would fill the columns of before."""
    source = find_spec("parity.metrics.fused")
    monkeypatch.setattr(sums, "AE", sums.E)
    with pytest.raises(ImportError, match="sums moved AE"):
        source.loader.exec_module(module_from_spec(source))


@ENGINES
def test_a_nan_hides_nothing_of_its_block(engine):
    golden = np.linspace(-3, 3, 12000).reshape(3, 4000).astype(BFLOAT16)
    device = (golden.astype(np.float32) * np.float32(1.5)).astype(BFLOAT16)
    device[1, 7], golden[2, 2500] = np.nan, np.inf
    finite = np.isfinite(golden) & np.isfinite(device)
    metrics = measure(golden, device, engine=engine)
    apart = (device.astype(np.float64) - golden.astype(np.float64))[finite]
    assert metrics.mean_abs == pytest.approx(np.abs(apart).mean(), rel=1e-6)
    assert (metrics.count, metrics.nonfinite.device_nan, metrics.nonfinite.mismatches) == (11998, 1, 2)
