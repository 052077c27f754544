"""Judging stages of which sketches are kept: each bound by an interval of what it bounds.

A bound passes where the upper end of its interval does, fails where the lower end is beyond it, and is inconclusive
between. What no interval can be had of is not judged, and says so: docs/smaller-goldens.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, prod, sqrt

import numpy as np

from parity.compare import intervals
from parity.compare.evidence import Lack, lack
from parity.compare.numbers import RowErrors, bound_verdict, failing_place
from parity.compare.places import labels
from parity.compare.records import Held, labelled
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, WARN, StageResult, join
from parity.compare.rows import StageRows, pooled_ratio, row_floors
from parity.compare.sketch_line import Interval, directed
from parity.compare.sketch_sums import Sums
from parity.compare.structure import Finding
from parity.golden.views import DumpView
from parity.metrics import NonFinite, PairMetrics, RowSums
from parity.metrics import sums as at
from parity.metrics.moments import Moments, cosine_distance
from parity.policy import Bound, Row
from parity.stages import Named


def evidence(tensors: Iterable[Held]) -> str:
    """What the verdict on a stage rests on, in words."""
    forms = [side.form for one in tensors for side in one.sides[:2] if side.form]
    numbers = [form.sketch for form in forms if form.sketch]
    return f"sketch of {min(numbers)} numbers" if numbers else f"top {min(form.top for form in forms)}"


def judge_sketched(
    golden: DumpView,
    named: Named,
    tensors: Sequence[Held],
    excluded: Callable[[StageRows], np.ndarray],
    row: Row,
    without: Sequence[str],
) -> tuple[StageResult, list[Finding]]:
    """Judge an approximate stage of which sketches are kept.

    Args:
        excluded: says which rows lack evidence, by their places.
        without: bounds that are left out where they cannot be judged, or their interval does not settle them.
    """
    seen, rows = Sums.of(tensors), places(golden, named, tensors)
    with np.errstate(invalid="ignore", divide="ignore"):  # rows that are not finite, which are findings
        return _judged(seen, rows, evidence(tensors), excluded, row, without)


def _judged(
    seen: Sums,
    rows: StageRows,
    told: str,
    excluded: Callable[[StageRows], np.ndarray],
    row: Row,
    without: Sequence[str],
) -> tuple[StageResult, list[Finding]]:
    """The rows of one stage by its policy row."""
    findings = _broken(rows, seen)
    apart = excluded(rows)
    device, floor = (_metrics(table, rows) for table in (seen.device, seen.floor))
    unit = "relative" if row.judge == "relative" else "noise"
    errors, keep = RowErrors.of(rows, apart, device, floor, unit), ~apart
    base = dict(**labels(rows, row), evidence=told, rows_apart=int(apart.sum()))
    if row.judge == "none" or not keep.any():
        return StageResult(**base, verdict=NOT_JUDGED if row.judge == "none" else INCONCLUSIVE), findings
    ends = _intervals(seen, errors, keep, row)
    points = errors.statistics(keep) | {
        name: (low + high) / 2 for name, (low, high) in ends.items() if name not in SIZES
    }
    missing = lack(rows, device, floor, row, errors.allowed(row)) or _copied(seen, row)
    verdicts = {
        name: _verdict(ends[name], bound, name != "largest") for name, bound in row.bounds.items() if name in ends
    }
    unsettled = {name for name, one in verdicts.items() if one == INCONCLUSIVE and name in without}
    verdicts |= dict.fromkeys(unsettled, BLIND)
    blind = tuple(name for name in row.bounds if verdicts.get(name, BLIND) == BLIND)
    open_ = [name for name in blind if name not in without]
    verdict = join([*(one for one in verdicts.values() if one != BLIND), *([INCONCLUSIVE] if missing or open_ else [])])
    return StageResult(
        **base,
        verdict=verdict,
        relative_l2=device.rel_l2,
        floor_l2=pooled_ratio(row_floors(floor.rows.rel_l2, apart)[keep], np.ones(keep.sum()), errors.weight[keep]),
        cosine=device.cosine,
        x={
            name: points[name]
            for name in row.bounds
            if name in points and name in verdicts and (name in unsettled or name not in blind)
        },
        bounds={name: (bound.ok, bound.warn) for name, bound in row.bounds.items()},
        intervals={
            name: ends[name] for name in row.bounds if name in ends and (name in unsettled or name not in blind)
        },
        not_judged=blind,
        **(failing_place(errors, row) if verdict in (FAIL, WARN) else {}),
        note=missing.note if missing else _unsettled(verdict, verdicts, open_),
    ), findings


BLIND = "blind"
"""Of a bound that a sketch says nothing of."""

SIZES = ("l2", "median", "worst_row")


def _unsettled(verdict: str, verdicts: dict[str, str], blind: Sequence[str]) -> str:
    """Why a stage is inconclusive, and what settles it."""
    if verdict != INCONCLUSIVE:
        return ""
    wide = [name for name, one in verdicts.items() if one == INCONCLUSIVE]
    told = (
        [f"the interval of {' and '.join(wide)} lies on both sides of its bound: a larger sketch settles it"]
        if wide
        else []
    )
    left = ",".join(blind)
    told += [f"{left} not judged by a sketch: whole tensors settle it, --without {left} leaves it out"] if blind else []
    return "; ".join(told)


def places(golden: DumpView, named: Named, tensors: Sequence[Held]) -> StageRows:
    """The rows by their places; of their values only the shape is known."""
    prompt, round_, position = labelled(tensors)
    nothing = np.broadcast_to(np.float32(0), (len(position), *tensors[0].shape))
    return StageRows(named, nothing, nothing, nothing, prompt, round_, position, golden, sketched=True)


def _metrics(table: np.ndarray, rows: StageRows) -> PairMetrics:
    """What of a pair's metrics a table of sums tells."""
    finite = table[np.isfinite(table).all(axis=1)]
    moments = Moments.of(finite.sum(axis=0))
    wide = table[:, at.EE].sum()
    return PairMetrics(
        size=rows.golden.size,
        count=int(table[:, at.N].sum()),
        max_abs=0.0,
        mean_abs=0.0,
        rel_l2=inf
        if not np.isfinite(wide)
        else sqrt(wide / moments.golden_sq)
        if moments.golden_sq
        else inf
        if wide
        else 0.0,
        cosine_distance=cosine_distance(moments),
        golden_constant=_constant(finite),
        device_constant=False,
        worst_element=None,
        nonfinite=NonFinite(),
        rows=RowSums((len(table),), table),
    )


FLAT = 1e-9
"""Share of its square sum that is left of a constant golden's variance: sums and norms are kept in float32."""


def _constant(table: np.ndarray) -> bool:
    """Whether every element of the golden is the same number, as far as norms and sums tell."""
    total = table.sum(axis=0)
    spread = total[at.GG] - total[at.G] ** 2 / max(total[at.N], 1)
    return bool(total[at.N] > 1 and spread <= FLAT * total[at.GG])


def _broken(rows: StageRows, seen: Sums) -> list[Finding]:
    """NaN and infinities: in a golden always, in a device where the golden has none."""
    findings = []
    golden, device, floor = seen.broken
    for who, bad in (("the golden", golden), ("the device", device & ~golden), ("the noise floor", floor)):
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            place = int(rows.prompt[first]), int(rows.round[first])
            said = f"{rows.named.name} has NaN or Inf in {int(bad.sum())} rows of {who}, first at position"
            where = f"{rows.position[first]} (prompt {place[0]}, round {place[1]})"
            findings.append(Finding("non-finite", rows.named.name, *place, f"{said} {where}"))
    return findings


def _copied(seen: Sums, row: Row) -> Lack | None:
    """Sketches that are the golden's bit for bit, of a floor that is not."""
    if row.judge != "noise" or row.copies or seen.error.any() or not seen.floor[:, at.EE].any():
        return None
    return Lack(
        "its sketch is the golden's bit for bit, which the bfloat16 reference is not: was the answer handed in?"
    )


def _intervals(seen: Sums, errors: RowErrors, keep: np.ndarray, row: Row) -> dict[str, Interval]:
    """Of each statistic that can be had the ends of its interval."""
    count = seen.error.shape[1]
    pooled = intervals.factors(intervals.freedom(seen.error[keep]))
    one = intervals.factors(count)
    many = intervals.factors(count, 1 - (1 - intervals.CONFIDENCE) / int(keep.sum()))
    points = errors.statistics(keep)
    width = prod(errors.rows.golden.shape[1:])
    size = points["largest"]
    ends = {
        "l2": _times(points["l2"], pooled),
        "median": _times(points["median"], one),
        "worst_row": _times(points["worst_row"], many),
        "largest": (many[0] * size / sqrt(width), many[1] * size),
        "r_ratio": _times(_ratio(seen, keep), pooled),
    }
    if {"scale", "bias"} & set(row.bounds):
        ends |= directed(seen.device[keep], seen.floor[keep], row, width, pooled)
    return ends


def _times(point: float, ends: Interval) -> Interval:
    return (point * ends[0], point * ends[1]) if point else (0.0, 0.0)


def _ratio(seen: Sums, keep: np.ndarray) -> float:
    error, noise = (float(table[keep, at.EE].sum()) for table in (seen.device, seen.floor))
    return sqrt(error / noise) if noise else inf if error else 0.0


def _verdict(ends: Interval, bound: Bound, measured: bool) -> str:
    """Of an interval: what all of it is; unknown where it is on both sides of what fails."""
    low, high = (bound_verdict(end, bound) for end in ends)
    return high if high != FAIL or low == FAIL else INCONCLUSIVE if measured else BLIND
