"""How far a device is from a golden, and from a counterfactual of it: the residual of a hypothesis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from parity.compare import compare
from parity.compare.places import excess, multiple
from parity.compare.report import FAIL, INCONCLUSIVE, Place, Report, StageResult
from parity.compare.rows import NOISY, StageRows, order, row_floors, stage_rows
from parity.compare.structure import Finding
from parity.diagnose.counterfactual import CounterfactualGolden
from parity.golden.fields import Variant
from parity.golden.views import DumpView, TrustedGolden
from parity.metrics import measure
from parity.policy import Policy

FELL = 1.02
"""A residual that is 2 percent less has fallen: rounding moves it by as much, and a hypothesis that changes nothing by
none."""

HALVED = 0.5
"""Where the size hardly moves (a direction a hundredth of the noise), the statistics beyond their bounds have to
halve."""

ROW = 3.0
"""A row beyond this multiple of its noise is wrong: the default policy's worst row."""

FINE = ("scale", "bias", "unlike")
"""Statistics of a direction or of bits instead of a size."""


@dataclass(frozen=True)
class Residual:
    """What is left of a device's error at one stage.

    Attributes:
        stage: its full name.
        red: beyond its bounds, or structurally different.
        settled: back at its floor, whatever scale, bias and single bits still say: these tell a thousandth of a
            percent, more than a fitted parameter is worth.
        error: relative L2 over all rows; for a stage of choices the share of rows that are bugs; infinite
            where shapes or dtypes differ.
        x: the same in the unit of `judge`, None for choices.
        worst: the worst statistic as a multiple of its bound.
        beyond: every statistic as a multiple of what still warns.
        judge: what the bounds are multiples of: `noise`, or `relative` for plain errors.
        rms: of the error in the tensor's own unit, None where it has none.
        misshapen: the round from which on another shape, or nothing, stands there, where its values are wrong before.
    """

    stage: str
    red: bool
    error: float
    x: float | None
    worst: float
    place: Place | None
    settled: bool = False
    beyond: Mapping[str, float] = field(default_factory=dict)
    misshapen: int | None = None
    judge: str = "noise"
    rms: float | None = None

    def settled_by(self, after: Residual) -> bool:
        """Whether `after` is at its floor; where only fine statistics are red, these must be green as well."""
        return not after.red or (after.settled and not self.settled)

    def fell_to(self, after: Residual) -> bool:
        """Whether `after` is less by more than chance: nothing is named by a residual that stays where it was."""
        over = [name for name, times in self.beyond.items() if times > 1.0]
        halved = bool(over) and all(after.beyond.get(name, inf) <= HALVED * self.beyond[name] for name in over)
        fell = after.error < inf if self.error == inf else FELL * self.share(after) < 1.0
        return fell or halved

    def share(self, after: Residual) -> float:
        """What is left of this residual in `after`: 0 is nothing, 1 all of it, more is worse.

        Relative or in the stage's own unit, whichever is more: larger numbers of a reference make any relative error
        small, and a reference of nearly nothing is never farther from a small device than that is large.
        """
        if self.error == inf:
            return after.error
        shares = [_ratio(after.error, self.error)]
        if self.rms is not None and after.rms is not None:
            shares.append(_ratio(after.rms, self.rms))
        return max(shares)

    def explained(self, after: Residual) -> float:
        """Share of this residual's square that is gone in `after`: 1 is all of it, 0 none, below 0 it is worse."""
        if self.error == inf:
            return 1.0 if self.settled_by(after) else 0.0
        left = self.share(after)
        return max(1.0 - left**2, -1.0) if left < inf else -1.0


def _ratio(left: float, whole: float) -> float:
    """What is left of an error; of none, all of it."""
    return left / whole if whole > 0.0 else inf if left > 0.0 else 1.0


def residuals(golden: TrustedGolden, run: DumpView, policy: Policy, stages: Sequence[str] = ()) -> dict[str, Residual]:
    """Residuals of these stages (all by default), in the order in which they first show.

    A stage that only inherits does not fail: its error is another stage's.
    """
    return report_residuals(golden, run, compare(golden, run, policy, stages))


def report_residuals(golden: TrustedGolden, run: DumpView, report: Report) -> dict[str, Residual]:
    """The residuals of a report, in the order in which they first show; what no stage of the golden accounts for comes
    last."""
    rank = order(golden)
    late = 1 + max((round_ for _, _, round_, _ in golden.rows), default=0)

    def when(item: tuple[str, Residual]) -> tuple[int, int]:
        stage, residual = item
        round_ = residual.place.round if residual.red and residual.place else late
        return round_, rank.get((round_ > 0, stage), 0)

    return dict(sorted(_each(report, MissingOnBothSides(golden, run)), key=when))


def red_rows(golden: TrustedGolden, run: DumpView, stage: str) -> dict[tuple[int, int, int], bool]:
    """Of each row of a stage, by (round, position, how often it came before in it), whether it alone is wrong."""
    rows = stage_rows(golden, run, golden.declared[stage])
    if rows is None:
        return {}
    if rows.floor is None:
        bad = np.asarray((rows.golden != rows.device).any(axis=tuple(range(1, rows.golden.ndim))))
    else:
        error = measure(rows.golden, rows.device, row_axes=1).rows.rel_l2
        bad = ~(error <= ROW * row_noise(rows, run.manifest.case.precision))
    seen: Counter[tuple[int, int]] = Counter()
    wrong = {}
    for round_, position, red in zip(rows.round.tolist(), rows.position.tolist(), bad.tolist(), strict=True):
        wrong[round_, position, seen[round_, position]] = red
        seen[round_, position] += 1
    return wrong


FLOAT32 = 1e-5
"""The noise of a row of a float32 run: what its policy allows a stage. The golden's floor is bfloat16's."""


def row_noise(rows: StageRows, precision: str) -> np.ndarray:
    """What rounding in a precision alone makes of each row of numbers, relative: [R]."""
    if precision == "float32":
        return np.full(len(rows.golden), FLOAT32)
    noise = measure(rows.golden, rows.noise_floor, row_axes=1).rows.rel_l2
    return row_floors(noise, np.zeros(len(noise), bool), NOISY)


class MissingOnBothSides:
    """Tensors that a counterfactual lacks or leaves empty where the device does too: agreement, not missing evidence.

    A golden itself has every tensor: nothing is ever absent from it. What it has in later rounds only is not `due`.
    """

    def __init__(self, golden: TrustedGolden, run: DumpView):
        self.imagined = golden.imagined
        self.sides: tuple[tuple[DumpView, Variant], ...] = ((golden, "float32"), (run, run.manifest.case.precision))
        rows = golden.golden.rows if isinstance(golden, CounterfactualGolden) else golden.rows
        self.due = {(round_, stage) for variant, _, round_, stage in rows if variant == "float32"}
        self.stages = {stage for _, stage in self.due}

    def at(self, round_: int, stage: str) -> bool:
        """Neither side has a row of this tensor."""
        rows = [dump.rows.get((variant, 0, round_, stage)) for dump, variant in self.sides]
        return self.imagined and all(row is None or 0 in row.full_shape for row in rows)

    def throughout(self, stage: str) -> bool:
        """Neither side has a row of this stage in any round in which the golden has it."""
        rounds = {round_ for round_, name in self.due if name == stage}
        return self.imagined and bool(rounds) and all(self.at(round_, stage) for round_ in rounds)


def _each(report: Report, absent: MissingOnBothSides) -> Iterator[tuple[str, Residual]]:
    structural: dict[str, Finding] = {}
    for finding in report.findings:
        if finding.kind != "generation" and not (finding.kind == "missing" and absent.at(finding.round, finding.stage)):
            structural.setdefault(finding.stage, finding)
    for result in report.stages:
        if result.stage not in absent.stages:
            continue
        if result.stage not in structural and absent.throughout(result.stage):
            yield result.stage, Residual(result.stage, False, 0.0, None, 0.0, None, settled=True)
        else:
            yield result.stage, _residual(result, structural.get(result.stage))


def _residual(result: StageResult, finding: Finding | None) -> Residual:
    if finding is not None and result.verdict == FAIL and result.first and result.first.round < finding.round:
        return replace(_residual(result, None), misshapen=finding.round)
    if finding is not None:
        place = Place(result.stage, result.layer, finding.prompt, finding.round)
        return Residual(result.stage, True, inf, None, inf, place)
    red = result.verdict == FAIL and "inherited" not in result.marks
    if result.choices:
        share = result.choices["bug"] / max(result.rows, 1)
        return Residual(result.stage, red, share, None, inf if share else 0.0, result.first, settled=not red)
    if result.relative_l2 is None:
        missing = result.verdict == INCONCLUSIVE
        lost = inf if missing else 0.0
        return Residual(result.stage, missing, lost, None, lost, result.first, settled=not missing)
    sizes = [
        result.x[name] <= warn for name, (_, warn) in result.bounds.items() if name not in FINE and name in result.x
    ]
    settled = not red or (bool(sizes) and all(sizes))
    beyond = {name: multiple(result.x[name], warn) for name, (_, warn) in result.bounds.items() if name in result.x}
    return Residual(
        result.stage,
        red,
        result.relative_l2,
        result.x.get("l2"),
        excess(result),
        result.first,
        settled,
        beyond,
        judge=result.judge,
        rms=result.rms_abs,
    )
