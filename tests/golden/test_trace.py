"""Stages whose rows come in several passes of a round: recorded whole, forced pass by pass."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from parity.errors import UsageError
from parity.references.capture import torch_tap
from parity.seam import RowTap
from parity.stages import declared
from parity.trace import ForcingTrace, Trace, forced_names

NAMES = declared(2, 1)
STAGE = "drafter.fc_out"
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def passes(tap, stage=STAGE, cuts=(0, 2, 3, 4)):
    pairs = pairwise(cuts)
    return [tap.rows(stage, ROWS[first:end].astype(np.float32), first, 4) for first, end in pairs]


def test_rows_of_several_passes_are_recorded_as_one_stage():
    trace = Trace(NAMES)
    trace.begin(1)
    assert isinstance(trace, RowTap)
    assert np.array_equal(np.concatenate(passes(trace)), ROWS)
    assert np.array_equal(trace.tensors[1, STAGE], ROWS)


def test_a_round_that_starts_again_begins_the_stage_anew():
    trace = Trace(NAMES)
    trace.rows(STAGE, ROWS[:3], 0, 4)
    passes(trace)
    assert np.array_equal(trace.tensors[0, STAGE], ROWS)


@pytest.mark.parametrize(("first", "rows"), [(3, 1), (1, 1), (2, 3)])
def test_rows_out_of_turn_are_an_error(first, rows):
    trace = Trace(NAMES)
    trace.rows(STAGE, ROWS[:2], 0, 4)
    with pytest.raises(UsageError, match="out of turn"):
        trace.rows(STAGE, np.zeros((rows, 3), np.float32), first, 4)


def test_a_stage_that_lacks_rows_is_not_recorded():
    trace = Trace(NAMES)
    trace.rows(STAGE, ROWS[:3], 0, 4)
    assert not trace.tensors


def test_each_pass_goes_on_with_the_goldens_rows():
    golden = -ROWS.astype(np.float64)
    trace = ForcingTrace(NAMES, lambda round_, stage: golden, NAMES)
    back = passes(trace)
    assert np.array_equal(np.concatenate(back), -ROWS) and {rows.dtype for rows in back} == {np.dtype(np.float32)}
    assert np.array_equal(trace.tensors[0, STAGE], ROWS)


def test_a_golden_of_another_shape_forces_nothing():
    trace = ForcingTrace(NAMES, lambda round_, stage: np.zeros((5, 3)), NAMES)
    assert np.array_equal(np.concatenate(passes(trace)), ROWS)


def test_a_chained_run_forces_the_choices_only():
    trace = ForcingTrace(NAMES, lambda round_, stage: np.full((4, 3), 9.0), forced_names("chained", NAMES))
    assert np.array_equal(np.concatenate(passes(trace)), ROWS)
    assert trace.rows("drafter.draft_tokens", np.array([1]), 0, 4).tolist() == [1]
    trace = ForcingTrace(NAMES, lambda round_, stage: np.full(4, 9), forced_names("chained", NAMES))
    assert trace.rows("drafter.draft_tokens", np.array([1]), 0, 4).tolist() == [9]


def test_a_tap_without_rows_gets_the_whole_stage_with_its_last_rows():
    seen = []

    def tap(stage, value):
        seen.append(value)
        return value + 1

    wrapped = torch_tap(tap)
    back = [wrapped.rows(STAGE, torch.from_numpy(ROWS[first : first + 2]), first, 4) for first in (0, 2)]
    assert len(seen) == 1 and np.array_equal(seen[0], ROWS)
    assert torch.equal(back[0], torch.from_numpy(ROWS[:2])) and torch.equal(back[1], torch.from_numpy(ROWS[2:] + 1))
