"""A device's accept rule alone: every number that it is given on a grid, what comes out against exact probabilities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import cast

import numpy as np

from parity.compare.sampling.oracle import Outcomes, accepted, processed, residual, round_outcomes
from parity.seam import DRAWS, Decides, Device, Sampling

P = np.array([[0, 2, 2, 4], [4, 1, 2, 1], [3, 1, 1, 3]]) / 8
Q = np.array([[4, 2, 1, 1], [1, 4, 1, 2]]) / 8
"""Two drafts in a vocabulary of four. Ratios and residuals are quarters, distributions eighths: between them the grids
below have as many numbers as probability, none of them nearer to an edge than half a step of the grid."""

STEPS = {"accept": 4, "replace": 4, "target": 8}
EXACT = 1e-9
"""What the float64 sums of a grid may be off: no float32 rounding moves a number across an edge."""

FINE = 4096
FINE_BOUND = 1 / FINE + 1e-5
"""A share has two edges, of which either may be half a step of the grid off; float32 moves them by 1e-6."""
WIDTH = 8


@dataclass(frozen=True)
class Off:
    """A share of the outcomes that is not what it should be; `what` says of what, in words."""

    what: str
    share: float
    due: float

    @property
    def by(self) -> float:
        """How far it is off."""
        return float(abs(self.share - self.due))

    def __str__(self) -> str:
        return f"{self.what}: {self.share:.6f} of the outcomes instead of {self.due:.6f}"


def whole_rounds(device: Device, settings: Sampling) -> tuple[int, Off]:
    """Every draft with every combination of numbers: rounds decided, and the outcome that is furthest off."""
    seen: Outcomes = defaultdict(float)
    uniforms = _grid(settings)
    count = len(uniforms)
    logits = tuple(np.broadcast_to(of_probabilities(rows), (count, *rows.shape)).copy() for rows in (P, Q))
    for drafts in product(range(P.shape[1]), repeat=len(Q)):
        weight = float(np.prod([Q[row, draft] for row, draft in enumerate(drafts)]))
        ids = decided(device, settings, *logits, np.tile(np.array(drafts, np.int64), (count, 1)), uniforms)
        kept = np.cumprod(ids[:, :-1] == np.array(drafts), axis=1).sum(axis=1)
        for row, length in zip(ids.tolist(), kept.tolist(), strict=True):
            seen[tuple(row[: length + 1])] += weight / count
    due = round_outcomes(P, Q, settings.rule)
    off = [Off(_emitted(one), seen.get(one, 0.0), due.get(one, 0.0)) for one in {**seen, **due}]
    return count * P.shape[1] ** len(Q), max(off, key=lambda one: one.by)


def _emitted(tokens: tuple[int, ...]) -> str:
    drafts, last = tokens[:-1], tokens[-1]
    return f"{len(drafts)} accepted ({list(drafts)}), then token {last} in position {len(drafts)}"


def fine_shares(device: Device, settings: Sampling, seed: int) -> tuple[int, Off]:
    """One number after the other on a fine grid, random logits: shares, and the one that is furthest off."""
    off = list(_fine(device, settings, *made_up(seed)))
    return len(off), max(off, key=lambda one: one.by)


def made_up(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random logits of a target and of its drafter: float32 [K+1, `WIDTH`] and [K, `WIDTH`]."""
    random = np.random.default_rng(seed)
    target, draft = ((random.normal(size=(rows, WIDTH)) * 1.5).astype(np.float32) for rows in P.shape[:1] + Q.shape[:1])
    return target, draft


def _fine(device: Device, settings: Sampling, target: np.ndarray, draft: np.ndarray) -> Iterator[Off]:
    """Row by row, the drafts before it accepted: behind a rejected one nothing need be decided."""
    p, q = processed(target, settings), processed(draft, settings)
    grid = ((np.arange(FINE) + 0.5) / FINE).astype(np.float32)
    many = tuple(np.broadcast_to(rows, (FINE, *rows.shape)).copy() for rows in (target, draft))
    leads = _leads(p, q)

    def ids(row: int, token: int, **given: np.ndarray | float) -> np.ndarray:
        """What comes out in a row whose draft is this token."""
        uniforms = np.full((FINE, len(DRAWS), len(p)), 0.5, np.float32)
        drafts = np.full(len(q), token, np.int64)
        for before, lead in enumerate(leads[:row]):
            drafts[before] = lead
            uniforms[:, DRAWS.index("accept"), before] = 0
            uniforms[:, DRAWS.index("target"), before] = p[before, :lead].sum() + p[before, lead] / 2
        for what, numbers in given.items():
            uniforms[:, DRAWS.index(what), row] = numbers
        return decided(device, settings, *many, np.tile(drafts, (FINE, 1)), uniforms)[:, row]

    reached = range(len(leads) + 1)
    for row in reached if settings.rule == "match" else reached[len(q) :]:
        yield from _shares(f"row {row}, drawn from p", ids(row, int(p[row].argmax()), target=grid), p[row])
    if settings.rule == "match":
        return
    chance, left = accepted(p[:-1], q), residual(p[:-1], q)
    for row in reached[: len(q)]:
        for token in map(int, np.flatnonzero(q[row])):
            share = float((ids(row, token, accept=grid) == token).mean())
            yield Off(f"row {row}, draft {token} accepted", share, chance[row, token])
            if chance[row, token] < 1:
                replaced = ids(row, token, accept=np.nextafter(np.float32(1), 0), replace=grid)
                yield from _shares(f"row {row}, in place of {token}", replaced, left[row])


def _leads(p: np.ndarray, q: np.ndarray) -> list[int]:
    """A draft of each row that is accepted by the smallest number, up to the first row that has none."""
    possible = np.where(q > 0, p[:-1], 0)
    return [int(row.argmax()) for row in possible[: int(np.cumprod(possible.max(axis=1) > 0).sum())]]


def _shares(what: str, ids: np.ndarray, due: np.ndarray) -> Iterator[Off]:
    for token, share in enumerate(due):
        yield Off(f"{what}: token {token}", float((ids == token).mean()), float(share))


def _grid(settings: Sampling) -> np.ndarray:
    """Every combination of the numbers that the rule asks for: float32 [B, 4, n]."""
    residual_ = settings.rule == "residual"
    asked = [(what, row) for what in ("accept", "replace") for row in range(len(Q)) if residual_]
    asked += [("target", row) for row in range(len(P)) if not residual_ or row == len(Q)]
    axes = [(np.arange(STEPS[what]) + 0.5) / STEPS[what] for what, _ in asked]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
    uniforms = np.full((len(points), len(DRAWS), len(P)), 0.5, np.float32)
    for number, (what, row) in enumerate(asked):
        uniforms[:, DRAWS.index(what), row] = points[:, number]
    return uniforms


def decided(device: Device, settings: Sampling, *arrays: np.ndarray) -> np.ndarray:
    """What the device's rule makes of rounds; see `parity.seam.Decides`."""
    ids: np.ndarray = np.asarray(cast(Decides, device).decide(settings, *arrays))
    return ids


def of_probabilities(rows: np.ndarray) -> np.ndarray:
    """Logits, float32 of the same shape, of which these are the probabilities."""
    with np.errstate(divide="ignore"):
        logits: np.ndarray = np.log(rows).astype(np.float32)
    return logits
