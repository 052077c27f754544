"""Whether a dump from outside ran over the golden's tokens, by the first thing that depends on them: the embeddings."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from parity.errors import UsageError
from parity.golden.views import DumpView
from parity.progress import note
from parity.stages import TARGET_EMBED

ALIKE = 0.9
"""Least cosine of two rows of one token: 4-bit weights keep 0.99, two tokens of the tiny pair share 0.48 at most."""
SHIFT = 64
"""Rows that a dump may be late or early and be told so."""

Embeddings = Iterable[tuple[int, int, NDArray[np.generic]]]
"""Prompt, round and rows [S, H]."""


def refuse_misaligned(golden: DumpView, embeddings: Embeddings, what: str, partial: bool) -> None:
    """Refuse a dump over other tokens, rows or weights: whatever its stages hold would be blamed on the device.

    A wrong size or a small error leaves a row's direction as it is, and is left to the comparison.

    Args:
        what: the dump is, for sentences.
        partial: it may hold no embeddings, which is noted: then nothing shows what it ran over.

    Raises:
        UsageError: a row is another token's.
    """
    checked = False
    for prompt, round_, mine in embeddings:
        true = golden.contents("float32", prompt, round_, TARGET_EMBED)
        if true is None or mine.ndim != 2 or mine.shape[1:] != true.shape[1:]:
            continue
        checked, where = True, f"{what}: {TARGET_EMBED} of prompt {prompt}, round {round_}"
        short = len(mine) == 1 < len(true)
        cosines = _cosines(mine, true[-1:] if short else true[: len(mine)])
        if (cosines < ALIKE).any():
            row = int((cosines < ALIKE).argmax())
            said = f"is not the golden's from row {row} on (cosine {cosines[row]:.2g}){_shifted(mine, true)}"
            raise UsageError(
                f"{where} {said}: the dump is of other tokens, rows or weights than the golden, and nothing behind its "
                "embeddings can be compared"
            )
    if partial and not checked:
        note(f"{what} shows no {TARGET_EMBED}: nothing says that it ran over the golden's tokens")


def _cosines(mine: NDArray[np.generic], true: NDArray[np.generic]) -> NDArray[np.float64]:
    """Of each pair of rows; 1 where the comparison tells more: NaN, infinities, two rows of zeros."""
    a, b = (side[: min(len(mine), len(true))].astype(np.float64) for side in (mine, true))
    with np.errstate(all="ignore"):
        cosines: NDArray[np.float64] = (a * b).sum(1) / np.sqrt(np.square(a).sum(1) * np.square(b).sum(1))
    return np.where(np.isfinite(a).all(1) & (a.any(1) | b.any(1)), np.nan_to_num(cosines), 1.0)


def _shifted(mine: NDArray[np.generic], true: NDArray[np.generic]) -> str:
    """By how many rows the dump is late or early, in words; '' where it is neither."""
    for rows in (sign * count for count in range(1, min(SHIFT, len(mine) - 2, len(true) - 2) + 1) for sign in (1, -1)):
        late, early = mine[max(rows, 0) :], true[max(-rows, 0) :]
        if (_cosines(late, early) >= ALIKE).all():
            return f", whose rows it has {abs(rows)} {'later' if rows > 0 else 'earlier'}"
    return ""
