"""Two benches of one machine and case: every cell's rate and its ratio to plain decoding, as ratios with limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from parity.bench.baseline import baseline_of
from parity.bench.figures import times
from parity.bench.judge import EXITS, FAIL, INCONCLUSIVE, PASS
from parity.bench.records import BenchCell, BenchRecord, BenchReport, BenchVerdict
from parity.bench.statistics import CONFIDENCE, ONE_RUN, Ratio, Times, rate_ratio
from parity.errors import UsageError

Figure = Literal["tokens/s", "over plain"]
Said = Literal["faster", "slower", "no difference shown"]
SEES = 2.0
"""The slow-down that a figure has to exclude before it counts as no slower: half the rate is about what speculation is
worth in all (1.5 to 3 times plain decoding), so what cannot see it cannot tell speculation that works from one that
stopped."""
TOO_WIDE = f"its limits hold 1/{SEES:g} of the rate: more repeats or prompts"
NOTHING = "nothing was decoded behind the first token"
MEMORY = 0.01
"""Share by which one machine's memory may read otherwise: what a system keeps for itself changes with its kernel."""


class ComparedFigure(BenchRecord):
    """One figure of a cell: the second bench over the first.

    Attributes:
        ratio: None where there is no rate on either side.
        why: it is no evidence, whatever it says.
    """

    cell: str
    figure: Figure
    ratio: Ratio | None
    said: Said
    why: str = ""


class BenchComparison(BenchRecord):
    """Two benches compared.

    Attributes:
        differences: why they are not of one machine and case, where somebody compares them all the same.
        missing: cells that only one of them has, or that broke down in one; a cell without evidence does not pass.
        wrong: where the second one fails alone: its tokens part from plain decoding's.
        verdicts: of those that do not pass by themselves, their own verdicts with the gravest finding.
    """

    figures: tuple[ComparedFigure, ...]
    differences: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()
    verdict: BenchVerdict
    exit_code: int


def compare_reports(first: BenchReport, second: BenchReport, anyway: bool = False, seed: int = 0) -> BenchComparison:
    """The second over the first, cell by cell.

    All figures together have 95 % of confidence on each side: of n, each has limits of 1 - 0.05 / n, so that two
    benches of the same thing are called different once in twenty comparisons, not once in twenty figures.

    Raises:
        UsageError: they are of other machines or cases, and nobody said `anyway`; or they have no cell in common.
    """
    different = tuple(differences(first, second))
    if different and not anyway:
        raise UsageError(f"the two benches are not comparable: {different[0]}; --anyway compares them all the same")
    mine, theirs = _sound(first), _sound(second)
    both = [(cell, theirs[name]) for name, cell in mine.items() if name in theirs]
    if not both:
        raise UsageError("the two benches have no cell in common")
    _refuse_timeless(both)
    figures = tuple(_figures(first, second, both, seed))
    wrong = tuple(f"{cell.axes.name}: {said}" for cell in second.cells for said in cell.parted)
    missing = tuple(_missing(first, second))
    own = tuple(_own_verdicts(first, second))
    unclear = missing or own or any(one.why for one in figures)
    slower = any(one.said == "slower" for one in figures)
    verdict = FAIL if wrong or slower or second.verdict == FAIL else INCONCLUSIVE if unclear else PASS
    return BenchComparison(
        figures=figures,
        differences=different,
        missing=missing,
        wrong=wrong,
        verdicts=own,
        verdict=verdict,
        exit_code=EXITS[verdict],
    )


def _own_verdicts(first: BenchReport, second: BenchReport) -> Iterator[str]:
    """What a bench that does not pass says of itself: one that failed is nothing to be as good as."""
    for where, report in (("first", first), ("second", second)):
        if report.verdict != PASS:
            why = f": {report.findings[0]}" if report.findings else ""
            yield f"the {where} bench's own verdict is {report.verdict}{why}"


def _refuse_timeless(both: list[tuple[BenchCell, BenchCell]]) -> None:
    """Raises:
    UsageError: tokens came out in no time, or in less.
    """
    for where, cells in zip(("first", "second"), zip(*both, strict=True), strict=True):
        for cell in cells:
            if any(turn.decoded and not turn.decode > 0 for turn in cell.turns):
                said = "a run decoded in no time or less; nothing can be compared with it"
                raise UsageError(f"the {where} bench, {cell.axes.name}: {said}")


def differences(first: BenchReport, second: BenchReport) -> Iterator[str]:
    """In what two benches are not of one machine and case, in words."""
    for what, one, other in (
        ("processors", first.machine.processor, second.machine.processor),
        ("systems", first.machine.platform, second.machine.platform),
        ("numbers of cores", first.machine.cores, second.machine.cores),
        ("settings of threads", first.machine.threads, second.machine.threads),
        ("clocks", first.clock, second.clock),
        ("targets", first.case.target, second.case.target),
        ("drafters", first.case.drafter, second.case.drafter),
        ("precisions", first.case.precision, second.case.precision),
        ("token budgets", first.case.max_new_tokens, second.case.max_new_tokens),
        ("changes to the checkpoints", first.case.notes, second.case.notes),
    ):
        if one != other:
            yield f"they are of other {what}, {_told(one)} and {_told(other)}"
    if abs(first.machine.memory - second.machine.memory) > MEMORY * max(first.machine.memory, 1):
        yield f"they are of machines with {first.machine.memory} and {second.machine.memory} bytes of memory"
    for name in sorted(first.case.workloads.keys() & second.case.workloads.keys()):
        if first.case.workloads[name] != second.case.workloads[name]:
            yield f"the prompts of {name} are others"


def _told(value: object) -> str:
    return str(value)[:60] if value or value == 0 else "none"


def _sound(report: BenchReport) -> dict[str, BenchCell]:
    """Cells that were measured to their end, by name."""
    return {cell.axes.name: cell for cell in report.cells if cell.turns and not cell.error}


def _missing(first: BenchReport, second: BenchReport) -> Iterator[str]:
    sound = {"first": _sound(first), "second": _sound(second)}
    errors = {cell.axes.name: cell.error for report in (first, second) for cell in report.cells if cell.error}
    for name in sorted({cell.axes.name for report in (first, second) for cell in report.cells}):
        having = [where for where, cells in sound.items() if name in cells]
        if len(having) < len(sound):
            said = f"only the {having[0]} bench has it" if having else "neither bench has it"
            yield f"{name}: {said}" + (f" ({errors[name]})" if name in errors else "")
        elif alone := _decoded(sound["first"][name]) ^ _decoded(sound["second"][name]):
            yield f"{name}: prompts of which only one bench decoded a token behind the first: {len(alone)}"


def _decoded(cell: BenchCell) -> set[tuple[str, ...]]:
    return {turn.prompts for turn in cell.turns if turn.decoded}


def _figures(
    first: BenchReport, second: BenchReport, both: list[tuple[BenchCell, BenchCell]], seed: int
) -> Iterator[ComparedFigure]:
    speculates = [pair for pair in both if not pair[0].axes.plain]
    confidence = 1 - (1 - CONFIDENCE) / (len(both) + len(speculates))
    for one, other in both:
        found = rate_ratio(times(other.turns), times(one.turns), confidence, paired=False, seed=seed)
        yield _said(one.axes.name, "tokens/s", found)
        plains = [baseline_of(cell, report.cells) for report, cell in ((first, one), (second, other))]
        if not one.axes.plain and all(plains):
            mine, theirs = (
                _over(cell, plain) for cell, plain in zip((other, one), reversed(plains), strict=True) if plain
            )
            yield _said(one.axes.name, "over plain", rate_ratio(mine, theirs, confidence, paired=False, seed=seed))


def _over(cell: BenchCell, plain: BenchCell) -> Times:
    """A cell's times in units of plain decoding's of the same group and repeat: a token's steps. Drift goes out."""
    mine, theirs = times(cell.turns), times(plain.turns)
    return Times(mine.tokens, mine.seconds / (theirs.seconds / np.maximum(theirs.tokens, 1)))


def _said(cell: str, figure: Figure, ratio: Ratio | None) -> ComparedFigure:
    if ratio is None or ratio.low is None or ratio.high is None:
        why = NOTHING if ratio is None else ONE_RUN
        return ComparedFigure(cell=cell, figure=figure, ratio=ratio, said="no difference shown", why=why)
    said: Said = "slower" if ratio.high < 1 else "faster" if ratio.low > 1 else "no difference shown"
    why = TOO_WIDE if said != "slower" and ratio.low * SEES <= 1 else ""
    return ComparedFigure(cell=cell, figure=figure, ratio=ratio, said=said, why=why)
