"""The fused port run whole: its own loop decides what is drafted, verified and emitted, and when it ends.

parity diff --device docs.ports.fused_loop:load
"""

from __future__ import annotations

from dataclasses import replace

from docs.ports import fused
from docs.ports.fused_device import SHOWN, STAGES, FusedDevice
from parity.seam import Shown


class Steps(fused.Speculator):
    """The port's steps with a device watching; `generate` is the port's."""

    watched: FusedLoop

    def prefill(self, ids, budget):
        watched = self.watched
        with watched.tap.during(watched.given, "prefill", head="target"):
            first = super().prefill(ids, budget)
            watched.hand_over_caches()
        watched.on_round([], [first])
        return first

    def draft(self):
        with self.watched.drafting(self.watched.given) as tap:
            return tap("drafter.draft_tokens", super().draft())

    def verify(self, drafts):
        with self.watched.tap.during(self.watched.given, "round", head="verify"):
            return self.watched.tap("verify.tokens", super().verify(drafts))

    def accept(self, drafts, tokens, left):
        emitted = super().accept(drafts, tokens, left)
        with self.watched.tap.during(self.watched.given, "round"):
            self.watched.hand_over_caches()
        self.watched.on_round(drafts, emitted, tokens)
        return emitted


class FusedLoop:
    """`parity.seam.Looping`."""

    def __init__(self, port: Steps, precision: str):
        self.verbs = FusedDevice(port, precision)
        self.port, self.port.watched = port, self
        self.tap, self.drafting, self.hand_over_caches = (
            self.verbs.tap,
            self.verbs.drafting,
            self.verbs.hand_over_caches,
        )

    def describe(self):
        says = self.verbs.describe()
        shown = (*SHOWN, Shown("verify.tokens"))
        # The loop keeps the first token and what a round emits to itself.
        forcible = (*STAGES, "*logits", "kv.*", "draft_tokens", "verify.tokens")
        return replace(says, name="fused loop", shown=shown, forcible=forcible)

    def speculate(self, prompt_ids, max_new_tokens, tap, on_round):
        self.given, self.on_round = tap, on_round
        return self.port.generate(list(prompt_ids), max_new_tokens)


def load(target, drafter, k, precision):
    """The factory."""
    return FusedLoop(Steps(target, drafter, k, precision), precision)
