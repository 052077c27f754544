"""A diagnosis as a person reads it: what is wrong, how sure that is, where to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from rich.text import Text

from parity.compare.report import FAIL
from parity.diagnose import Cause, Diagnosis
from parity.diagnose.explain import Residual
from parity.diagnose.gates import Found
from parity.golden.views import DumpView
from parity.reports.dumps import console


def print_clean(golden: DumpView, run: DumpView | None) -> None:
    """Nothing to explain."""
    what = "the run passes" if run else "the device passes every stage, local and chained, and every gate"
    console().print(f"nothing to diagnose: {what} over {len(golden.manifest.case.prompts)} prompts", style="green")


def print_diagnosis(found: Diagnosis, golden: DumpView) -> None:
    """Causes in the order in which they show, then what stays unexplained."""
    out = console()
    name = golden.manifest.case.prompts[found.prompt].id
    if found.verdict == FAIL:
        out.print(
            f"{found.mode} run, prompt {found.prompt} ({name}); {found.trials} counterfactual references tried",
            style="dim",
        )
    if found.first is not None:
        out.print(f"first divergent: {found.first}")
    for line in found.evidence:
        out.print(f"evidence: {line}", soft_wrap=True)
    for number, cause in enumerate(found.causes, 1):
        _print_cause(out, number, cause)
    if found.unexplained is not None:
        _print_unexplained(out, found)
    word = "; ".join(f"{cause.says} ({cause.hypothesis})" for cause in found.causes) or "no hypothesis fits"
    if found.verdict != FAIL:
        word = f"{found.verdict}: nothing fails, and not everything could be compared"
    rest = f"; {found.unexplained.stage} stays unexplained" if found.causes and found.unexplained else ""
    out.print(Text(f"diagnosis: {word}{rest}", style="bold red" if found.causes else "magenta"), soft_wrap=True)


def print_gates(found: Sequence[Found], golden: DumpView) -> None:
    """What a gate found where no stage is red, and which defect that is."""
    out = console()
    whose = "the ranks differ" if found[0].gate == "stages" else f"gate {found[0].gate} fails"
    out.print(f"every stage passes, local and chained; {whose}")
    for number, one in enumerate(found, 1):
        out.print(f"{number}. {one.says or 'no known defect'}: {one.check.name}: {one.check.evidence}", soft_wrap=True)
        out.print(f"   usual fix: {one.fix}" if one.fix else "   nobody has read this failure yet", soft_wrap=True)
        if one.seen:
            out.print(f"   met in: {', '.join(one.seen)}", soft_wrap=True)
    out.print(f"reproduce: {found[0].reproduce}", soft_wrap=True)
    named = "; ".join(dict.fromkeys(f"{one.says} ({one.id})" for one in found if one.id))
    out.print(
        Text(f"diagnosis: {named or 'no reading fits'}", style="bold red" if named else "magenta"), soft_wrap=True
    )


def _print_cause(out, number: int, cause: Cause) -> None:
    out.print(
        f"{number}. {cause.says} explains {cause.explained:.2%} of {cause.stage}'s error; "
        f"residual {_amount(cause.after)} (before: {_amount(cause.before)})",
        soft_wrap=True,
    )
    rest = f"{cause.remaining} stages still red with it" if cause.remaining else "every stage green with it"
    if not cause.whole:
        out.print("   not down to the floor: the device may do it otherwise at an edge, or this is a near relative")
    out.print(f"   shows at {cause.place}; {rest}", soft_wrap=True)
    if cause.fix:
        out.print(f"   usual fix: {cause.fix}", soft_wrap=True)
    if cause.seen:
        out.print(f"   met in: {', '.join(cause.seen)}", soft_wrap=True)
    if cause.others:
        out.print(f"   explains this stage as well: {'; '.join(cause.others)}", soft_wrap=True)


def _print_unexplained(out, found: Diagnosis) -> None:
    rest = found.unexplained
    out.print(f"unexplained: {rest.stage}, {_amount(rest)}, first at {rest.place}", soft_wrap=True)
    if found.signature:
        out.print(f"   its error: {'; '.join(found.signature)}", soft_wrap=True)
    for says, share in found.nearest:
        out.print(f"   nearest hypothesis: {says} explains {share:.1%}", soft_wrap=True)


def _amount(residual: Residual) -> str:
    if isinf(residual.error):
        return "wrong whatever its values"
    if residual.x is not None:
        return f"{residual.x:.3g}x noise"
    return f"{residual.error:.1%} of rows wrong"
