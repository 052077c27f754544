"""The fused port as a device: what a host sees where it launches kernels.

parity diff --device docs.ports.fused_device:load
"""

from __future__ import annotations

import numpy as np

from docs.ports import fused
from parity.adapters import PortTap, Shows, transactional
from parity.seam import Description, Shown

STAGES = ("embed", "target.layers.*.out", "verify.logits", "drafter.taps", "drafter.layers.*.out", "drafter.logits")
SHOWN = (*map(Shown, (*STAGES, "kv.*")), Shown("target.logits", rows="last"))
PORT = ("length", "fresh", "fresh_taps", "verified", "target.caches", "drafter.caches")  # what its steps change


class FusedDevice:
    """The five verbs over the port's own steps."""

    def __init__(self, port: fused.Speculator, precision: str):
        self.port, self.precision, self.left = port, precision, 0
        self.tap = tap = PortTap(len(port.target.layers), len(port.drafter.layers))
        of_target = Shows("target.embed", only=lambda ids, table: table is port.target.w["model.embed_tokens.weight"])
        tap.at(fused, "embed", returns=of_target)
        tap.at(fused, "target_layer", returns="target.layers.{l}.out")
        tap.at(fused, "target_head", returns="{head}.logits")
        tap.at(fused, "fuse", takes={"taps": "drafter.taps"})
        tap.at(fused, "drafter_layer", returns="drafter.layers.{l}.out")
        tap.at(fused, "drafter_head", returns="drafter.logits")

    def describe(self):
        port = self.port
        return Description(
            name="fused port",
            precision=self.precision,
            num_layers=len(port.target.layers),
            num_drafter_layers=len(port.drafter.layers),
            k=port.k,
            max_positions=port.target.config["max_position_embeddings"],
            eos=tuple(port.eos),
            modules=(fused.__name__,),
            shown=SHOWN,
        )

    def prefill(self, prompt_ids, max_new_tokens, tap):
        with self.tap.during(tap, "prefill", head="target"):
            first, self.left = self.port.prefill(list(prompt_ids), max_new_tokens), max_new_tokens - 1
            self.hand_over_caches()
        return first

    def draft(self, tap):
        with self.drafting(tap):
            return self.port.draft()

    def drafting(self, tap):
        count, k = len(self.port.fresh), self.port.k
        rows = {"drafter.taps": count, "drafter.logits": slice(count - 1, count - 1 + k), "*.layers.*": count + k - 1}
        return self.tap.during(tap, "round", rows)

    def verify(self, draft_tokens, tap):
        with self.tap.during(tap, "round", head="verify"):
            return self.port.verify(draft_tokens)

    def commit(self, draft_tokens, verify_tokens, tap):
        with self.tap.during(tap, "round"):
            emitted = np.array(self.port.accept(draft_tokens, verify_tokens, self.left))
            self.left -= len(emitted)
            self.hand_over_caches()
        return emitted

    def hand_over_caches(self):
        port = self.port
        port.target.caches = self.tap.caches("target", port.target.caches, port.length)
        port.drafter.caches = self.tap.caches("drafter", port.drafter.caches, port.length - len(port.fresh))


def load(target, drafter, k, precision):
    """The factory."""
    device = FusedDevice(fused.Speculator(target, drafter, k, precision), precision)
    return transactional(device, ("left", *(f"port.{name}" for name in PORT)))
