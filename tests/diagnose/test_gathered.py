"""Shards of columns that are gathered along rows are told, and rows in another order are not taken for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.compare.rows import StageRows
from parity.diagnose.components import gathered as gathered_rows
from parity.diagnose.components.gathered import in_gathered_rows
from parity.diagnose.components.wrong import WrongRows
from tests.diagnose.made_up_rows import NAMES, bfloat16, random, said

PASSES = (37, 5, 5)
GOLDEN = random(sum(PASSES), 96)


def found(device: np.ndarray) -> str:
    floor = bfloat16(GOLDEN * (1 + random(*GOLDEN.shape, seed=9) * 2e-3))
    round_ = np.repeat(np.arange(len(PASSES)), PASSES)
    rows = StageRows(
        NAMES["target.logits"], GOLDEN, bfloat16(device), floor, 0 * round_, round_, np.arange(len(round_))
    )
    wrong = WrongRows.of(rows, "bfloat16")
    return said(in_gathered_rows(replace(wrong, every=rows)))


def gathered(shards: int, bucket: int) -> np.ndarray:
    made = []
    for rows in np.split(GOLDEN, np.cumsum(PASSES)[:-1]):
        padded = np.vstack([rows, random(-len(rows) % bucket, 96, seed=5)])
        made.append(np.stack(np.split(padded, shards, axis=1)).reshape(padded.shape)[: len(rows)])
    return np.concatenate(made)


@pytest.mark.parametrize(("shards", "bucket"), [(2, 1), (4, 1), (2, 8), (8, 8), (2, 32)])
def test_shards_gathered_along_rows_are_told(shards, bucket):
    assert found(gathered(shards, bucket)).startswith(f"{shards} shards of the columns are gathered along rows")


def test_rows_in_another_order_and_columns_exchanged_are_no_gathered_shards():
    assert found(np.roll(GOLDEN, 1, axis=0)) == ""
    assert found(np.roll(GOLDEN, 48, axis=1)) == ""
    assert found(random(*GOLDEN.shape, seed=7)) == ""


def test_a_stage_that_is_too_large_is_not_put_together_anew(monkeypatch):
    monkeypatch.setattr(gathered_rows, "LARGE", GOLDEN.size - 1)
    assert found(gathered(2, 1)) == ""


def test_nothing_is_told_where_the_right_rows_are_not_known():
    rows = StageRows(NAMES["target.logits"], GOLDEN, -GOLDEN, GOLDEN, *[np.zeros(len(GOLDEN), int)] * 3)
    assert [*in_gathered_rows(replace(WrongRows.of(rows, "bfloat16"), every=None))] == []
