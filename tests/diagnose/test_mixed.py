"""Runs of columns, as taps are, that hold sums of each other."""

from __future__ import annotations

import numpy as np
import pytest

from parity.diagnose.components.elements import in_elements
from tests.diagnose.made_up_rows import random, said, wrong

TAPS = random(20, 96)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (np.full((3, 3), 1 / 3), "each third of the columns holds the mean of all"),
        (np.ones((3, 3)), "each third of the columns holds 1 times their sum"),
        (
            np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]]),
            "each third of the columns holds others: 1 of third 1; 0.5 of third 1 and 0.5 of third 2; 1 of third 3",
        ),
    ],
)
def test_sums_of_runs_are_told(times, says):
    mixed = np.einsum("oi,riw->row", times, TAPS.reshape(20, 3, 32)).reshape(20, 96).astype(np.float32)
    assert said([*in_elements(wrong(TAPS, mixed, "drafter.taps"))]).startswith(says)


def test_one_factor_of_all_columns_is_no_sum_of_runs():
    found = [*in_elements(wrong(TAPS, TAPS * 1.1547, "drafter.taps"))]
    assert not any("of the columns holds" in one.says for one in found if one)


def test_another_error_is_no_sum_of_runs():
    assert said([*in_elements(wrong(TAPS, TAPS + random(20, 96, seed=3), "drafter.taps"))]) == ""
