"""Floors that one rounding made too narrow: a few rows alone beyond their bounds are judged by several roundings.

A chained golden has one bfloat16 run behind each row's floor. Behind a steep activation that run may be lucky by a
factor: a clean device's row then stands beyond a bound that all other rows keep. Its prompt is run again in bfloat16
with other orders of summation, and judged by the floor of all of them, within the same bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parity.compare.basis import Basis, Rerun
from parity.compare.rebased import RebasedGolden
from parity.compare.report import FAIL, StageResult
from parity.errors import ParityError
from parity.golden.views import DumpView, TrustedGolden

ROUNDINGS = 5
"""bfloat16 runs behind a floor in doubt: one lucky run of five lowers their mean square by a fifth at the most."""

ALONE = {"worst_row", "largest"}
"""What one row decides."""

FEW, WIDEST = 2, 2.0
"""Rows, and the multiple of a bound, up to which luck is asked for: a defect of more rows or of more is one."""


def with_more_roundings(
    golden: TrustedGolden, run: DumpView, results: Sequence[StageResult], on: Basis, rerun: Rerun | None
) -> tuple[Basis, tuple[int, ...]]:
    """What a run is judged against with floors of several roundings in the prompts whose rows are in doubt, and those
    prompts; the same as before where there is none, or the reference cannot run again."""
    case = run.manifest.case
    prompts = tuple(sorted({place for result in results if _doubtful(result) for place in _prompts(result)}))
    keeps = golden.keeps or run.keeps or run.settled or len(run.sides) > 1
    if not prompts or rerun is None or keeps or case.mode != "chained" or case.precision != "bfloat16":
        return on, ()
    if golden.manifest.case.roundings >= ROUNDINGS:
        return on, ()
    try:
        again = rerun(golden, on.seen, prompts, True, ROUNDINGS)
    except ParityError:
        return on, ()
    return replace(on, golden=RebasedGolden(on.golden, again, prompts)), prompts


def _doubtful(result: StageResult) -> bool:
    """Whether a stage fails by a few rows alone, and by little."""
    beyond = {name for name, value in result.x.items() if name in result.bounds and not value <= result.bounds[name][1]}
    within = all(result.x[name] <= WIDEST * result.bounds[name][1] for name in beyond)
    return result.verdict == FAIL and bool(beyond) and beyond <= ALONE and result.bad_rows <= FEW and within


def _prompts(result: StageResult) -> set[int]:
    return {place.prompt for place in (result.first, result.worst) if place is not None}
