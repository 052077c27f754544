"""Columns that were computed in shards, and gathered along rows: each row holds one shard of several rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from parity.diagnose.components.wrong import Component, WrongRows

SHARDS = (2, 4, 8)
"""Ranks, or cores, that may have computed a part of the columns each."""

BUCKETS = (1, 8, 16, 32, 64, 128)
"""Multiples to which a device may pad the rows of a pass: those behind its own are not known."""

LARGE = 1 << 25
"""Numbers of a stage up to which its rows are put together anew: 256 MB, several times over."""

KNOWN = 0.5
"""The least share of the wrong rows whose numbers are known."""


def in_gathered_rows(wrong: WrongRows) -> Iterator[Component | None]:
    """Each row as the numbers that lie there where the shards are behind each other, [shards x rows, C / shards]."""
    if wrong.every is None or wrong.every.golden.size > LARGE:
        return
    golden = wrong.every.golden.reshape(len(wrong.every.golden), -1).astype(np.float64)
    passes = np.unique(wrong.every.labels[:, :2], axis=0, return_inverse=True)[1].ravel()
    places = [np.flatnonzero(passes == number) for number in range(passes.max() + 1)]
    for shards in (count for count in SHARDS if golden.shape[1] % count == 0):
        asked = set()
        for bucket in BUCKETS:
            padded = tuple(-(-len(rows) // bucket) * bucket for rows in places)
            if padded not in asked:
                asked.add(padded)
                yield _judged(wrong, _gathered(golden, places, padded, shards), shards)


def _judged(wrong: WrongRows, held: np.ndarray, shards: int) -> Component | None:
    """What rows would hold [of all rows, C], NaN where that is not known, by the rows that are."""
    held = held[wrong.numbers]
    known = np.isfinite(held).all(axis=1)
    if known.mean() < KNOWN:
        return None
    sides = {name: getattr(wrong, name)[known] for name in ("golden", "device", "noise", "numbers")}
    some = replace(wrong, rows=wrong.rows.take(known), **sides)
    model = (held[known] - some.golden)[:, some.columns]
    return some.judged(f"{shards} shards of the columns are gathered along rows", model, 0)


def _gathered(golden: np.ndarray, places: Sequence[np.ndarray], padded: Sequence[int], shards: int) -> np.ndarray:
    """Rows [R, C], pass by pass, with shards of the columns behind each other and read as whole rows."""
    held = np.full_like(golden, np.nan)
    for rows, count in zip(places, padded, strict=True):
        whole = np.full((count, golden.shape[1]), np.nan)
        whole[: len(rows)] = golden[rows]
        held[rows] = np.concatenate(np.split(whole, shards, axis=1)).reshape(whole.shape)[: len(rows)]
    return held
