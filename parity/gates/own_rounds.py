"""A sequence of the device's own choices, recorded: what it shows, and what its verbs return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from parity.batching import Script, VerbCall
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
        if _ended(trace, eos):
            return
        trace.begin(trace.round + 1)
        chosen = trace.returned(DRAFT_TOKENS, (yield VerbCall("draft", (), trace)))[:drafts]
        tokens = trace.returned(VERIFY_TOKENS, (yield VerbCall("verify", (chosen,), trace)))
        tokens = np.full_like(tokens, eos[0]) if ends and not left else tokens
        emitted = yield VerbCall("commit", (chosen, tokens), trace)
        trace.returned(ACCEPT_LENGTH, [len(emitted)])
        trace.returned(ACCEPT_EMITTED, emitted)


def _ended(trace: ForcingTrace, eos: Sequence[int]) -> bool:
    """Whether the round before, or the prefill, chose an end token."""
    last = trace.tensors[(trace.round, ACCEPT_EMITTED) if trace.round else (0, TARGET_TOKENS)]
    return bool(np.isin(last if trace.round else last[-1:], eos).any())
