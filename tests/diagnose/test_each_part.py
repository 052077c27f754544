"""Parts that each take what another number has, and rows of a product that another row's input enters."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.diagnose.components.columns import left_out
from parity.diagnose.components.each_part import in_each_part, kept
from parity.diagnose.components.elements import in_elements
from parity.diagnose.components.other_rows import of_other_rows
from parity.diagnose.components.tables import in_table
from tests.diagnose.made_up_rows import random, said, wrong

PARTS = [(f"head {one}", 8 * one, 8 * one + 8) for one in range(4)]
WEIGHT = random(48, 32, seed=1)
GROUPS = random(2, 40, 8, seed=2)
OWN = [0, 0, 1, 1]


def mixed(groups):
    """What four heads mix that take these groups, [40, 32]."""
    return np.concatenate([GROUPS[one] for one in groups], axis=1)


def read(taken):
    x = mixed(OWN)
    off = wrong(x @ WEIGHT.T, mixed(taken) @ WEIGHT.T)
    numbered = {}
    for group in range(2):
        kept(numbered, f"the values of group {group}", mixed([group] * 4)[off.numbers] - x[off.numbers])
    kept(numbered, "the next row", x[off.numbers])
    return in_each_part(off, numbered, WEIGHT[off.columns], PARTS)


@pytest.mark.parametrize(
    ("taken", "says"),
    [
        ([0, 1, 0, 1], "the values of group, head by head: -, 1, 0, - "),
        ([1, 1, 0, 0], "the values of group, head by head: 1, 1, 0, 0 (from the last to the first)"),
    ],
)
def test_each_head_has_the_group_that_fits_it(taken, says):
    found = read(taken)
    assert found.whole and found.says.startswith(says)


def test_heads_that_take_no_group_whole_are_not_read():
    x = mixed(OWN)
    off = wrong(x @ WEIGHT.T, (x + random(40, 32, seed=5)) @ WEIGHT.T)
    numbered = {"the values of group": {group: mixed([group] * 4)[off.numbers] - x[off.numbers] for group in (0, 1)}}
    found = in_each_part(off, numbered, WEIGHT[off.columns], PARTS)
    assert found is None or not found.whole


def test_inputs_of_other_rows_are_those_of_one_pass():
    rounds = np.repeat([0, 1, 2], [4, 3, 3])
    labels = np.stack([np.zeros(10, int), rounds], axis=1)
    every = SimpleNamespace(golden=np.zeros((10, 1)), labels=labels)
    x = np.arange(10.0)[:, None]
    made = {
        says: change(np.arange(10))[:, 0].tolist() for says, change in of_other_rows(SimpleNamespace(every=every), x)
    }
    assert made == {
        "what enters is that of the row before": [0, 0, 1, 2, 4, 4, 5, 7, 7, 8],
        "what enters is that of the row behind": [1, 2, 3, 3, 5, 6, 6, 8, 9, 9],
        "what enters is that of the same row of the pass before": [0, 1, 2, 3, 0, 1, 2, 4, 5, 6],
        "what enters is that of the pass' first row": [0, 0, 0, 0, 4, 4, 4, 7, 7, 7],
        "what enters is that of the pass' last row": [3, 3, 3, 3, 6, 6, 6, 9, 9, 9],
    }
    assert not list(of_other_rows(SimpleNamespace(every=None), x))


def test_a_run_of_columns_that_counts_twice_is_told_from_one_that_is_left_out():
    x = mixed(OWN)
    for factor, says in ((1.0, "inputs 2 to 5 of head 1 count twice"), (-1.0, "inputs 2 to 5 of head 1 are left out")):
        device = x @ WEIGHT.T + factor * x[:, 10:14] @ WEIGHT[:, 10:14].T
        off = wrong(x @ WEIGHT.T, device)
        found = left_out(off, x[off.numbers], WEIGHT[off.columns], PARTS)
        assert found.whole and found.says.endswith(says)


def test_columns_and_ids_that_are_dealt_out_in_turn_are_told_by_lanes():
    golden = random(60, 40, seed=7)
    column = np.arange(40)
    dealt = column % 2 * 20 + column // 2
    found = said(in_elements(wrong(golden, golden[:, dealt])))
    assert "the numbers of other columns, number i becomes 20 (i mod 2) + i div 2: by lanes" in found
    table, ids = random(64, 48, seed=8).astype(np.float32), np.arange(1, 61)
    taken = table[ids % 2 * 32 + ids // 2].astype(float)
    found = said(in_table(wrong(table[ids].astype(float), taken), (ids, table)))
    assert found.startswith("the embedding of id i is that of 32 (i mod 2) + i div 2: by lanes")
