"""Defects that no stage over the golden's prompts shows: read from what a gate found."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from parity.compare.report import DISPUTED, FAIL, INCONCLUSIVE, NOT_JUDGED
from parity.diagnose.clock import TimeIsUp
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.gates.gate import Check, GateReport

ORDER = (
    *("provenance", "verify", "lossless", "acceptance", "rollback", "boundary", "positions"),
    *("lifecycle", "loops", "sampling"),
)
"""Gates that need more than stages, the cheap and telling first."""

BEFORE_STAGES = ("provenance", "batch")
"""Gates that are asked before any stage is: what they find, stages would show and not explain. The second one is for a
device of several lanes."""


@dataclass(frozen=True)
class GateRule:
    """What it means that a check of a gate fails.

    Attributes:
        gate: its name.
        check: glob over the check's name.
        evidence: pattern that the check's evidence holds.
        id: the catalogue's id of the defect.
        says: what is wrong.
        fix: the usual place.
        seen: where it was met in public.
    """

    gate: str
    check: str
    evidence: str
    id: str
    says: str
    fix: str = ""
    seen: tuple[str, ...] = ()


CONTINUED = "which rows of both caches, and which hidden, a prefix hit, a resume or a restore leaves"
OF_LANES = "what a batched kernel or its host code takes for every lane: lengths, slots, budgets, pages"

GATE_RULES = (
    GateRule(
        "batch",
        "each lane's own tensors",
        "",
        "batch-rows-crossed",
        "a lane shows another lane's tensors",
        "the rows that a capture, or the batch's output, is cut into",
    ),
    GateRule(
        "batch",
        "the same again",
        "",
        "batch-not-repeated",
        "the same batch gives other numbers when it is run again: a race, or state that an earlier batch left",
        "buffers that lanes share, and what is cleared when a sequence joins",
        ("vllm#48089",),
    ),
    GateRule(
        "batch",
        "budgets of their own",
        "ends with another's budget",
        "batch-end-of-another",
        "a lane ends where another lane's token budget or end token says",
        OF_LANES,
    ),
    GateRule(
        "batch",
        "*",
        "",
        "batch-neighbours",
        "a sequence depends on its lane, or on who sits beside it",
        OF_LANES,
        ("vllm#48089", "llama.cpp#27117", "vllm#47926"),
    ),
    GateRule(
        "rollback",
        "*",
        r"K = \d+ in this round",
        "k-changes",
        "a round of another K than the one before leaves the caches, or drafts, as if K were the same",
        "what a round of another K owes the drafter: its own K, the rows of the round before, and with K = 0 its cache",
        ("class of vLLM's dynamic speculation",),
    ),
    GateRule(
        "rollback",
        "*",
        "",
        "rollback-state",
        "behind rejected drafts or an error the state is not that of a sequence that never speculated",
        "lengths and rows of both caches behind a commit, and the buffers that outlive a round",
        ("NKIPy PR 63",),
    ),
    GateRule(
        "lifecycle",
        "*",
        "",
        "life-not-fresh",
        "a sequence that is continued from the caches is not what it is fresh",
        CONTINUED,
        ("vllm#47926", "Rapid-MLX#2742"),
    ),
    GateRule(
        "loops",
        "*",
        "",
        "ahead-not-the-same",
        "the asynchronous loop gives other drafts, tokens or caches than the synchronous one",
        "what a round takes from the one before: tokens, length, budget, and the buffer that it is read from",
        ("vllm#30122",),
    ),
    GateRule(
        "sampling",
        "*",
        "",
        "sample-not-lossless",
        "a draw or an acceptance is not what its numbers decide: sampling changes the target's distribution",
        "q as it was sampled from, behind the processors; the residual, not p; numbers of their own for each row",
        ("SafeAILab/EAGLE #329", "transformers #47932"),
    ),
    GateRule(
        "provenance",
        "shares no source*",
        "",
        "oracle-shared-bug",
        "the device shares source with the golden's producer, and so its bugs",
        "write one side's kernel anew, from the equations",
        ("openinfer #454",),
    ),
    GateRule(
        "verify",
        "lowest id*",
        "",
        "verify-tie-rule",
        "of equal largest logits another than the lowest id wins",
        "the argmax over shards or ranks: compare values first, then ids",
        ("lattice #280",),
    ),
    GateRule(
        "verify",
        "*",
        "",
        "verify-not-batch-invariant",
        "a pass of several rows and single rows disagree beyond rounding",
        "the path that verify takes and decode does not: precision, kernel choice, mask",
        ("tokenspeed #904", "TRT-LLM #9208"),
    ),
    GateRule(
        "acceptance",
        "cuts*",
        "",
        "accept-end-ignored",
        "accepted tokens behind an end token, or beyond the budget, are emitted",
        "cut the accepted run at its first end token and at the budget before it is committed",
        ("vLLM #56101",),
    ),
    GateRule(
        "acceptance",
        "counts*",
        "",
        "report-truncated-step",
        "the counts shown are not those of the tokens emitted",
        "count after the cut by EOS and budget; keep acceptance length and accepted drafts apart",
        ("NKIPy PR 63", "vLLM #17908"),
    ),
    GateRule(
        "boundary",
        "*",
        "raised",
        "boundary-transient-slots",
        "near the caches' end there is no room for the transient draft rows",
        "admission: prompt + budget + K rows have to fit",
        ("openinfer #454",),
    ),
    GateRule(
        "boundary",
        "*",
        r"1 below, .*drafter",
        "commit-cache-short",
        "the drafter's cache ends before the target's",
        "one number for both caches' rows",
        ("rMLX #14",),
    ),
    GateRule(
        "boundary",
        "*",
        "",
        "boundary-padded-rows",
        "padding rows write over committed ones near the caches' end",
        "send padding to a trash slot; a slice that would overrun is moved back by the compiler",
        ("TRT-LLM #15708",),
    ),
)


@dataclass(frozen=True)
class GateCause:
    """A failing gate and the defect it speaks of; `id` is empty where nobody has read such a failure yet.

    `headline` says what was found where that is not the gate itself, `of` which hypotheses explain what a sequence
    depends on.
    """

    gate: str
    check: Check
    reproduce: str
    id: str = ""
    says: str = ""
    fix: str = ""
    seen: tuple[str, ...] = ()
    headline: str = ""
    of: tuple[str, ...] = ()


class OutOfTime(BaseException):
    """The limit is reached inside a gate: no exception, which a gate would take for the device's."""


def run_until_failure(
    context: GateContext, names: Sequence[str] = ORDER, check: Callable[[], None] = lambda: None
) -> GateReport:
    """The gates one after another, up to the first that fails, or until `check` raises TimeIsUp: it is asked as often
    as progress is told."""
    results, told = [], context.progress

    def in_time(done: int, total: int, what: str) -> None:
        try:
            check()
        except TimeIsUp:
            raise OutOfTime from None
        told(done, total, what)

    context.progress = in_time
    try:
        for number, name in enumerate(names):
            context.progress(number, len(names), f"gate {name}")
            results.append(run_gate(context, name))
            if results[-1].verdict == FAIL:
                break
    except OutOfTime:
        pass  # what was asked by then is told
    finally:
        context.progress = told
    return GateReport(context.device_name, context.precision, str(context.golden.folder), tuple(results))


def gates_not_asked(report: GateReport) -> tuple[str, ...]:
    """What the time left out of all gates where none fails, in a sentence; nothing where all were asked."""
    left = ORDER[len(report.results) :]
    return (f"gates were not asked, or not to their end: {', '.join(left)}",) if left else ()


def gate_causes(report: GateReport) -> list[GateCause]:
    """What the failing checks mean; several that mean the same are told by the first."""
    causes = [
        _cause(result.gate, check, result.reproduce)
        for result in report.results
        for check in result.checks
        if check.verdict == FAIL
    ]
    first = {cause.id: cause for cause in reversed(causes)}
    return [cause for cause in causes if not cause.id or cause is first[cause.id]]


def missing_evidence(report: GateReport) -> list[str]:
    """Which gates lack what, where none fails; nothing where together they pass, by the verdict of `parity gate`."""
    if report.verdict not in (INCONCLUSIVE, DISPUTED):
        return []
    return [
        f"gate {result.gate}, {check.name}: {check.evidence}"
        for result in report.results
        for check in result.checks
        if result.verdict == report.verdict and check.verdict in (report.verdict, NOT_JUDGED)
    ]


def _cause(gate: str, check: Check, reproduce: str) -> GateCause:
    for rule in GATE_RULES:
        if rule.gate == gate and fnmatchcase(check.name, rule.check) and re.search(rule.evidence, check.evidence):
            return GateCause(gate, check, reproduce, rule.id, rule.says, rule.fix, rule.seen)
    return GateCause(gate, check, reproduce)
