"""Equal logits: every pass has to choose the lowest id, whatever its width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parity.decode import NO_DRAFTS, TargetPassTap
from parity.drive import untapped
from parity.errors import Inconclusive
from parity.seam import Device

ROUNDS = 4
PROMPT = 8
"""Tokens of the short prompt that the rows are made behind: the logits are made up, the context does not matter."""


@dataclass(frozen=True)
class TieRuleResult:
    """How many rows with equal largest logits were shown, and the choices that were not the lowest id."""

    rows: int
    wrong: tuple[str, ...]


def try_tie_rule(device: Device, ids: tuple[int, ...], k: int, seed: int) -> TieRuleResult:
    """Show the device rows of logits whose maximum stands in two or three columns, far apart, in every kind of pass.

    The lowest id is what NumPy, PyTorch and JAX choose, and so what the reference and any other pass choose.

    Raises:
        Inconclusive: the device does not go on with the logits that the tap returns.
    """
    random = np.random.default_rng(seed)
    shown, wrong = 0, []
    for _ in range(ROUNDS):
        for what, tap, chosen in _passes(device, ids[:PROMPT], k, random):
            for row, (columns, token) in enumerate(zip(tap.columns, chosen, strict=True)):
                if token not in columns:
                    raise Inconclusive("the device does not go on with the logits that the tap returns")
                shown += 1
                if token != min(columns):
                    wrong.append(f"{what}, row {row}: {token} of {sorted(columns)}")
    return TieRuleResult(shown, tuple(wrong))


def _passes(
    device: Device, ids: tuple[int, ...], k: int, random: np.random.Generator
) -> Iterator[tuple[str, TieTap, np.ndarray]]:
    """Prefill, one row, K+1 rows: the tap and the device's own choices."""
    tap = TieTap("target", random)
    device.prefill(ids, 2 * k + 2, tap)
    yield "prefill", tap, tap.seen["target.tokens"]
    for drafts in (NO_DRAFTS, np.resize(np.array(ids, np.int64), k)):
        device.prefill(ids, 2 * k + 2, untapped)
        tap = TieTap("verify", random)
        device.verify(drafts, tap)
        yield f"{len(drafts) + 1} rows", tap, tap.seen["verify.tokens"]


class TieTap(TargetPassTap):
    """Puts the same largest value into two or three columns of every row of logits."""

    def __init__(self, side: str, random: np.random.Generator):
        super().__init__(keep=lambda stage: stage == f"{side}.tokens")
        self.stage, self.random = f"{side}.logits", random
        self.columns: list[set[int]] = []

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        if stage != self.stage:
            return super().__call__(stage, value)
        tied = np.array(value)
        for row in tied:
            columns = self.random.choice(len(row), size=int(self.random.integers(2, 4)), replace=False)
            row[columns] = np.abs(row.astype(np.float32)).max() + 1
            self.columns.append(set(columns.tolist()))
        return tied
