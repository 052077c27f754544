"""Faults of the verify pass: its tokens, masks and choices."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import alter, replaced
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline
from parity.device.rows import round_up

fault = Part("verify", 27)
VISIBLE = "kernels.step:visible"
TILE = 32


@fault(
    "verify-window-of-first-row-for-all",
    "in a verify pass the window's lower end is the first row's for all rows: later ones see more keys",
    "target.layers.0.attn_out",
    "verify",
    "window of sliding layers",
    "verify rows behind the first, in sliding layers",
    "pass = verify and row > 0 and layer % 2 = 0",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, keys, window):
        if at.kind != "verify" or window is None:
            return clean(positions, keys, window)
        first = at.host(positions)[:, :1, None]
        return at.engine.array(at.host(clean(positions, keys, None)) & (np.arange(keys) > first - window))

    alter(pipeline, VISIBLE, change)


@fault(
    "verify-key-tiles-counted-by-first-row",
    "a verify pass reads as many tiles of 32 keys as its first row needs: later rows miss what lies behind",
    "target.layers.0.attn_out",
    "verify",
    "number of key tiles in a verify pass, every layer",
    "verify rows that lie in a later tile of 32 positions than the pass's first row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, positions, keys, window):
        made = clean(positions, keys, window)
        if at.kind != "verify":
            return made
        end = round_up(int(at.host(positions)[0, 0]) + 1, TILE)
        return at.engine.array(at.host(made) & (np.arange(keys) < end))

    alter(pipeline, VISIBLE, change)


@fault(
    "last-draft-of-round-before-verified",
    "from round 2 on a verify pass has the last draft of the round before in the place of its own last one",
    "target.embed",
    "verify",
    "id of a verify pass's last row",
    "the last row of verify passes from round 2 on",
    "pass = verify and round >= 2",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, Any] = {}

    def change(at, clean, ids, width, group, record):
        if at.kind == "verify" and len(ids) > 1:
            own = ids[-1]
            ids = np.append(ids[:-1], held["last"] if at.round > 1 else own)
            held["last"] = own
        return clean(ids, width, group, record)

    replaced(pipeline, pipeline, "_target_pass", change)


@fault(
    "bonus-row-repeats-greedy-token-before",
    "the greedy choice of a verify pass covers K rows: the last one repeats the token of the row before",
    "verify.tokens",
    "verify",
    "token of the last row",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, logits):
        def repeated(ids):
            ids = ids.copy()
            ids[:, -1] = ids[:, -2]
            return ids

        made = clean(logits)
        return at.changed(made, repeated) if at.kind == "verify" and made.shape[1] > 1 else made

    alter(pipeline, "target:greedy", change)
