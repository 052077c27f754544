"""Sketches by hand: what sums of rows tell, the ends of intervals, and what is said where they settle nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import sketched
from parity.compare.numbers import RowErrors
from parity.compare.rows import StageRows
from parity.compare.sketch_sums import Sums, _sketch, _sums
from parity.compare.sketched import BLIND, _constant, _copied, _judged, _metrics, _ratio, _times, _unsettled, _verdict
from parity.errors import UsageError
from parity.golden.keeping import Form, Record
from parity.metrics import measure
from parity.metrics import sums as at
from parity.policy import Bound, Row
from parity.sketch import sketch
from parity.stages import declared

OUT = "target.layers.0.out"
NAMES = declared(2, 1)
RANDOM = np.random.default_rng(0)
WIDE = 64


def table_of(golden: np.ndarray, device: np.ndarray) -> np.ndarray:
    """The exact sums of rows."""
    return np.array(measure(np.float32(golden), np.float32(device), row_axes=1).rows.table)


def places(count: int, width: int = WIDE) -> StageRows:
    nothing, number = np.broadcast_to(np.float32(0), (count, width)), np.arange(count)
    return StageRows(NAMES[OUT], nothing, nothing, nothing, number // 3, number % 3, number + 5, sketched=True)


def policy(judge: str = "noise", copies: bool = False, **bounds) -> Row:
    made = {name: Bound(ok=float(ok), warn=float(warn)) for name, (ok, warn) in bounds.items()}
    return Row(stages="*", judge=judge, bounds=made, copies=copies, reason="as a test has it")


GOLDEN = RANDOM.normal(size=(6, WIDE))


@pytest.mark.parametrize(
    ("golden", "constant"),
    [
        (np.full((3, 8), 0.1), True),
        (np.full((1, 1), 0.1), False),  # one element is no constant
        (np.full((1, 2), 0.1), True),
        (np.zeros((2, 4)), True),
        (np.full((3, 8), 0.1) + 1e-4 * np.arange(8), False),
        (np.array([[1.0, 1.0], [1.0, -1.0]]), False),
        (np.array([[1.0, -1.0]]), False),
        (np.array([[1.0] * 4, [1.001] * 4]), False),  # each row alone is one
    ],
)
def test_a_golden_is_constant_where_its_sums_and_norms_leave_no_spread(golden, constant):
    assert _constant(table_of(golden, golden)) is constant
    assert _metrics(table_of(golden, golden), places(len(golden))).golden_constant is constant


def test_an_empty_table_is_no_constant():
    assert not _constant(np.zeros((0, at.WIDTH)))


def test_what_a_table_tells_is_what_elements_do():
    device = GOLDEN * 1.01 + 0.02 * RANDOM.normal(size=GOLDEN.shape)
    whole, found = measure(np.float32(GOLDEN), np.float32(device)), _metrics(table_of(GOLDEN, device), places(6))
    assert (found.size, found.count) == (6 * WIDE, 6 * WIDE)
    assert found.rel_l2 == pytest.approx(whole.rel_l2, rel=1e-5)
    assert found.cosine_distance == pytest.approx(whole.cosine_distance, rel=1e-4)
    assert not found.golden_constant and found.rows.rel_l2 == pytest.approx(whole.rows.rel_l2, rel=1e-5)
    assert _metrics(table_of(GOLDEN * 0, GOLDEN * 0), places(6)).rel_l2 == 0
    assert _metrics(table_of(GOLDEN * 0, GOLDEN), places(6)).rel_l2 == np.inf
    broken = table_of(GOLDEN, device)
    broken[2, at.EE] = np.inf
    assert _metrics(broken, places(6)).rel_l2 == np.inf


SEEN = Bound(ok=1.0, warn=2.0)


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((0.5, 0.9), "pass"), ((0.5, 1.5), "warn"), ((1.2, 1.9), "warn"), ((2.1, 3.0), "fail"),
        ((1.9, 2.1), "inconclusive"), ((0.5, 9.0), "inconclusive"), ((2.0, 2.0), "warn"),
    ],
)  # fmt: skip
def test_an_interval_is_judged_by_its_upper_end_and_fails_by_its_lower_one(ends, verdict):
    assert _verdict(ends, SEEN, True) == verdict
    assert _verdict(ends, SEEN, False) == (BLIND if verdict == "inconclusive" else verdict)


def test_an_interval_is_so_many_times_its_point_and_of_nothing_nothing():
    assert _times(2.0, (0.5, 3.0)) == (1.0, 6.0) and _times(0.0, (0.5, np.inf)) == (0.0, 0.0)


def sums(device, floor=None, error=None, broken=None) -> Sums:
    device = table_of(GOLDEN, device)
    floor = table_of(GOLDEN, GOLDEN * 1.01) if floor is None else table_of(GOLDEN, floor)
    none = np.zeros(len(device), bool)
    return Sums(device, floor, np.ones((len(device), 32)) if error is None else error, broken or (none, none, none))


KEEP = np.array([True, True, False, True, True, True])


def test_the_ratio_is_of_the_rows_that_are_kept():
    device = GOLDEN * 1.02
    device[2] *= 5
    assert _ratio(sums(device), KEEP) == pytest.approx(2, rel=1e-4)
    assert _ratio(sums(device, floor=GOLDEN), KEEP) == np.inf and _ratio(sums(GOLDEN, floor=GOLDEN), KEEP) == 0


@pytest.mark.parametrize(
    ("seen", "row", "lacks"),
    [
        (sums(GOLDEN, error=np.zeros((6, 32))), policy(l2=(1, 2)), True),
        (sums(GOLDEN, error=np.zeros((6, 32))), policy(copies=True, l2=(1, 2)), False),
        (sums(GOLDEN, error=np.zeros((6, 32))), policy("relative", l2=(0.1, 0.2)), False),
        (sums(GOLDEN, floor=GOLDEN, error=np.zeros((6, 32))), policy(l2=(1, 2)), False),  # the floor is one as well
        (sums(GOLDEN, error=np.eye(6, 32) * 1e-9), policy(l2=(1, 2)), False),
    ],
)
def test_a_sketch_that_is_the_goldens_bit_for_bit_is_no_evidence(seen, row, lacks):
    assert (_copied(seen, row) is not None) is lacks


@pytest.mark.parametrize(
    ("verdict", "verdicts", "blind", "said"),
    [
        ("pass", {"l2": "inconclusive"}, ["largest"], ""),
        ("inconclusive", {"l2": "inconclusive", "median": "pass", "worst_row": "inconclusive"}, [],
         "the interval of l2 and worst_row lies on both sides of its bound: a larger sketch settles it"),
        ("inconclusive", {"l2": "pass"}, ["largest", "ulp_max"],
         "largest,ulp_max not judged by a sketch: whole tensors settle it, --without largest,ulp_max leaves it out"),
        ("inconclusive", {"l2": "inconclusive"}, ["largest"],
         "the interval of l2 lies on both sides of its bound: a larger sketch settles it; "
         "largest not judged by a sketch: whole tensors settle it, --without largest leaves it out"),
    ],
)  # fmt: skip
def test_why_a_stage_is_inconclusive_is_said(verdict, verdicts, blind, said):
    assert _unsettled(verdict, verdicts, blind) == said


def judged(device, row, without=(), excluded=None, error=None, broken=None, floor=None):
    apart = np.zeros(len(GOLDEN), bool) if excluded is None else np.array(excluded)
    seen = sums(device, floor, RANDOM.normal(size=(6, 32)) if error is None else error, broken)
    return _judged(seen, places(6), "sketch of 32 numbers", lambda rows: apart, row, without)


NOISY = GOLDEN * 1.01


@pytest.mark.parametrize(("scale", "verdict"), [(1.005, "pass"), (1.02, "warn"), (1.03, "inconclusive"), (1.2, "fail")])
def test_a_stage_is_judged_by_intervals_of_its_bounds(scale, verdict):
    result, findings = judged(GOLDEN * scale, policy(l2=(1, 3)))
    assert (result.verdict, findings, result.evidence) == (verdict, [], "sketch of 32 numbers")
    low, high = result.intervals["l2"]
    assert low < result.x["l2"] < high and result.x["l2"] == pytest.approx((scale - 1) / 0.01, rel=1e-3)
    assert (result.first is not None) == (verdict in ("fail", "warn")) and result.bounds == {"l2": (1, 3)}
    assert result.relative_l2 == pytest.approx(scale - 1, rel=1e-3) and result.floor_l2 == pytest.approx(0.01, rel=1e-3)
    assert (result.note != "") == (verdict == "inconclusive")


def test_the_largest_element_is_never_settled_and_left_out_where_that_is_asked_for():
    result, _ = judged(GOLDEN * 1.005, policy(l2=(1, 3), largest=(0.1, 0.2)))
    assert (result.verdict, result.not_judged, list(result.x)) == ("inconclusive", ("largest",), ["l2"])
    assert "--without largest" in result.note and list(result.intervals) == ["l2"]
    result, _ = judged(GOLDEN * 1.005, policy(l2=(1, 3), largest=(0.1, 0.2)), ("largest",))
    assert (result.verdict, result.not_judged, result.note) == ("pass", ("largest",), "")
    assert list(result.x) == ["l2"] and result.bounds == {"l2": (1, 3), "largest": (0.1, 0.2)}


def test_an_interval_that_settles_nothing_is_shown_though_its_bound_is_left_out():
    result, _ = judged(GOLDEN * 1.03, policy(l2=(1, 3), median=(9, 9)), ("l2",))
    assert (result.verdict, result.not_judged) == ("pass", ("l2",)) and list(result.x) == ["l2", "median"]
    assert list(result.intervals) == ["l2", "median"]


def test_rows_set_apart_are_counted_and_nothing_left_is_inconclusive():
    device = GOLDEN * 1.005
    device[2] *= 5
    result, _ = judged(device, policy(l2=(1, 3)), excluded=~KEEP)
    assert (result.verdict, result.rows_apart, result.rows) == ("pass", 1, 6)
    result, _ = judged(device, policy(l2=(1, 3)), excluded=[True] * 6)
    assert (result.verdict, result.rows_apart, result.x) == ("inconclusive", 6, {})
    assert judged(device, policy("none"))[0].verdict == "not judged"


def test_a_constant_golden_is_inconclusive_by_its_sketch():
    flat = np.full((6, WIDE), 0.5)
    table = table_of(flat, flat * 1.001)
    seen = Sums(table, table_of(flat, flat * 1.01), RANDOM.normal(size=(6, 32)), (np.zeros(6, bool),) * 3)
    result, _ = _judged(seen, places(6), "", lambda rows: np.zeros(6, bool), policy(l2=(1, 3)), ())
    assert result.verdict == "inconclusive" and result.note == "the golden is constant: it tells nothing from anything"


def test_what_is_not_finite_is_found_once_and_in_whose_rows():
    golden, device, floor = (np.zeros(6, bool) for _ in range(3))
    golden[4], device[[1, 4, 5]], floor[2] = True, True, True
    _, findings = judged(GOLDEN * 1.005, policy(l2=(1, 3)), broken=(golden, device, floor))
    assert [(one.kind, one.stage, one.prompt, one.round) for one in findings] == [
        ("non-finite", OUT, 1, 1), ("non-finite", OUT, 0, 1), ("non-finite", OUT, 0, 2),
    ]  # fmt: skip
    assert [one.message for one in findings] == [
        f"{OUT} has NaN or Inf in 1 rows of the golden, first at position 9 (prompt 1, round 1)",
        f"{OUT} has NaN or Inf in 2 rows of the device, first at position 6 (prompt 0, round 1)",
        f"{OUT} has NaN or Inf in 1 rows of the noise floor, first at position 7 (prompt 0, round 2)",
    ]


def test_intervals_of_every_statistic_and_of_scale_and_bias_where_they_are_bounded():
    seen = sums(GOLDEN * 1.02)
    errors = RowErrors.of(
        places(6), ~KEEP, _metrics(seen.device, places(6)), _metrics(seen.floor, places(6)), "noise"
    )  # fmt: skip
    ends = sketched._intervals(seen, errors, KEEP, policy(l2=(1, 3)))
    assert list(ends) == ["l2", "median", "worst_row", "largest", "r_ratio"]
    one, many = (sketched.intervals.factors(32, confidence) for confidence in (0.99, 1 - 0.01 / 5))
    points = errors.statistics(KEEP)
    assert ends["median"] == pytest.approx((points["median"] * one[0], points["median"] * one[1]))
    assert ends["worst_row"] == pytest.approx((points["worst_row"] * many[0], points["worst_row"] * many[1]))
    assert ends["largest"] == pytest.approx((many[0] * points["largest"] / 8, many[1] * points["largest"]))
    assert ends["l2"][0] / points["l2"] == pytest.approx(ends["r_ratio"][0] / _ratio(seen, KEEP))
    both = sketched._intervals(seen, errors, KEEP, policy(scale=(1, 3), l2=(1, 9)))
    assert {"scale", "bias"} <= set(both) and both["scale"][0] > 3


def held(form: Form, *sides) -> SimpleNamespace:
    records = tuple(Record(np.arange(len(side)), side, form) for side in sides)
    return SimpleNamespace(sides=records, shape=(WIDE,))


def test_whole_rows_on_both_sides_are_sketched_alike_and_their_sums_are_the_elements():
    device = GOLDEN * 1.02
    device[3, 5] = np.nan
    golden = GOLDEN.copy()
    golden[1, 0] = np.inf
    one = held(Form(), *(np.float32(side) for side in (golden, device, GOLDEN * 1.01)))
    table, floor, error, lost, own = _sums(one, 32, 7)
    assert lost.tolist() == [n == 1 for n in range(6)] and own.tolist() == [n == 3 for n in range(6)]
    exact, kept = table_of(GOLDEN, GOLDEN * 1.02), [0, 2, 4, 5]
    told = [at.N, at.GG, at.G, at.E]
    assert table[kept][:, told] == pytest.approx(exact[kept][:, told], rel=1e-4, abs=1e-4)
    assert table[[1, 3], at.N].tolist() == [0, 0] and table[[1, 3], at.EE].tolist() == [np.inf] * 2
    due = sketch(np.float32(GOLDEN * 1.02), 32, 7)[:, :32].astype(float) - sketch(np.float32(GOLDEN), 32, 7)[:, :32]
    assert error[kept] == pytest.approx(due[kept], abs=1e-5) and (error[[1, 3]] == 0).all()
    assert table[kept, at.EE] == pytest.approx(np.square(due[kept]).mean(axis=1), rel=1e-4)
    true = np.square(GOLDEN * 1.02).sum(axis=1)
    assert table[kept, at.GG] + 2 * table[kept, at.GE] + table[kept, at.EE] == pytest.approx(true[kept], rel=1e-5)
    assert table[kept, at.MAX] == pytest.approx(np.sqrt(table[kept, at.EE]))
    assert floor[kept, at.EE] == pytest.approx(table_of(GOLDEN, GOLDEN * 1.01)[kept, at.EE], rel=1e-4)


def test_sketches_of_one_seed_compare_by_the_fewer_numbers():
    forms = [Form(sketch=32, seed=7), Form(sketch=16, seed=7), Form()]
    one = SimpleNamespace(sides=tuple(Record(np.arange(1), GOLDEN[:1], form) for form in forms))
    assert _sketch([one]) == (16, 7)
    other = SimpleNamespace(sides=(Record(np.arange(1), GOLDEN[:1], Form(sketch=8, seed=3)),))
    with pytest.raises(UsageError, match=r"^golden and run were sketched by the seeds 3 and 7: sketches of one seed"):
        _sketch([one, other])


def test_a_figure_that_a_sketch_gives_no_estimate_of_is_the_middle_of_its_interval():
    result, _ = judged(GOLDEN * 1.02, policy(l2=(9, 9), r_ratio=(9, 9)))
    low, high = result.intervals["r_ratio"]
    assert low < high and result.x["r_ratio"] == pytest.approx((low + high) / 2)
