"""Numbers that are off run by run, by lanes, or by what grows with another number."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.diagnose.components.chosen import Chosen, rules_of_one
from parity.diagnose.components.counted import in_counts
from parity.diagnose.components.elements import in_elements
from parity.diagnose.components.numbered import by_lanes, in_runs, steps_of
from parity.diagnose.components.tables import in_table
from tests.diagnose.made_up_rows import random, wrong

IDS = np.arange(40)


def test_runs_that_are_each_so_many_off_are_told():
    found = np.concatenate([IDS[:10], IDS[10:25] - 3, IDS[25:] + 2])
    steps = (*steps_of(IDS, found), None)
    costs = np.array(
        [
            [0.0 if step is not None and mine + step == its else 9.0 for step in steps]
            for mine, its in zip(IDS, found, strict=True)
        ]
    )
    costs[12:14] = [9.0] * (len(steps) - 1) + [0.0]
    runs = in_runs(IDS, steps, costs, 5.0)
    assert runs.said("the numbers of the column") == (
        "10 to 11: the numbers of the column 3 before, 12 to 13: zeros, 14 to 24: the numbers of the column 3 before, "
        "25 to 39: the numbers of the column 2 behind"
    )


def test_one_number_that_fits_elsewhere_makes_no_run():
    costs = np.tile([0.0, 5.0], (40, 1))
    costs[7] = [3.0, 0.0]
    assert in_runs(IDS, (0, 4), costs, 5.0) is None


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (IDS % 4 * 10 + IDS // 4, "number i becomes 10 (i mod 4) + i div 4: by lanes, not in runs"),
        (IDS % 8 * 5 + IDS // 8, "number i becomes 5 (i mod 8) + i div 8: by lanes, not in runs"),
        (IDS[::-1], ""),
    ],
)
def test_numbers_by_lanes(theirs, says):
    assert by_lanes(IDS, theirs, 40) == says
    if says:
        scores = np.random.default_rng(0).standard_normal((40, 40))
        chosen = Chosen(scores, IDS, theirs, (IDS, theirs), IDS, np.zeros(len(IDS), int))
        assert says in list(rules_of_one(chosen, False))


def test_columns_in_runs_are_read():
    golden = random(12, 40, seed=0)
    device = golden.copy()
    device[:, 10:20], device[:, 20:22], device[:, 22:] = golden[:, 7:17], 0, golden[:, 16:34]
    told = [one.says for one in in_elements(wrong(golden, device)) if one is not None and one.whole]
    assert any("10 to 19: the numbers of the column 3 before, 20 to 21: zeros" in one for one in told), told


def test_ids_in_runs_are_read():
    table = random(60, 40, seed=1).astype(np.float32)
    ids = np.arange(20, 56)
    taken = np.where(ids < 30, ids - 2, ids - 5)
    found = next(
        one
        for one in in_table(wrong(table[ids].astype(float), table[taken].astype(float)), (ids, table))
        if one is not None
    )
    assert found.whole and "20 to 29: those of the id 2 before, 30 to 55: those of the id 5 before" in found.says


def facts(**known):
    """Facts of rows by name; -1 for others."""
    count = len(known["round"])
    return SimpleNamespace(
        **{"index": np.zeros(count, int), "committed": np.full(count, -1)} | known,
        known=lambda name: known.get(name, np.full(count, -1)),
    )


def rows_of(golden, device, part="slots", positions=None):
    held = np.array(golden), np.array(device)
    named = SimpleNamespace(stage=SimpleNamespace(part=part))
    prompt = np.zeros(len(held[0]), int)
    return SimpleNamespace(named=named, golden=held[0], device=held[1], prompt=prompt, position=np.array(positions))


@pytest.mark.parametrize(
    ("off", "says"),
    [
        ((0, 0, 3, 6, 9), "+3 for each round beyond 1"),
        ((0, -2, -1, 0, 0), ""),
        ((0, 1, 1, 1, 1), ""),
    ],
)
def test_a_number_that_grows_with_the_rounds(off, says):
    golden = np.array([5, 9, 12, 15, 19])
    rows = rows_of(golden, golden + off)
    assert in_counts(facts(round=np.arange(5)), rows, np.array(off) != 0) == says


def test_ids_that_are_taken_too_early_in_the_text_by_what_a_pass_lacks():
    text = np.random.default_rng(3).permutation(900)[:40]
    positions = np.arange(20, 32)
    committed = np.repeat([2, 5, 3, 4], 3)
    rows = rows_of(text[positions], text[positions - (5 - committed)], "input_ids", positions)
    rows.position, rows.golden = np.append(np.arange(20), positions), np.append(text[:20], rows.golden)
    rows.device, rows.prompt = np.append(text[:20], rows.device), np.zeros(32, int)
    of = facts(
        round=np.append(np.zeros(20, int), np.repeat([1, 2, 3, 4], 3)),
        committed=np.append(np.full(20, -1), committed),
        index=np.append(np.arange(20), np.tile([0, 1, 1], 4)),
    )
    said = in_counts(of, rows, rows.golden != rows.device)
    assert said == "ids of others: -1 places in the text for each committed row of the pass below 5"
