"""Quantised caches: numbers that no cache of the golden's format gives back, and choices between two that are tied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.compare.rows import StageRows
from parity.compare.structure import Finding
from parity.golden.views import DumpView
from parity.grid import grids
from parity.policy import Row, mode_of, read_policy

UNSETTLED = (
    "within the noise of another number that its caches may keep for the same value, and it does not continue with "
    "the golden's of two that are tied: handing over k and v of both sides, and going on with what comes back, "
    "settles it"
)


def off_grid(golden: DumpView, run: DumpView, rows: StageRows) -> list[Finding]:
    """What a cache shows and cannot hold, where the golden says its format: one finding a stage."""
    grid = grids(golden.manifest.case, golden.declared, "kv").get(rows.named.name)
    if grid is None:
        return []
    off = grid.off(rows.device, run.manifest.case.precision)
    if not off.any():
        return []
    first, *place = np.argwhere(off)[0].tolist()
    count, kind, name = int(off.sum()), grid.kind, rows.named.name
    where = int(rows.prompt[first]), int(rows.round[first])
    message = (
        f"{name}: {count} of {off.size} elements are no number of {kind} times {grid.scale:.7g}, "
        f"the first at {place} of position {rows.position[first]}: {float(rows.device[(first, *place)]):.7g}"
    )
    return [Finding("off-grid", name, *where, message)]


def unsettled(golden: DumpView, run: DumpView) -> bool:
    """Whether a float32 run may have kept another one of two tied numbers than the golden's, and gone on with it."""
    if run.manifest.case.precision != "float32":
        return False
    written = grids(golden.manifest.case, golden.declared, "layers")
    due = {golden.declared[name].stage.template for name in written}
    return any(not due <= {*side.manifest.case.settled} for side in run.sides)


FEW = 0.05
"""Share of a cache's elements that may be a step from the golden's, where nothing settled them: of values as far off as
bfloat16's noise one in ten is."""


def but_for_steps(golden: DumpView, rows: StageRows) -> StageRows:
    """The rows of a cache with the golden's number where it keeps a neighbour of it, if these are few."""
    grid = grids(golden.manifest.case, golden.declared, "kv").get(rows.named.name)
    if grid is None:
        return rows
    steps = grid.neighbours(rows.golden, rows.device)
    if steps.mean() > FEW:
        return rows
    return replace(rows, device=np.where(steps, rows.golden, rows.device).astype(rows.device.dtype))


def by_noise(name: str, mode: str) -> Row:
    """What such a run is judged by once more: the bounds of bfloat16, whose floor has flips of this kind in it."""
    return read_policy(None, "bfloat16").row(name, mode_of(mode, "some"))
