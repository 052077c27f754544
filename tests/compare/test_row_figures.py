"""Figures of rows by hand: errors over floors, bounds on both sides, what a bound allows, and which row is named."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import numbers, rows, statistics
from parity.compare.numbers import RowErrors, bound_verdict, crest, failing_place, judge_numbers
from parity.compare.rows import HALF_ULP, StageRows, pooled_ratio, quantile, row_floors, same_rows
from parity.errors import UsageError
from parity.metrics import measure
from parity.policy import Bound, Row, Tolerance
from parity.stages import declared

NAMES = declared(2, 1)
OUT, Q, LOGITS = "target.layers.0.out", "target.layers.0.q", "target.logits"


def stage(golden, device, floor, name: str = OUT, prompt=None, round_=None) -> StageRows:
    sides = [np.asarray(side, np.float32) for side in (golden, device, floor)]
    number = np.arange(len(sides[0]))
    labels = (number * 0 if prompt is None else np.array(prompt), number * 0 if round_ is None else np.array(round_))
    return StageRows(NAMES[name], *sides, *labels, number + 5)


def policy(judge: str = "noise", **bounds) -> Row:
    made = {name: Bound(ok=float(ok), warn=float(warn)) for name, (ok, warn) in bounds.items()}
    return Row(stages="*", judge=judge, bounds=made, reason="as a test has it")


def errors_of(golden, device, floor, excluded=None, unit: str = "noise", **labels) -> RowErrors:
    made = stage(golden, device, floor, **labels)
    apart = np.zeros(len(made.golden), bool) if excluded is None else np.array(excluded)
    both = (measure(made.golden, side, row_axes=1) for side in (made.device, made.floor))
    return RowErrors.of(made, apart, *both, unit)


FOURS = np.full((4, 4), 4.0)


def off(*by: float) -> np.ndarray:
    """Rows of norm 8 of which the first element is off by this: an eighth of it, relative."""
    changed = FOURS[: len(by)].copy()
    changed[:, 0] += by
    return changed


def test_row_errors_are_multiples_of_a_floor_that_is_no_lucky_rounding():
    found = errors_of(FOURS, off(0.8, 0.4, 0, 1.6), off(0.2, 0.2, 0.1, 0.8))
    assert found.device == pytest.approx([0.1, 0.05, 0, 0.2])
    assert found.floor == pytest.approx([0.025, 0.025, 0.025, 0.1])  # the typical row's at the least
    assert found.noisy == pytest.approx([0.0775, 0.0775, 0.0775, 0.1])  # 0.9 between the third and the fourth
    assert found.weight.tolist() == [64] * 4
    # A row's largest error over its RMS error is 2 in each floor; its RMS is 4.
    assert found.peak == pytest.approx([0.0775 * 8, 0.0775 * 8, 0.0775 * 8, 0.8])
    assert found.element == pytest.approx([0.8 / 0.62, 0.4 / 0.62, 0, 2])


def test_plain_errors_are_over_the_golden_itself():
    found = errors_of(FOURS, off(0.8, 0.4, 0, 1.6), off(0.2, 0.2, 0.1, 0.8), unit="relative")
    assert found.floor.tolist() == found.noisy.tolist() == [1] * 4
    assert found.peak.tolist() == [4] * 4 and found.element == pytest.approx([0.2, 0.1, 0, 0.4])
    nothing = errors_of(FOURS * 0, off(0.8, 0.4, 0, 1.6) * 0, FOURS * 0, unit="relative")
    assert nothing.element.tolist() == [0] * 4 and (nothing.peak > 0).all()


def test_statistics_are_of_the_rows_that_are_kept():
    found = errors_of(FOURS, off(0.8, 0.4, 0, 1.6), off(0.2, 0.2, 0.1, 0.8))
    pooled = (0.1**2 + 0.05**2 + 0.2**2) ** 0.5 / (3 * 0.025**2 + 0.1**2) ** 0.5
    assert found.statistics(np.ones(4, bool)) == pytest.approx(
        {"l2": pooled, "median": 0.075 / 0.025, "worst_row": 2.0, "largest": 2.0}, rel=1e-5
    )
    assert found.statistics(np.array([True, False, False, False])) == pytest.approx(
        {"l2": 4.0, "median": 4.0, "worst_row": 0.1 / 0.0775, "largest": 0.8 / 0.62}, rel=1e-5
    )


@pytest.mark.parametrize(
    ("bounds", "share", "bad"),
    [
        ({"worst_row": (1, 1.9)}, 1.0, [0, 0, 0, 1]),
        ({"worst_row": (1, 2.1)}, 1.0, [0, 0, 0, 0]),
        ({"worst_row": (1, 2.1)}, 0.5, [1, 0, 0, 1]),
        ({"largest": (1, 1.2)}, 1.0, [1, 0, 0, 1]),
        ({"largest": (1, 3), "worst_row": (1, 1.2)}, 1.0, [1, 0, 0, 1]),
        ({"l2": (1, 1.2)}, 1.0, [1, 0, 0, 1]),  # a bound of all rows stands for each where there is no other
        ({"l2": (1, 1.2), "worst_row": (1, 9)}, 1.0, [0, 0, 0, 0]),
        ({"median": (1, 1.2), "cosine_distance": (0.1, 0.1)}, 1.0, [0, 0, 0, 0]),
    ],
)
def test_a_row_is_bad_beyond_a_bound_of_a_single_row(bounds, share, bad):
    found = errors_of(FOURS, off(0.8, 0.4, 0, 1.6), off(0.2, 0.2, 0.1, 0.8))
    assert found.bad(policy(**bounds), share).tolist() == [bool(one) for one in bad]
    apart = errors_of(FOURS, off(0.8, 0.4, 0, 1.6), off(0.2, 0.2, 0.1, 0.8), [False, False, False, True])
    assert not apart.bad(policy(**bounds), share)[3]


def test_a_row_that_is_not_a_number_is_bad():
    device = off(0, 0, 0, 0)
    found = errors_of(FOURS, device, off(0.2, 0.2, 0.1, 0.8))
    found.device[1] = np.nan
    assert found.bad(policy(worst_row=(1, 1))).tolist() == [False, True, False, False]
    assert found.bad(policy(l2=(1, 1))).tolist() == [False, True, False, False]


def test_what_bounds_allow_is_their_multiple_of_the_floor():
    found = errors_of(FOURS, FOURS, off(0.2, 0.2, 0.1, 0.8))
    pooled = ((3 * 0.025**2 + 0.1**2) / 4) ** 0.5
    bounds = {"l2": (1, 2), "median": (1, 3), "worst_row": (1, 4), "largest": (1, 5)}
    assert found.allowed(policy(**bounds)) == pytest.approx(
        {"l2": 2 * pooled, "median": 3 * 0.025, "worst_row": 4 * 0.1, "largest": 5 * 0.1, "floor": pooled}
    )
    assert list(found.allowed(policy(median=(1, 3), cosine_distance=(0.1, 0.1)))) == ["median", "floor"]
    assert found.allowed(policy("relative", l2=(0.1, 0.2))) == {}
    assert errors_of(FOURS, FOURS, off(0.2, 0.2, 0.1, 0.8), [True] * 4).allowed(policy(**bounds)) == {}


def test_the_typical_rows_peak_is_over_its_rms_error():
    floor = SimpleNamespace(rows=SimpleNamespace(max_abs=np.array([2.0, 6.0, 0.0])))
    assert crest(floor, np.array([1.0, 2.0, 0.0])) == 2.5
    assert crest(floor, np.zeros(3)) == 1.0


@pytest.mark.parametrize(
    ("value", "verdict"), [(1.0, "pass"), (1.01, "warn"), (2.0, "warn"), (2.01, "fail"), (float("nan"), "fail")]
)
def test_a_figure_is_judged_by_both_ends_of_its_bound(value, verdict):
    assert bound_verdict(value, Bound(ok=1.0, warn=2.0)) == verdict


def test_the_first_row_is_of_the_first_tensor_that_breaks_a_bound_alone():
    """Two prompts of two rounds; by round, then prompt, the first one that breaks is of prompt 1."""
    golden = np.tile(FOURS, (2, 1))
    device = np.concatenate([off(0.1, 0.1, 0.2, 3.2), off(0.1, 1.6, 2.4, 0.1)])
    found = errors_of(
        golden, device, np.tile(off(0.2, 0.2, 0.2, 0.2), (2, 1)), prompt=[0, 0, 0, 0, 1, 1, 1, 1],
        round_=[0, 0, 1, 1, 0, 0, 1, 1],
    )  # fmt: skip
    places = failing_place(found, policy(worst_row=(1, 3)))
    assert (places["first"].prompt, places["first"].round, places["first"].position) == (1, 0, 10)
    assert (places["worst"].prompt, places["worst"].position, places["bad_rows"]) == (0, 8, 3)
    assert places["first"].stage == OUT and places["first"].layer == 0 and places["relation"] == ""


def test_a_tensor_that_is_off_as_a_whole_is_told_by_its_worst_row():
    golden = np.tile(FOURS, (2, 1))
    device = np.concatenate([off(0.1, 0.1, 0.1, 0.1), off(0.5, 0.5, 0.55, 0.5)])
    found = errors_of(golden, device, np.tile(off(0.2, 0.2, 0.2, 0.2), (2, 1)), prompt=[0] * 4 + [1] * 4)
    places = failing_place(found, policy(l2=(1, 2), worst_row=(1, 3)))
    assert (places["first"].prompt, places["first"].position, places["bad_rows"]) == (1, 11, 0)
    assert places["worst"] == places["first"]


def test_a_tensor_that_is_off_as_a_whole_comes_before_a_later_one_with_a_bad_row():
    """Rows of 2.8 times their noise: none beyond 3, all of them beyond 2."""
    golden, floor = np.tile(FOURS, (2, 1)), np.tile(off(0.2, 0.2, 0.2, 0.2), (2, 1))
    device = np.concatenate([off(0.5, 0.56, 0.5, 0.5), off(0.1, 0.1, 3.2, 0.1)])
    found = errors_of(golden, device, floor, prompt=[0] * 4 + [1] * 4)
    places = failing_place(found, policy(l2=(1, 2), worst_row=(1, 3)))
    assert (places["first"].prompt, places["first"].position) == (0, 6)
    assert (places["worst"].prompt, places["worst"].position, places["bad_rows"]) == (1, 11, 1)
    places = failing_place(found, policy(worst_row=(1, 3)))
    assert (places["first"].prompt, places["first"].position) == (1, 11)


def test_the_largest_element_of_a_sketch_breaks_nothing():
    """Nobody knows it."""
    golden, floor = np.tile(FOURS, (2, 1)), np.tile(off(0.2, 0.2, 0.2, 0.2), (2, 1))
    device = np.concatenate([off(0.9, 0.1, 0.1, 0.1), off(0.1, 3.2, 0.1, 0.1)])
    found = errors_of(golden, device, floor, prompt=[0] * 4 + [1] * 4)
    row = policy(worst_row=(1, 8), largest=(1, 2))
    assert failing_place(found, row)["first"].prompt == 0 and found.bad(row).tolist() == [True] + [False] * 4 + [
        True, False, False,
    ]  # fmt: skip
    sketched = replace(found, rows=replace(found.rows, sketched=True))
    assert failing_place(sketched, row)["first"].prompt == 1 and np.flatnonzero(sketched.bad(row)).tolist() == [5]


def judged(device, row: Row, golden=FOURS, floor=None, excluded=None, name: str = OUT):
    made = stage(golden, device, off(0.2, 0.2, 0.1, 0.8) if floor is None else floor, name)
    apart = np.zeros(len(made.golden), bool) if excluded is None else np.array(excluded)
    return judge_numbers(made, apart, row)


VARIED = np.float32([[1, 2, 3, 4], [2, -3, 4, 1], [3, 1, -2, 5], [1, 1, 2, -1]])
FLOOR = VARIED * np.float32(1.01)


def test_a_stage_is_judged_by_every_bound_and_what_is_shown_beside_it():
    device = VARIED * np.float32(1.015)
    result, findings = judged(device, policy(l2=(1, 2), worst_row=(2, 3)), VARIED, FLOOR)
    assert (result.verdict, findings) == ("warn", [])
    assert result.relative_l2 == pytest.approx(0.015, rel=1e-3) and result.floor_l2 == pytest.approx(0.01, rel=1e-3)
    assert result.x["l2"] == pytest.approx(1.5, rel=1e-3) and result.x["max_abs"] == pytest.approx(1.5, rel=1e-3)
    assert result.max_abs == pytest.approx(5 * 0.015, rel=1e-3)
    assert result.mean_abs == pytest.approx(np.abs(VARIED).mean() * 0.015, rel=1e-3)
    assert result.x["cosine"] < 1 and result.bounds == {"l2": (1, 2), "worst_row": (2, 3)}
    assert judged(device, policy(l2=(2, 3), worst_row=(1, 1.2)), VARIED, FLOOR)[0].verdict == "fail"
    assert judged(device, policy(l2=(2, 3)), VARIED, FLOOR)[0].verdict == "pass"
    assert judged(device, policy("none"), VARIED, FLOOR)[0].verdict == "not judged"


def test_rows_set_apart_do_not_count_and_nothing_left_is_inconclusive():
    device = VARIED * np.float32(1.005)
    device[2] *= 3
    row = policy(l2=(1, 2), worst_row=(2, 3))
    result, _ = judged(device, row, VARIED, FLOOR, [False, False, True, False])
    assert (result.verdict, result.rows_apart) == ("pass", 1) and result.x["worst_row"] < 1
    result, _ = judged(device, row, VARIED, FLOOR, [True] * 4)
    assert (result.verdict, result.rows_apart) == ("inconclusive", 4) and "l2" not in result.x


def test_logits_are_told_by_their_top_too():
    golden = np.tile(np.arange(100, dtype=np.float32), (2, 1))
    device, floor = golden.copy(), golden * np.float32(1.001)
    device[0, [98, 99]] = 99, 98  # another best
    floor[1, [50, 49]] = 49, 50  # beyond the top 50
    result, _ = judged(device, policy(l2=(100, 100)), golden, floor, name=LOGITS)
    assert result.topk == {1: 0.5, 5: 1.0, 50: 1.0}
    # The floor misses none of the best, and one of 100 places of the top 50.
    assert (result.x["top1"], result.x["top5"], result.x["top50"]) == (1.0, 0.0, 0.0)
    assert judged(VARIED, policy(l2=(1, 1)), VARIED, FLOOR)[0].topk == {}


def test_plain_figures_are_over_the_rms_or_over_noise_that_is_half_a_ulp_at_the_least():
    device, floor = (measure(FOURS.astype(np.float32), np.float32(side)) for side in (off(0.8, 0.4, 0, 1.6), FOURS))
    plain = numbers._plain(device, floor, "relative")
    assert plain["max_abs"] == pytest.approx(0.4) and plain["mean_abs"] == pytest.approx(2.8 / 16 / 4)
    assert plain["cosine"] == pytest.approx(device.cosine_distance)
    least = numbers._plain(device, floor, "noise")
    assert least["max_abs"] == pytest.approx(0.4 / HALF_ULP) and least["mean_abs"] == pytest.approx(0.04375 / HALF_ULP)
    assert least["cosine"] == pytest.approx(device.cosine_distance / (HALF_ULP**2 / 2))
    again = numbers._plain(device, device, "noise")
    assert again == pytest.approx({"max_abs": 1, "mean_abs": 1, "cosine": 1})
    zero = measure(np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32))
    assert numbers._plain(zero, zero, "relative")["max_abs"] == 1


def test_a_floor_of_a_row_is_its_own_the_typical_ones_or_half_a_ulp():
    floor = np.array([0.01, 0.03, 0.02, 0.5])
    keep = np.zeros(4, bool)
    assert row_floors(floor, keep).tolist() == pytest.approx([0.025, 0.03, 0.025, 0.5])
    assert row_floors(floor, np.array([False, False, False, True])) == pytest.approx([0.02, 0.03, 0.02, 0.5])
    assert row_floors(floor, keep, 1.0).tolist() == [0.5] * 4
    assert row_floors(floor * 1e-6, keep).tolist() == [HALF_ULP] * 4
    assert row_floors(floor, ~keep).tolist() == pytest.approx(floor.tolist())


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_a_quantile_is_numpys(share):
    values = np.array([3.0, 1.0, 7.0, 4.0])
    assert quantile(values, share) == pytest.approx(np.quantile(values, share))
    assert quantile(values[:1], share) == 3.0
    assert quantile(np.array([1.0, np.inf]), 0.0) == 1.0 and quantile(np.array([1.0, np.inf]), 0.5) == np.inf


def test_a_pooled_ratio_is_weighted_by_the_rows():
    error, floor, weight = np.array([0.3, 0.1]), np.array([0.1, 0.1]), np.array([1.0, 3.0])
    assert pooled_ratio(error, floor, weight) == pytest.approx((0.12 / 0.04) ** 0.5)
    assert pooled_ratio(np.array([np.inf, 0]), floor, weight) == np.inf
    assert pooled_ratio(np.array([np.nan, 0]), floor, weight) == np.inf
    assert pooled_ratio(error, floor * 0, weight) == pooled_ratio(error, floor, weight * 0) == 0


def test_rows_are_the_same_in_every_element():
    one = np.arange(12).reshape(3, 2, 2)
    other = one.copy()
    other[1, 1, 0] = 0
    assert same_rows(one, other).tolist() == [True, False, True] and same_rows(one[:, 0, 0], one[:, 0, 0]).all()


def test_rows_are_labelled_from_the_first_of_each_tensor():
    labels = rows._labels([(0, 0, 0), (0, 2, 7), (3, 1, 5)], [3, 2, 1])
    assert labels.tolist() == [[0, 0, 0, 0, 0, 3], [0, 0, 0, 2, 2, 1], [0, 1, 2, 7, 8, 5]]


def seen(golden, device, floor=None, row=None, name: str = OUT):
    made = stage(golden, device, golden if floor is None else floor, name)
    both = (measure(made.golden, side, row_axes=1) for side in (made.device, made.floor))
    return statistics.Measurement(made, *both, row or policy(l2=(1, 2)))


def test_an_error_is_over_the_floors_in_all():
    found = seen(FOURS, off(0.8, 0.4, 0, 0), off(0.2, 0.4, 0, 0))
    assert statistics.r_ratio(found) == pytest.approx(2.0)
    assert statistics.r_ratio(seen(FOURS, off(0.8, 0, 0, 0))) == np.inf and statistics.r_ratio(seen(FOURS, FOURS)) == 0


def test_pearsons_distance_is_that_of_the_elements():
    device = VARIED + np.float32([0.1, -0.2, 0.3, 0.05])
    found = statistics.pearson_distance(seen(VARIED, device))
    assert found == pytest.approx(1 - np.corrcoef(VARIED.ravel(), device.ravel())[0, 1], rel=1e-4)
    assert (
        statistics.pearson_distance(seen(FOURS, FOURS)) == 0 and statistics.pearson_distance(seen(FOURS, VARIED)) == 1
    )
    assert statistics.pearson_distance(seen(VARIED, FOURS)) == 1


def test_a_tolerance_is_of_the_devices_dtype():
    tolerances = {"float32": Tolerance(rtol=0.1, atol=0.1)}
    row = policy(l2=(1, 2)).model_copy(update={"tolerances": tolerances})
    found = seen(FOURS, off(0.5, 0, 0.25, 0), row=row)
    assert statistics.beyond_tolerance(found) == pytest.approx(1.0)
    other = row.model_copy(update={"tolerances": {"bfloat16": tolerances["float32"]}})
    with pytest.raises(UsageError, match=r"^policy row '\*' has tolerances for bfloat16, none for float32$"):
        statistics.beyond_tolerance(seen(FOURS, FOURS, row=other))


def test_the_error_of_the_best_logits_is_over_the_largest_and_without_the_rows_shift():
    golden = np.float32([[10, 8, 1, 2, 0, -1], [4, 0, 8, 2, 1, 3]])
    device = golden + np.float32(0.5)  # a shift alone
    assert statistics.top_error(None)(seen(golden, device)) == pytest.approx(0, abs=1e-6)
    device[0, 2] += 0.3
    shift = statistics._shift(golden.astype(np.float64), device.astype(np.float64))
    slope, intercept = np.polyfit(golden[0], device[0], 1)
    assert shift[0, 0] == pytest.approx(intercept, rel=1e-5) and shift[1, 0] == pytest.approx(0.5)
    error = np.abs(device - shift - golden)
    assert statistics.top_error(None)(seen(golden, device)) == pytest.approx((error[0].max() - 1e-5) / 10, rel=1e-4)
    assert statistics.top_error(6)(seen(golden, device)) == statistics.top_error(None)(seen(golden, device))
    assert statistics.top_error(2)(seen(golden, device)) == pytest.approx((error[0, :2].max() - 1e-5) / 10, rel=1e-4)
    assert slope != 1
    flat = np.full((1, 3), 2.0, np.float32)
    assert statistics._shift(flat, flat + 1).tolist() == [[1.0]]


def test_what_is_unlike_the_floor_is_counted_by_bits():
    found = seen(FOURS, off(0, 0.5, 0, 0), off(0, 0, 0, 0.5))
    assert statistics.unlike(found) == 1 / 16  # the last row's is the golden's own
    exact, tiny = seen(FOURS, off(0, 1e-4, 0, 0), FOURS), seen(FOURS, off(0, 1e-4, 0, 0), off(0, 0, 0, 1e-4))
    assert (statistics.unlike(exact), statistics.unlike(tiny)) == (0, 1 / 16)  # rounds alike; a floor in float32
    assert statistics.top_missed(1)(seen(VARIED, VARIED[:, ::-1].copy())) == 1.0
    assert statistics._largest(np.array([1.0, np.nan])) == np.inf and statistics._largest(np.array([])) == 0


def test_few_clusters_are_widened_by_students_t_and_none_is_above_what_is_coherent():
    scores = np.array([0.1, -0.2, 0.3, 0.05])
    plain = np.sqrt((scores**2).sum() * 4 / 3)
    assert statistics.clustered(scores, 1e9) == pytest.approx(plain * statistics._widening(3))
    assert statistics.clustered(scores, 0.4) == 0.2 and statistics.clustered(scores[:2], 2.0) == pytest.approx(2**0.5)
    many = np.tile(scores, 500)
    assert statistics.clustered(many, 1e9) == pytest.approx(np.sqrt((many**2).sum() * 2000 / 1999), rel=1e-2)


@pytest.mark.parametrize(
    ("freedom", "due", "within"),
    [(8, 2.84990, 0.03), (20, 1.439495, 3e-3), (100, 1.0688340, 1e-4), (1000, 1.0065369, 1e-5)],
)
def test_the_widening_is_near_students_t_at_five_deviations(freedom, due, within):
    """Due is `t.isf(norm.sf(5), freedom) / 5` of SciPy."""
    assert statistics._widening(freedom) == pytest.approx(due, rel=within)
    assert statistics._widening(1) == statistics._widening(0) == pytest.approx(np.exp(30))


def test_a_stage_is_fitted_in_pieces_as_in_one(monkeypatch):
    random = np.random.default_rng(3)
    golden = random.normal(size=(30, 8)).astype(np.float32)
    device = golden * np.float32(1.01) + random.normal(size=(30, 8)).astype(np.float32) * np.float32(0.01)
    device[4, 2], golden[7] = np.nan, 0
    whole = statistics.fit(golden, device)
    monkeypatch.setattr(statistics, "CHUNK", 40)
    pieces = statistics.fit(golden, device)
    assert vars(pieces) == pytest.approx(vars(whole), rel=1e-6)
    assert whole.noise == pytest.approx(np.sqrt(np.nanmean(np.square(
        np.divide(device - golden, np.sqrt((golden**2).mean(axis=1, keepdims=True)), where=golden != 0,
                  out=np.zeros_like(golden))))), rel=0.01)  # fmt: skip
