"""One stage of a comparison: its verdict over all prompts, and where evidence for one is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parity.compare.basis import Basis
from parity.compare.by_policy import judge_rows
from parity.compare.evidence import Copies
from parity.compare.hidden_pages import UNTOLD, unseen_pages
from parity.compare.kept import less_than_whole, with_rows
from parity.compare.places import segment
from parity.compare.quantised import UNSETTLED, but_for_steps, by_noise, off_grid, unsettled
from parity.compare.records import held
from parity.compare.report import FAIL, INCONCLUSIVE, PASS, WARN, StageResult, join
from parity.compare.rows import StageRows, stage_rows
from parity.compare.scores import contradicting, scores_of, unchecked
from parity.compare.structure import Finding
from parity.golden.views import DumpView, TrustedGolden
from parity.policy import Policy, Row, mode_of
from parity.stages import Named


def row_of(policy: Policy, golden: TrustedGolden, run: DumpView, name: str, forced: frozenset[str]) -> Row:
    """What a stage is judged by: behind quantised caches a local one that hides some of its inputs as a chained one."""
    case = golden.manifest.case
    hidden = bool(case.kv_cache) and len(segment(name, golden.declared, forced)) > 1
    return policy.row(name, mode_of(run.manifest.case.mode, case.kv_cache, hidden))


def judge_stage(
    golden: TrustedGolden,
    run: DumpView,
    named: Named,
    row: Row,
    on: Basis,
    copies: Copies,
    without: Sequence[str],
) -> tuple[StageResult, list[Finding]]:
    """One stage over all prompts; inconclusive where no tensor could be compared, or rows lack evidence."""
    keeps = not named.stage.exact and (golden.keeps or run.keeps)
    less = less_than_whole(golden, run, named, row, on, without) if keeps else None
    if less is not None:
        return _apart(less[0], on), less[1]
    rows = stage_rows(on.golden, run, named)
    if rows is None or not len(rows.golden):
        empty = StageResult(named.name, named.stage.template, named.layer, row.judge, INCONCLUSIVE, row.reason, rows=0)
        return empty, []
    if not named.stage.exact:
        copies.look(rows, row)
    result, findings = judge_rows(golden, run, rows, row, on, without)
    findings = [*findings, *off_grid(golden, run, rows)]
    if result.verdict == FAIL:
        result = _excused(result, golden, run, rows, row, on, without)
    result = _unchecked_noted(result, golden, run, rows)
    if keeps:
        result = with_rows(result, held(on.golden, run, named), without)
    return _apart(result, on), findings


def _excused(
    result: StageResult,
    golden: TrustedGolden,
    run: DumpView,
    rows: StageRows,
    row: Row,
    on: Basis,
    without: Sequence[str],
) -> StageResult:
    """A stage that fails; inconclusive where unsettled ties or pages that nobody saw may be why."""
    if unsettled(golden, run):
        noise = by_noise(rows.named.name, run.manifest.case.mode)
        noisy = judge_rows(golden, run, but_for_steps(golden, rows), noise, on, without)[0]
        if noisy.verdict != FAIL:
            return replace(result, verdict=INCONCLUSIVE, note=f"the device is {UNSETTLED}")
    if (unseen := unseen_pages(on.golden, run, rows)).any():
        return _without(unseen, result, golden, run, rows, row, on, without)
    return result


def _unchecked_noted(result: StageResult, golden: TrustedGolden, run: DumpView, rows: StageRows) -> StageResult:
    """A result of choices, inconclusive where rows of it could not be checked against their own scores."""
    if scores_of(rows.named.name) not in golden.manifest.stages:
        return result
    if not (count := int(unchecked(golden, run, rows).sum())):
        return result
    unknown = f"{count} of {result.rows} rows are not checked against their own scores"
    note = f"{unknown}: adding these up from the ranks may round as much"
    return replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=result.note or note)


def _apart(result: StageResult, on: Basis) -> StageResult:
    """A result, inconclusive where rows of it lack evidence."""
    if not result.rows_apart or result.verdict not in (PASS, WARN):
        return result
    own = f"{result.rows_apart} of {result.rows} rows ran through experts of the run's own"
    return replace(result, verdict=INCONCLUSIVE, note=on.lack or f"{own}, and nothing says what these make of them")


def _without(
    unseen: np.ndarray,
    result: StageResult,
    golden: TrustedGolden,
    run: DumpView,
    rows: StageRows,
    row: Row,
    on: Basis,
    without: Sequence[str],
) -> StageResult:
    """A stage that fails: whether it does so without the rows [R] whose pages nobody saw.

    A choice against the scores that it was made from is wrong whatever the pages.
    """
    if scores_of(rows.named.name) in golden.declared:
        unseen = unseen & ~contradicting(golden, run, rows)
    if not unseen.all() and judge_rows(golden, run, rows.take(~unseen), row, on, without)[0].verdict == FAIL:
        return result
    return replace(result, verdict=INCONCLUSIVE, note=f"{int(unseen.sum())} of {result.rows} rows {UNTOLD}, settles it")
