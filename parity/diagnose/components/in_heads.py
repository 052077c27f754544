"""What attention gives, read from its keys: in all heads, or in those in which the error lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from parity.diagnose.components.frequencies import TurnedKeys, in_frequencies
from parity.diagnose.components.key_weights import in_key_weights
from parity.diagnose.components.keys import in_keys
from parity.diagnose.components.parts import INSIDE
from parity.diagnose.components.splits import in_splits
from parity.diagnose.components.sums import in_sums
from parity.diagnose.components.turned_queries import in_query_positions
from parity.diagnose.components.wrong import DOWN_TO_NOISE, Component, WrongRows

PLAIN = 2 * DOWN_TO_NOISE
"""An error of fewer times the noise leaves hardly more than noise wherever it lies."""


def in_attention(
    wrong: WrongRows, weight: np.ndarray, keys: Sequence[TurnedKeys], held: Sequence[tuple[str, np.ndarray]]
) -> Iterator[Component | None]:
    """Every reading of keys; of some heads where other values of these alone make the error.

    Args:
        weight: of the output projection, float64 [wrong columns, N * D].
        keys: of each wrong row.
        held: what each head gives, by its name, [R, wrong columns].
    """
    count = len(keys[0].values)
    heads = heads_of(wrong, weight, count)
    of_some, says = weight, ""
    if len(heads) < count:
        of_some = np.where(np.repeat(np.isin(np.arange(count), heads), weight.shape[1] // count), weight, 0.0)
        says = f"head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}: "
    for reading in (in_keys, in_query_positions, in_key_weights, in_frequencies, in_splits):
        one = reading(wrong, of_some, keys)
        yield one and replace(one, says=f"{says}{one.says}")
    yield in_sums(wrong, held)


def heads_of(wrong: WrongRows, weight: np.ndarray, count: int) -> list[int]:
    """The fewest heads, one or some beside each other, of which other values leave no more than noise of the error; all
    where none do, or where so many heads could make nearly any error."""
    error, noise = wrong.error[:, wrong.columns], wrong.noise
    if np.sqrt(np.mean((error / noise) ** 2)) < PLAIN:
        return [*range(count)]
    by_head = weight.reshape(len(weight), count, -1)
    for size in (size for size in range(1, count) if count % size == 0):
        if size * by_head.shape[2] > INSIDE * len(weight):
            break
        for first in range(0, count, size):
            basis = np.linalg.svd(by_head[:, first : first + size].reshape(len(weight), -1), full_matrices=False)[0]
            free = np.sqrt(1 - basis.shape[1] / len(weight))
            left = np.sqrt(np.mean(((error - error @ basis @ basis.T) / noise) ** 2)) / free
            if left <= DOWN_TO_NOISE:
                return [*range(first, first + size)]
    return [*range(count)]
