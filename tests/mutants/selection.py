"""The tests that reach a line, the cheapest first."""

from __future__ import annotations

import ast
import json
from pathlib import Path

STARTUP, KEPT, LEAST = 3.0, 0.5, 10
"""Seconds until pytest runs the first test, and of a golden that is kept; tests that run whatever they cost."""

READERS = ("tests/meta/test_frozen.py",)
"""Tests of what every module of the core holds: they run no line of one, and judge what its import makes."""


class Reach:
    """What the recording knows: contexts by file and line, and what each test and its fixtures cost.

    Args:
        record: the folder of `.coverage` and `costs.json`.
        tree: where the recorded files lie.
    """

    def __init__(self, record: Path, tree: Path):
        import coverage

        known = json.loads((record / "costs.json").read_text())
        self.costs, self.fixtures, self.needs = known["tests"], known["fixtures"], known["needs"]
        self.fixtures |= {name: KEPT for name in self.fixtures if name.endswith("golden")}
        self.tree = tree
        self.data = coverage.CoverageData(str(record / ".coverage"))
        self.data.read()
        self.files: dict[Path, dict[int, list[str]]] = {}

    def lines(self, module: Path) -> dict[int, list[str]]:
        """Tests by line."""
        if module not in self.files:
            raw = self.data.contexts_by_lineno(str((self.tree / module).resolve()))
            self.files[module] = {line: [one for one in contexts if one] for line, contexts in raw.items()}
        return self.files[module]

    def tests(self, module: Path, first: int, last: int, budget: float) -> tuple[list[str], float]:
        """Tests that reach one of these lines, the cheapest first, up to so many seconds; and what they cost.

        A line that is compiled (numba) has none, and one that runs at import has at most whoever came first: then
        those that reach the module, and behind what the import makes, the readers of all modules.
        """
        lines = self.lines(module)
        found = {test for line in range(first, last + 1) for test in lines.get(line, ())}
        imported = runs_at_import((self.tree / module).read_text(), first)
        if imported or not found:
            found |= {test for tests in lines.values() for test in tests}
        readers = [test for test in sorted(self.costs) if imported and test.startswith(READERS)]
        chosen, cost = self._cheapest({test for test in found if test in self.costs} - {*readers}, budget)
        return chosen + readers, cost + sum(self.costs[test] for test in readers)

    def _cheapest(self, tests: set[str], budget: float) -> tuple[list[str], float]:
        """By cost, fixtures included, which the first test that needs one pays."""
        chosen: list[str] = []
        paid: set[str] = set()
        spent = 0.0
        for test in sorted(tests, key=lambda one: (self.costs[one] + self._paid(self._needed(one)), one)):
            cost = self.costs[test] + self._paid(self._needed(test) - paid)
            if len(chosen) >= LEAST and spent + cost > budget:
                break
            chosen.append(test)
            paid |= self._needed(test)
            spent += cost
        return chosen, spent

    def _needed(self, test: str) -> set[str]:
        return set(self.needs.get(test, ()))

    def _paid(self, fixtures: set[str]) -> float:
        return sum(self.fixtures.get(name, 0.0) for name in fixtures)


def runs_at_import(source: str, line: int) -> bool:
    """Whether a line lies in no function's body: decorators, defaults and what a class or a module holds."""
    functions = [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return not any(one.body[0].lineno <= line <= (one.end_lineno or 0) for one in functions)
