"""Slices and maps by hand: whose rows are pooled, which are the worst, and what stands in a column."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import breakdown as of
from parity.compare.breakdown import Slice, breakdown, heat, splits
from parity.compare.rows import HALF_ULP, StageRows
from parity.errors import UsageError
from parity.stages import declared

NAMES = declared(2, 1)
OUT, Q, FFN, EXPERTS, TOKENS = (
    *("target.layers.0.out", "target.layers.0.q", "target.layers.0.ffn_out", "target.layers.0.experts"),
    "target.tokens",
)


def rows_of(name: str, golden, device=None, floor=None, position=(4, 5, 4)) -> StageRows:
    golden = np.asarray(golden, np.float32)
    sides = [golden if side is None else np.asarray(side, np.float32) for side in (device, floor)]
    nothing = np.zeros(len(golden), np.int64)
    return StageRows(NAMES[name], golden, *sides, nothing, nothing, np.array(position[: len(golden)]))


@pytest.fixture
def cut(monkeypatch):
    """`cut(per, worst, **rows)`: the slices of these rows by stage."""

    def make(per: str, worst: int = 9, stages=(OUT,), **rows) -> dict[str, list[Slice]]:
        asked = []
        made = {one.named.name: one for one in rows.values() if one is not None}

        def stage_rows(golden, run, named, **how):
            asked.append((named.name, how))
            return made.get(named.name)

        monkeypatch.setattr(of, "stage_rows", stage_rows)
        found = breakdown(SimpleNamespace(declared=NAMES), None, stages, per, worst)
        make.asked = asked
        return found

    return make


FOURS = np.full((3, 4), 4.0)
DEVICE = FOURS + np.array([[0.8, 0, 0, 0], [0, 1.6, 0, 0], [0, 0, 0.6, 0]])
FLOOR = FOURS + np.array([[0.1, 0, 0, 0], [0, 0.1, 0, 0], [0.1, 0, 0, 0]])


def test_rows_of_a_position_are_pooled_and_the_worst_comes_first(cut):
    (slices,) = cut("position", rows=rows_of(OUT, FOURS, DEVICE, FLOOR)).values()
    assert [(one.label, one.rows) for one in slices] == [(5, 1), (4, 2)]
    assert [one.relative_l2 for one in slices] == pytest.approx([1.6 / 8, 1 / 128**0.5])
    assert [one.floor_l2 for one in slices] == pytest.approx([0.1 / 8, 0.02**0.5 / 128**0.5], rel=1e-4)
    assert [one.x for one in slices] == pytest.approx([16, 0.5**0.5 * 10], rel=1e-4)
    assert [one.label for one in cut("position", 1, rows=rows_of(OUT, FOURS, DEVICE, FLOOR))[OUT]] == [5]


def test_a_floor_counts_as_half_a_ulp_at_the_least_and_zeros_as_themselves(cut):
    assert Slice(0, 1, 0.5, 0.0).x == pytest.approx(0.5 / HALF_ULP) and Slice(0, 1, 0.5, 0.25).x == 2
    (one,) = cut("position", rows=rows_of(OUT, [[0, 0]], [[3, 4]], [[0, 1]]))[OUT]
    assert (one.relative_l2, one.floor_l2) == (5, 1)


def test_heads_are_the_second_axis(cut):
    golden = np.full((2, 2, 4), 4.0)
    device, floor = golden.copy(), golden.copy()
    device[:, 1, 0] += (0.6, 0.8)
    floor[1, 0, 2] += 0.1
    slices = cut("head", stages=(Q,), rows=rows_of(Q, golden, device, floor))[Q]
    assert [(one.label, one.rows) for one in slices] == [(1, 2), (0, 2)]
    assert [one.relative_l2 for one in slices] == pytest.approx([1 / 128**0.5, 0], rel=1e-4)
    assert [one.floor_l2 for one in slices] == pytest.approx([0, 0.1 / 128**0.5], rel=1e-4)


def test_rows_of_an_expert_are_those_that_chose_it(cut):
    chosen = rows_of(EXPERTS, [[2, 0], [7, 2], [0, 3]])
    slices = cut("expert", stages=(FFN,), rows=rows_of(FFN, FOURS, DEVICE, FLOOR), chosen=chosen)[FFN]
    assert {one.label: one.rows for one in slices} == {0: 2, 2: 2, 3: 1, 7: 1}
    assert {one.label: one.relative_l2 for one in slices} == pytest.approx(
        {7: 1.6 / 8, 2: 3.2**0.5 / 128**0.5, 0: 1 / 128**0.5, 3: 0.6 / 8}
    )
    assert cut.asked == [(FFN, {}), (EXPERTS, {"device": "float32", "mode": "local"})]


@pytest.mark.parametrize("chosen", [None, rows_of(EXPERTS, [[2, 0], [7, 2]])])
def test_without_experts_of_these_rows_there_is_no_slice_by_expert(cut, chosen):
    with pytest.raises(UsageError, match=rf"^--per expert: the golden has no experts for the rows of {FFN}$"):
        cut("expert", stages=(FFN,), rows=rows_of(FFN, FOURS), chosen=chosen)


def test_which_stages_can_be_split():
    kv = "kv.target.0.k"
    assert [name for name in (OUT, Q, FFN, EXPERTS, TOKENS, kv) if splits(NAMES[name], "head")] == [Q, kv]
    assert [name for name in (OUT, Q, FFN, EXPERTS, TOKENS, kv) if splits(NAMES[name], "expert")] == [OUT, FFN]
    assert [name for name in (OUT, Q, FFN, EXPERTS, TOKENS, kv) if splits(NAMES[name], "position")] == [OUT, Q, FFN, kv]


def test_stages_that_cannot_be_split_are_left_out_and_three_of_them_named(cut):
    assert [*cut("position", stages=(TOKENS, OUT, Q), rows=rows_of(OUT, FOURS))] == [OUT]
    with pytest.raises(UsageError) as refused:
        cut("head", stages=(OUT, TOKENS, EXPERTS, FFN), rows=rows_of(OUT, FOURS))
    said = f"--per head: none of the shown stages ({OUT}, {TOKENS}, {EXPERTS} …) can be split that way"
    assert str(refused.value) == said


def golden_of(*lengths: tuple[int, int]) -> SimpleNamespace:
    """Prompts of so many tokens that emitted so many; none where that is -1."""
    prompts = [
        SimpleNamespace(ids=(0,) * ids, generation=None if more < 0 else SimpleNamespace(emitted=(0,) * more))
        for ids, more in lengths
    ]
    return SimpleNamespace(declared=NAMES, manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))


@pytest.mark.parametrize(
    ("columns", "edges"),
    [(9, [*range(9)]), (99, [*range(9)]), (3, [0, 3, 6]), (4, [0, 3, 6]), (5, [0, 2, 4, 6, 8]), (1, [0]), (2, [0, 5])],
)
def test_columns_are_equally_wide_and_reach_the_longest_end(columns, edges):
    assert of._edges(golden_of((5, 4), (3, 2), (99, -1)), columns).tolist() == edges and of.COLUMNS == 48


def test_a_map_pools_the_rows_of_a_column(monkeypatch):
    """Positions 0 to 3 and 4 on; of layer 1 there is no row, of no stage another."""
    rows = rows_of(OUT, FOURS, DEVICE, FLOOR, position=(3, 4, 99))
    monkeypatch.setattr(of, "stage_rows", lambda golden, run, named: {OUT: rows}.get(named.name))
    stages = (TOKENS, OUT, "target.layers.1.out", "no.stage", Q)

    def maps(precision: str) -> list:
        case = SimpleNamespace(precision=precision)
        return [*heat(golden_of((5, 4)), SimpleNamespace(manifest=SimpleNamespace(stages=stages, case=case)), 3)]

    ((family, layers, edges),) = maps("bfloat16")
    assert (family, edges.tolist(), [*layers]) == ("target.layers.{l}.out", [0, 3, 6], [0])
    pooled = (0.8**2 + 1.6**2) ** 0.5
    assert layers[0] == pytest.approx([np.nan, pooled / 0.02**0.5, 6], rel=1e-4, nan_ok=True)
    assert maps("float32")[0][1][0] == pytest.approx([np.nan, pooled / 128**0.5, 0.6 / 8], rel=1e-4, nan_ok=True)


def test_a_map_of_what_is_not_finite_is_infinite_in_its_column(monkeypatch):
    device = DEVICE.copy()
    device[0, 3] = np.nan
    rows = rows_of(OUT, FOURS, device, FLOOR, position=(0, 1, 2))
    monkeypatch.setattr(of, "stage_rows", lambda golden, run, named: rows)
    assert of._row(None, _run(), NAMES[OUT], np.array([0, 2])).tolist()[0] == np.inf
    assert of._row(None, _run(), NAMES[OUT], np.array([0, 2]))[1] == pytest.approx(6, rel=1e-4)


def _run() -> SimpleNamespace:
    return SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(precision="bfloat16")))


def test_no_rows_are_no_map(monkeypatch):
    for rows in (None, rows_of(OUT, np.zeros((0, 4)))):
        monkeypatch.setattr(of, "stage_rows", lambda golden, run, named, rows=rows: rows)
        assert of._row(None, _run(), NAMES[OUT], np.array([0])) is None
