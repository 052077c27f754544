"""Faults of the target's embeddings, norms and head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.unseen.moments import alter, moment, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("embedding and head", 18)


@fault(
    "first-draft-verified-by-its-draft-id",
    "the first draft is fed to the target by its id in the draft vocabulary, later ones by their own",
    "target.embed",
    "verify",
    "id of verify row 1, before d2t",
    "row 1 of verify passes",
    "pass = verify and row = 1",
)
def _(pipeline: Pipeline) -> None:
    offsets = moment(pipeline).host(pipeline.drafter.outer["d2t"])
    back = {int(to): own for own, to in enumerate(offsets + np.arange(len(offsets)))}

    def change(at, clean, rows):
        if at.kind == "verify" and rows.count > 1:
            ids = rows.ids.copy()
            ids[0, 1] = back.get(int(ids[0, 1]), ids[0, 1])
            rows = replace(rows, ids=ids)
        return clean(rows)

    replaced(pipeline, pipeline.target, "embedded", change)


@fault(
    "verify-logits-over-a-temperature",
    "verify passes divide logits by a temperature of 0.8, though tokens are chosen greedily",
    "verify.logits",
    "verify",
    "logits of verify passes, 1.25 times too large",
    "verify passes",
    "pass = verify",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        made = clean(*given)
        return at.changed(made, lambda value: value / 0.8) if at.kind == "verify" else made

    alter(pipeline, "target:linear", change)


@fault(
    "squares-over-one-less",
    "the target's norms divide the sum of 96 squares by 95, as a variance that corrects for its mean",
    "target.layers.0.attn_in",
    "prefill",
    "mean square of every norm of the target, 96/95 of what it is",
    precision="float32",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, weight, eps):
        factor = np.sqrt(95 / 96)
        return at.changed(clean(x, weight, eps * 95 / 96), lambda value: value * factor)

    for place in ("kernels.target_layer:gpt_oss_norm", "target:gpt_oss_norm"):
        alter(pipeline, place, change)
