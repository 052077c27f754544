"""A quick look: gates that most defects meet, over one prompt's first rounds. It fails a device, or says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parity.gates.gate import GATES
from parity.golden.views import GoldenSlice, TrustedGolden

QUICK_GATES = ("stages", "provenance", "taps", "decisions", "lossless", "rollback")
"""Most telling first: nearly every planted fault shows in a stage (docs/faults.md)."""

ROUNDS = 4
"""Enough for a rejection, what it leaves in the caches, and the round behind it."""

HISTORIES = 1
"""Accept/reject histories: the rollback gate plays its plain ones first, however few are asked for."""


@dataclass(frozen=True)
class QuickLook:
    """What a quick look is of.

    Attributes:
        golden: the longest prompt alone, as number 0: it reaches furthest beyond windows and original contexts.
        left_out: what the whole asks beside it, in words.
    """

    golden: TrustedGolden
    left_out: Sequence[str]


def quick_look(golden: TrustedGolden, histories: int) -> QuickLook:
    """Cut a golden for a quick look.

    Args:
        histories: accept/reject histories that the whole would play.
    """
    prompts = golden.manifest.case.prompts
    longest = max(range(len(prompts)), key=lambda number: len(prompts[number].ids))
    left_out = [f"the gates {', '.join(name for name in GATES if name not in QUICK_GATES)}"]
    rest = (
        f"{len(prompts) - 1} of {len(prompts)} prompts: asked is {longest} ({prompts[longest].id}) alone, as number 0"
    )
    left_out += [rest] if len(prompts) > 1 else []
    left_out += [f"rounds behind the first {ROUNDS}", f"all but the plainest of {histories} accept/reject histories"]
    return QuickLook(GoldenSlice(golden, longest, ROUNDS), left_out)
