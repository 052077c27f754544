"""Columns by hand: each one's figure without its largest element, the noise it is over, and the rows that are off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.compare import columns
from parity.compare.columns import CHUNK, LEAST_ROWS, ColumnErrors
from parity.compare.rows import HALF_ULP, StageRows
from parity.stages import declared

OUT = declared(1, 1)["target.layers.0.out"]
STEPS = np.arange(8.0)
EVERY = np.ones(8, bool)


def stage(off=(STEPS / 10, 0), floor=(0.01, 0.02), size=1.0) -> StageRows:
    """Eight rows of two numbers, of this size; the device's and the floor's columns are off by so much."""
    golden = np.ones((8, 2), np.float32) * np.reshape(size, (-1, 1)).astype(np.float32)
    sides = [
        golden + np.stack(np.broadcast_arrays(np.zeros(8), *by)[1:], axis=1).astype(np.float32) for by in (off, floor)
    ]
    return StageRows(OUT, golden, *sides, np.zeros(8, int), np.zeros(8, int), np.arange(8))


def test_a_column_is_the_rms_of_all_its_errors_but_the_largest():
    """Of 0 to 0.7 the squares of 0 to 0.6 are 0.91, over seven."""
    found = ColumnErrors.of(stage(), EVERY, "relative")
    assert found.ratio == pytest.approx([np.sqrt(0.13), 0], rel=1e-5) and found.noise.tolist() == [1, 1]
    assert found.worst == pytest.approx(np.sqrt(0.13), rel=1e-5)
    double = ColumnErrors.of(stage(off=(STEPS / 5, 0), size=2.0), EVERY, "relative")
    assert double.ratio == pytest.approx(found.ratio, rel=1e-5)  # over the row's RMS


def test_its_noise_is_the_floors_column_or_the_noisiest_tenths():
    """Nine tenths of the way from 0.01 to 0.02 lie at 0.019; each is off alike, so that one less is the same."""
    found = ColumnErrors.of(stage(), EVERY, "noise")
    assert found.noise == pytest.approx([0.019, 0.02], rel=1e-4)
    assert found.ratio == pytest.approx([np.sqrt(0.13) / 0.019, 0], rel=1e-4)
    assert ColumnErrors.of(stage(floor=(0, 0)), EVERY, "noise").noise.tolist() == [HALF_ULP] * 2


def test_rows_that_do_not_count_are_in_neither():
    keep = np.arange(12) < 9
    golden = np.ones((12, 2), np.float32)
    device, floor = golden.copy(), golden.copy()
    device[:9, 0] += 0.5
    device[9:, 0] += 9
    floor[9:] += 9
    number = np.arange(12)
    found = ColumnErrors.of(StageRows(OUT, golden, device, floor, number * 0, number * 0, number), keep, "noise")
    assert found.noise.tolist() == [HALF_ULP] * 2 and found.ratio == pytest.approx([0.5 / HALF_ULP, 0], rel=1e-6)


def test_seven_rows_have_no_columns_and_eight_have():
    assert LEAST_ROWS == 8
    for unit in ("noise", "relative"):
        few = ColumnErrors.of(stage(), STEPS > 0, unit)
        assert few.ratio.tolist() == few.noise.tolist() == [0, 0] and few.worst == 0
        assert ColumnErrors.of(stage(), EVERY, unit).worst > 0


def test_rows_without_size_and_values_that_are_no_numbers_have_no_error():
    size = np.where(STEPS == 3, 0, 1)
    found = ColumnErrors.of(stage(size=size, off=(0.1, 0.1)), EVERY, "relative")
    assert found.ratio == pytest.approx([0.1 * np.sqrt(6 / 7)] * 2, rel=1e-5)
    broken = stage(off=(0.1, 0.1))
    for at, side in (((2, 0), broken.device), ((5, 1), broken.golden)):
        side[at] = np.nan
    found = ColumnErrors.of(broken, EVERY, "relative")  # the row of one number has the largest error, being smaller
    assert found.ratio == pytest.approx([0.1 * np.sqrt(6 / 7)] * 2, rel=1e-5)


@pytest.mark.parametrize("chunk", [1, 5, 6, 16, CHUNK])
def test_parts_of_rows_add_up_whatever_their_length(monkeypatch, chunk):
    monkeypatch.setattr(columns, "CHUNK", chunk)
    found = ColumnErrors.of(stage(off=(STEPS / 10, -STEPS[::-1] / 5)), EVERY, "relative")
    assert found.ratio == pytest.approx([np.sqrt(0.13), 2 * np.sqrt(0.13)], rel=1e-5) and found.place((2,)) == (1,)


def test_rows_are_bad_that_are_further_off_in_the_worst_column_than_a_multiple_of_its_noise():
    rows = stage(off=(STEPS / 8, 0), floor=(0.125, 0.125))
    found = ColumnErrors.of(rows, EVERY, "noise")
    assert found.noise.tolist() == [0.125, 0.125]
    assert found.bad(rows, EVERY, 3.0).tolist() == [False] * 4 + [True] * 4  # the fourth is three times off
    assert found.bad(rows, STEPS < 6, 3.0).tolist() == [False] * 4 + [True] * 2 + [False] * 2
    back = replace(rows, device=2 - rows.device)
    assert found.bad(back, EVERY, 3.0).tolist() == [False] * 4 + [True] * 4
    large = stage(off=(STEPS / 8, 0), floor=(0.125, 0.125), size=2.0)
    assert found.bad(large, EVERY, 3.0).tolist() == [False] * 7 + [True]


def test_the_worst_column_is_placed_in_the_axes_of_a_row():
    found = ColumnErrors(np.array([0, 1, 5, 2, 3, 4.0]), np.ones(6))
    assert (found.place((6,)), found.place((2, 3)), found.place((3, 2))) == ((2,), (0, 2), (1, 0)) and found.worst == 5
    assert ColumnErrors(np.zeros(0), np.zeros(0)).worst == 0
