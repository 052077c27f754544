"""How many rows of a pass an expert runs, and which of them a row is, tell which rows are wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.compare import tiles
from parity.compare.facts import Facts
from parity.compare.loads import Loads
from parity.compare.relations import relation
from parity.compare.routed import Routed

PASSES = (40, 5, 5, 5)


def test_an_experts_rows_are_counted_pass_by_pass():
    chosen = {0: [1, 1, 0, 1, 1, 0], 4: [0, 1, 1, 0, 0, 0]}
    loads = Loads.of({expert: np.array(rows, bool) for expert, rows in chosen.items()}, np.array([0, 0, 0, 1, 1, 1]))
    assert loads.least_load.tolist() == [2, 2, 2, 2, 2, -1] == loads.most_load.tolist()
    assert loads.first_place.tolist() == [1, 1, 2, 1, 2, -1] and loads.last_place.tolist() == [1, 2, 2, 1, 2, -1]
    assert [place.tolist() for place in loads.places] == [[1, 2, 0, 1, 2, 0], [0, 1, 2, 0, 0, 0]]


def test_rows_need_not_stand_pass_by_pass():
    loads = Loads.of({1: np.array([True, True, True, False])}, np.array([1, 0, 1, 0]))
    assert loads.first_place.tolist() == [1, 1, 2, -1] and loads.most_load.tolist() == [2, 1, 2, -1]


@pytest.fixture
def facts():
    rounds, count = np.repeat(np.arange(len(PASSES)), PASSES), sum(PASSES)
    index = np.concatenate([np.arange(rows) for rows in PASSES])
    known = Facts(
        rounds * 0,
        rounds,
        np.arange(count),
        index,
        np.repeat(PASSES, PASSES),
        rounds * 0 + 40,
        rounds * 0 - 1,
        "target",
    )
    rng = np.random.default_rng(0)
    chosen = np.stack([rng.permutation(6)[:2] for _ in range(count)])
    return known.behind(Routed.of(chosen, None), {})


def test_rows_are_told_by_what_an_expert_of_theirs_runs(facts):
    every = np.ones(len(facts.prompt), bool)
    alone = facts.least_load == 1
    assert alone.any() and relation(alone, every, facts) == "rows with an expert that runs 1 row of the pass"
    late = facts.last_place > 6
    assert relation(late, every, facts) == "rows behind the first 6 of the pass that an expert of theirs runs"
    tiles = np.any([(place > 4) & (place % 4 == 1) for place in Loads.of(facts.experts, facts.passes).places], axis=0)
    said = "rows that begin a further tile of 4 of the rows that an expert of theirs runs"
    assert relation(tiles, every, facts) == said


def test_nothing_is_known_of_rows_without_experts(facts):
    bare = replace(facts, experts={}, least_load=None, most_load=None, first_place=None, last_place=None)
    assert bare.known("last_place").max() == -1
    assert not [*tiles.runs(bare, np.ones(len(bare.prompt), bool))]
