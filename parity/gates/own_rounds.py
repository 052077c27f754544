"""A sequence of the device's own choices, recorded: what it shows, and what its verbs return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from parity.batching import Script, VerbCall
from parity.errors import UsageError
from parity.rounds import untapped
from parity.stages import ACCEPT_EMITTED, ACCEPT_LENGTH, DRAFT_TOKENS, TARGET_TOKENS, VERIFY_TOKENS, Named
from parity.trace import ForcingTrace


def free_trace(names: Mapping[str, Named]) -> ForcingTrace:
    """A trace that forces nothing."""
    return ForcingTrace(names, lambda round_, stage: None, frozenset())


def own_prefill(trace: ForcingTrace, ids: Sequence[int], budget: int, cached: int | None = None) -> Script[None]:
    """The prefill of a prompt; from the caches, where `cached` rows of it are there."""
    trace.begin(0)
    verb, cut = ("prefill", ()) if cached is None else ("prefill_from", (cached,))
    trace.returned(TARGET_TOKENS, [(yield VerbCall(verb, (*cut, ids, budget), trace))])


def own_rounds(
    trace: ForcingTrace, count: int, eos: Sequence[int], drafts: int | None = None, ends: bool = False
) -> Script[None]:
    """So many rounds more, none behind an end token.

    Args:
        drafts: those of a round that are verified; all where None.
        ends: the target's tokens in the last round are end tokens.
    """
    for left in reversed(range(count)):
        if ended(trace, eos):
            return
        trace.begin(trace.round + 1)
        chosen = trace.returned(DRAFT_TOKENS, (yield VerbCall("draft", (), trace)))[:drafts]
        tokens = trace.returned(VERIFY_TOKENS, (yield VerbCall("verify", (chosen,), trace)))
        tokens = np.full_like(tokens, eos[0]) if ends and not left else tokens
        emitted = yield VerbCall("commit", (chosen, tokens), trace)
        trace.returned(ACCEPT_LENGTH, [len(emitted)])
        trace.returned(ACCEPT_EMITTED, emitted)


def own_end(trace: ForcingTrace, round_: int, k: int, ids: Sequence[int], budget: int, eos: int | None) -> Script[None]:
    """Rounds until the text ends, their drafts and tokens given, so that no close choice decides where it ends.

    The last round has one token left and K drafts that are all right; or an end token behind its first draft. What it
    emits, and how many tokens came out in all, is recorded. A text that has ended already stays as it is.

    Args:
        round_: number of the last round in the trace.
        ids: tokens that end no text, two different ones at least.
        budget: of the prefill.
        eos: the end token; None where the budget ends the text.
    """
    came = 1 + sum(len(value) for (_, stage), value in trace.tensors.items() if stage == ACCEPT_EMITTED)
    fill = ids[0]
    other, last, emitted = next(token for token in ids if token != fill), False, np.empty(0, np.int64)
    while came < budget and not last:
        last = eos is not None or came == budget - 1
        drafts, tokens = np.full(k, fill), np.full(k + 1, fill)
        if eos is not None:
            drafts[min(1, k - 1)] = tokens[min(1, k - 1)] = eos
        elif not last:
            tokens[min(k, budget - came - 2)] = other
        yield VerbCall("draft", (), untapped)
        yield VerbCall("verify", (drafts,), untapped)
        emitted = yield VerbCall("commit", (drafts, tokens), untapped)
        if not len(emitted):
            raise UsageError(f"commit emitted nothing, {came} of {budget} tokens had come out")
        came += len(emitted)
    if last:
        trace.begin(round_)
        trace.returned(ACCEPT_LENGTH, [came])
        trace.returned(ACCEPT_EMITTED, emitted)


def ended(trace: ForcingTrace, eos: Sequence[int]) -> bool:
    """Whether the round before, or the prefill, chose an end token."""
    last = trace.tensors[(trace.round, ACCEPT_EMITTED) if trace.round else (0, TARGET_TOKENS)]
    return bool(np.isin(last if trace.round else last[-1:], eos).any())
