"""One device compared with another on a golden: where the two part, in multiples of the golden's noise.

The golden lends its tokens, its values and its noise floors; what is judged is the difference of the two devices,
by the same policy. A stage's difference is laid on the golden, so that an error that both devices share
cancels out: whether either is right is what a comparison with the golden says.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from parity.compare import compare
from parity.compare.places import DISGUISED, excess
from parity.compare.preconditions import comparable
from parity.compare.report import RANK, Report, StageResult
from parity.compare.rows import same_rows
from parity.errors import UsageError
from parity.golden.fields import Variant
from parity.golden.manifest import TensorRow
from parity.golden.views import DumpView, TrustedGolden
from parity.policy import Policy
from parity.reproducing import quoted


class DeviceDifference(DumpView):
    """A run as it would be, were the other run the golden.

    A numeric stage is the golden plus what parts the two runs. A row of an exact stage is the golden's where the two
    agree, and elsewhere the row of the two that is not the golden's; `alone` has each run's own.

    Raises:
        UsageError: the two runs differ in mode or precision, or one is none over this golden.
    """

    def __init__(self, golden: TrustedGolden, run: DumpView, other: DumpView):
        _comparable(golden, run, other)
        self.golden, self.run, self.other = golden, run, other
        self.shown: DumpView | None = None
        prompts = tuple(prompt.model_copy(update={"generation": None}) for prompt in run.manifest.case.prompts)
        case = run.manifest.case.model_copy(update={"prompts": prompts})
        names = f"{run.manifest.producer.name} against {other.manifest.producer.name}"
        producer = run.manifest.producer.model_copy(update={"name": names})
        stages = tuple(name for name in run.manifest.stages if name in other.manifest.stages)
        manifest = run.manifest.model_copy(update={"case": case, "producer": producer, "stages": stages})
        rows = {place: _both(row, other.rows[place]) for place, row in run.rows.items() if place in other.rows}
        super().__init__(run.folder, manifest, run.declared, rows, run.parts)
        self.asked = run.asked

    @property
    def sides(self) -> tuple[DumpView, ...]:
        """Both runs."""
        return self.run, self.other

    @property
    def turned(self) -> DeviceDifference:
        """The other run against this one."""
        return DeviceDifference(self.golden, self.other, self.run)

    def alone(self) -> tuple[DeviceDifference, DeviceDifference]:
        """Each run's own tensors, where this difference has any."""
        views = copy(self), copy(self)
        for view, side in zip(views, self.sides, strict=True):
            view.shown = side
        return views

    @property
    def command(self) -> str:
        """How a command names the two runs."""
        return quoted(self.folder, "--against", self.other.folder) + self.asked

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The rows that changed in either run since the round before."""
        whole = self.contents(variant, prompt, round_, stage)
        return None if whole is None else whole[self.rows[variant, prompt, round_, stage].start :]

    def contents(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The whole tensor; None unless all three have it in one shape."""
        place = prompt, round_, stage
        true = self.golden.contents("float32", *place)
        mine, theirs = (dump.contents(variant, *place) for dump in (self.run, self.other))
        if true is None or mine is None or theirs is None or not true.shape == mine.shape == theirs.shape:
            return mine
        if self.shown is not None:
            return self.shown.contents(variant, *place)
        if not self.declared[stage].stage.exact:
            return np.asarray(true.astype(np.float32) + (mine.astype(np.float32) - theirs.astype(np.float32)))
        by_row = len(true), *[1] * (true.ndim - 1)
        agree, right = same_rows(mine, theirs).reshape(by_row), same_rows(mine, true).reshape(by_row)
        return np.where(agree, true, np.where(right, theirs, mine))


def compare_devices(
    golden: TrustedGolden, difference: DeviceDifference, policy: Policy, globs: Sequence[str] = (), strict: bool = False
) -> Report:
    """Judge what parts two devices, as `compare` judges a device: both ways, and the graver of the two counts.

    A device that is the other one's negative, or a tensor of zeros, looks another way from the other side; the verdict
    and the worst figures are the same whichever of the two is named first.
    """
    bounds = policy.between_devices()
    forth, back = (compare(golden, way, bounds, globs, strict) for way in (difference, difference.turned))
    stages = tuple(_graver(*pair) for pair in zip(forth.stages, back.stages, strict=True))
    known = {(finding.kind, finding.stage, finding.prompt, finding.round) for finding in forth.findings}
    more = [new for new in back.findings if (new.kind, new.stage, new.prompt, new.round) not in known]
    graver = max(forth, back, key=lambda report: RANK[report.verdict])
    return replace(forth, stages=stages, findings=(*forth.findings, *more), first=graver.first, verdict=graver.verdict)


def _graver(forth: StageResult, back: StageResult) -> StageResult:
    """The graver of a stage's two results with the larger of its figures; a small difference is no over-precision."""
    worst = max(forth, back, key=lambda result: (RANK[result.verdict], excess(result)))
    figures = {name: max(result.x.get(name, 0.0) for result in (forth, back)) for name in worst.x}
    topk = {k: min(forth.topk[k], back.topk[k]) for k in worst.topk}
    return replace(worst, x=figures, topk=topk, marks=tuple(mark for mark in worst.marks if mark != DISGUISED))


def _comparable(golden: TrustedGolden, run: DumpView, other: DumpView) -> None:
    comparable(golden, other)
    for what in ("mode", "precision"):
        ours, theirs = getattr(run.manifest.case, what), getattr(other.manifest.case, what)
        if ours != theirs:
            raise UsageError(
                f"{run.folder} is {ours}, {other.folder} is {theirs}: two devices are compared in one {what}"
            )


def _both(row: TensorRow, other: TensorRow) -> TensorRow:
    """Of a cache stage, the rows that changed in either run."""
    start = min(row.start, other.start)
    return row.model_copy(update={"start": start, "shape": (row.shape[0] + row.start - start, *row.shape[1:])})
