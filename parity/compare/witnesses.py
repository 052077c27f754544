"""What other references said of a golden's stages, laid on what a comparison with that golden found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parity.compare.places import behind
from parity.compare.report import DISPUTED, FAIL, NOT_JUDGED, WARN, StageResult
from parity.golden.manifest import Manifest
from parity.golden.views import TrustedGolden

CORROBORATED = "corroborated"


def attest(results: Sequence[StageResult], golden: TrustedGolden) -> list[StageResult]:
    """Mark corroborated stages; where references disagree a stage is disputed, whatever the device has there.

    That is no failure of the device's, and no pass: nobody knows what it should have been. What is beyond its bounds
    and computed from a disputed stage is disputed with it, unless the references agree on it all the same.
    """
    disputed, agreed = _said(golden.manifest)
    found = []
    for result in results:
        wrong = result.verdict in (FAIL, WARN)
        if result.stage in agreed:
            result = replace(result, marks=(*result.marks, CORROBORATED))
        elif result.stage in disputed or (wrong and in_doubt(result.stage, golden)):
            result = _disputed(result, result.stage in disputed)
        found.append(result)
    return found


def in_doubt(stage: str, golden: TrustedGolden) -> bool:
    """Whether the references disagree on a stage, or on one that it is computed from and not on the stage itself."""
    disputed, agreed = _said(golden.manifest)
    return stage in disputed or (stage not in agreed and bool(disputed & behind(stage, golden.declared)))


def doubted_sides(golden: TrustedGolden) -> set[str]:
    """Of which of target and drafter the references disagree on a stage: the reading of its config may be what is wrong."""
    return {"drafter" if "drafter" in name.split(".")[:2] else "target" for name in _said(golden.manifest)[0]}


def _said(manifest: Manifest) -> tuple[set[str], set[str]]:
    """The stages that any reference disputes, and those that are agreed on."""
    disputed = {name for one in manifest.corroborations for name in one.disputed}
    return disputed, {name for one in manifest.corroborations for name in one.stages} - disputed


def _disputed(result: StageResult, itself: bool) -> StageResult:
    if result.verdict == NOT_JUDGED:
        return result
    note = "the references disagree on " + ("this stage" if itself else "a stage that it is computed from")
    return replace(
        result,
        verdict=DISPUTED,
        note=f"{note} (`parity corroborate`)",
        first=None,
        worst=None,
        bad_rows=0,
        relation="",
        marks=(*result.marks, DISPUTED),
    )


def witnesses(manifest: Manifest) -> tuple[str, ...]:
    """One sentence for each reference that was held against this golden."""
    return tuple(
        f"{one.witness} {one.versions.get(one.witness, '')}".strip()
        + f" confirms {len(one.stages)} of {len(manifest.stages)} stages on {one.prompts} of {len(manifest.case.prompts)} prompts"
        + (f" and disputes {len(one.disputed)}" if one.disputed else "")
        for one in manifest.corroborations
    )
