"""The residual stream by a numbering of layers, as maps name it: `in_of[{k}]`, `out_of[{k}]`, `hf[{k}]`, `vllm[{k}]`, …

A bare layer number of a tool says neither side; what each tool's says is the table of `parity.taps`.
"""

from __future__ import annotations

import re

from parity.errors import UsageError
from parity.taps import in_of

NUMBERED = re.compile(r"(\w+)\[(.+)\]")


def residual(stage: str, name: str, layers: int) -> str:
    """The stage that a numbered stream is: `in_of[k]` is `target.layers.{k-1}.out`, and `in_of[0]` the embeddings.

    Raises:
        UsageError: the numbering is unknown, or a target of so many layers has no such stream.
    """
    numbered = NUMBERED.fullmatch(stage)
    if not numbered:
        return stage
    if not numbered[2].isdecimal() or len(numbered[2]) > 9:
        raise UsageError(f"{name}: {stage} names no layer")
    (entered,) = in_of(numbered[1], [int(numbered[2])], layers)
    return f"target.layers.{entered - 1}.out" if entered else "target.embed"
