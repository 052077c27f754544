"""Integers by a scale are told with what has a scale of its own; what is no whole step of any is not."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.rows import StageRows
from parity.diagnose.components.whole_steps import in_whole_steps
from parity.diagnose.components.wrong import WrongRows
from tests.diagnose.made_up_rows import NAMES, bfloat16, random

ROWS, HEADS, DIM = 60, 2, 32
GOLDEN = random(ROWS, HEADS, DIM) * np.exp(0.3 * random(ROWS, 1, 1, seed=1))
SCALED = {
    "one scale": None,
    "a scale for each row": (1, 2),
    "a scale for each column": (0,),
    "a scale for each head": (0, 2),
    "a scale for each head of a row": (2,),
}


def kept(steps, axis=None):
    """The golden in whole steps of a scale, so many up to the largest number along these axes."""
    step = np.abs(GOLDEN).max(axis=axis, keepdims=True) / steps
    return np.round(GOLDEN / step) * step


def read(device):
    passes = np.repeat([0, 1, 2], ROWS // 3)
    rows = StageRows(
        NAMES["target.layers.1.v"], GOLDEN, bfloat16(device), bfloat16(GOLDEN), passes * 0, passes, np.arange(ROWS)
    )
    wrong = WrongRows.of(rows, "bfloat16", whole=True)
    return next((one.says for one in in_whole_steps(wrong) if one is not None), "")


@pytest.mark.parametrize(("name", "most"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("which", SCALED)
def test_each_scale_is_told(name, most, which):
    assert read(kept(most, SCALED[which])) == f"{name} with {which}"


def test_scales_of_pages_are_those_of_rows():
    step = np.repeat(np.abs(GOLDEN).max(axis=(1, 2)).reshape(12, 5).max(axis=1), 5)[:, None, None] / 127
    assert read(np.round(GOLDEN / step) * step) == "int8 with a scale for each row"


@pytest.mark.parametrize("device", [GOLDEN, GOLDEN * 1.02, GOLDEN + 0.02 * random(*GOLDEN.shape, seed=2)])
def test_other_numbers_are_no_whole_steps(device):
    assert read(device) == ""


def test_whole_steps_of_other_numbers_are_not_the_golden_in_fewer_bits():
    assert read(kept(127)[::-1]) == ""


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_few_rows_tell_no_scale_of_columns(rows):
    """One number is a whole step of some scale."""
    passes, some = np.zeros(rows, np.int64), GOLDEN[:rows]
    off = some * np.random.default_rng(3).uniform(1.2, 1.7, some.shape)
    sides = bfloat16(off), bfloat16(some)
    wrong = WrongRows.of(
        StageRows(NAMES["target.layers.1.v"], some, *sides, passes, passes, np.arange(rows)), "bfloat16", whole=True
    )
    assert not [one for one in in_whole_steps(wrong) if one is not None]
