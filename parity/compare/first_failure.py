"""The first failure of a comparison, along the dataflow, and what its stage holds instead."""

from __future__ import annotations

from collections.abc import Sequence

from parity.compare.by_policy import two_devices
from parity.compare.passes import ChainPasses
from parity.compare.report import FAIL, Place, StageResult
from parity.compare.rows import order
from parity.compare.structure import Finding
from parity.golden.views import DumpView, TrustedGolden


def earliest_failure(
    golden: TrustedGolden, results: Sequence[StageResult], findings: Sequence[Finding]
) -> Place | None:
    """The earliest failure: by round, then along the dataflow, then by prompt.

    What a free run emits has no place among the rounds: it is named only where nothing else failed.
    """
    places = [result.first for result in results if result.verdict == FAIL and result.first is not None]
    known = [finding for finding in findings if finding.stage in golden.declared]
    places += [_place(golden, finding) for finding in known if finding.kind != "generation"]
    rank, passes = order(golden), ChainPasses.of(golden)
    return min(
        places or [_place(golden, finding) for finding in known],
        key=lambda place: (
            *(place.round, passes.number(place), rank.get((place.round > 0, place.stage), 0)),
            place.prompt,
        ),
        default=None,
    )


def held_at(golden: TrustedGolden, run: DumpView, first: Place | None) -> str:
    """What the stage of the first failure holds instead, where whole tensors of one device say."""
    if first is None or golden.keeps or run.keeps or two_devices(run) or golden.imagined:
        return ""
    from parity.compare.origins import held_instead

    return str(held_instead(golden, run, golden.declared[first.stage]) or "")


def _place(golden: TrustedGolden, finding: Finding) -> Place:
    return Place(finding.stage, golden.declared[finding.stage].layer, finding.prompt, finding.round)
