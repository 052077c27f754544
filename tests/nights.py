"""Dear tests that reach no line of parity which the others do not: `make catalogue` alone runs them (nights.txt).

`python -m tests.nights RECORD` writes that list anew, from what `python -m tests.mutants --record` left in
build/mutants/record: which test reaches which line, and what it costs.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")

DEAR = 0.3
"""Seconds of processor time from which on a test is worth a line of the list."""

JUDGES = ("adapters", "compare", "contract", "faults", "gates", "golden", "imports", "meta", "process", "torture")
"""Folders whose tests stay, but for further values of one and the same test: what a verdict is trusted by, and the
worked examples."""

Lines = Mapping[str, AbstractSet[object]]
Costs = Mapping[str, float]


def listed() -> frozenset[str]:
    """The listed tests; none for mutants, which all tests judge, and in the recording that the list is made of."""
    return frozenset(() if "MUTANTS_GOLDENS" in os.environ else LIST.read_text().splitlines())


def covering(lines: Lines, costs: Costs) -> set[str]:
    """Tests that reach all lines that any test reaches, chosen greedily: most lines for a second first."""
    left, chosen = set().union(*lines.values()), set[str]()
    heap = [(-len(reached) / (costs[test] + 0.01), test) for test, reached in lines.items()]
    heapq.heapify(heap)
    while left:
        _, test = heapq.heappop(heap)
        rate = -len(lines[test] & left) / (costs[test] + 0.01)
        if rate and heap and rate > heap[0][0]:
            heapq.heappush(heap, (rate, test))
        elif rate:
            chosen.add(test)
            left -= lines[test]
    return _without_spare(chosen, lines, costs)


def _without_spare(chosen: set[str], lines: Lines, costs: Costs) -> set[str]:
    """The same without those, the dearest first, whose lines the others have all."""
    reached = Counter(line for test in chosen for line in lines[test])
    for test in sorted(chosen, key=lambda one: -costs[one]):
        if all(reached[line] > 1 for line in lines[test]):
            chosen.discard(test)
            reached.subtract(lines[test])
    return chosen


def left_to_the_night(lines: Lines, costs: Costs) -> Iterator[str]:
    """The dear tests that go: of each function at least one value stays, or it may go whole."""
    stays = covering(lines, costs)
    functions: dict[str, list[str]] = defaultdict(list)
    for test in sorted(costs, key=lambda one: (costs[one], one)):
        functions[test.split("[")[0]].append(test)
    for function, tests in functions.items():
        dear = [test for test in tests if test not in stays and costs[test] >= DEAR]
        folder, name = function.split("/")[1], function.split("::")[1]
        if folder == "gates" and "clean" not in name:
            continue  # each value turns a check of its own red
        if len(dear) == len(tests) and (len(tests) > 1 or folder in JUDGES):
            dear = dear[1:]
        yield from dear


def recorded(record: Path) -> tuple[Lines, Costs]:
    """Lines of parity, as (file, number), and seconds by test."""
    import coverage

    known: dict[str, float] = json.loads((record / "costs.json").read_text())["tests"]
    costs = {test: cost for test, cost in known.items() if test.startswith("tests/")}
    lines: dict[str, set[object]] = {test: set() for test in costs}
    data = coverage.CoverageData(str(record / ".coverage"))
    data.read()
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            for test in lines.keys() & set(contexts):
                lines[test].add((file, line))
    return lines, costs


def main() -> None:
    """Write the list, and say what it is of."""
    parser = argparse.ArgumentParser(prog="python -m tests.nights", description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path, nargs="?", default=Path("build/mutants/record"))
    lines, costs = recorded(parser.parse_args().record)
    gone = sorted(left_to_the_night(lines, costs))
    LIST.write_text("".join(f"{test}\n" for test in gone))
    spent, whole = sum(costs[test] for test in gone), sum(costs.values())
    print(f"{len(gone)} of {len(costs)} tests, {spent:.0f} of {whole:.0f} s ({spent / whole:.0%})")


if __name__ == "__main__":
    main()
