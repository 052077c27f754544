"""Every greedy choice: against the golden's, against the device's own logits, and on planted ties."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.compare.choices import SAME
from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.gates.context import Bench
from parity.gates.decisions.judged import Judged, consistent, draft_vocabulary, judged
from parity.gates.decisions.planted import planted
from parity.gates.evidence import Check
from parity.golden.trust import refuse_shared

GROUPS = {"target": "target.tokens", "verify": "verify.tokens", "drafter": "drafter.draft_tokens"}
FORCED = ("target.tokens", "verify.tokens", "drafter.draft_tokens", "accept.length", "accept.emitted")


def checks(bench: Bench) -> Iterator[Check]:
    """The three groups of logits of the chained run, its own consistency, and the tie rule on the device itself."""
    golden, run = bench.golden, bench.run("chained")
    refuse_shared(golden.manifest.producer, run.manifest.producer)
    vocabulary = draft_vocabulary(golden)
    free = [stage for stage in FORCED if stage not in run.manifest.case.forced]
    for name, stage in GROUPS.items():
        yield _group(name, judged(bench.basis("chained"), run, stage, vocabulary), run.manifest.case.precision, free)
    yield consistent(golden, run, vocabulary)
    yield planted(bench, vocabulary)


def _group(name: str, found: Judged, precision: str, free: list[str]) -> Check:
    """One group of rows under the tie rule; in float32 every choice must be the golden's."""
    figures = found.figures()
    if name == "drafter":
        figures["slots"] = {_slot(slot): found.of(found.slot == slot).figures() for slot in np.unique(found.slot)}
    bad = found.bugs | ~found.finite | (precision == "float32") & (found.verdict != SAME)
    said, place = _line(figures), None
    if bad.any():
        first = min(np.flatnonzero(bad), key=lambda row: (found.round[row], found.prompt[row], found.position[row]))
        place = Place(found.stage, None, *(int(x[first]) for x in (found.prompt, found.round, found.position)))
    verdict = FAIL if bad.any() else PASS
    unforced = f"{free[0]} was not forced: rows behind a difference have another context" if free else ""
    if lack := "; ".join(one for one in (found.lack, unforced) if one):
        verdict, said = (FAIL if bad.any() else INCONCLUSIVE), f"{lack}; {said}"
    return Check(_title(name, figures), verdict, said, figures, place)


def _slot(slot: int) -> str:
    return f"MTP {slot}" if slot else "NTP"


def _title(name: str, figures: dict) -> str:
    if "slots" not in figures:
        return f"{name}, {figures['rows']} rows"
    differ = ", ".join(f"{slot} {one['rows'] - one['same']}" for slot, one in figures["slots"].items())
    return f"{name}, {figures['rows']} rows (differing: {differ})"


def _line(f: dict) -> str:
    """Counts, regret, divergence, overlap and the largest difference."""
    if not f["rows"]:
        return "no row to judge"
    counts = f"{f['same']} same, {f['tie']} tie ({f['tie_at_two_ulp']} at two ULP), {f['noise']} noise, {f['bug']} bug"
    overlap = "/".join(f"{100 * share:.1f}" for share in f["overlap"].values())
    return (
        f"{counts}; regret 0 in {f['regret_zero']}, mean {f['regret_mean']:.2g}, max {f['regret_max']:.2g}; "
        f"KL mean {f['kl_mean']:.2g}, max {f['kl_max']:.2g} nats; top-1/5/50 {overlap} %; "
        f"logits within {100 * f['largest_relative']:.2g} %"
    )
