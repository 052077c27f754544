"""The residual stream by the side of a layer, as the maps name it: `in_of[k]` and `out_of[k]`.

A bare layer number of a tool says neither. A map whose tool counts the streams entering the layers (or all of them, the
embeddings first) writes `in_of[{k}]`; one that counts what leaves them, `out_of[{k}]`.
"""

from __future__ import annotations

import re

from parity.errors import UsageError

SIDED = re.compile(r"(in_of|out_of)\[(.+)\]")


def residual(stage: str, name: str) -> str:
    """The stage that a side of a layer is: `in_of[k]` is `out_of[k-1]`, and `in_of[0]` the embeddings."""
    sided = SIDED.fullmatch(stage)
    if not sided:
        return stage
    if not sided[2].isdigit():
        raise UsageError(f"{name}: {stage} names no layer")
    layer = int(sided[2]) - (sided[1] == "in_of")
    return "target.embed" if layer < 0 else f"target.layers.{layer}.out"
