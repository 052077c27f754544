"""Every stage against its golden: from the golden's own input, and with errors travelling downstream.

A device that offers float32 is judged in it as well. Bfloat16's rounding hides what is a thousandth off, a constant of
the config or a weight; in float32 it stands out a hundredfold. What is off so little is off in every row, or from a
position on: one prompt shows it, the longest one, and few rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from parity.compare.constants import check_constants
from parity.compare.report import DISPUTED, FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Report
from parity.errors import DeviceFailed, ParityError, UsageError
from parity.gates.context import EXACT, GateContext
from parity.gates.gate import Check
from parity.golden.fields import Mode
from parity.golden.views import DumpView, GoldenSlice, JoinedGoldens, TrustedGolden
from parity.raised import raised_text
from parity.stages import DRAFT_TOKENS

ROUNDS = 3
"""Of the float32 runs: a draft, and behind it two that find its rows in the caches, rejected ones and accepted ones."""


def checks(context: GateContext) -> Iterator[Check]:
    """Both comparisons under the context's policy, what the device read of the config, and both in float32."""
    yield stage_check(context, "local")
    yield stage_check(context, "chained")
    yield constants_check(context)
    if context.precision != EXACT:
        yield from float32_checks(context)


def constants_check(context: GateContext) -> Check:
    """Every number of config.json as the device reads it."""
    compared = check_constants(context.golden, context.run("local"))
    wrong = compared.findings or compared.set_aside
    said = "; ".join([finding.message for finding in wrong[:3]] or compared.unjudged) or f"{compared.compared} alike"
    verdict = (
        FAIL
        if compared.findings
        else DISPUTED
        if wrong
        else INCONCLUSIVE
        if compared.silent
        else PASS
        if compared.compared
        else NOT_JUDGED
    )
    return Check("config constants", verdict, said, {"compared": compared.compared, "unjudged": compared.unjudged})


def float32_checks(context: GateContext) -> Iterator[Check]:
    """The device in float32 over the longest prompt's first rounds; not judged where it does not offer float32.

    Where nothing is drafted in these, over all rounds of that prompt and of the longest one in which something is.
    """
    numbers, view = _telling(context.golden)
    try:
        refused = context.offers(EXACT)
    except UsageError:
        raise
    except Exception as error:
        yield Check(EXACT, INCONCLUSIVE, f"asked for float32, {_broke(error)}")
        return
    if refused:
        yield Check(EXACT, NOT_JUDGED, f"not judged in float32: {refused}")
        return
    for mode in ("local", "chained"):
        try:
            report = context.compared_exactly(view, mode)
        except Exception as error:
            yield Check(f"{EXACT} {mode}", INCONCLUSIVE, f"in float32 {_broke(error)}")
            continue
        ids = " and ".join(context.golden.manifest.case.prompts[number].id for number in numbers)
        name = f"{EXACT} {mode}, prompt {ids}, {len(report.stages)} stages"
        place = report.first and replace(report.first, prompt=numbers[report.first.prompt])
        yield Check(name, report.verdict, _line(report), _figures(report), place, exact=True)


def _telling(golden: TrustedGolden) -> tuple[list[int], TrustedGolden]:
    """The numbers of the prompts that are judged in float32, and their part of the golden; see `float32_checks`."""
    prompts, budget = golden.manifest.case.prompts, golden.manifest.case.max_new_tokens
    longest, *others = sorted(range(len(prompts)), key=lambda number: -len(prompts[number].ids))
    first = GoldenSlice(golden, longest, ROUNDS)
    drafting = next((number for number in others if _drafts(golden, number)), None)
    if drafting is None or _drafts(first, 0):
        return [longest], first
    numbers = [longest, drafting]
    return numbers, JoinedGoldens([GoldenSlice(golden, number, budget, budget) for number in numbers])


def _drafts(golden: DumpView, prompt: int) -> bool:
    """Whether something is drafted."""
    return any(
        row.full_shape[0]
        for (variant, number, _, stage), row in golden.rows.items()
        if (variant, number, stage) == (EXACT, prompt, DRAFT_TOKENS)
    )


def _broke(error: Exception) -> str:
    """Who failed, in words: the device, or the comparison of what it gave."""
    ours = isinstance(error, ParityError) and not isinstance(error, DeviceFailed)
    return f"{'the comparison could not be made' if ours else 'the device breaks down'}: {raised_text(error)}"


def stage_check(context: GateContext, mode: Mode) -> Check:
    """All stages of the context's run in this mode."""
    report = context.compared(mode)
    return Check(f"{mode}, {len(report.stages)} stages", report.verdict, _line(report), _figures(report), report.first)


def _figures(report: Report) -> dict[str, Any]:
    return {"stages": {stage.stage: {"verdict": stage.verdict, **stage.x} for stage in report.stages}}


def _line(report: Report) -> str:
    """The worst stage, or what failed and where it first shows."""
    numbers = [stage for stage in report.stages if stage.x.get("l2") is not None]
    worst = max(numbers, key=lambda stage: stage.x["l2"], default=None)
    disputed = sum(stage.verdict == DISPUTED for stage in report.stages)
    if report.verdict == DISPUTED:
        return f"the references themselves disagree on {disputed} stages: parity corroborate tells which"
    if report.verdict == INCONCLUSIVE and report.own_experts is not None:
        return str(report.own_experts)
    wrong = [stage for stage in report.stages if stage.verdict not in (PASS, NOT_JUDGED)]
    if wrong or report.findings:
        structural = f"; {len(report.findings)} structural findings" if report.findings else ""
        return f"{len(wrong)} stages do not pass{structural}; first at {report.first_summary or _found(report)}"
    return (
        "nothing to compare"
        if worst is None
        else f"worst relative L2 {worst.x['l2']:.3g} {_unit(report)}, {worst.stage}"
    )


def _found(report: Report) -> str:
    """Without a failing stage: the first structural finding, or the first stage that lacks evidence."""
    return (
        report.findings[0].message
        if report.findings
        else next(stage.stage for stage in report.stages if stage.verdict not in (PASS, NOT_JUDGED))
    )


def _unit(report: Report) -> str:
    return "x noise" if report.precision == "bfloat16" else "of the golden's RMS"
