"""Hypotheses: every way in which a port of speculative decoding is known to be wrong, as a mutation of the references.

Written from the references and from what was met in public, never from a device. Reading them imports no torch.
"""

from __future__ import annotations

from parity.references.hypotheses import attention, decisions, edges, layers, loading, ranks, storage, streams, taps
from parity.references.hypotheses.catalogue import Fit, Hypothesis

HYPOTHESES: tuple[Hypothesis, ...] = (
    *taps.HYPOTHESES,
    *attention.HYPOTHESES,
    *edges.HYPOTHESES,
    *storage.HYPOTHESES,
    *layers.HYPOTHESES,
    *streams.HYPOTHESES,
    *loading.HYPOTHESES,
    *decisions.HYPOTHESES,
    *ranks.HYPOTHESES,
)

__all__ = ["HYPOTHESES", "Fit", "Hypothesis"]
