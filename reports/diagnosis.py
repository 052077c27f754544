"""A diagnosis as a person reads it: what is wrong, how sure that is, where to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from rich.console import Console
from rich.text import Text

from parity.compare.report import FAIL
from parity.diagnose import Cause, Diagnosis
from parity.diagnose.acceptance_cost import AcceptanceCost
from parity.diagnose.gates import BEFORE_STAGES, GateCause
from parity.diagnose.residuals import Residual
from parity.golden.views import DumpView
from parity.reports.console import console


def print_clean(golden: DumpView, run: DumpView | None) -> None:
    """Nothing to explain."""
    what = "the run passes" if run else "the device passes every stage, local and chained, and every gate"
    console().print(f"nothing to diagnose: {what} over {len(golden.manifest.case.prompts)} prompts", style="green")


def print_diagnosis(diagnosis: Diagnosis, golden: DumpView) -> None:
    """Causes in the order in which they show, then what stays unexplained."""
    out = console()
    name = golden.manifest.case.prompts[diagnosis.prompt].id
    if diagnosis.verdict == FAIL:
        out.print(
            f"{diagnosis.mode} run, prompt {diagnosis.prompt} ({name}); "
            f"{diagnosis.trials} counterfactual references tried",
            style="dim",
        )
    if diagnosis.first is not None:
        out.print(f"first divergent: {diagnosis.first}")
    for line in diagnosis.evidence:
        out.print(f"evidence: {line}", soft_wrap=True)
    if diagnosis.hidden is not None:
        layers = ", ".join(diagnosis.hidden.stages)
        out.print(f"led back: {layers}, not shown, from {diagnosis.hidden.source}", soft_wrap=True)
    for number, cause in enumerate(diagnosis.causes, 1):
        _print_cause(out, number, cause)
    if diagnosis.unexplained is not None:
        _print_unexplained(out, diagnosis.unexplained, diagnosis)
    if diagnosis.acceptance is not None:
        _print_acceptance(out, diagnosis.acceptance)
    word = "; ".join(map(_named, diagnosis.causes)) or diagnosis.beside_causes
    if diagnosis.verdict != FAIL:
        word = f"{diagnosis.verdict}: nothing fails, and not everything could be compared"
    rest = f"; {diagnosis.unexplained.stage} stays unexplained" if diagnosis.causes and diagnosis.unexplained else ""
    for left_out in diagnosis.untried:
        out.print(f"cut short by --limit: {left_out}", soft_wrap=True)
    rest += "; the search was cut short" if diagnosis.untried else ""
    told = diagnosis.causes or any(part.whole for _, part in diagnosis.components)
    style = "bold red" if told else "magenta"
    out.print(Text(f"diagnosis: {word}{rest}", style=style), soft_wrap=True)


def print_gate_findings(defects: Sequence[GateCause], golden: DumpView) -> None:
    """What a gate found where no stage is red, and which defect that is."""
    out = console()
    gate = defects[0].gate
    whose = "the ranks differ" if gate == "stages" else f"gate {gate} fails"
    early = f"{whose}; no stage was compared" if gate in BEFORE_STAGES else ""
    out.print(defects[0].headline or early or f"every stage passes, local and chained; {whose}", soft_wrap=True)
    for number, defect in enumerate(defects, 1):
        check, says = defect.check, defect.says or "no known defect"
        at = f"; first at {check.place}" if check.place else ""
        out.print(f"{number}. {says}: {check.name}: {check.evidence}{at}", soft_wrap=True)
        out.print(
            f"   usual fix: {defect.fix}" if defect.fix else "   nobody has read this failure yet", soft_wrap=True
        )
        if defect.seen:
            out.print(f"   met in: {', '.join(defect.seen)}", soft_wrap=True)
    out.print(f"reproduce: {defects[0].reproduce}", soft_wrap=True)
    named = "; ".join(
        dict.fromkeys(f"{defect.says} ({', '.join((defect.id, *defect.of))})" for defect in defects if defect.id)
    )
    out.print(
        Text(f"diagnosis: {named or 'no reading fits'}", style="bold red" if named else "magenta"), soft_wrap=True
    )


ALIKE = 2
"""What cannot be told apart from a cause, as far as the last line says it."""


def _named(cause: Cause) -> str:
    """A cause, with what cannot be told apart from it; one that leaves more than noise is near the cause."""
    alike = [*cause.alike[:ALIKE], *([f"{len(cause.alike) - ALIKE} more, see above"] if cause.alike[ALIKE:] else [])]
    said = " or ".join((f"{cause.says} ({cause.hypothesis})", *alike))
    said += ", in doubt" if cause.doubted else ""
    return said if cause.whole else f"near {said}, not down to the floor"


def _print_cause(out: Console, number: int, cause: Cause) -> None:
    out.print(
        f"{number}. {cause.says} explains {cause.explained:.2%} of {cause.stage}'s error; "
        f"residual {_amount(cause.after)} (before: {_amount(cause.before)})",
        soft_wrap=True,
    )
    rest = f"{cause.remaining} stages still red with it" if cause.remaining else "every stage green with it"
    if not cause.whole:
        out.print("   not down to the floor: the device may do it otherwise at an edge, or this is a near relative")
    out.print(f"   {f'shows at {cause.place}; ' if cause.place else ''}{rest}", soft_wrap=True)
    if cause.doubted:
        out.print(f"   in doubt: {cause.doubted}", soft_wrap=True)
    if cause.fix:
        out.print(f"   usual fix: {cause.fix}", soft_wrap=True)
    if cause.seen:
        out.print(f"   met in: {', '.join(cause.seen)}", soft_wrap=True)
    if cause.alike:
        _print_list(out, "nothing that was looked at tells it apart from", cause.alike)
    if cause.others:
        _print_list(out, "explains this stage as well", cause.others)


def _print_list(out: Console, what: str, says: Sequence[str]) -> None:
    """One on the same line, several on a line each."""
    out.print(f"   {what}: {says[0] if len(says) == 1 else ''}".rstrip(), soft_wrap=True)
    for each in says if len(says) > 1 else ():
        out.print(f"      {each}", soft_wrap=True)


def _print_unexplained(out: Console, rest: Residual, diagnosis: Diagnosis) -> None:
    at = f", first at {rest.place}" if rest.place else ""
    out.print(f"unexplained: {rest.stage}, {_amount(rest)}{at}", soft_wrap=True)
    for stage, part in diagnosis.components:
        where = "" if stage == rest.stage else f"{stage}: "
        out.print(f"   component: {where}{part}", soft_wrap=True)
    if diagnosis.signature:
        out.print(f"   its error: {'; '.join(diagnosis.signature)}", soft_wrap=True)
    for says, share in diagnosis.nearest:
        out.print(f"   nearest hypothesis: {says} explains {share:.1%}", soft_wrap=True)


def _print_acceptance(out: Console, cost: AcceptanceCost) -> None:
    """What each failing family of stages makes of the reference's acceptance, alone and with the others."""
    own = [f"{mean:.2f} with the device's {family.replace('{l}', '*')}" for family, mean in cost.stages.items()]
    both = [f"{cost.together:.2f} with all of these"] if len(cost.stages) > 1 else []
    rest = f"; not replaced: {', '.join(cost.left_out).replace('{l}', '*')}" if cost.left_out else ""
    many = f"{cost.rounds} rounds, {cost.prompts} prompt{'s' * (cost.prompts > 1)}"
    said = f"{cost.reference:.2f} tokens a round with the reference's stages, {', '.join([*own, *both])}"
    out.print(f"acceptance: {said} ({many}{rest})", soft_wrap=True)


def _amount(residual: Residual) -> str:
    if isinf(residual.error):
        return "wrong whatever its values"
    if residual.x is not None:
        return f"{residual.x:.3g}x noise" if residual.judge == "noise" else f"{residual.x:.2g} of the stage's L2 norm"
    return f"{residual.error:.1%} of rows wrong"
