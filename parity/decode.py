"""Plain greedy decoding through the seam, and the rule by which drafts are accepted: what speculation must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parity.errors import Inconclusive
from parity.rounds import untapped
from parity.seam import Device
from parity.stages import VERIFY_LOGITS, VERIFY_TOKENS

NO_DRAFTS = np.empty(0, np.int64)
WATCHED = (VERIFY_LOGITS, VERIFY_TOKENS, "router_logits", "experts")
"""Stages of a target pass that tell why a token was chosen, by full name or last part."""


def watched(stage: str) -> bool:
    """Whether `TargetPassTap` keeps this stage."""
    return stage in WATCHED or stage.rsplit(".", 1)[-1] in WATCHED


class TargetPassTap:
    """Keeps the rows of one target pass, and continues with others where told.

    Args:
        force: full stage name to rows [n, ...]; they replace the first n rows of the stage.

    Attributes:
        seen: full stage name to what the device handed over, [S, ...] in its own dtype.
    """

    def __init__(self, force: Mapping[str, np.ndarray] | None = None, keep: Callable[[str], bool] = watched):
        self.force, self.keep = force or {}, keep
        self.seen: dict[str, np.ndarray] = {}

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        if self.keep(stage):
            self.seen[stage] = np.array(value)
        rows = self.force.get(stage)
        if rows is None:
            return value
        changed = np.array(value)
        changed[: len(rows)] = rows
        return changed


def told(tap: TargetPassTap, returned: np.ndarray) -> np.ndarray:
    """The ids [n+1], int64, to commit behind a verify pass that has continued with the tap's tokens, or shall.

    A device that hands over no `verify.tokens` could not be told them by the tap: it is by what is committed.
    """
    chosen = np.array(returned, np.int64)
    if VERIFY_TOKENS in tap.force and VERIFY_TOKENS not in tap.seen:
        chosen[: len(tap.force[VERIFY_TOKENS])] = tap.force[VERIFY_TOKENS]
    return chosen


@dataclass(frozen=True)
class Decoded:
    """One prompt decoded plainly.

    Attributes:
        tokens: N ids, the first one prefill's.
        rows: full stage name to its rows [N-1, ...]: row n fed token n and chose token n+1.
    """

    tokens: tuple[int, ...]
    rows: dict[str, np.ndarray]

    @property
    def steps(self) -> int:
        """Rows of every stage: N-1."""
        return len(self.tokens) - 1

    @property
    def experts(self) -> dict[str, np.ndarray]:
        """The experts of every row, by full stage name."""
        return {name: rows for name, rows in self.rows.items() if name.endswith(".experts")}

    def routed(self, first: int, count: int) -> dict[str, np.ndarray]:
        """The experts of `count` rows from `first` on, by full stage name."""
        return {name: rows[first : first + count] for name, rows in self.experts.items()}


def decode(device: Device, ids: Sequence[int], budget: int, like: Decoded | None = None) -> Decoded:
    """Decode greedily without drafts until EOS or the budget is spent.

    Args:
        like: force its experts and tokens, so that rows can be compared one by one.

    Raises:
        Inconclusive: the device does not emit what a pass without drafts chose, or shows no logits.
    """
    eos = device.describe().eos
    tokens = [int(device.prefill(ids, budget, untapped))]
    seen: list[dict[str, np.ndarray]] = []
    while not ended(tokens, eos, budget) and (like is None or len(seen) < like.steps):
        step = len(seen)
        force = like.routed(step, 1) | {VERIFY_TOKENS: np.array([like.tokens[step + 1]])} if like else {}
        tap = TargetPassTap(force)
        chosen = device.verify(NO_DRAFTS, tap)
        fresh = device.commit(NO_DRAFTS, chosen, untapped)
        if VERIFY_LOGITS not in tap.seen:
            raise Inconclusive(f"the device hands over no {VERIFY_LOGITS} in verify")
        if len(chosen) != 1 or list(fresh) != list(chosen):
            said = f"chose {[int(token) for token in chosen]}, emitted {[int(token) for token in fresh]}"
            raise Inconclusive(f"plain decoding, token {step + 1}: {said}")
        tokens.append(int(fresh[0]))
        seen.append(tap.seen)
    return Decoded(tuple(tokens), {name: np.concatenate([step[name] for step in seen]) for name in (seen or [{}])[0]})


def ended(tokens: Sequence[int], eos: Sequence[int], budget: int) -> bool:
    """Whether a sequence of emitted tokens is over."""
    return tokens[-1] in eos or len(tokens) >= budget


def accepted(drafts: Sequence[int], tokens: Sequence[int], eos: Sequence[int], left: int) -> list[int]:
    """What a round has to emit: the drafts that the target agrees with and its next token, cut by EOS and budget.

    Args:
        drafts: n ids.
        tokens: the target's n+1 greedy ids.
        left: tokens that may still be emitted.
    """
    count = next((place for place, draft in enumerate(drafts) if draft != tokens[place]), len(drafts))
    emitted = [int(token) for token in tokens[: count + 1]][:left]
    ends = [place for place, token in enumerate(emitted) if token in eos]
    return emitted[: ends[0] + 1] if ends else emitted
