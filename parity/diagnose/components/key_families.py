"""What a softmax's own numbers may be: by head, score, distance, position or row, and how fitted ones are said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from parity.diagnose.components.seen_keys import Keys
from parity.diagnose.components.wrong import FULL

ROWS = 32
"""Wrong rows that families are made for, evenly chosen."""

SURELY, NEAR, LISTED = 4.0, 0.1, 6
"""Standard errors by which a number is told, how alike are those that are said as one, and how many are listed."""

OF_PASSES = ("earlier passes", "the row's own pass")

DEPTHS = (*np.arange(0, 4, 0.25).tolist(), 4.0, 4.5, 5.0, 5.5, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0)
"""How far scores are below the largest of their row, where a curve of what they count has a corner."""

PAGE, DISTANCES = 8, 64
"""Keys of a page by position, and distances that have numbers of their own; those beyond share the last one's."""

Basis = tuple[np.ndarray, np.ndarray]
"""What each number moves by one: the scores, [C, N, T], and the sinks, [C, N]."""


@dataclass(frozen=True)
class Family:
    """Numbers of one kind.

    `basis` is of one row; `says` puts fitted numbers [C] and their standard errors [C] in words; where they are each
    row's `own`, numbers are [R, C].
    """

    basis: Callable[[Keys], Basis]
    says: Callable[[np.ndarray, np.ndarray], str]
    own: bool = False


def families(rows: Sequence[Keys]) -> list[Family]:
    """Each family that these rows can have; the sinks' where there are sinks."""
    keys = rows[0]
    heads, seen = len(keys.scores), [row.scores[:, row.seen] for row in rows[:: max(1, len(rows) // ROWS)]]
    size = float(max(np.abs(each).max() for each in seen)) or 1.0
    farthest = max(int(row.position - row.positions[row.seen].min()) for row in rows)
    last = max(int(row.positions[row.seen].max()) for row in rows)
    made = [
        Family(partial(_by_head, of=_scores), partial(_in_heads, what="scores", by="times as large", plain=1.0)),
        Family(partial(_bent, size=size), partial(_in_bends, size=size)),
        Family(partial(_by_head, of=_distances), partial(_in_heads, what="scores", by="more for each position back")),
        Family(partial(_by_distance, count=min(farthest, DISTANCES) + 1), _in_distances),
        Family(partial(_by_page, count=last // PAGE + 1), _in_pages),
        Family(_by_pass, _in_passes),
        Family(_by_depth, _in_depths),
        Family(_row_scores, partial(_in_rows, what="the scores are", power=False), own=True),
    ]
    if keys.sinks is not None:
        made += [
            Family(_every_sink, lambda numbers, _: f"every sink counts {np.exp(numbers[0]):.2g} times"),
            Family(_sink_sizes, lambda numbers, _: f"the sinks are {1 + numbers[0]:.3g} times as large"),
            Family(partial(_of_sinks, heads=heads), partial(_in_heads, what="sinks", by="higher")),
            Family(_every_sink, partial(_in_rows, what="every sink counts", power=True), own=True),
        ]
    return made


def _scores(keys: Keys) -> np.ndarray:
    return keys.scores


def _distances(keys: Keys) -> np.ndarray:
    return np.broadcast_to((keys.position - keys.positions) * keys.seen, keys.scores.shape)


def _by_head(keys: Keys, of: Callable[[Keys], np.ndarray]) -> Basis:
    heads = len(keys.scores)
    return np.eye(heads)[:, :, None] * of(keys), np.zeros((heads, heads))


def _row_scores(keys: Keys) -> Basis:
    return keys.scores[None], np.zeros((1, len(keys.scores)))


POWERS = (1, 2, 3, 4, 5)
"""Of a score: by a curve of these a score may be bent."""


def _bent(keys: Keys, size: float) -> Basis:
    return np.stack([(keys.scores / size) ** power for power in POWERS]), np.zeros((len(POWERS), len(keys.scores)))


def _classes(which: np.ndarray, count: int, heads: int) -> Basis:
    """Numbers of so many classes of keys, `which` [T] of them each key is of."""
    one = (np.arange(count)[:, None] == which).astype(float)
    return np.broadcast_to(one[:, None], (count, heads, len(which))), np.zeros((count, heads))


def _by_distance(keys: Keys, count: int) -> Basis:
    return _classes(np.clip(keys.position - keys.positions, -1, count - 1), count, len(keys.scores))


def _by_page(keys: Keys, count: int) -> Basis:
    return _classes(keys.positions // PAGE, count, len(keys.scores))


def _by_pass(keys: Keys) -> Basis:
    """Keys of earlier passes, and of the row's own."""
    return _classes(np.arange(len(keys.seen)) >= keys.cached, len(OF_PASSES), len(keys.scores))


def _by_depth(keys: Keys) -> Basis:
    """What a score, or a sink, counts by how far it is below the row's largest: a curve with corners, level behind the
    last one."""
    sinks = np.full(len(keys.scores), -np.inf) if keys.sinks is None else keys.sinks
    largest = np.maximum(np.where(keys.seen, keys.scores, -np.inf).max(axis=1), sinks)
    of_sinks = np.where(np.isfinite(sinks), largest - sinks, DEPTHS[-1])
    return _hats(largest[:, None] - keys.scores), _hats(of_sinks)


def _hats(depth: np.ndarray) -> np.ndarray:
    """Of each corner how much of its number there is at a depth, [C, ...]."""
    return np.stack([np.interp(depth, DEPTHS, one) for one in np.eye(len(DEPTHS))])


def _every_sink(keys: Keys) -> Basis:
    heads = len(keys.scores)
    return np.zeros((1, heads, keys.scores.shape[1])), np.ones((1, heads))


def _sink_sizes(keys: Keys) -> Basis:
    assert keys.sinks is not None
    return _every_sink(keys)[0], keys.sinks[None]


def _of_sinks(keys: Keys, heads: int) -> Basis:
    return np.zeros((heads, heads, keys.scores.shape[1])), np.eye(heads)


def _in_heads(numbers: np.ndarray, errors: np.ndarray, what: str, by: str, plain: float = 0.0) -> str:
    sure = np.flatnonzero(np.abs(numbers) > SURELY * errors)
    told = [f"{plain + numbers[head]:.2g} (head {head})" for head in sure]
    return f"other {what} by head: {_listed(told)} {by}"


def _listed(told: Sequence[str]) -> str:
    return ", ".join(told[:LISTED]) + (f" and {len(told) - LISTED} more" if len(told) > LISTED else "")


def _in_bends(numbers: np.ndarray, _: np.ndarray, size: float) -> str:
    there = np.array([-size, -size / 2, size / 2, size])
    bent = there + sum(number * (there / size) ** power for number, power in zip(numbers, POWERS, strict=True))
    told = ", ".join(f"{one:.3g} becomes {other:.3g}" for one, other in zip(there, bent, strict=True))
    return f"scores bent by a curve of their own: {told}"


def _runs(numbers: np.ndarray, errors: np.ndarray) -> list[tuple[int, int, float]]:
    """Neighbouring classes that are surely changed alike: (first, last, how many times a key of them counts)."""
    runs: list[tuple[int, int, float]] = []
    for at in np.flatnonzero((np.abs(numbers) > SURELY * errors) & (np.abs(numbers) > FULL)).tolist():
        times = float(np.exp(numbers[at]))
        first, last, before = runs[-1] if runs else (0, -2, 0.0)
        if last == at - 1 and abs(times - before) < NEAR * before:
            runs[-1] = (first, at, before)
        else:
            runs.append((at, at, times))
    return runs


def _in_distances(numbers: np.ndarray, errors: np.ndarray) -> str:
    runs = [(first, "on" if last == DISTANCES else last, times) for first, last, times in _runs(numbers, errors)]
    told = [f"{first}{'' if first == last else f' to {last}'}: {times:.2g} times" for first, last, times in runs]
    return f"keys so many positions back count otherwise ({_listed(told)})"


def _in_pages(numbers: np.ndarray, errors: np.ndarray) -> str:
    runs = _runs(numbers, errors)
    told = [f"{first * PAGE} to {last * PAGE + PAGE - 1}: {times:.2g} times" for first, last, times in runs]
    return f"keys at positions count otherwise ({_listed(told)})"


def _in_passes(numbers: np.ndarray, errors: np.ndarray) -> str:
    sure = np.flatnonzero(np.abs(numbers) > SURELY * errors)
    told = [f"of {OF_PASSES[at]}: {np.exp(numbers[at]):.2g} times" for at in sure]
    return f"keys count otherwise by the pass that made them ({_listed(told)})"


def _in_depths(numbers: np.ndarray, errors: np.ndarray) -> str:
    """Against what the largest counts: shares are not changed where all count alike."""
    apart = numbers - numbers[0]
    sure = np.flatnonzero((np.abs(apart) > SURELY * np.hypot(errors, errors[0])) & (np.abs(apart) > FULL))
    told = [f"{DEPTHS[at]:g} below: {np.exp(apart[at]):.2g} times" for at in sure]
    return f"keys count otherwise by how far their score is below the row's largest ({_listed(told)})"


def _in_rows(numbers: np.ndarray, errors: np.ndarray, what: str, power: bool) -> str:
    """Each row's own number: as whole times where they nearly are."""
    times = np.exp(numbers[:, 0]) if power else 1 + numbers[:, 0]
    near = np.maximum(np.round(times), 0)
    if power and (np.abs(times - near) < np.maximum(NEAR, SURELY * errors[:, 0] * times)).mean() > 1 - NEAR:
        held = sorted(zip(*np.unique(near, return_counts=True), strict=True), key=lambda one: -one[1])
        told = [f"{int(one)} times ({count} rows)" for one, count in held]
        return f"{what} otherwise row by row: {_listed(told)}"
    low, high = np.percentile(times, (5, 95))
    by = "times" if power else "times as large"
    return f"{what} otherwise row by row: {low:.3g} to {high:.3g} {by}"
