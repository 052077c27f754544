"""Changes that a few of the wrong rows refuse, so that the other rows need not be made under them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from parity.diagnose.components.wrong import CLOSE, DOWN_TO_NOISE, NEAR, WrongRows

SHARE = 0.1
"""The share of the squared error that the few rows have at the least: a change that leaves half of their error leaves
more of the whole one than `NEAR` allows."""

BEYOND = 2.0
"""How many times what may be left of the whole error, in x noise, the few rows have: where an error is so small that
all of them have no more, none is left out."""


@dataclass(frozen=True)
class FewRows:
    """The wrong rows that have most of the error, and what may be left of it at the most for a reading to be said.

    What is left in some rows is a lower bound of what is left in all: a change is refused only where no reading of it
    could be said.

    Attributes:
        wrong: all wrong rows.
        places: of the few among them, int64 [r].
    """

    wrong: WrongRows
    places: np.ndarray

    @classmethod
    def of(cls, wrong: WrongRows) -> FewRows:
        """As few as say enough, in the order of the rows: one of the shortest pass that has one which does alone."""
        error = wrong.error[:, wrong.columns]
        plain, noisy = (((error / by) ** 2).sum(axis=1) for by in (1.0, wrong.noise))
        alone = noisy >= BEYOND * CLOSE**2 * error.size
        if alone.any():
            _, passes, counts = np.unique(wrong.rows.labels[:, :2], axis=0, return_inverse=True, return_counts=True)
            lengths = np.where(alone, counts[passes.ravel()], np.inf)
            return cls(wrong, np.lexsort((-noisy, lengths))[:1])
        order = np.argsort(-noisy, kind="stable")
        kept = np.cumsum(noisy[order])
        enough = (np.cumsum(plain[order]) >= SHARE * plain.sum()) & (
            kept >= max(SHARE * noisy.sum(), BEYOND * DOWN_TO_NOISE**2 * error.size)
        )
        count = int(np.argmax(enough)) + 1 if enough.any() else len(order)
        return cls(wrong, np.sort(order[:count]))

    @property
    def numbers(self) -> np.ndarray:
        """The few rows' numbers in the stage."""
        return np.asarray(self.wrong.numbers[self.places])

    @property
    def all(self) -> bool:
        """Whether no row is left out."""
        return len(self.places) == len(self.wrong.numbers)

    def refuse(self, change: np.ndarray) -> bool:
        """Whether a change of the few rows [r, wrong columns] cannot be what happened."""
        return self._too_much(lambda error, by: error - change / by)

    def refuse_any_of(self, parts: Sequence[np.ndarray]) -> bool:
        """Whether no sum of these parts [r, wrong columns], each as often as one likes, can be what happened."""

        def left(error: np.ndarray, by: np.ndarray) -> np.ndarray:
            table = np.stack([(part / by).ravel() for part in parts], axis=1)
            return np.asarray(error.ravel() - table @ np.linalg.lstsq(table, error.ravel(), rcond=None)[0])

        return bool(np.isfinite(parts).all()) and self._too_much(left)

    def _too_much(self, left: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> bool:
        """Whether what `left` leaves of the few rows' error, in a unit of each row [r, 1], is too much for all rows."""
        error, noise = self.wrong.error[:, self.wrong.columns], self.wrong.noise[self.places]
        noisy = float((left(error[self.places] / noise, noise) ** 2).sum())
        if noisy <= DOWN_TO_NOISE**2 * error.size or noisy > CLOSE**2 * error.size:
            return noisy > CLOSE**2 * error.size
        plain = float((left(error[self.places], np.ones_like(noise)) ** 2).sum())
        return plain > (1 - NEAR) * float((error**2).sum())
