"""A whole bench: measured, its figures made, judged, and put into one report."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from parity.bench.baseline import fastest, plain_cells
from parity.bench.cell import MeasuredCell
from parity.bench.explained import Roofline, predictions
from parity.bench.figures import by_prompt, figures
from parity.bench.judge import EXITS, findings, gates, otherwise, parted
from parity.bench.memory import Held, peak_memory
from parity.bench.records import BenchCase, BenchCell, BenchMachine, BenchReport
from parity.bench.request import CALLED, BenchRequest
from parity.bench.roofline import Peaks, measured_peaks, planned
from parity.bench.session import Session
from parity.bench.side_by_side import loop_ratios
from parity.bench.workload import SHORT, positions_of
from parity.golden.provenance import checkpoint, now
from parity.isolation import memory
from parity.partial import scratch

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "XLA_FLAGS")
PACKAGES = ("numpy", "jax", "torch")


def run_bench(request: BenchRequest) -> BenchReport:
    """Run a bench.

    Raises:
        UsageError: a device, checkpoint or option does not fit.
    """
    with scratch("bench") as folder:
        session = Session(request, folder)
        session.measure()
        held = peak_memory(session) if request.memory else {}
        cells = [_finished(cell, session.cells, held) for cell in session.cells]
        peaks = measured_peaks(request.now) if request.roofline else None
        predicted = tuple(predictions(cells, _roofline(request, session, peaks) if peaks else None))
    gated = tuple(gates(cells, request.at_least, map(_called, request.devices)) if request.at_least else ())
    verdict, said = findings(cells, gated)
    return BenchReport(
        created=now(),
        machine=machine(),
        case=_case(request, session.notes),
        clock=request.clock,
        repeats=request.repeats,
        warm_ups=request.warm_ups,
        cells=tuple(cells),
        predictions=predicted,
        loops=tuple(loop_ratios(cells)),
        gates=gated,
        peaks={"flops": peaks.flops, "bytes": peaks.bytes} if peaks else {},
        findings=said,
        verdict=verdict,
        exit_code=EXITS[verdict],
    )


def _finished(cell: MeasuredCell, cells: Sequence[MeasuredCell], held: Held) -> BenchCell:
    """A cell with its figures; nothing of one that broke down."""
    if cell.error:
        return BenchCell(axes=cell.axes, error=cell.error)
    baseline = None if cell.axes.plain else fastest(cell, cells)
    theirs = [] if baseline is None else baseline.turns
    plain = next(iter(sorted(plain_cells(cell, cells), key=lambda one: bool(one.error))), None)
    return BenchCell(
        axes=cell.axes,
        turns=tuple(cell.turns),
        overall=figures(cell.turns, theirs),
        prompts=by_prompt(cell.turns, theirs),
        parted=(
            *parted(cell.axes, cell.emitted, {} if plain is None else plain.emitted),
            *otherwise(cell.emitted, cell.turns, cell.watched),
        ),
        watched=len(cell.watched),
        unseen=cell.unseen,
        baseline="" if baseline is None else baseline.axes.name,
        memory=held.get((cell.axes.block, cell.axes.device, cell.axes.k)),
    )


def _called(name: str) -> str:
    return CALLED.get(name, name)


def _case(request: BenchRequest, notes: Sequence[str]) -> BenchCase:
    pair = [checkpoint(folder) for folder in (request.target, request.drafter)]
    return BenchCase(
        target=pair[0].config_digest[:16] + pair[0].weights_digest[:16],
        drafter=pair[1].config_digest[:16] + pair[1].weights_digest[:16],
        precision=request.precision,
        max_new_tokens=request.max_new_tokens,
        workloads={one.name: one.digest for one in request.workloads},
        notes=tuple(notes),
    )


def machine() -> BenchMachine:
    """This one."""
    return BenchMachine(
        platform=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory=memory.of_machine(),
        threads={name: os.environ[name] for name in THREADS if os.environ.get(name)},
        versions={"python": platform.python_version(), **dict(_versions())},
    )


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """Its name as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = (line.partition(":") for line in file)
            return next((value.strip() for key, _, value in lines if key.strip() == "model name"), "")
    except OSError:
        return platform.processor()


def _roofline(request: BenchRequest, session: Session, peaks: Peaks) -> Roofline:
    """The speed-up that peaks allow a device, behind the longest prompt of the short context."""
    names = {_called(name): name for name in request.contenders}
    longest = max(len(ids) for workload in request.workloads for ids in workload.prompts.values())
    setting = next(iter(request.settings()))
    context = positions_of(setting.context) or longest if setting.context != SHORT else longest
    pair = session.pair(setting, list(request.workloads), session.folder / "roofline")

    def allowed(device: str, k: int, rates: Sequence[float]) -> float | None:
        found = planned(names[device], pair, k, rates or [0.0], context, request.precision, peaks)
        return None if found is None else found.speed_up

    return allowed
