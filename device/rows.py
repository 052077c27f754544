"""The rows of one pass: logical rows first, then padding up to a static width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.errors import UsageError

# Prompts and attended cache rows come in multiples of these, so that a compiled engine meets few shapes.
PROMPT_BUCKET, SPAN_BUCKET = 32, 64
Integers = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Rows:
    """Ids, positions and slots of one pass, each int32 [1, W]; the first `count` rows are logical.

    A padding row sits at position 0 and writes the trash slot: it sees one key and is never seen.
    """

    ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    count: int

    @property
    def width(self) -> int:
        """W, padding included."""
        return int(self.ids.shape[1])


def pad_rows(ids: Integers, positions: Integers, slots: Integers, width: int, trash: int) -> Rows:
    """Pad to `width` rows; `trash` is the slot of the padding."""
    return Rows(_pad(ids, width, 0), _pad(positions, width, 0), _pad(slots, width, trash), len(ids))


def refuse_outside(side: str, name: str, values: np.ndarray, end: int) -> None:
    """UsageError for a value outside [0, end): indexing would wrap or hold it without a word."""
    if values.size and not 0 <= values.min() <= values.max() < end:
        raise UsageError(f"{side}: a {name} of {values.min()} to {values.max()} lies outside 0 to {end - 1}.")


def round_up(count: int, bucket: int) -> int:
    """The smallest multiple of `bucket` that is at least `count`."""
    return -(-count // bucket) * bucket


def _pad(values: Integers, width: int, fill: int) -> np.ndarray:
    padded = np.full((1, width), fill, np.int32)
    padded[0, : len(values)] = values
    return padded
