"""A tap that holds more than its layer's stream: told by the stage whose rows were added to it."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np

from parity.compare.rows import stage_rows
from parity.diagnose.components.other_stages import in_other_stages
from parity.diagnose.components.wrong import WrongRows

ADDED = "target.layers.1.attn_out"


def test_what_was_added_to_one_tap_is_told_row_by_row_of_the_pass_that_fed_it(small_golden):
    """A stream that is changed in place behind its tap."""
    golden = small_golden
    taps, added = (
        stage_rows(golden, golden, golden.declared[name], device="float32", mode="local")
        for name in ("drafter.taps", ADDED)
    )
    width = added.golden.shape[1]
    device = taps.golden.astype(np.float32)
    for row, (prompt, round_, position) in enumerate(taps.labels.tolist()):
        fed = (added.prompt == prompt) & (added.position == position) & (added.round < max(round_, 1))
        device[row, width : 2 * width] += added.golden[np.flatnonzero(fed)[added.round[fed].argmax()]]
    wrong = WrongRows.of(replace(taps, device=device.astype(ml_dtypes.bfloat16)), "bfloat16")
    found = in_other_stages(wrong, golden, "local")
    assert found is not None and found.whole and found.explained > 0.99
    assert re.fullmatch(rf"tap 1: \+(1|0\.99\d*|1\.00\d*) times {ADDED}", found.says), found.says
    everywhere = WrongRows.of(replace(taps, device=(device * 1.1).astype(ml_dtypes.bfloat16)), "bfloat16")
    assert in_other_stages(everywhere, golden, "local") is None, "more than one tap is wrong"


def test_a_multiple_of_the_stage_itself_is_left_to_what_says_more_of_factors(small_golden):
    golden, name = small_golden, "drafter.pre_head_hidden"
    rows = stage_rows(golden, golden, golden.declared[name], device="float32", mode="local")
    wrong = WrongRows.of(replace(rows, device=(rows.golden * 1.1547).astype(ml_dtypes.bfloat16)), "bfloat16")
    found = in_other_stages(wrong, golden, "local")
    assert found is None or name not in found.says


def test_a_stage_that_is_added_in_the_place_of_another_is_told(small_golden):
    golden, layer = small_golden, "target.layers.1"
    out, before, added = (
        stage_rows(golden, golden, golden.declared[name], device="float32", mode="local")
        for name in (f"{layer}.out", "target.layers.0.attn_out", ADDED)
    )
    device = out.golden + before.golden - added.golden
    wrong = WrongRows.of(replace(out, device=device.astype(ml_dtypes.bfloat16)), "bfloat16")
    found = in_other_stages(wrong, golden, "local")
    assert found is not None and found.whole
    assert found.says == f"target.layers.0.attn_out in the place of {ADDED}"


def test_a_stage_of_the_row_before_that_is_added_in_some_columns_is_told(small_golden):
    """An addition in two halves, of which one is a row late."""
    golden, layer = small_golden, "target.layers.1"
    out, added = (
        stage_rows(golden, golden, golden.declared[name], device="float32", mode="local")
        for name in (f"{layer}.out", f"{layer}.ffn_out")
    )
    same = (np.diff(added.prompt, prepend=-1) == 0) & (np.diff(added.round, prepend=-1) == 0)
    late = np.where(same[:, None], np.roll(added.golden, 1, axis=0) - added.golden, 0)
    late[:, : late.shape[1] // 2] = 0
    wrong = WrongRows.of(replace(out, device=(out.golden + late).astype(ml_dtypes.bfloat16)), "bfloat16")
    found = in_other_stages(wrong, golden, "local")
    assert found is not None and found.whole
    assert found.says.endswith(f": {layer}.ffn_out of the row before in the place of {layer}.ffn_out"), found.says
