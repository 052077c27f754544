"""The folder of one night: night.json, then one file a cell, each written whole or not at all."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path

from parity.compare.report import RANK
from parity.errors import UsageError
from parity.nightly.records import CellResult, Night
from parity.nightly.sealed import ANEW, read_result, read_sealed, write_sealed
from parity.partial import partial_folder, taken

NIGHT, REPORT = "night.json", "report.html"
NEAR = 500
"""Folders beside a night that are looked at."""
PARTS = ("cells", "goldens", "again")


class NightFolder:
    """One night on disk.

    Args:
        path: the folder; `cells/NAME.json` is what a cell found, `cells/NAME.log` what it printed,
            `again/NAME.1.json` what it found when measured again, `goldens/NAME.log` what making a golden printed.
    """

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def start(cls, path: Path, night: Night) -> NightFolder:
        """A new folder with its plan, whole or not at all: one without a plan would be in the way of the same command.

        Raises:
            UsageError: there is one already.
        """
        if taken(path):
            raise UsageError(f"{path} exists already; choose another folder")
        with partial_folder(path) as partial:
            for part in PARTS:
                (partial / part).mkdir()
            write_sealed(partial / NIGHT, night, str(path / NIGHT))
            partial.rename(path)
        return cls(path)

    @cached_property
    def night(self) -> Night:
        """The plan.

        Raises:
            UsageError: this is no folder of a night, or its plan is not what was written.
        """
        return read_sealed(Night, self.path / NIGHT, ANEW)

    def result_file(self, cell: str, repeat: int = 0) -> Path:
        """Where a cell's result is."""
        return self.path / (f"again/{cell}.{repeat}.json" if repeat else f"cells/{cell}.json")

    def log_file(self, cell: str, repeat: int = 0) -> Path:
        """Where a cell's output is."""
        return self.result_file(cell, repeat).with_suffix(".log")

    def golden_log(self, name: str) -> Path:
        """Where the output of making or fetching a golden is."""
        return self.path / "goldens" / f"{name}.log"

    def log_tail(self, cell: str, repeat: int = 0, lines: int = 40) -> str:
        """The last lines a cell printed; '' where it printed nothing."""
        try:
            with self.log_file(cell, repeat).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - 200_000))
                data = file.read()
        except OSError:
            return ""
        return "\n".join(data.decode(errors="replace").splitlines()[-lines:])

    def add(self, result: CellResult) -> None:
        """Keep what a cell found."""
        write_sealed(self.result_file(result.cell.name, result.repeat), result)

    def results(self) -> tuple[CellResult, ...]:
        """What is there, in the order of the plan.

        Raises:
            UsageError: as `parity.nightly.sealed.read_result`; so do all that read results.
        """
        names = (cell.name for cell in self.night.cells)
        return tuple(self._read(name, 0) for name in names if self.result_file(name).is_file())

    def results_of(self, cell: str) -> tuple[CellResult, ...]:
        """What a cell found, and what when it was measured again, in order."""
        results: list[CellResult] = []
        while self.result_file(cell, len(results)).is_file():
            results.append(self._read(cell, len(results)))
        return tuple(results)

    def _read(self, cell: str, repeat: int) -> CellResult:
        return read_result(self.result_file(cell, repeat), self.night.name, cell, repeat)

    def worst(self) -> tuple[CellResult, ...]:
        """The gravest result of each cell that has one, in the order of the plan: its own where no repeat is worse."""
        measured = filter(None, (self.results_of(cell.name) for cell in self.night.cells))
        return tuple(max(results, key=lambda result: RANK[result.verdict]) for results in measured)

    def measured(self) -> tuple[CellResult, ...]:
        """Every result that is there, repeats behind their cell."""
        return tuple(result for cell in self.night.cells for result in self.results_of(cell.name))

    def beside(self) -> tuple[NightFolder | None, NightFolder | None]:
        """The nights before and behind this one: of the same matrix, with a page, in the folder that this one is in."""
        night, place = self.night, self.path.resolve().parent
        others: list[tuple[str, Path]] = []
        for path in sorted(place.glob(f"*/{REPORT}"))[-NEAR:]:
            with suppress(UsageError):
                other = NightFolder(path.parent).night
                if other.matrix == night.matrix and other.name != night.name:
                    others.append((other.name, path.parent))
        before = max((one for one in others if one[0] < night.name), default=None)
        behind = min((one for one in others if one[0] > night.name), default=None)
        return before and NightFolder(before[1]), behind and NightFolder(behind[1])

    def missing(self) -> tuple[str, ...]:
        """Planned cells without a result."""
        return tuple(cell.name for cell in self.night.cells if not self.result_file(cell.name).is_file())
