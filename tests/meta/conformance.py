"""The conformance suite's runner and its table: `python -m tests.meta.conformance > docs/conformance.md`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from parity.api import compare_dumps
from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Report, StageResult
from parity.errors import UsageError
from tests.meta.defects import DEFECTS, Defect
from tests.meta.dumps import clean, write

HEAD = """# Conformance: what is planted, and who sees it

Every defect is planted alone in a pair of dumps that passes without it (`tests/meta/defects.py`); it has to end
non-zero, with the stage and the kind of defect named and no other stage accused. Printed by
`python -m tests.meta.conformance`; a test keeps this page current. The peers' columns are what was recorded with
their PyPI builds, `-` where it was not.

| planted defect | exit | verdict, and what named it | Polygraphy 0.53.6 | SGLang comparator 0.5.23 | msprobe 26.2.0 |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Outcome:
    """How a comparison ended: the exit code, and (stage, kind) of everything that was named."""

    exit_code: int
    verdict: str
    named: tuple[tuple[str, str], ...]

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that were named, each once."""
        return tuple(dict(self.named))


def judge(defect: Defect, folder: Path) -> Outcome:
    """Plant one defect in a clean pair and compare, with the default policy."""
    pair = clean(defect.world)
    defect.plant(pair)
    try:
        report = compare_dumps(*write(pair, folder))
    except UsageError as error:
        stage = next((stage for stage in pair.golden_stages if stage in str(error)), "")
        return Outcome(error.exit_code, "refused", ((stage, "digest" if "digest" in str(error) else "refused"),))
    return Outcome(report.exit_code, report.verdict, tuple(sorted(names(report))))


def names(report: Report) -> set[tuple[str, str]]:
    """What a report accuses: findings, bounds that are broken, wrong choices, missing evidence.

    A finding explains its stage: bounds that it breaks as well are not named again.
    """
    found = {(one.stage, one.kind) for one in report.findings}
    explained = {stage for stage, _ in found}
    for stage in report.stages:
        if stage.verdict != PASS and stage.stage not in explained:
            found |= {(stage.stage, kind) for kind in reasons(stage)}
    return found


def reasons(stage: StageResult) -> set[str]:
    """Why a stage does not pass."""
    if stage.choices:
        return {"choices"}
    if stage.verdict == INCONCLUSIVE:
        return {"evidence"}
    return {name for name, (_, warn) in stage.bounds.items() if stage.verdict == FAIL and stage.x[name] > warn}


def table() -> str:
    """The whole page."""
    lines = []
    for defect in DEFECTS:
        with TemporaryDirectory() as folder:
            seen = judge(defect, Path(folder))
        kinds = {stage: ", ".join(kind for one, kind in seen.named if one == stage) for stage in seen.stages}
        what = "; ".join(f"{stage}: {named}" for stage, named in kinds.items())
        lines.append(f"| {defect.name} | {seen.exit_code} | {seen.verdict}: {what} | {' | '.join(defect.peers)} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
