"""Which tests run against a mutant: the cheapest that reach its line, whatever fixtures they share.

A line that runs at import is every test's of its module, and of those that read all modules.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.selection import LEAST, READERS, Reach, runs_at_import

SOURCE = """from dataclasses import dataclass

@dataclass(frozen=True)
class Held:
    most: int = 4

    @property
    def less(
        self, by=2
    ):
        return self.most - 1
"""


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


@pytest.mark.parametrize(("line", "imported"), [(1, True), (3, True), (5, True), (7, True), (9, True), (11, False)])
def test_decorators_defaults_and_what_a_class_holds_run_at_import(line, imported):
    assert runs_at_import(SOURCE, line) is imported


def test_a_line_of_an_import_is_judged_by_its_modules_tests_and_by_the_readers_of_all(reach, tmp_path):
    """Who imports a module first would be the only one otherwise, and a reader runs no line of it."""
    reader = f"{READERS[0]}::test_all"
    (tmp_path / "held.py").write_text(SOURCE)
    reach.tree, reach.costs[reader] = tmp_path, 7.0
    reach.files = {Path("held.py"): {3: ["quick 0"], 11: ["quick 0", "quick 1"]}}
    assert reach.tests(Path("held.py"), 3, 3, 5.0) == (["quick 0", "quick 1", reader], 7.0)
    assert reach.tests(Path("held.py"), 11, 11, 5.0) == (["quick 0", "quick 1"], 0.0)
    assert reach.tests(Path("held.py"), 10, 10, 5.0)[0] == ["quick 0", "quick 1", reader]


def test_the_readers_of_all_modules_are_there():
    assert all((Path(__file__).parents[2] / reader).is_file() for reader in READERS)
