"""One prompt on a device, verb by verb: the rounds of a golden, or rounds that the device chooses freely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from parity.batching import Script, VerbCall, perform
from parity.errors import DeviceFailed, UsageError
from parity.families import family_of
from parity.golden.case import Generation
from parity.looping import drive_loop, generate_loop, token_ids
from parity.seam import UNWATCHED, Description, Device, Looping, Tap, VaryingK
from parity.stages import ACCEPT_EMITTED, ACCEPT_LENGTH, DRAFT_TOKENS, TARGET_TOKENS, VERIFY_TOKENS
from parity.trace import ForcingTrace

untapped = UNWATCHED
"""The tap of a free run. It says that nobody looks, so that what is judged is what a user is served."""

Drafts = Callable[[int], int]
"""K of a round: 1, 2, …"""


def drafted(device: Device, tap: Tap, round_: int, drafts: Drafts | None) -> np.ndarray:
    """A round's draft; a device is told its K where that changes between rounds."""
    return device.draft(tap) if drafts is None else cast(VaryingK, device).draft(tap, drafts(round_))


def forced_rounds(
    device: Device, ids: Sequence[int], budget: int, trace: ForcingTrace, rounds: int, drafts: Drafts | None = None
) -> Script[None]:
    """One prompt through prefill and this many rounds; the trace decides what is forced.

    What a verb returns is handed to the trace here, where the device has not done so. It ends where the sequence parts
    from the golden's. A loop that cannot be split (`parity.seam.Looping`) runs as it is.
    """
    if isinstance(device, Looping):
        return drive_loop(device, ids, budget, trace)
    says = device.describe()
    trace.begin(0)
    trace.returned(TARGET_TOKENS, [(yield VerbCall("prefill", (ids, budget), trace))])
    for round_ in range(1, rounds + 1):
        if trace.parted:
            return
        trace.begin(round_)
        asked = None if drafts is None else drafts(round_)
        chosen = trace.returned(DRAFT_TOKENS, (yield _draft(trace, asked)))
        _refuse_other_k(says, len(ids) + budget, len(chosen), asked)
        chosen = chosen if drafts is None else trace.as_many(DRAFT_TOKENS, chosen)
        tokens = trace.returned(VERIFY_TOKENS, (yield VerbCall("verify", (chosen,), trace)))
        emitted = yield VerbCall("commit", (chosen, tokens), trace)
        trace.returned(ACCEPT_LENGTH, [len(emitted)])
        trace.returned(ACCEPT_EMITTED, emitted)


def free_rounds(device: Device, ids: Sequence[int], budget: int, drafts: Drafts | None = None) -> Script[Generation]:
    """One prompt until EOS or the budget, the device choosing freely; what it emitted."""
    if isinstance(device, Looping):
        return generate_loop(device, ids, budget, untapped)
    says = device.describe()
    emitted = token_ids([(yield VerbCall("prefill", (ids, budget), untapped))])
    lengths: list[int] = []
    accepted: list[int] = []
    while emitted[-1] not in says.eos and len(emitted) < budget:
        asked = None if drafts is None else drafts(len(lengths) + 1)
        own = yield _draft(untapped, asked)
        _refuse_other_k(says, len(ids) + budget, len(own), asked)
        tokens = yield VerbCall("verify", (own,), untapped)
        fresh = token_ids((yield VerbCall("commit", (own, tokens), untapped)))
        if not fresh:
            raise UsageError(f"device {says.name} emitted nothing in round {len(lengths) + 1}")
        matching = np.cumprod([a == b for a, b in zip(fresh, own, strict=False)])
        emitted += fresh
        lengths.append(len(fresh))
        accepted.append(int(matching.sum()))
    return Generation(
        emitted=tuple(emitted),
        acceptance_length=tuple(lengths),
        accepted_drafts=tuple(accepted),
        finish="eos" if emitted[-1] in says.eos else "length",
    )


def _draft(tap: Tap, asked: int | None) -> VerbCall:
    return VerbCall("draft", (), tap, () if asked is None else (asked,))


def _refuse_other_k(says: Description, positions: int, drafted: int, asked: int | None) -> None:
    """A round has as many drafts as the device describes, or as it was asked for, where its caches have room for them.

    Raises:
        DeviceFailed: it has another number of them.
    """
    due = says.k if asked is None else asked
    fewer = family_of(says.family).fewer and drafted < due
    if drafted != due and not fewer and positions + due <= says.max_positions:
        said = "it was asked for" if asked is not None else "it describes as its K (`Description.k`)"
        raise DeviceFailed(says.name, "draft", f"it drafted {drafted} tokens in place of the {due} that {said}")


def generate(device: Device, ids: Sequence[int], budget: int, drafts: Drafts | None = None) -> Generation:
    """Run `free_rounds` alone."""
    return perform(device, free_rounds(device, ids, budget, drafts))
