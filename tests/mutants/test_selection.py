"""Which tests run against a mutant: the cheapest that reach its line, whatever fixtures they share."""

from __future__ import annotations

import pytest

from tests.mutants.selection import LEAST, Reach


@pytest.fixture
def reach() -> Reach:
    """Twenty tests of a second behind a free fixture, one of a second behind a golden, three that cost nothing."""
    known = Reach.__new__(Reach)
    known.costs = {f"slow {n}": 1.0 for n in range(20)} | {"golden": 1.0} | {f"quick {n}": 0.0 for n in range(3)}
    known.fixtures = {"folder": 0.0, "small_golden": 0.5}
    known.needs = {f"slow {n}": ["folder"] for n in range(20)} | {"golden": ["folder", "small_golden"]}
    return known


def test_the_cheapest_run_first_whatever_they_need(reach):
    chosen, spent = reach._cheapest(set(reach.costs), 12.0)
    assert chosen[:3] == ["quick 0", "quick 1", "quick 2"] and len(chosen) == 15 and spent == 12


def test_some_run_whatever_they_cost_and_a_fixture_is_paid_once(reach):
    assert len(reach._cheapest(set(reach.costs), 0.0)[0]) == LEAST
    reach.needs = {test: ["small_golden"] for test in reach.costs}
    assert reach._cheapest({"slow 0", "slow 1"}, 60.0)[1] == 2.5
