"""Metrics of a few elements, each figure by hand: sums, places, ULPs, rows, degenerate pairs."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import ml_dtypes
import numpy as np
import pytest

from parity.metrics import ExactMetrics, UlpDistances, measure, measure_exact, stream, topk_overlap
from parity.metrics import sums as at
from parity.metrics.dtypes import distance, is_exact, is_float, is_float8, ordinals, unit_of
from parity.metrics.moments import Moments, cosine_distance, ratio, relative
from parity.metrics.record import NonFinite, plain_numbers
from parity.metrics.sums import Partial, fold

FLOAT32, FLOAT16, BFLOAT16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
GOLDEN = np.float32([[1, 2, 3], [4, nan, -6], [inf, 0, inf]])
DEVICE = np.float32([[1, 4, 2], [5, 5, -2], [inf, -1, nan]])


def test_a_tile_is_summed_row_by_row_over_what_is_finite_on_both_sides():
    part = fold(GOLDEN, DEVICE, FLOAT32)
    assert part.rows.tolist() == [
        [3, 6, 1, 3, 5, 14, 1, 2],
        [2, -2, 5, 5, 17, 52, -20, 4],
        [1, 0, -1, 1, 1, 0, 0, 1],
    ]
    assert part.counts[at.COUNTED].tolist() == [1, 2, 1, 1, 2]
    assert (part.counts[at.FIRST], part.counts[at.WORST]) == (4, 5)
    assert part.ulps.sum() == 6 and part.ulps[0] == 1 and fold(GOLDEN, DEVICE, None).ulps.sum() == 0
    empty = fold(GOLDEN[:0], DEVICE[:0], FLOAT32)
    assert empty.rows.shape == (0, 8) and empty.counts[at.WORST] == -1
    ends = np.float32([[-inf, inf, inf, nan, 1]])
    assert fold(ends, ends[:, [1, 0, 2, 3, 4]], None).counts[at.MISMATCHES] == 2
    assert fold(np.float32([[nan, 1]]), np.float32([[1, 1]]), None).counts[at.WORST] == 1
    same = Partial.empty(3)
    same.add(fold(GOLDEN[:1], GOLDEN[:1], None), 2, 0, 3)
    assert same.counts[at.WORST] == 6 and same.largest == 0
    lost = fold(GOLDEN[1:2, 1:2], DEVICE[1:2, 1:2], None)
    assert lost.counts[at.WORST] == -1 and lost.counts[at.FIRST] == 0 and lost.rows.tolist() == [[0.0] * 8]


def test_tiles_add_up_by_their_places():
    whole, tile = Partial.empty(4), fold(GOLDEN, DEVICE, FLOAT32)
    whole.add(tile, 1, 0, 6)
    assert whole.rows[0].tolist() == [0] * 8 and whole.rows[1:].tolist() == tile.rows.tolist()
    assert (whole.counts[at.FIRST], whole.counts[at.WORST], whole.largest) == (6 + 4, 6 + 5, 4)
    whole.add(tile, 1, 3, 6)
    assert whole.rows[1].tolist() == [6, 12, 2, 6, 10, 28, 2, 2] and whole.ulps[0] == 2
    assert whole.counts[at.COUNTED].tolist() == [2, 4, 2, 2, 4]
    assert (whole.counts[at.FIRST], whole.counts[at.WORST]) == (10, 11)  # the earlier one stays
    larger = fold(np.float32([[0, 0]]), np.float32([[0, 5]]), FLOAT32)
    whole.add(larger, 0, 2, 6)
    assert (whole.counts[at.WORST], whole.largest) == (2 + 1, 5) and whole.rows[0, at.MAX] == 5
    early = Partial.empty(1)
    early.counts[at.FIRST] = 0
    whole.add(early, 0, 1, 6)
    assert whole.counts[at.FIRST] == 1
    whole.add(early, 0, 0, 6)
    whole.add(early, 0, 5, 6)
    assert whole.counts[at.FIRST] == 0  # none is earlier than the very first element


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chunk", [1, 4, 7, 1000])
def test_a_pair_in_tiles_is_as_one(chunk, threads):
    random = np.random.default_rng(0)
    golden = random.normal(size=(4, 3, 5)).astype(np.float32)
    device = golden + np.float32(0.1) * random.normal(size=golden.shape).astype(np.float32)
    golden[2, 1, 3], device[1, 2, 4] = nan, inf
    for axes in (0, 1, 2, 3):
        whole = measure(golden, device, row_axes=axes, engine="numpy", ulps=True, threads=1)
        parts = measure(golden, device, row_axes=axes, engine="numpy", ulps=True, chunk=chunk, threads=threads)
        assert parts.rows.table == pytest.approx(whole.rows.table) and parts.worst_element == whole.worst_element
        assert parts.nonfinite == whole.nonfinite and parts.ulps == whole.ulps
    turned = measure(golden.T, device.T, row_axes=1, engine="numpy", chunk=chunk, threads=threads)
    assert turned.rel_l2 == pytest.approx(whole.rel_l2) and turned.rows.shape == (5,)


def test_rows_are_of_as_many_axes_as_are_told_and_by_default_all_but_the_last():
    golden = np.ones((2, 3, 4), np.float32)
    device = golden.copy()
    device[1, 2, 3], device[0, 1, 0] = 3, 2
    by_axes = [
        (None, (2, 3), (1, 2), 1.0), (2, (2, 3), (1, 2), 1.0), (1, (2,), (1,), 2 / 12**0.5),
        (0, (), (), 5**0.5 / 24**0.5), (3, (2, 3, 4), (1, 2, 3), 2.0),
    ]  # fmt: skip
    for axes, shape, index, error in by_axes:
        found = measure(golden, device, row_axes=axes, engine="numpy")
        assert found.rows.shape == shape and found.rows.rel_l2.shape == shape
        assert found.worst_row.index == index and found.worst_row.rel_l2 == pytest.approx(error)
        assert found.worst_element.index == (1, 2, 3) and found.max_abs == 2 and found.mean_abs == 3 / 24
        assert found.rms_abs == pytest.approx((5 / 24) ** 0.5)
        assert found.rows.count.sum() == found.count == found.size == 24
    flat = measure(golden[0, 0], device[0, 1], engine="numpy")
    assert flat.rows.shape == () and flat.rows.error_sq == 1 and flat.rows.golden_sq == 4 and flat.rows.max_abs == 1
    found = measure(golden, device, engine="numpy")
    assert found.cosine == pytest.approx(27 / (24 * 35) ** 0.5) and found.cosine + found.cosine_distance == 1
    for wrong in (4, -1):
        with pytest.raises(ValueError, match=f"an array of 3 axes has no {wrong} row axes"):
            measure(golden, device, row_axes=wrong)


def test_what_is_not_finite_is_counted_by_side_and_placed():
    found = measure(GOLDEN, DEVICE, engine="numpy")
    assert found.nonfinite == NonFinite(1, 2, 1, 1, 2, (1, 1))
    assert (found.count, found.size) == (6, 9) and found.mean_abs == 9 / 6
    assert (found.worst_element.index, found.worst_element.golden, found.worst_element.device) == ((1, 2), -6, -2)
    assert measure(GOLDEN[:1], DEVICE[:1], engine="numpy").nonfinite == NonFinite()
    nothing = measure(GOLDEN * np.float32(nan), DEVICE, engine="numpy")
    assert not any((nothing.max_abs, nothing.mean_abs, nothing.rms_abs, nothing.rel_l2))
    assert nothing.nonfinite.first == (0, 0)


def test_the_kernel_is_told_or_chosen_by_what_was_measured(monkeypatch):
    monkeypatch.setattr(stream, "_measured", 0)
    monkeypatch.setattr(stream, "compiles", lambda: False)
    assert stream.kernel(FLOAT32, FLOAT32, stream.WARM_UP, "auto") is fold and stream._measured == stream.WARM_UP
    assert stream.kernel(FLOAT32, FLOAT32, 9, "numpy") is fold and stream._measured == stream.WARM_UP
    assert 1 <= stream.default_threads() <= 4


def test_the_coarser_dtype_is_the_unit():
    assert unit_of(FLOAT32, BFLOAT16) == unit_of(BFLOAT16, FLOAT16) == BFLOAT16
    assert unit_of(FLOAT32, np.dtype(np.float64)) == FLOAT32 and unit_of(FLOAT16, FLOAT32) == FLOAT16
    with pytest.raises(TypeError, match=r"^device has dtype int8; metrics need"):
        unit_of(FLOAT32, np.dtype(np.int8))
    assert is_float(BFLOAT16) and not is_float(np.dtype(np.int8))
    assert [is_exact(np.dtype(kind)) for kind in (np.int8, np.uint8, bool, np.float16)] == [True, True, True, False]
    assert is_float8(np.dtype(ml_dtypes.float8_e4m3fn)) and not is_float8(FLOAT16)


def test_neighbouring_floats_are_one_apart_across_zero():
    values = np.float32([-0.0, 0.0, 1e-45, -1e-45, 1, np.nextafter(np.float32(1), np.float32(2)), -1])
    numbers = ordinals(values, FLOAT32)
    assert numbers[:4].tolist() == [0, 0, 1, -1] and numbers[5] - numbers[4] == 1 and numbers[6] == -numbers[4]
    assert ordinals(np.float32([1 + 2.0**-9]), BFLOAT16)[0] == ordinals(np.float32([1]), BFLOAT16)[0]
    ends = np.array([np.iinfo(np.int64).min, 5]), np.array([np.iinfo(np.int64).max, 3])
    assert distance(*ends).tolist() == distance(*ends[::-1]).tolist() == [2**64 - 1, 2]


def test_ulp_distances_fall_into_buckets_of_powers_of_two():
    one = np.float32(1).view(np.int32)
    golden = np.full(7, 1, np.float32)
    device = (one + np.int32([0, 1, 2, 3, 4, 7, 8])).view(np.float32)
    found = measure(golden, device, engine="numpy", ulps=True).ulps
    assert found.histogram[:6] == (1, 1, 2, 2, 1, 0) and found.largest == 8 and found.unit == "float32"
    assert [found.share(within) for within in (0, 1, 3, 7, 15)] == pytest.approx([1 / 7, 2 / 7, 4 / 7, 6 / 7, 1])
    assert UlpDistances("float32", (0, 0), 0).share(1) == 1.0
    for wrong in (-1, 2, 5):
        with pytest.raises(ValueError, match=f"^{wrong} ULP is no bucket bound"):
            found.share(wrong)


def test_a_ratio_of_nothing_is_infinite_where_there_is_an_error():
    found = ratio(np.array([2.0, 2, 0, inf]), np.array([4.0, 0, 0, inf]), np.array([True, True, False, True]))
    assert found.tolist() == [0.5, inf, 0, inf]
    pairs = [(2, 4, True), (2, 0, True), (0, 0, False), (inf, inf, True)]
    assert [relative(*pair) for pair in pairs] == [0.5, inf, 0, inf]


def test_directions_at_their_edges():
    def of(golden, device) -> Moments:
        g, e = np.array(golden, float), np.array(device, float) - np.array(golden, float)
        return Moments.of(np.array([g.size, g.sum(), e.sum(), 0, e @ e, g @ g, g @ e, 0]))

    pairs = [([1, 0], [1, 0], 0), ([1, 0], [0, 1], 1), ([1, 0], [-1, 0], 2), ([0, 0], [0, 0], 0), ([0, 0], [1, 0], 1),
             ([1, 0], [0, 0], 1), ([3, 4], [6, 8], 0)]  # fmt: skip
    for golden, device, due in pairs:
        assert cosine_distance(of(golden, device)) == pytest.approx(due, abs=1e-12)
    assert cosine_distance(replace(of([1, 0], [-1, 0]), dot=-1.5)) == 2
    none = Moments.of(np.zeros(8))
    assert (none.n, none.golden_mean, none.error_mean, none.variance) == (0, 0, 0, 0)


def test_what_subtraction_cannot_give_is_read_again():
    golden, device = np.float32([[2, 2], [2, nan]]), np.float32([[1, 3], [5, 5]])
    found = Moments.of(np.array([3, 6, 3, 0, 11, 12, 6, 0])).reread(
        [(golden[:1], device[:1]), (golden[1:], device[1:])]
    )
    assert (found.device_sq, found.dot, found.golden_constant, found.device_constant) == (35, 18, True, False)
    one = Moments.of(np.array([1, 2, 3, 0, 9, 4, 6, 0])).reread([(golden[1:], device[1:])])
    assert not one.golden_constant and not one.device_constant
    swapped = Moments.of(np.array([3, 9, -3, 0, 11, 35, -17, 0])).reread([(device, golden)])
    assert (swapped.golden_constant, swapped.device_constant) == (False, True)


def test_numbers_are_plain_for_strict_json():
    assert plain_numbers({"a": (1.0, inf, [-inf]), "b": "x", "c": 3}) == {"a": [1.0, "inf", ["-inf"]], "b": "x", "c": 3}
    assert plain_numbers(nan) == "nan"


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_exact_tensors_differ_in_so_many_places_the_first_and_the_worst_told(chunk):
    golden = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    device = np.array([[1, 2, 9], [4, -5, 7]], np.int64)
    assert measure_exact(golden, device, chunk=chunk) == ExactMetrics(6, 3, (0, 2), 3, 9, 10)
    assert measure_exact(golden, golden.astype(np.uint8), chunk=chunk) == ExactMetrics(6, 0)
    assert measure_exact(golden[:0], device[:0]) == ExactMetrics(0, 0) == measure_exact(golden[:0], golden[:0])
    assert measure_exact(np.array(3), np.array(5)) == ExactMetrics(1, 1, (), 3, 5, 2)
    for one, other in ((-(2**62), 0), (0, 2**62), (2**62 - 1, -(2**62) + 1)):
        assert measure_exact(np.array([one]), np.array([other])).worst == abs(other - one)


def test_the_best_of_two_rows_overlap_in_part_and_ties_go_to_the_lowest_index(monkeypatch):
    golden = np.float32([[4, 3, 2, 1], [1, 1, 1, 1], [nan, 2, 1, 0]])
    device = np.float32([[3, 4, 1, 2], [0, 1, 1, 1], [9, nan, 1, 0]])
    for chunk in (1, 8, 2**20):
        monkeypatch.setattr("parity.metrics.discrete.CHUNK", chunk)
        found = topk_overlap(golden, device, (1, 2, 3, 9))
        assert {k: share.tolist() for k, share in found.items()} == {
            1: [0, 0, 0], 2: [1, 0.5, 0.5], 3: [2 / 3, 2 / 3, 2 / 3], 9: [1, 1, 1],
        }  # fmt: skip
    assert topk_overlap(golden[None], device[None], (2,))[2].shape == (1, 3)
    assert list(topk_overlap(golden, device)) == [1, 5, 50]
    close = np.array([[1, 1 + 1e-12]])
    assert topk_overlap(close, close[:, ::-1], (1,))[1] == 0 and topk_overlap(close, close, (1,))[1] == 1
    tied = np.float32([[1, 1, 1, 0, 0], [0, 2, 1, 1, 1], [0, 0, 3, 3, 3]])
    assert (
        topk_overlap(tied, np.float32([[2, 2, 0, 0, 0], [0, 2, 2, 0, 0], [0, 0, 1, 1, 0]]), (2,))[2].tolist() == [1] * 3
    )
    for wrong in ((golden, device[:1], (1,)), (golden[:, :0], device[:, :0], (1,)), (golden, device, (0,)),
                  (golden[0, 0], device[0, 0], (1,))):  # fmt: skip
        with pytest.raises(ValueError, match=r"^no top-k of golden"):
            topk_overlap(*wrong)
