"""What other references said of a golden's stages, laid on what a comparison with that golden found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parity.compare.flow import behind
from parity.compare.report import DISPUTED, FAIL, NOT_JUDGED, WARN, StageResult
from parity.golden.manifest import Manifest
from parity.golden.store import Dump

CORROBORATED = "corroborated"


def attest(results: Sequence[StageResult], golden: Dump) -> list[StageResult]:
    """Mark corroborated stages; where references disagree a stage is disputed, whatever the device has there.

    That is no failure of the device's, and no pass: nobody knows what it should have been. What is beyond its bounds
    and computed from a disputed stage is disputed with it, unless the references agree on it all the same.
    """
    said = golden.manifest.corroborations
    disputed = {name for one in said for name in one.disputed}
    agreed = {name for one in said for name in one.stages} - disputed
    found = []
    for result in results:
        wrong = result.verdict in (FAIL, WARN)
        if result.stage in agreed:
            result = replace(result, marks=(*result.marks, CORROBORATED))
        elif result.stage in disputed or (wrong and disputed & behind(result.stage, golden.declared)):
            result = _disputed(result, result.stage in disputed)
        found.append(result)
    return found


def _disputed(result: StageResult, itself: bool) -> StageResult:
    if result.verdict == NOT_JUDGED:
        return result
    note = "the references disagree on " + ("this stage" if itself else "a stage that it is computed from")
    return replace(result, verdict=DISPUTED, note=f"{note} (`parity corroborate`)", first=None, worst=None, bad_rows=0, relation="", marks=(*result.marks, DISPUTED))


def witnesses(manifest: Manifest) -> tuple[str, ...]:
    """One sentence for each reference that was held against this golden."""
    return tuple(
        f"{one.witness} {one.versions.get(one.witness, '')}".strip()
        + f" confirms {len(one.stages)} of {len(manifest.stages)} stages on {one.prompts} of {len(manifest.case.prompts)} prompts"
        + (f" and disputes {len(one.disputed)}" if one.disputed else "")
        for one in manifest.corroborations
    )
