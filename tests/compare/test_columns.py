"""Columns of a stage: what all rows have in one place fails, though within each of them it is noise."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.columns import LEAST_ROWS, ColumnErrors
from parity.compare.numbers import judge_numbers
from parity.compare.report import FAIL, INCONCLUSIVE, PASS
from parity.compare.rows import StageRows
from parity.policy import Row
from parity.stages import declared

RNG = np.random.default_rng(3)
GOLDEN = RNG.standard_normal((40, 64)).astype(np.float32)
NOISE = 0.01
FLOOR, CLEAN = (GOLDEN + np.float32(NOISE) * RNG.standard_normal(GOLDEN.shape).astype(np.float32) for _ in range(2))
EVERY = np.ones(len(GOLDEN), bool)
BOUNDS = {"l2": {"ok": 3.0, "warn": 3.0}, "worst_row": {"ok": 3.0, "warn": 3.0}, "largest": {"ok": 5.0, "warn": 5.0}}


def stage(device: np.ndarray, rows: int = 40, shape: tuple[int, ...] = (64,)) -> StageRows:
    sides = (side[:rows].reshape(rows, *shape) for side in (GOLDEN, device, FLOOR))
    label = np.arange(rows)
    return StageRows(declared(1, 1)["target.logits"], *sides, np.zeros(rows, int), np.zeros(rows, int), label)


def column(off: float, rows: slice = slice(None)) -> np.ndarray:
    """The clean device, of which column 20 is off by this much noise."""
    device = CLEAN.copy()
    device[rows, 20] += np.float32(off * NOISE)
    return device


def judged(device: np.ndarray, bound: float | None = 3.0, **changes):
    bounds = BOUNDS | ({} if bound is None else {"worst_column": {"ok": bound, "warn": bound}})
    row = Row(stages="*", judge="noise", reason="bounds of a test", **bounds)
    return judge_numbers(stage(device, **changes), np.zeros(changes.get("rows", 40), bool), row)[0]


def test_a_column_that_is_off_in_every_row_fails_by_this_bound_alone():
    assert judged(column(6), None).verdict == PASS and judged(CLEAN).verdict == PASS
    found = judged(column(6))
    assert found.verdict == FAIL and found.column == (20,) and found.x["worst_column"] > 4
    assert [name for name, (_, warn) in found.bounds.items() if found.x[name] > warn] == ["worst_column"]
    assert found.bad_rows > 30 and "column 20 of a row" in found.rows_summary


def test_its_rows_are_those_that_are_off_in_it():
    found = judged(column(9, slice(20, None)))
    assert found.verdict == FAIL and (found.first.position, found.bad_rows) == (20, 20)


def test_the_place_is_that_within_a_row_of_several_axes():
    assert judged(column(6), shape=(4, 16)).column == (1, 4)


def test_an_element_alone_is_no_column():
    one = ColumnErrors.of(stage(column(1000, slice(5, 6))), EVERY, "noise")
    assert one.worst < 2 and ColumnErrors.of(stage(column(6)), EVERY, "noise").worst > 4


def test_rows_set_apart_do_not_count():
    keep = np.arange(40) >= 20
    found = ColumnErrors.of(stage(column(9, slice(0, 20))), keep, "noise")
    assert found.worst < 2 and not (found.bad(stage(column(9, slice(0, 20))), keep, 3.0) & ~keep).any()


def test_fewer_rows_have_no_columns():
    kept = [np.arange(40) < count for count in (LEAST_ROWS - 1, LEAST_ROWS)]
    few, enough = (ColumnErrors.of(stage(column(50)), keep, "noise").worst for keep in kept)
    assert few == 0 and enough > 10
    assert judged(CLEAN, rows=LEAST_ROWS - 1).verdict == PASS


def test_what_is_not_finite_counts_as_equal():
    broken = CLEAN.copy()
    broken[3, 7] = np.nan
    assert ColumnErrors.of(stage(broken), EVERY, "noise").worst < 2


def test_as_a_plain_figure_it_is_the_error_itself():
    device = GOLDEN * np.float32(1)
    size = np.sqrt((GOLDEN.astype(np.float64) ** 2).mean(axis=1))
    device[:, 9] += (0.1 * size).astype(np.float32)
    assert ColumnErrors.of(stage(device), EVERY, "relative").worst == pytest.approx(0.1, rel=1e-3)


def test_a_bound_that_lets_a_column_be_anything_bounds_nothing():
    assert judged(CLEAN, 150.0).verdict == INCONCLUSIVE


def test_many_rows_are_read_in_parts(monkeypatch):
    whole = ColumnErrors.of(stage(column(6)), EVERY, "noise").ratio
    monkeypatch.setattr("parity.compare.columns.CHUNK", 200)
    np.testing.assert_allclose(ColumnErrors.of(stage(column(6)), EVERY, "noise").ratio, whole, rtol=1e-6)


def test_a_policy_of_columns_alone_is_refused():
    with pytest.raises(ValueError, match="what many rows have in one place and nothing bounds the rest"):
        Row(stages="*", judge="noise", reason="bounds of a test", worst_column={"ok": 3.0, "warn": 3.0})
