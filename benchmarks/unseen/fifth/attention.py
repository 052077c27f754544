"""Fifth set: faults of the target's attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("target attention", 5)
LAYER = "kernels.target_layer"
QUERIES, WINDOW, KEPT = 8, 32, 4
"""Heads of queries; keys of a sliding window; keys at the beginning that are kept in view."""
CONCENTRATION = 1.2079441541679836


@fault(
    "sink-beside-shifted-scores",
    "layer 6 adds exp(sink) as it is to a sum of exponentials that the row's largest score was taken from",
    "target.layers.6.attn_out",
    "prefill",
    "sink in layer 6's softmax denominator",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, keys, values, seen, sinks):
        if at.layer != 6:
            return clean(q, keys, values, seen, sinks)
        host_q = at.host(q)
        each = host_q.shape[2] // keys.shape[2]
        scores = np.einsum("bsnd,bpnd->bsnp", host_q, np.repeat(at.host(keys), each, axis=2)) * host_q.shape[-1] ** -0.5
        parts = np.where(at.host(seen)[:, :, None], scores, -1e30)
        parts = np.exp(parts - parts.max(axis=-1, keepdims=True))
        weights = parts / (parts.sum(axis=-1, keepdims=True) + np.exp(at.host(sinks))[:, None])
        mixed = np.einsum("bsnp,bpnd->bsnd", weights, np.repeat(at.host(values), each, axis=2))
        return at.array(mixed.reshape(*mixed.shape[:2], -1), q)

    alter(pipeline, f"{LAYER}:attend", change)


@fault(
    "sinks-as-first-tokens",
    "sliding layers keep the sequence's first four keys in view, as attention sinks that are tokens have it",
    "target.layers.0.attn_out",
    "prefill",
    "mask of even layers, keys 0 to 3",
    "rows at positions from 32 on, even layers",
    "position >= 32 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, rows):
        made = clean(rows)

        def kept(value):
            first = at.host(made.seen[None]).copy()
            first[..., KEPT:] = False
            return value | first

        return replace(made, seen=made.seen | {WINDOW: at.changed(made.seen[WINDOW], kept)})

    replaced(pipeline, pipeline.target, "step", change)


@fault(
    "verify-keys-without-concentration",
    "verify passes rotate keys by cos and sin that the YaRN concentration did not multiply, queries by the right ones",
    "target.layers.0.k",
    "verify",
    "rotation of every layer's keys, its magnitude",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        if at.kind != "verify" or x.shape[2] == QUERIES:
            return clean(x, cos, sin)
        plain = (at.changed(wave, lambda value: value / np.float32(CONCENTRATION)) for wave in (cos, sin))
        return clean(x, *plain)

    alter(pipeline, f"{LAYER}:rotate", change)


@fault(
    "queries-scaled-and-rounded",
    "layer 2's queries are scaled before their scores, and kept in bfloat16",
    "target.layers.2.attn_out",
    "prefill",
    "scaled queries of layer 2",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, q, *rest):
        scale = np.float32(q.shape[-1] ** -0.5)

        def rounded(value):
            return (value * scale).astype(bfloat16).astype(np.float32) / scale

        return clean(at.changed(q, rounded) if at.layer == 2 else q, *rest)

    alter(pipeline, f"{LAYER}:attend", change)
