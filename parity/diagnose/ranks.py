"""Runs whose ranks differ in what they should hold alike: which rank's tensors to explain, and what it means if none
needs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.compare import compare
from parity.compare.basis import Rerun
from parity.compare.report import FAIL, Place, Report
from parity.diagnose.gates import GateCause
from parity.gates.gate import Check
from parity.golden.fields import Variant
from parity.golden.ranks import REPLICATED
from parity.golden.views import DumpView, TensorPlace, TrustedGolden
from parity.policy import Policy


class RankView(DumpView):
    """A tensor-parallel run as one rank has it: what the ranks should hold alike is that rank's, shards stay merged."""

    def __init__(self, run: DumpView, rank: int):
        self.run, self.rank = run, rank
        parts = {place: [row] for place, row in run.rows.items()}
        super().__init__(run.folder, run.manifest, run.declared, run.rows, parts)

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """This rank's tensor, or the whole one of what is shared out."""
        place = variant, prompt, round_, stage
        parts = self.run.parts.get(place, ())
        if len(parts) > 1 and parts[0].sharding == REPLICATED:
            return self.run.shards(*place)[self.rank]
        return self.run.stored(*place)


@dataclass(frozen=True)
class RankMismatch:
    """Ranks that differ at these places, though each one's tensors are within their bounds."""

    mode: str
    first: Place
    stages: int
    largest: float
    reproduce: str


def first_failing_rank(
    golden: TrustedGolden, run: DumpView, policy: Policy, rerun: Rerun | None = None
) -> tuple[DumpView, Report]:
    """The run as the first rank has it whose tensors fail alone, and its report; the run itself where no rank's do."""
    report = compare(golden, run, policy, rerun=rerun)
    if any(finding.kind == "replicas" for finding in report.findings):
        for rank in range(max(map(len, run.parts.values()))):
            view = RankView(run, rank)
            alone = compare(golden, view, policy, rerun=rerun)
            if alone.verdict == FAIL and alone.first is not None:
                return view, alone
    return run, report


def rank_mismatch(run: DumpView, report: Report) -> RankMismatch | None:
    """How the ranks differ in a run that fails for it alone; None where the failure is something else."""
    findings = [finding for finding in report.findings if finding.kind == "replicas"]
    if isinstance(run, RankView) or not findings or report.first is None:
        return None
    case = run.manifest.case
    largest = max(_difference(run, (case.precision, at.prompt, at.round, at.stage)) for at in findings)
    stages = len({finding.stage for finding in findings})
    return RankMismatch(case.mode, report.first, stages, largest, report.reproduce)


def _difference(run: DumpView, place: TensorPlace) -> float:
    """The largest relative L2 between the first rank's tensor and another's."""
    first, *others = (shard.astype(np.float64) for shard in run.shards(*place))
    size = max(float(np.linalg.norm(first)), 1e-30)
    return max(float(np.linalg.norm(other - first)) / size for other in others)


def rank_causes(mismatch: RankMismatch) -> list[GateCause]:
    """Ranks that differ by less than their bounds, read as a failing gate is."""
    evidence = f"{mismatch.stages} stages differ between ranks, by {mismatch.largest:.1e} relative L2 at most; "
    evidence += f"first at {mismatch.first}"
    figures = {"stages": mismatch.stages, "apart": mismatch.largest}
    return [
        GateCause(
            "stages",
            Check(f"{mismatch.mode}, ranks alike", FAIL, evidence, figures, mismatch.first),
            mismatch.reproduce,
            "tp-order-by-rank",
            "ranks that should hold the same differ by rounding alone: "
            "each adds the partial sums in an order of its own",
            "an all-reduce with one order for all ranks, or one rank that adds and sends",
            ("class of all-reduces without a fixed order",),
        )
    ]
