"""Where an error sits, by hand: the head, the first and the worst row, what a stage is computed from, whose it is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.places import (
    _over_precise,
    behind,
    first_of,
    judged_inputs,
    multiple,
    place_of,
    segment,
    shows_first_in,
    sources,
    where,
    witnesses,
)
from parity.compare.report import StageResult
from parity.compare.rows import StageRows
from parity.stages import declared

NAMES = declared(2, 1)
Q, OUT, LOGITS = "target.layers.0.q", "target.layers.0.out", "target.logits"


def rows_of(golden, device, name: str = Q, prompt=None, round_=None, **more) -> StageRows:
    golden, device = np.asarray(golden, np.float32), np.asarray(device, np.float32)
    number = np.arange(len(golden))
    labels = (number * 0 if one is None else np.array(one) for one in (prompt, round_))
    return StageRows(NAMES[name], golden, device, golden, *labels, number + 5, **more)


def test_the_head_of_the_largest_error_is_named_whatever_its_sign():
    golden = np.zeros((2, 3, 2))
    device = golden.copy()
    device[1] = [[1, 1], [3, -3], [2, 2.5]]
    found = place_of(rows_of(golden, device), 1)
    assert (found.head, found.position, found.prompt, found.round, found.layer) == (1, 6, 0, 0, 0)
    assert place_of(rows_of(golden, device, sketched=True), 1).head is None
    assert place_of(rows_of(golden[:, 0], device[:, 0], OUT), 1).head is None


def test_the_first_of_the_bad_rows_is_by_round_then_prompt_then_position():
    rows = rows_of(np.zeros((6, 2, 2)), np.zeros((6, 2, 2)), prompt=[1, 0, 1, 0, 0, 0], round_=[1, 1, 0, 0, 0, 2])
    for bad, due in (([0, 1], 1), ([0, 1, 2], 2), ([1, 2, 3, 4], 3), ([4, 5], 4), ([5], 5)):
        assert first_of(rows, np.isin(np.arange(6), bad)) == due


@pytest.mark.parametrize(
    ("bad", "judged", "first", "due"),
    [
        ([1, 3], [0, 1, 2, 3], None, (1, 3, 2)),
        ([1, 3], [0, 1, 2], None, (1, 1, 2)),
        ([], [0, 1, 2, 3], None, (2, 2, 0)),
        ([], [0, 1, 3], None, (3, 3, 0)),
        ([1, 3], [0, 1, 2, 3], 0, (0, 3, 2)),
        ([], [0, 1, 2, 3], 0, (0, 2, 0)),
    ],
)
def test_the_worst_is_of_the_bad_rows_where_there_are_some(bad, judged, first, due):
    """Rows are off by 1, 2, 9 and 3."""
    rows, size = rows_of(np.zeros((4, 1, 2)), np.zeros((4, 1, 2))), np.array([1.0, 2, 9, 3])
    found = where(rows, np.isin(np.arange(4), bad), np.isin(np.arange(4), judged), size, first)
    assert (found["first"].position - 5, found["worst"].position - 5, found["bad_rows"]) == due
    assert found["relation"] == ""


def test_a_stage_rests_on_the_nearest_judged_ones_and_an_error_between_shows_in_it():
    judged = {OUT, "target.embed", LOGITS}
    assert judged_inputs(LOGITS, NAMES, judged) == [OUT]
    assert judged_inputs("target.layers.0.attn_in", NAMES, judged) == ["target.embed"]
    inside = segment(LOGITS, NAMES, judged)
    assert inside[0] == LOGITS and {"target.pre_head_hidden", "target.layers.1.ffn_out"} <= {*inside}
    assert not {OUT, "target.embed", "target.layers.0.ffn_out"} & {*inside}
    assert {*sources(LOGITS, NAMES, judged)} == {*inside[1:]}


def test_an_error_in_a_hidden_stage_shows_in_the_first_shown_one_behind_it():
    hidden = ["target.layers.0.attn_in", "target.layers.1.out", "drafter.logits"]
    assert shows_first_in(hidden, NAMES, [OUT, LOGITS]) == {
        "target.layers.0.attn_in": OUT, "target.layers.1.out": LOGITS, "drafter.logits": "",
    }  # fmt: skip


def test_what_is_computed_before_a_token_is_an_earlier_rounds():
    assert "target.logits" not in sources("drafter.input_ids", NAMES, ())
    before = behind(NAMES)
    assert before["target.embed"] == set() and {"target.embed", Q, OUT} <= before[LOGITS]
    assert LOGITS not in before[OUT] and not [name for name in before[LOGITS] if name.startswith(("kv.", "accept."))]


@pytest.mark.parametrize(("x", "bound", "times"), [(3.0, 1.5, 2), (0.0, 0.0, 0), (0.1, 0.0, np.inf), (0.0, 2.0, 0)])
def test_a_statistic_is_a_multiple_of_its_bound(x, bound, times):
    assert multiple(x, bound) == times


@pytest.mark.parametrize(
    ("judge", "relative", "l2", "disguised"),
    [("noise", 0.1, 0.24, True), ("noise", 0.1, 0.25, False), ("noise", 0.0, 0.1, False), ("relative", 0.1, 0.1, False),
     ("noise", 0.1, None, False), ("noise", None, 0.1, True)],
)  # fmt: skip
def test_a_stage_is_over_precise_below_a_quarter_of_the_noise(judge, relative, l2, disguised):
    made = StageResult(OUT, "target.layers.{l}.out", 0, judge, "pass", "as a test has it", rows=9, relative_l2=relative)
    assert _over_precise(replace(made, x={} if l2 is None else {"l2": l2})) is disguised


def test_each_reference_is_told_with_what_it_confirms_and_disputes():
    seen = [
        SimpleNamespace(witness="vllm", versions={"vllm": "0.9"}, stages=("a", "b"), disputed=(), prompts=1),
        SimpleNamespace(witness="own", versions={}, stages=("a",), disputed=("b", "c"), prompts=2),
    ]
    case = SimpleNamespace(prompts=(1, 2, 3))
    assert witnesses(SimpleNamespace(corroborations=seen, stages=("a", "b", "c", "d"), case=case)) == (
        "vllm 0.9 confirms 2 of 4 stages on 1 of 3 prompts",
        "own confirms 1 of 4 stages on 2 of 3 prompts and disputes 2",
    )
