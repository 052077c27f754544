"""Where an error lies in some heads of an attention, what is wrong with their keys is told of these alone."""

from __future__ import annotations

import numpy as np
import pytest

from parity.diagnose.components.in_heads import heads_of, in_attention
from parity.diagnose.components.seen_keys import attended
from tests.diagnose.made_up_rows import random, wrong
from tests.diagnose.test_keys import DIM, HEADS, ROWS, WEIGHT


def mixed(times):
    return np.stack([attended(row, times(row)) for row in ROWS])


RIGHT = mixed(lambda row: row.seen.astype(float))
LOST = mixed(lambda row: np.where(row.positions < 8, 0.0, row.seen))


def of_heads(*heads, held=LOST):
    """The rows where these heads have what is held, [rows, N * D]."""
    return np.where(np.repeat(np.isin(np.arange(HEADS), heads), DIM), held, RIGHT)


@pytest.mark.parametrize("heads", [[2], [0, 1], [2, 3]])
def test_keys_that_some_heads_do_not_see_are_told_of_these(heads):
    off = wrong(RIGHT @ WEIGHT.T, of_heads(*heads) @ WEIGHT.T)
    assert heads_of(off, WEIGHT, HEADS) == heads
    of_keys = next(in_attention(off, WEIGHT, [ROWS[number] for number in off.numbers], []))
    assert of_keys.whole and "not seen" in of_keys.says
    assert of_keys.says.startswith(f"head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}: ")


@pytest.mark.parametrize("heads", [[0, 1, 2, 3], [1, 2], [0, 3]])
def test_other_heads_are_asked_together(heads):
    """Heads of two groups leave as much of a row as any other error would."""
    assert heads_of(wrong(RIGHT @ WEIGHT.T, of_heads(*heads) @ WEIGHT.T), WEIGHT, HEADS) == [*range(HEADS)]


def test_an_error_hardly_above_its_noise_lies_in_no_head():
    off = wrong(RIGHT @ WEIGHT.T, (RIGHT + 0.01 * random(*RIGHT.shape, seed=3)) @ WEIGHT.T)
    assert heads_of(off, WEIGHT, HEADS) == [*range(HEADS)]
