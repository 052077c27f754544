"""A policy and the one before: what got looser, and the file with lower bounds written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from parity.history.ratchet import Proposal, is_stage
from parity.policy import Policy

if TYPE_CHECKING:
    import pandas as pd


def looser(policy: Policy, before: Policy, frame: pd.DataFrame) -> Iterator[tuple[str, str, str, float, float]]:
    """(stage, mode, statistic, bound before, bound now) of everything that `policy` allows and `before` did not.

    Asked of every stage that history knows, so that rows may be split, joined or moved. A bound that is gone is infinite.
    """
    names = frame[["stage", "mode"]].drop_duplicates()
    for stage, mode in zip(map(str, names["stage"]), map(str, names["mode"]), strict=True):
        if mode and is_stage(stage):
            now, then = policy.row(stage, mode), before.row(stage, mode)
            for name, bound in then.bounds.items():
                mine = now.bounds[name].ok if name in now.bounds else math.inf
                if mine > bound.ok:
                    yield stage, mode, name, bound.ok, mine


def tightened(text: str, found: Sequence[Proposal]) -> str:
    """The policy's TOML with the proposed bounds; comments, order and everything else kept.

    `warn` goes along only where it was the same as `ok`: a bound without a range of warnings keeps having none.
    """
    import tomlkit

    document: Any = tomlkit.parse(text)
    for one in found:
        if one.tighter:
            bound = document["row"][one.row][one.statistic]
            if bound["warn"] == bound["ok"]:
                bound["warn"] = one.new
            bound["ok"] = one.new
    return tomlkit.dumps(document)
