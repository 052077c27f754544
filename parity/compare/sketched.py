"""Judging stages of which sketches are kept: each bound by an interval of what it bounds.

A bound passes where the upper end of its interval does, fails where the lower end is beyond it, and is inconclusive
between. What no interval can be had of is not judged, and says so: docs/smaller-goldens.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import hypot, inf, prod, sqrt

import numpy as np

from parity.compare import intervals
from parity.compare.evidence import Lack, lack
from parity.compare.numbers import RowErrors, bound_verdict, failing_place
from parity.compare.places import labels
from parity.compare.records import Held, labelled
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, WARN, StageResult, join
from parity.compare.rows import StageRows, pooled_ratio, row_floors
from parity.compare.statistics import LineFit, beyond, clustered
from parity.compare.structure import Finding
from parity.errors import UsageError
from parity.golden.keeping import Record
from parity.golden.views import DumpView
from parity.metrics import NonFinite, PairMetrics, RowSums, measure
from parity.metrics import sums as at
from parity.metrics.moments import Moments, cosine_distance
from parity.policy import Bound, Row
from parity.sketch import EXTRA, sketch
from parity.stages import Named

Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Sums:
    """The rows of a stage as sketches tell them.

    Attributes:
        device, floor: tables of `parity.metrics.sums`, float64 [R, 8]; of the device the error's square is an estimate
            and the largest element unknown.
        error: the sketched error, float64 [R, N].
        broken: rows [R] in which golden, device or floor holds NaN or infinities.
    """

    device: np.ndarray
    floor: np.ndarray
    error: np.ndarray
    broken: tuple[np.ndarray, np.ndarray, np.ndarray]

    @classmethod
    def of(cls, tensors: Sequence[Held]) -> Sums:
        """Of all tensors of a stage, by one sketch.

        Raises:
            UsageError: the two sides were sketched by different signs.
        """
        count, seed = _sketch(tensors)
        parts = [_sums(one, count, seed) for one in tensors]
        device, floor, error, golden, own = (np.concatenate([part[place] for part in parts]) for place in range(5))
        unknown = ~np.isfinite(floor).all(axis=1)
        return cls(device, np.where(unknown[:, None], 0.0, floor), error, (golden, own, unknown & ~golden))


def _sketch(tensors: Sequence[Held]) -> tuple[int, int]:
    """Numbers and seed of the sketch that the sides have in common."""
    forms = {(side.form.sketch, side.form.seed) for one in tensors for side in one.sides if side.form.sketch}
    if len({seed for _, seed in forms}) > 1:
        seeds = " and ".join(map(str, sorted({seed for _, seed in forms})))
        raise UsageError(f"golden and run were sketched by the seeds {seeds}: sketches of one seed compare")
    return min(forms)


def _sums(one: Held, count: int, seed: int) -> tuple[np.ndarray, ...]:
    golden, device = (_numbers(side, count, seed) for side in one.sides[:2])
    width = prod(one.shape)
    bad = [~np.isfinite(side).all(axis=1) for side in (golden, device)]
    either = bad[0] | bad[1]
    golden, device = (np.where(either[:, None], 0.0, side) for side in (golden, device))
    error = device[:, :count] - golden[:, :count]
    table = np.zeros((len(golden), at.WIDTH))
    table[:, at.N] = np.where(either, 0, width)
    table[:, at.G], table[:, at.E] = golden[:, -1], device[:, -1] - golden[:, -1]
    table[:, at.GG] = np.square(golden[:, -2])
    table[:, at.EE] = np.where(either, inf, np.square(error).mean(axis=1))
    square = np.where(either, 0.0, table[:, at.EE])
    table[:, at.GE] = (np.square(device[:, -2]) - table[:, at.GG] - square) / 2
    table[:, at.MAX] = np.sqrt(table[:, at.EE])
    return table, _floor(one, table, width), error, *bad


def _numbers(side: Record, count: int, seed: int) -> np.ndarray:
    """Sketched rows, float64 [R, count + 2]: the first so many sums, the norm and the plain sum."""
    if not side.form.sketch:
        return sketch(side.rows, count, seed).astype(np.float64)
    kept = side.form.sketch
    numbers = side.rows[:, : kept + EXTRA].astype(np.float64)
    return np.concatenate([numbers[:, :count], numbers[:, kept:]], axis=1)


def _floor(one: Held, device: np.ndarray, width: int) -> np.ndarray:
    """The table of the noise floor, exact: as it is kept, or of whole tensors."""
    golden, floor = one.sides[0], one.sides[2]
    if not floor.form:
        if golden.form:
            raise UsageError("a golden holds its noise floors whole and the truth as a sketch")
        exact = np.array(measure(golden.rows, floor.rows, row_axes=1).rows.table)
        exact[~np.isfinite(floor.rows.reshape(len(floor.rows), width).astype(np.float32)).all(axis=1)] = np.nan
        return exact
    table = device.copy()
    numbers = floor.rows[:, :4].astype(np.float64)
    table[:, at.EE], table[:, at.GE], table[:, at.E], table[:, at.MAX] = np.square(numbers[:, 0]), *numbers[:, 1:].T
    return table


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
        worst_row=None,
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
        ends |= _directed(seen, keep, row, width, pooled)
    return ends


def _times(point: float, ends: Interval) -> Interval:
    return (point * ends[0], point * ends[1]) if point else (0.0, 0.0)


def _ratio(seen: Sums, keep: np.ndarray) -> float:
    error, noise = (float(table[keep, at.EE].sum()) for table in (seen.device, seen.floor))
    return sqrt(error / noise) if noise else inf if error else 0.0


def _directed(seen: Sums, keep: np.ndarray, row: Row, width: int, pooled: Interval) -> dict[str, Interval]:
    """Scale and bias, as `parity.compare.numbers` has them.

    The error's product with the golden follows from the norms and from its square, so that the interval of the square
    moves it, to second order. What columns share is not known: their part of the standard errors is anything up to
    that of errors which are alike in a column.
    """
    found: dict[str, list[float]] = {"scale": [], "bias": []}
    for factor in (1.0, *pooled):
        table = _at_square(seen.device[keep], factor**2)
        for columns in (False, True):
            line, floor = (line_fit(one, width, columns) for one in (table, seen.floor[keep]))
            plain = row.judge == "relative"
            figures = (abs(line.scale), abs(line.bias)) if plain else beyond(line, floor)
            for name, figure in zip(found, figures, strict=True):
                found[name].append(figure)
    return {name: (min(figures), max(figures)) for name, figures in found.items()}


def _at_square(table: np.ndarray, factor: float) -> np.ndarray:
    """The table if every error's square were so many times its estimate; the norms stay what they are."""
    moved = table.copy()
    moved[:, at.EE] *= factor
    moved[:, at.GE] -= (moved[:, at.EE] - table[:, at.EE]) / 2
    return moved


def line_fit(table: np.ndarray, width: int, columns: bool) -> LineFit:
    """As `parity.compare.statistics.fit`, from sums of rows of `width` numbers.

    Args:
        columns: count the columns' part of the standard errors as that of errors alike in a column; as none otherwise.
    """
    square = table[:, at.GG] / width
    weight = np.divide(1.0, square, out=np.zeros_like(square), where=square > 0)
    whole = np.isfinite(table[:, at.EE])
    weight = np.where(whole, weight, 0.0)
    root, table = np.sqrt(weight), np.where(whole[:, None], table, 0.0)
    x, e, xx, xe, ee = (
        root * table[:, at.G],
        root * table[:, at.E],
        weight * table[:, at.GG],
        weight * table[:, at.GE],
        weight * table[:, at.EE],
    )
    count = len(table) * width
    mean, error = x.sum() / count, e.sum() / count
    spread = xx.sum() - count * mean * mean
    scale = (xe.sum() - count * mean * error) / spread if spread > 1e-6 * count else 0.0
    bias = error - scale * mean
    noise = sqrt(max(float(ee.sum()), 0.0) / count)
    left = e - scale * x - width * bias
    slope = (xe - scale * xx - bias * x - mean * left) / max(spread, 1e-6 * count)
    # What the line does not explain: all that columns can share.
    rest = ee - 2 * scale * xe - 2 * bias * e + scale**2 * xx + 2 * scale * bias * x + width * bias**2
    shared = sqrt(max(float(rest.sum()), 0.0) / count / width) if columns else 0.0
    errors = [hypot(clustered(scores, noise), shared) for scores in (slope, left / count - mean * slope)]
    return LineFit(float(scale), float(bias), errors[0], errors[1], noise)


def _verdict(ends: Interval, bound: Bound, measured: bool) -> str:
    """Of an interval: what all of it is; unknown where it is on both sides of what fails."""
    low, high = (bound_verdict(end, bound) for end in ends)
    return high if high != FAIL or low == FAIL else INCONCLUSIVE if measured else BLIND
