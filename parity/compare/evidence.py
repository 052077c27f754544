"""What a pass must not rest on: a golden that says nothing, a bound that allows anything, a copied answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from parity.compare.places import behind
from parity.compare.report import INCONCLUSIVE, NOT_JUDGED, StageResult, join
from parity.compare.rows import ALLOWED, FLOOR, WIDEST, StageRows, same_rows, stage_rows
from parity.golden.views import TrustedGolden
from parity.metrics import PairMetrics, UlpDistances
from parity.metrics.dtypes import MANTISSA
from parity.policy import Row
from parity.stages import Named

INNER = ("attn_out", "ffn_out")
"""Stages of several sums and a nonlinearity: two implementations give them other bits from the same input, while
a single sum, a norm or a residual may come out alike."""

DUE = 0.1
"""Share of elements in which the floor has to differ from the golden rounded once: where one rounding is all, equal
bits are no copy."""

FIRST = 8
"""Columns by which nearly every row is told from another."""

SHARE = 0.5
"""Share that has to be copies, of the rows of a prompt's prefill or of its later passes: a whole pass is judged, not a
row that came out alike. A clean implementation that rounds where the reference does has rows of the floor's own bits,
too, from the same input; `python benchmarks/copies.py` counts them."""

PASSES = ("prefill", "verify rounds")

Origin = tuple[int, str, str]
"""A prompt, one of PASSES, and what the rows may be a copy of."""


class Copies:
    """Counts, stage by stage, the rows of each prompt's passes that are a copy of something in the golden.

    The prefill and what follows are counted apart: either has most of the rows in some prompt.
    """

    def __init__(self, golden: TrustedGolden, mode: str):
        self.golden, self.mode = golden, mode
        self.counted: dict[Origin, int] = {}
        self.copied: dict[Origin, int] = {}
        self.stages: dict[Origin, set[str]] = {}

    @cached_property
    def before(self) -> dict[str, set[str]]:
        """Of each stage all that it is computed from: what a local comparison never asks."""
        return behind(self.golden.declared)

    def look(self, rows: StageRows, row: Row) -> None:
        """One approximate stage; nothing where equal bits prove nothing."""
        if row.copies or not self._tells(rows.named):
            return
        due = _due(rows)
        for source, values in self._sources(rows):
            copied = due & _alike(values, rows.device)
            for prompt in rows.prompts:
                for name, within in zip(PASSES, (rows.round == 0, rows.round > 0), strict=True):
                    here = within & (rows.prompt == prompt)
                    counts = int((due & here).sum()), int((copied & here).sum())
                    self._count((prompt, name, source), rows.named.name, *counts)

    def _count(self, origin: Origin, stage: str, counted: int, copied: int) -> None:
        self.counted[origin] = self.counted.get(origin, 0) + counted
        if copied:
            self.copied[origin] = self.copied.get(origin, 0) + copied
            self.stages.setdefault(origin, set()).add(stage)

    def noted_on(self, results: Sequence[StageResult]) -> list[StageResult]:
        """The results, inconclusive where the stage of a prompt is a copy among many."""
        notes: dict[str, str] = {}
        for origin, count in self.copied.items():
            if count >= SHARE * self.counted[origin]:
                prompt, passes, source = origin
                rows = f"{count} of {self.counted[origin]} rows of its {passes}"
                note = f"prompt {prompt} is {source} bit for bit in {rows}: was the answer handed in?"
                notes = dict.fromkeys(self.stages[origin], note) | notes
        return [_noted(result, notes[result.stage]) if result.stage in notes else result for result in results]

    def _tells(self, named: Named) -> bool:
        """Whether bits tell here: inside a layer's halves, and chained in all that is computed from them.

        What a quantised cache keeps has few bits, which are the golden's wherever no tie went the other way.
        """
        if named.stage.cache and self.golden.manifest.case.kv_cache:
            return False
        if named.stage.part in INNER or self.mode != "chained":
            return named.stage.part in INNER
        return any(self.golden.declared[name].stage.part in INNER for name in self.before[named.name])

    def _sources(self, rows: StageRows) -> Iterator[tuple[str, np.ndarray]]:
        """What a device may be a copy of; a floor of the other mode is read inside the layers only, which is enough."""
        yield "the golden", rows.golden.astype(rows.device.dtype)
        yield "the golden's noise floor", rows.noise_floor
        if rows.named.stage.part not in INNER:
            return
        for variant in sorted({*FLOOR.values()} - {FLOOR[self.mode]}):
            other = stage_rows(self.golden, self.golden, rows.named, device=variant, mode=self.mode)
            if other is not None and other.device.shape == rows.device.shape:
                yield f"the golden's {variant} noise floor", other.device


def _due(rows: StageRows) -> np.ndarray:
    """Rows [R] of tensors in which more than one rounding lies between the golden and its floor."""
    edges = np.flatnonzero(np.diff(rows.prompt, prepend=-1) | np.diff(rows.round, prepend=-1))
    counts = np.diff(edges, append=len(rows.prompt))
    golden, floor = (side.reshape(len(side), -1) for side in (rows.golden, rows.noise_floor))
    differ = np.count_nonzero(golden.astype(floor.dtype) != floor, axis=1)
    sizes = counts * golden.shape[1]
    due = (sizes >= FEW) & (np.add.reduceat(differ, edges) / np.maximum(sizes, 1) > DUE)
    return np.repeat(due, counts)


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Rows [R] of the same values, whatever they are stored as; the first few of a row tell nearly always."""
    one, other = (side.reshape(len(side), -1) for side in (one, other))
    equal = same_rows(one[:, :FIRST].astype(np.float32), other[:, :FIRST].astype(np.float32))
    left = np.flatnonzero(equal)
    if left.size:
        equal[left] = same_rows(one[left].astype(np.float32), other[left].astype(np.float32))
    return equal


def _noted(result: StageResult, note: str) -> StageResult:
    if result.verdict == NOT_JUDGED:
        return result
    return replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=result.note or note)


FEW = 64
"""Elements from which "every one of them is the golden's" is no accident: half of them differ in the last
bit where a device rounds on its own."""

WHOLE = 1.0
"""One row, or one element, may not be allowed an error of its row's own size: anything could stand there."""

DISTANCES = ("cosine_distance", "pearson_distance")
"""1 - cos: an error of relative size e, at right angles to the golden, is at 1 - 1 / sqrt(1 + e^2)."""

SHARES = ("unlike", "ulp_beyond", "top1_missed", "top5_missed", "top50_missed")
"""Shares of elements, or of the best scores, that may be anything: beside a bound on sizes that is no lack."""

SIZES = ("l2", "median", "worst_row", "largest", "r_ratio", "ulp_max", "beyond_tolerance", *DISTANCES)
"""Statistics that bound how wrong a stage is, all of it."""

TOPS = ("top5_error", "top50_error", "top1000_error", "all_error")
"""Errors over the largest score: of a score that is less, a quarter of it is more."""

DIRECTED = ("scale", "bias")
"""As plain figures the error of a whole stage; in standard errors the policy's own limit refuses what is too much."""

PLAIN = ("l2", "median", "worst_row")
"""As plain figures the relative error itself."""

EMPTY = dict.fromkeys(("l2", "median", "r_ratio", *DISTANCES, *SHARES, *TOPS, *DIRECTED), ALLOWED) | dict.fromkeys(
    ("beyond_tolerance", "worst_row", "worst_column", "largest"), WHOLE
)
"""The relative error, or share, from which a bound that allows it says nothing, by statistic."""


@dataclass(frozen=True)
class Lack:
    """Why a stage cannot be judged, in words."""

    note: str


def lack(
    rows: StageRows, device: PairMetrics, floor: PairMetrics, row: Row, allowed: Mapping[str, float]
) -> Lack | None:
    """The evidence this stage lacks, if any.

    Args:
        allowed: by statistic that is bounded in multiples of the floor, the largest relative error that passes, and
            under `floor` the floor itself.
    """
    if device.golden_constant:
        return Lack("the golden is constant: it tells nothing from anything")
    if device.count == 0:
        return Lack("there is no finite element on both sides")
    if row.judge == "noise" and allowed.get("floor", 0.0) > WIDEST:
        return Lack(f"the noise floor is {allowed['floor']:.0%} of the golden: it bounds nothing")
    for statistic, share in {**allowed, **_plain(device, floor, row)}.items():
        if share >= EMPTY.get(statistic, np.inf):
            what = "rows or elements that are" if EMPTY[statistic] == WHOLE else "a stage that is"
            return Lack(f"{statistic.replace('_', ' ')} lets {what} {share:.0%} wrong pass: it bounds nothing")
    if device.ulps and _doubles(device.ulps, row):
        return Lack(f"its bound in ULP lets every element double in {device.ulps.unit}: it bounds nothing")
    if row.judge == "noise" and not row.copies and any(_copied(rows, prompt) for prompt in rows.prompts):
        return Lack("it is the golden bit for bit, which the bfloat16 reference is not: was the answer handed in?")
    return None


def lack_of_scores(floor: PairMetrics) -> Lack | None:
    """Why noise explains no choice between these scores, if so."""
    if floor.rel_l2 <= WIDEST:
        return None
    return Lack(f"the noise floor of its scores is {floor.rel_l2:.0%} of the golden: it explains any choice")


def _plain(device: PairMetrics, floor: PairMetrics, row: Row) -> dict[str, float]:
    """What bounds allow that are no multiples of a row's floor: relative to the golden as a whole."""
    same = (
        *(SHARES if not {*SIZES} & {*row.bounds} else ()),
        *TOPS,
        *((*PLAIN, *DIRECTED, "worst_column") if row.judge == "relative" else ()),
    )
    allowed = {name: bound.warn for name, bound in row.bounds.items() if name in same}
    allowed |= {name: sqrt((1 - row.bounds[name].warn) ** -2 - 1) for name in DISTANCES if name in row.bounds}
    if row.judge == "relative" and "largest" in row.bounds and not {*PLAIN} & {*row.bounds}:
        allowed["largest"] = row.bounds["largest"].warn  # in RMS, of every element
    if "r_ratio" in row.bounds:
        allowed["r_ratio"] = row.bounds["r_ratio"].warn * floor.rel_l2
    if row.tolerances:
        size = sqrt(float(device.rows.golden_sq.sum()) / max(device.count, 1))
        least = min(tolerance.atol for tolerance in row.tolerances.values())
        allowed["beyond_tolerance"] = row.bounds["beyond_tolerance"].warn * least / size if size else np.inf
    return allowed


def _doubles(ulps: UlpDistances, row: Row) -> bool:
    """Whether a bound in ULP is a factor of two in the unit that it counts."""
    binade: float = 2.0 ** MANTISSA[np.dtype(ulps.unit)]
    far = row.bounds["ulp_max"].warn if "ulp_max" in row.bounds else row.ulp if "ulp_beyond" in row.bounds else 0
    return far >= binade


def _copied(rows: StageRows, prompt: int) -> bool:
    """Whether a prompt is the golden, rounded once, where the floor shows that more rounding was due."""
    own = rows.prompt == prompt
    if not _rounded(rows.golden[own][:1], rows.device[own][:1]):
        return False
    golden, device, floor = (side[own] for side in (rows.golden, rows.device, rows.noise_floor))
    return golden.size >= FEW and _rounded(golden, device) and not _rounded(golden, floor)


def _rounded(golden: np.ndarray, other: np.ndarray) -> bool:
    """Whether `other` is the golden in its own dtype."""
    return bool(np.array_equal(golden.astype(other.dtype), other))
