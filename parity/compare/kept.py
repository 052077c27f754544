"""Comparing dumps of which less than whole tensors is kept: by what each stage is judged, and what is said of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parity.compare.basis import Basis
from parity.compare.hidden_pages import UNTOLD, unseen_pages
from parity.compare.records import Held, held
from parity.compare.report import FAIL, INCONCLUSIVE, WHOLE, StageResult, join
from parity.compare.rows import StageRows, same_rows
from parity.compare.scores import shared
from parity.compare.structure import Finding
from parity.errors import UsageError
from parity.golden.views import DumpView
from parity.policy import STATISTICS, Row
from parity.stages import Named

ROWS = "rows"
"""What is not judged where a run keeps fewer positions than its golden."""

UNJUDGED = (*STATISTICS, "columns", ROWS)
"""What may be left out where the evidence says nothing of it."""


def refuse_without(without: Sequence[str]) -> None:
    """Raises:
    UsageError: what is left out is no bound, nor anything else that may be.
    """
    for name in without:
        if name not in UNJUDGED:
            raise UsageError(f"--without {name[:40]}: it takes statistics of a policy, `columns` of logits, and `rows`")


def less_than_whole(
    golden: DumpView, run: DumpView, named: Named, row: Row, on: Basis, without: Sequence[str]
) -> tuple[StageResult, list[Finding]] | None:
    """Judge a stage of which a side keeps sketches or best logits; None where both keep whole rows."""
    tensors = [one for one in held(on.golden, run, named) if len(one.position)]
    if not any(one.less for one in tensors):
        return None
    if row.judge not in ("noise", "relative", "none"):
        raise UsageError(f"policy row {row.stages!r} judges {named.name} by {row.judge}: that needs whole tensors")
    from parity.compare.best_logits import judge_best
    from parity.compare.sketched import judge_sketched

    sketched = any(side.form.sketch for one in tensors for side in one.sides[:2])
    judge = judge_sketched if sketched and all(map(_sketchable, tensors)) else judge_best
    result, findings = judge(golden, named, tensors, on.excluded, row, without)
    if result.verdict == FAIL and (unseen := _unseen(on, run, named, tensors)):
        note = f"{unseen} of {result.rows} rows {UNTOLD}, settles it"
        result = replace(result, verdict=INCONCLUSIVE, note=note)
    return with_rows(result, tensors, without), findings


def _sketchable(one: Held) -> bool:
    """Whether each side has a sketch of a tensor or all that one can be made of."""
    return all(side.form.sketch or not side.form for side in one.sides[:2])


def _unseen(on: Basis, run: DumpView, named: Named, tensors: Sequence[Held]) -> int:
    from parity.compare.sketched import places

    return int(unseen_pages(on.golden, run, places(on.golden, named, tensors)).sum())


def with_rows(result: StageResult, tensors: Sequence[Held], without: Sequence[str]) -> StageResult:
    """A stage's result with what it rests on, where some rows are not kept; inconclusive where the run keeps fewer."""
    lacking, due = sum(one.lacking for one in tensors), sum(one.due for one in tensors)
    if not lacking:
        return result
    result = replace(
        result, not_judged=(*result.not_judged, ROWS), evidence=f"{result.evidence}, {due - lacking} of {due} rows"
    )
    if ROWS in without:
        return result
    note = f"the run keeps {due - lacking} of the {due} rows that the golden has: --without {ROWS} leaves the rest out"
    return replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=result.note or note)


def unscored(rows: StageRows, scores: StageRows) -> tuple[np.ndarray, int]:
    """The rows of a stage of choices that have scores, by number; how many others hold another choice."""
    there, _ = shared(rows, scores)
    left = np.setdiff1d(np.arange(len(rows.golden)), there)
    sides = (side[left] if side.ndim == 1 else np.sort(side[left], axis=1) for side in (rows.golden, rows.device))
    return there, int((~same_rows(*sides)).sum())


def with_choices(result: StageResult, count: int, left: int, unknown: int, without: Sequence[str]) -> StageResult:
    """A result of choices: inconclusive where some are others than the golden's, and no score is kept of them.

    Args:
        count: rows of the stage.
        left: such choices in rows that golden or run do not keep.
        unknown: such choices among logits that the golden does not keep.
    """
    result, note = replace(result, rows=count), ""
    if left:
        result = replace(result, not_judged=(*result.not_judged, ROWS))
        if ROWS not in without:
            note = (
                f"{left} of {count} rows hold another choice, whose scores are not kept: --without {ROWS} leaves it out"
            )
    if unknown:
        note = f"{unknown} of {count} rows hold a choice of which the golden keeps no logit: more of them settle it"
    return replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=result.note or note) if note else result


def resting_on(
    golden: DumpView, run: DumpView, stages: Sequence[StageResult], without: Sequence[str]
) -> tuple[str, ...]:
    """What the verdicts of a comparison rest on where that is less than whole tensors, a line each."""
    kept = {dump.manifest.case.positions: None for dump in (golden, run) if dump.manifest.case.positions}
    lines = [f"of the prompts the rows at positions {said}, and the last two" for said in kept]
    counts: dict[str, int] = {}
    for stage in stages:
        counts[stage.evidence] = counts.get(stage.evidence, 0) + 1
    whole = "whole rows of those" if kept else "whole tensors"
    told = [f"{count} stages by {whole if name == WHOLE else name}" for name, count in counts.items()]
    blind: dict[str, int] = {}
    for stage in stages:
        for name in stage.not_judged:
            blind[name] = blind.get(name, 0) + 1
    left = [f"{name.replace('_', ' ')} in {count} stages" for name, count in blind.items()]
    lines.append(", ".join(told))
    if left:
        how = " (left out by --without)" if {*blind} <= {*without} else ""
        lines.append(f"not judged by this evidence{how}: {', '.join(left)}")
    return tuple(lines)
