"""Runs whose ranks differ in what they should hold alike: which rank's tensors to explain, and what it means if none needs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parity.compare import compare
from parity.compare.basis import Rerun
from parity.compare.report import FAIL, Place, Report
from parity.diagnose.gates import Found
from parity.gates.evidence import Check
from parity.golden.manifest import Variant
from parity.golden.shards import REPLICATED
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
class Parted:
    """Ranks that differ at these places, though each one's tensors are within their bounds."""

    mode: str
    first: Place
    stages: int
    apart: float
    reproduce: str


def told_apart(
    golden: TrustedGolden, run: DumpView, policy: Policy, rerun: Rerun | None = None
) -> tuple[DumpView, Report]:
    """The run as the first rank has it whose tensors fail, and its report; the run itself where no rank's do by themselves."""
    report = compare(golden, run, policy, rerun=rerun)
    if any(finding.kind == "replicas" for finding in report.findings):
        for rank in range(max(map(len, run.parts.values()))):
            one = RankView(run, rank)
            alone = compare(golden, one, policy)
            if alone.verdict == FAIL and alone.first is not None:
                return one, alone
    return run, report


def parted(run: DumpView, report: Report) -> Parted | None:
    """What it is that fails in a run no rank of which does; None where it is something else."""
    places = [finding for finding in report.findings if finding.kind == "replicas"]
    if isinstance(run, RankView) or not places or report.first is None:
        return None
    apart = (_apart(run, (run.manifest.case.precision, one.prompt, one.round, one.stage)) for one in places)
    return Parted(
        run.manifest.case.mode, report.first, len({one.stage for one in places}), max(apart), report.reproduce
    )


def _apart(run: DumpView, place: TensorPlace) -> float:
    """The largest relative L2 between the first rank's tensor and another's."""
    first, *others = (shard.astype(np.float64) for shard in run.shards(*place))
    return max(float(np.linalg.norm(other - first) / max(np.linalg.norm(first), 1e-30)) for other in others)


def read_ranks(found: Parted) -> list[Found]:
    """Ranks that differ by less than their bounds, as a failing gate is read."""
    evidence = (
        f"{found.stages} stages differ between ranks, by {found.apart:.1e} relative L2 at most; first at {found.first}"
    )
    return [
        Found(
            "stages",
            Check(
                f"{found.mode}, ranks alike",
                FAIL,
                evidence,
                {"stages": found.stages, "apart": found.apart},
                found.first,
            ),
            found.reproduce,
            "tp-order-by-rank",
            "ranks that should hold the same differ by rounding alone: each adds the partial sums in an order of its own",
            "an all-reduce with one order for all ranks, or one rank that adds and sends",
            ("class of all-reduces without a fixed order",),
        )
    ]
