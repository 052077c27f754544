"""The verdict of a comparison on one screen: what, where, since when, whose, what it rests on, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from parity.compare.places import SCORED
from parity.compare.report import (
    DISPUTED,
    FAIL,
    INCONCLUSIVE,
    NOT_JUDGED,
    PASS,
    Acceptance,
    Report,
    StageResult,
)
from parity.compare.scores import scores_of
from parity.policy import STATISTICS
from parity.reports.console import STYLE, say
from parity.reproducing import command_line

UNIT = {"noise": "x noise", "relative": "rel"}
DIRECTED = ("scale", "bias")
MOST = 12
"""Findings or stages that are listed; --json has all."""
MARGIN = 15
"""Columns of what a line is about."""


def print_verdict(out: Console, report: Report) -> None:
    """What fails and what to do, what the verdict rests on and cannot see, and the last line."""
    _print_first(out, report)
    _print_more(out, report)
    _print_acceptance(out, report.acceptance)
    _print_blind(out, report)
    _print_last(out, report)


def print_pass(out: Console, report: Report) -> None:
    """What a pass shows at a glance: acceptance where it was measured, and the last line."""
    if report.acceptance.same_prompts is not None:
        _print_acceptance(out, report.acceptance)
    _print_last(out, report)


def _tell(out: Console, about: str, said: str, style: str = "") -> None:
    """One statement with what it is about in the margin."""
    say(out, Text(said, style=style), Text(f"{about:{MARGIN}}", style="bold"))


def _print_first(out: Console, report: Report) -> None:
    """The first divergent stage: what is wrong, where, since when, whose it is, and the next command."""
    stage = report.first_stage
    if report.first is not None:
        if stage is not None:
            _tell(out, "what", f"{stage.stage}: {_why(stage)}", STYLE[stage.verdict])
        else:
            _tell(out, "what", next(_findings_at(report), report.first.stage), STYLE[FAIL])
        worst = f"; worst at {stage.worst.row}" if stage and stage.worst and stage.worst != stage.first else ""
        _tell(out, "where", f"{report.first.row}{worst}")
        if stage is not None and (bad := _bad(stage)):
            _tell(out, "since", bad)
        if report.first_layers:
            _tell(out, "layers", report.first_layers)
        if report.holds:
            _tell(out, "holds", report.holds)
        _tell(out, "whose", _whose(report, stage))
    flags, bounds = ["--partial"] if report.partial else [], {"golden": report.golden, "policy": report.policy_asked}
    # Causes are looked for with greedy references, in whole runs over whole tensors.
    if report.verdict == FAIL and report.beside:
        for folder, more in ((report.run, flags), (report.beside, [])):
            _print_next(out, command_line("diff", folder, *more, **bounds))
    elif report.verdict == FAIL and report.rests_on:
        _tell(out, "next", "a run over whole tensors, `parity diff` without sketches: its cause is looked for in these")
    elif (
        report.verdict == FAIL
        and not (report.sampling or report.layers)
        and (Path(report.run) / "manifest.json").is_file()
    ):
        _print_next(out, command_line("diagnose", report.run, *flags, **bounds))


def _print_next(out: Console, command: str) -> None:
    """A command in one piece, to be copied."""
    out.print(Text.assemble((f"{'next':{MARGIN}}", "bold"), command), soft_wrap=True)


def _findings_at(report: Report) -> Iterator[str]:
    return (one.message for one in report.findings if report.first and one.stage == report.first.stage)


def _bad(stage: StageResult) -> str:
    """Which rows are bad."""
    rows = f"{stage.bad_rows} of {stage.rows} rows" if stage.bad_rows else ""
    return ": ".join(filter(None, (rows, stage.relation)))


def _whose(report: Report, stage: StageResult | None) -> str:
    """Whether the stage's inputs are right, and how many stages inherit its error."""
    marks = stage.marks if stage else ()
    own = "its own: nothing that it is computed from is beyond its bounds" if "own" in marks else ""
    if stage is not None and SCORED in marks:
        scores = scores_of(stage.stage)
        own = f"that of {scores}: the choice is the best of it, and it is within its bounds but for some columns"
    if report.in_doubt and stage is report.first_stage:
        own = f"not told: {report.in_doubt}, which it is computed from, is inconclusive; --mode local tells"
    own = "one of the two devices'" if report.beside else own or "the device's"
    own += (
        ", and continues behind it"
        if "step" in marks
        else ", and does not continue behind it"
        if "spike" in marks
        else ""
    )
    behind = [
        one
        for one in report.stages
        if "inherited" in one.marks and one is not stage and one.verdict not in (PASS, NOT_JUDGED)
    ]
    if not behind:
        return own
    grown = sum("grown" in one.marks for one in behind)
    more = f", it grows in {grown} of them, where --mode local tells what they add" if grown else ""
    return f"{own}; {len(behind)} stages behind inherit it{more}"


def _print_more(out: Console, report: Report) -> None:
    """The other findings and stages that do not pass on their own, and what runs on experts of its own."""
    first = report.first_stage
    findings = [one for one in report.findings if first is not None or one.message != next(_findings_at(report), "")]
    for finding in findings[:MOST]:
        _tell(out, finding.kind, finding.message, STYLE[FAIL])
    if len(findings) > MOST:
        _tell(out, "", f"... and {len(findings) - MOST} more findings (--json lists all)")
    told = {finding.stage for finding in report.findings}
    wrong = [stage for stage in report.stages if stage.verdict not in (PASS, NOT_JUDGED) and stage.stage not in told]
    wrong = [stage for stage in wrong if not (stage.rows_apart and stage.verdict == INCONCLUSIVE)]  # said once, below
    own = [stage for stage in wrong if "inherited" not in stage.marks and stage is not first]
    if report.own_experts is not None:
        verdict = INCONCLUSIVE if report.own_experts.lack else report.own_experts.verdict
        _tell(out, "own experts", str(report.own_experts), STYLE[verdict])
    for stage in own[:MOST]:
        marks = f" ({', '.join(stage.marks)})" if stage.marks else ""
        rows = _rows(stage)
        _tell(out, stage.verdict, f"{stage.stage}{marks}: {_why(stage)}{rows}", STYLE[stage.verdict])
    if len(own) > MOST:
        _tell(out, "", f"... and {len(own) - MOST} more stages (--json lists all)")
    for stage in [stage for stage in report.stages if "over-precise" in stage.marks][:3]:
        _tell(out, "over-precise", f"{stage.stage}: {stage.x['l2']:.2f} x noise; is this bfloat16?", STYLE["warn"])


def _why(stage: StageResult) -> str:
    """The statistics beyond their bound, or the count of wrong choices."""
    if stage.verdict == DISPUTED:
        return stage.note
    if stage.choices and stage.verdict == FAIL:
        said = f"{stage.choices['bug']} of {stage.rows} rows differ beyond tie and noise"
        return stage.note if stage.against_scores == stage.choices["bug"] else said
    if stage.choices:
        return stage.note
    if not stage.x:
        return "no tensor could be compared"
    over = [
        f"{name.replace('_', ' ')} {stage.x[name]:.3g} {_unit(stage, name)} (ok to {ok:g}, warn to {warn:g})"
        for name, (ok, warn) in stage.bounds.items()
        if stage.x.get(name, 0.0) > ok
    ]
    return "; ".join(over + ([stage.note] if stage.note else []))


def _rows(stage: StageResult) -> str:
    """The first row, the worst one and which rows are bad, behind the figures."""
    told = f", first at {stage.first}" if stage.first else ""
    return told + (f"; {stage.rows_summary}" if stage.rows_summary else "")


def _unit(stage: StageResult, statistic: str) -> str:
    """What a statistic counts in."""
    if statistic in DIRECTED and stage.judge == "noise":
        return "standard errors beyond the floor's"
    return STATISTICS[statistic] or UNIT[stage.judge]


def _print_acceptance(out: Console, acceptance: Acceptance) -> None:
    """Both names of it: acceptance length counts the bonus token, accepted drafts do not."""
    for name, counts in (("reference", acceptance.reference), ("device", acceptance.device)):
        if counts is not None:
            said = f"acceptance length {counts.acceptance_length:.3f}, accepted drafts {counts.accepted_drafts:.3f}"
            _tell(out, name, f"{said}, {counts.rounds} rounds")
    if acceptance.same_prompts is None:
        _tell(out, "device", "acceptance: not measured, this run generated nothing freely")
    else:
        same = f"{acceptance.same_prompts} of {acceptance.prompts} prompts emit the reference's tokens"
        _tell(out, "free run", same)


def _print_blind(out: Console, report: Report) -> None:
    """Who else stands behind the golden, and what a pass says nothing about."""
    for said in report.witnesses:
        _tell(out, "golden", said)
    if report.lucky:
        told = "with the floor of several roundings: a row alone was beyond that of one, which may be lucky"
        _tell(out, "again", f"prompts {', '.join(report.lucky)}: {told}")
    if forced := [name for name in report.forced if any(stage.family == name for stage in report.stages)]:
        names = ", ".join(forced)
        _tell(out, "forced", f"{names}: right on choices that were the golden's; the gates ask the device for its own")
    for said in report.rests_on:
        _tell(out, "evidence", said)
    if report.not_exercised:
        _tell(out, "not exercised", f"by these prompts: {'; '.join(report.not_exercised)}")
    if report.policy_file:
        _tell(out, "policy", f"{report.policy_file} ({report.policy_apart})")
    if report.blind:
        _tell(out, "cannot see", f"policy {report.policy_file or report.policy}: {report.blind}")
    if report.not_shown:
        _tell(out, "not shown", not_shown(report))
    for said in report.parted:
        _tell(out, "not compared", said)
    for said in report.unseen:
        _tell(out, "not seen", said)


def not_shown(report: Report) -> str:
    """How many of the stages asked for a device does not show, and where an error in them shows first, by family."""
    families: dict[str, dict[str, None]] = {}
    for name, first in report.not_shown.items():
        hidden = _family(name)
        prefix = _family(first).rpartition(".")[0] + "."
        families.setdefault(_family(first), {})[hidden.removeprefix(prefix)] = None
    blind = families.pop("", {})
    told = [f"{first} ({', '.join(hidden)})" for first, hidden in families.items()]
    count = len(report.not_shown)
    where = [f"an error in one of them shows first in {'; '.join(told)}"] if told else []
    where += [f"{'in none' if told else 'an error in one of them shows nowhere'}: {', '.join(blind)}"] if blind else []
    return "; ".join([f"{count} of {count + len(report.stages)} stages", *where])


def _family(name: str) -> str:
    return re.sub(r"[.][0-9]+(?=[.])", ".*", name)


def _print_last(out: Console, report: Report) -> None:
    """What the policy did not look at, then the last line: pass, or the first divergent place and its command."""
    unjudged = sorted({stage.family for stage in report.stages if stage.verdict == NOT_JUDGED})
    if unjudged:
        _tell(out, "not judged", f"by policy {report.policy_file or report.policy}: {', '.join(unjudged)}")
    word = Text(report.title, style=STYLE[report.verdict])
    if report.verdict != PASS and report.first is not None:
        word.append(f"; first divergent: {report.first_summary}; reproduce: {report.reproduce}", style="default")
    elif report.verdict != PASS:
        said = f"; {report.findings[0].message}" if report.findings else ""
        word.append(f"{said}; reproduce: {report.reproduce}", style="default")
    out.print(word, soft_wrap=True)
