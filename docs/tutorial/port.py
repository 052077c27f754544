"""The port of the tutorial: a drafter pass of its own over the kernels of `docs/ports/fused.py`. It has one bug.

Shapes: B = 1, W rows, H hidden, K drafts, C rows that were committed, 3H the taps.
"""

from __future__ import annotations

import numpy as np

from docs.ports import fused
from docs.ports.fused_device import PORT, FusedDevice
from parity.adapters import transactional


class Speculator(fused.Speculator):
    """Target and drafter with one sequence under way; the head runs over the K rows that draft, and no others."""

    def draft(self):
        """K drafts: what was emitted last is committed, then K - 1 masked rows."""
        committed, masked = len(self.fresh), self.k - 1
        ids = np.array(self.fresh + [self.drafter.config["ptd_token_id"]] * masked)
        taps = np.concatenate([self.fresh_taps, np.repeat(self.drafter.w["mask_hidden"], masked, axis=1)], axis=1)
        hidden = self.run_drafter(ids, taps, self.length - committed)
        drafting = hidden[:, : self.k]
        logits = fused.drafter_head(drafting, self.drafter.w, self.drafter.config["rms_norm_eps"])
        chosen = logits[0].argmax(-1)
        return chosen + self.drafter.w["d2t"][chosen]

    def run_drafter(self, ids, taps, start):
        """Rows of ids [W] and taps [B, W, 3H], whose keys and values are cached, to hidden [B, W, H]."""
        drafter, positions = self.drafter, start + np.arange(len(ids))
        hidden, embeds = fused.fuse(taps, drafter.w), fused.embed(ids, drafter.w["embed_tokens.weight"])
        for w, cache in zip(drafter.layers, drafter.caches, strict=True):
            hidden = fused.drafter_layer(hidden, w, *cache, positions, drafter.rope, drafter.config, embeds)
            embeds = None
        return hidden


class Device(FusedDevice):
    """The five verbs of the other port; here a pass has no padding, and the head no rows that draft nothing."""

    def drafting(self, tap):
        return self.tap.during(tap, "round", {"drafter.taps": len(self.port.fresh)})


def load(target, drafter, k, precision):
    """The factory: what `--device docs.tutorial.port:load` calls."""
    device = Device(Speculator(target, drafter, k, precision), precision)
    return transactional(device, ("left", *(f"port.{name}" for name in PORT)))
