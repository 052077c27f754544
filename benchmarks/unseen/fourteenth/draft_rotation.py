"""Fourteenth set: a fault of the drafter's rotation."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("draft rotation", 14)


# After https://github.com/NVIDIA/Megatron-LM/issues/7103: a block's own numbers of heads against the number of all.
@fault(
    "last-block-of-heads-runs-on",
    "queries turn in place by blocks of 8 heads, and the second block of 12 goes on to the first four of the next row",
    "drafter.layers.0.attn_out",
    "prefill",
    "queries of heads 0 to 3 in every drafter layer: turned once more, by the position of the row before; keys and the "
    "other heads are right",
    "rows of a pass but the first",
    "row >= 1",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, x, cos, sin):
        made = clean(x, cos, sin)
        if x.shape[2] != pipeline.drafter.config.attention.heads:
            return made
        rows = at.host(made)
        cut = [at.array(at.host(one)[:, :-1], one) for one in (cos, sin)]
        again = at.host(clean(at.array(rows[:, 1:, :4], x), *cut))
        both = np.concatenate([again, rows[:, 1:, 4:]], axis=2)
        return at.array(np.concatenate([rows[:, :1], both], axis=1), x)

    alter(pipeline, "kernels.drafter_layer:rotate", change)
