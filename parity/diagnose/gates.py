"""Defects that no stage over the golden's prompts shows: read from what a gate found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from parity.compare.report import DISPUTED, FAIL, INCONCLUSIVE, NOT_JUDGED
from parity.gates import run_gate
from parity.gates.context import Bench
from parity.gates.evidence import Check, Gates

ORDER = ("provenance", "verify", "lossless", "acceptance", "rollback", "boundary", "positions")
"""Gates that need more than stages, the cheap and telling first."""


@dataclass(frozen=True)
class Reading:
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


READINGS = (
    Reading(
        "provenance",
        "shares no source*",
        "",
        "oracle-shared-bug",
        "the device shares source with the golden's producer, and so its bugs",
        "write one side's kernel anew, from the equations",
        ("openinfer #454",),
    ),
    Reading(
        "verify",
        "lowest id*",
        "",
        "verify-tie-rule",
        "of equal largest logits another than the lowest id wins",
        "the argmax over shards or ranks: compare values first, then ids",
        ("lattice #280",),
    ),
    Reading(
        "verify",
        "*",
        "",
        "verify-not-batch-invariant",
        "a pass of several rows and single rows disagree beyond rounding",
        "the path that verify takes and decode does not: precision, kernel choice, mask",
        ("tokenspeed #904", "TRT-LLM #9208"),
    ),
    Reading(
        "acceptance",
        "cuts*",
        "",
        "accept-end-ignored",
        "accepted tokens behind an end token, or beyond the budget, are emitted",
        "cut the accepted run at its first end token and at the budget before it is committed",
        ("vLLM #56101",),
    ),
    Reading(
        "acceptance",
        "counts*",
        "",
        "report-truncated-step",
        "the counts shown are not those of the tokens emitted",
        "count after the cut by EOS and budget; keep acceptance length and accepted drafts apart",
        ("NKIPy PR 63", "vLLM #17908"),
    ),
    Reading(
        "boundary",
        "*",
        "raised",
        "boundary-transient-slots",
        "near the caches' end there is no room for the transient draft rows",
        "admission: prompt + budget + K rows have to fit",
        ("openinfer #454",),
    ),
    Reading(
        "boundary",
        "*",
        r"1 below, .*drafter",
        "commit-cache-short",
        "the drafter's cache ends before the target's",
        "one number for both caches' rows",
        ("rMLX #14",),
    ),
    Reading(
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
class Found:
    """A failing gate and the defect it speaks of; `id` is empty where nobody has read such a failure yet."""

    gate: str
    check: Check
    reproduce: str
    id: str = ""
    says: str = ""
    fix: str = ""
    seen: tuple[str, ...] = ()


def until_red(bench: Bench, names: Sequence[str] = ORDER) -> Gates:
    """The gates one after another, up to the first that fails."""
    results = []
    for name in names:
        results.append(run_gate(bench, name))
        if results[-1].verdict == FAIL:
            break
    return Gates(bench.device_name, bench.precision, str(bench.golden.folder), tuple(results))


def read_gates(gates: Gates) -> list[Found]:
    """What the failing checks mean."""
    return [
        _read(one.gate, check, one.reproduce) for one in gates.results for check in one.checks if check.verdict == FAIL
    ]


def lacking(gates: Gates) -> list[str]:
    """Which gates lack what, where none fails; nothing where together they pass, by the verdict of `parity gate`."""
    if gates.verdict not in (INCONCLUSIVE, DISPUTED):
        return []
    worst = [(one.gate, check) for one in gates.results if one.verdict == gates.verdict for check in one.checks]
    return [
        f"gate {gate}, {one.name}: {one.evidence}" for gate, one in worst if one.verdict in (gates.verdict, NOT_JUDGED)
    ]


def _read(gate: str, check: Check, reproduce: str) -> Found:
    for one in READINGS:
        if one.gate == gate and fnmatchcase(check.name, one.check) and re.search(one.evidence, check.evidence):
            return Found(gate, check, reproduce, one.id, one.says, one.fix, one.seen)
    return Found(gate, check, reproduce)
