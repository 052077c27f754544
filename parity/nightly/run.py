"""A night from its plan, or from where it was interrupted, to its end."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Protocol

from parity.errors import UsageError
from parity.factories import module_of
from parity.golden.provenance import now
from parity.golden.sources import digest_of, digests, reached
from parity.home import stamp
from parity.nightly import commits
from parity.nightly.engines import LocalEngine
from parity.nightly.folder import PARTS, NightFolder
from parity.nightly.judge import broken
from parity.nightly.matrix import NightMatrix
from parity.nightly.process import Answer, CellJob, GoldenJob, Job
from parity.nightly.records import Cell, CellResult, Night


def begin(
    path: Path | None,
    home: Path,
    matrix: NightMatrix,
    cells: tuple[Cell, ...],
    engine: str,
    left_out: tuple[str, ...] = (),
) -> NightFolder:
    """The folder of a night.

    Args:
        path: a new folder, or that of an interrupted night; below `home` where None.
        left_out: names of the matrix's further cells.

    Raises:
        UsageError: the folder is another matrix's or another commit's or of devices with other sources, none of a
            night, or a result in it cannot be read.
    """
    name = stamp()
    commit, dirty = commits.head()
    if path is not None and path.exists():
        return _resumed(NightFolder(path), matrix, commit, dirty)
    night = Night(
        name=name,
        started=now(),
        commit=commit,
        dirty=dirty,
        sources=device_sources(cells),
        head=commits.commit(commit),
        matrix=str(matrix.path),
        matrix_digest=matrix.digest,
        engine=engine,
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
        cells=cells,
        left_out=left_out,
    )
    return NightFolder.start(path or home / "nights" / name, night)


def _resumed(folder: NightFolder, matrix: NightMatrix, commit: str, dirty: bool) -> NightFolder:
    night = folder.night
    if night.matrix_digest != matrix.digest:
        raise UsageError(
            f"{folder.path} is a night of another matrix ({night.matrix}, or what it was then); choose another --out"
        )
    if (night.commit, night.dirty) != (commit, dirty):
        states = [
            f"{name[:12] or 'no commit'}{' with changes' if changed else ''}"
            for name, changed in ((night.commit, night.dirty), (commit, dirty))
        ]
        raise UsageError(
            f"{folder.path} was begun at {states[0]}, this is {states[1]}: cells of two commits are no night; "
            "choose another --out"
        )
    if night.sources != device_sources(night.cells):
        raise UsageError(
            f"{folder.path} was begun with other sources of its devices: cells of two states are no night; "
            "choose another --out"
        )
    for part in PARTS:
        (folder.path / part).mkdir(exist_ok=True)
    folder.measured()
    return folder


def device_sources(cells: Sequence[Cell]) -> str:
    """sha256 over the source files of the cells' devices and of what they import; installed packages are left out."""
    return digest_of(digests(reached({module_of(cell.device)[0] for cell in cells})))


OnResult = Callable[[CellResult], None]
Remeasure = Callable[[tuple[CellResult, ...]], bool]
"""A cell's result and those of its repeats so far, to whether it is measured once more."""


class JobEngine(Protocol):
    """Where cells run."""

    name: str

    def submit(self, job: Job, log: Path, rank: float) -> Future[Answer]:
        """Start a job, lower ranks first; its future holds an answer, whatever happens."""

    def place(self, answer: Answer) -> str:
        """How a job finds a golden that was provided."""

    def stop(self) -> None:
        """End what runs."""


class NightRun:
    """The missing cells of a night.

    Args:
        folder: takes the results.
        makers: makes the goldens, on this machine.
        engine: runs the cells.
        share: fsspec URL below which made goldens are kept for other machines, or ''.
        told: every result as it comes.
        again: which cells are measured again.
    """

    def __init__(
        self,
        folder: NightFolder,
        makers: LocalEngine,
        engine: JobEngine,
        share: str,
        told: OnResult,
        again: Remeasure = lambda results: False,
    ):
        self.folder, self.makers, self.engine, self.share = folder, makers, engine, share
        self.told, self.again = told, again
        self.night = folder.night.name
        self._cells: dict[Future[Answer], tuple[CellJob, str]] = {}
        self._goldens: dict[Future[Answer], list[Cell]] = {}
        self._ranks: dict[str, int] = {}

    def run(self, cells: Sequence[Cell]) -> None:
        """Judge these cells. What an interruption finds done is kept; who interrupts it stops the engines."""
        self._start(cells)
        while waiting := [*self._goldens, *self._cells]:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                self._take(future)

    def _start(self, cells: Sequence[Cell]) -> None:
        served: dict[GoldenJob, list[Cell]] = {}
        for cell in cells:
            served.setdefault(GoldenJob.of(cell, self.share), []).append(cell)
        self._ranks = {cell.name: rank for rank, cell in enumerate(cells)}
        for job, waiting in served.items():
            rank = self._ranks[waiting[0].name] - 0.5
            future = self.makers.submit(Job(golden=job), self.folder.golden_log(job.name), rank)
            self._goldens[future] = waiting

    def _take(self, future: Future[Answer]) -> None:
        answer = _answer(future)
        if future in self._goldens:
            for cell in self._goldens.pop(future):
                self._begin(cell, answer)
            return
        job, started = self._cells.pop(future)
        result = answer.result or broken(
            self.night, job.cell, answer.error or "it has no result", started, answer.seconds
        )
        self._keep(result.model_copy(update={"repeat": job.repeat}))
        results = self.folder.results_of(job.cell.name)
        if self.again(results):
            undiagnosed = job.cell.model_copy(update={"diagnose": False})
            self._submit(job.model_copy(update={"repeat": len(results), "cell": undiagnosed}))

    def _begin(self, cell: Cell, golden: Answer) -> None:
        """Its cell job; without a golden it is broken already."""
        if golden.error:
            self._keep(broken(self.night, cell, f"no golden: {golden.error}", now(), 0.0))
            return
        self._submit(CellJob(night=self.night, cell=cell, golden=self.engine.place(golden)))

    def _submit(self, job: CellJob) -> None:
        name = job.cell.name
        future = self.engine.submit(Job(cell=job), self.folder.log_file(name, job.repeat), self._ranks[name])
        self._cells[future] = job, now()

    def _keep(self, result: CellResult) -> None:
        self.folder.add(result)
        self.told(result)


def _answer(future: Future[Answer]) -> Answer:
    """What a job said; an engine that fails itself leaves a sentence too."""
    try:
        return future.result()
    except Exception as error:
        return Answer(error=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")
