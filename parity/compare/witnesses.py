"""What other references said of a golden's stages, laid on what a comparison with that golden found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parity.compare.report import DISPUTED, NOT_JUDGED, StageResult
from parity.golden.manifest import Manifest

CORROBORATED = "corroborated"


def attest(results: Sequence[StageResult], manifest: Manifest) -> list[StageResult]:
    """Mark corroborated stages; where references disagree a stage is disputed, whatever the device has there.

    That is no failure of the device's, and no pass: nobody knows what it should have been.
    """
    said = manifest.corroborations
    disputed = {name for one in said for name in one.disputed}
    agreed = {name for one in said for name in one.stages} - disputed
    return [_attested(result, result.stage in agreed, result.stage in disputed) for result in results]


def _attested(result: StageResult, agreed: bool, disputed: bool) -> StageResult:
    if disputed and result.verdict != NOT_JUDGED:
        note = "the references disagree on this stage (`parity corroborate`)"
        return replace(result, verdict=DISPUTED, note=note, first=None, marks=(*result.marks, DISPUTED))
    return replace(result, marks=(*result.marks, CORROBORATED)) if agreed else result


def witnesses(manifest: Manifest) -> tuple[str, ...]:
    """One sentence for each reference that was held against this golden."""
    return tuple(
        f"{one.witness} {one.versions.get(one.witness, '')}".strip()
        + f" confirms {len(one.stages)} of {len(manifest.stages)} stages on {one.prompts} of {len(manifest.case.prompts)} prompts"
        + (f" and disputes {len(one.disputed)}" if one.disputed else "")
        for one in manifest.corroborations
    )
