"""A night of `fixtures/tiny/batches.toml` as the table in docs/batches.md: family x engine x lanes x {greedy, T = 1}.

parity nightly fixtures/tiny/batches.toml --out NIGHT
python benchmarks/batches.py NIGHT

A cell is chained / local, the worst relative L2 of any stage in x noise, and its verdict where that is no pass; letters
are gates that it was asked beside its stages and that pass. What a gate did not judge has a line below the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parity.nightly.folder import NightFolder
from parity.nightly.records import CellResult

LETTERS = {"lifecycle": "L", "sampling": "S"}


def main() -> None:
    """Print the table of a night."""
    results = NightFolder(Path(sys.argv[1])).results()
    print("\n".join(_table(results)))


def _table(results: Sequence[CellResult]) -> Iterator[str]:
    devices = list(dict.fromkeys(one.cell.device for one in results))
    yield "| family | case | " + " | ".join(f"`{device}`" for device in devices) + " |"
    yield "|---|---|" + "---|" * len(devices)
    for family, case in dict.fromkeys((one.cell.axes.family, one.cell.axes.case) for one in results):
        cells = {
            one.cell.device: one for one in results if (one.cell.axes.family, one.cell.axes.case) == (family, case)
        }
        yield f"| {family} | {case} | " + " | ".join(_cell(cells.get(device)) for device in devices) + " |"
    yield ""
    yield from dict.fromkeys(f"{one.cell.name}: {said}" for one in results for said in _not_judged(one))


def _cell(one: CellResult | None) -> str:
    if one is None:
        return "not run"
    if one.error:
        return f"{one.verdict}: {one.error}"
    worst = (max(_l2(stages), default=float("nan")) for stages in (one.stages["chained"], one.stages["local"]))
    passed = [LETTERS[gate["gate"]] for gate in one.gates if gate["verdict"] == "pass" and gate["gate"] in LETTERS]
    said = [" / ".join(f"{value:.2f}" for value in worst), *passed]
    return " ".join(said if one.verdict == "pass" else [*said, f"**{one.verdict}**"])


def _l2(stages: Sequence[dict[str, Any]]) -> Iterator[float]:
    yield from (stage["x"]["l2"] for stage in stages if stage["x"].get("l2") is not None)


def _not_judged(one: CellResult) -> Iterator[str]:
    for gate in one.gates:
        for check in gate["checks"]:
            if check["verdict"] != "pass":
                yield f"{gate['gate']}, {check['name']}, {check['verdict']}: {check['evidence']}"


if __name__ == "__main__":
    main()
