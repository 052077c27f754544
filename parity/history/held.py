"""The band that each figure of a night is held to, for those who draw it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parity.history.bands import NEEDED, OUTSIDE, limits
from parity.history.series import series, stamps
from parity.history.steps import Rule, levels, standing

if TYPE_CHECKING:
    import pandas as pd


class Bands:
    """Bands of a night's figures, each worked out when it is asked for.

    Args:
        frame: the table of `load`.
        night: a night in it.

    Raises:
        UsageError: the night is not in the table.
    """

    def __init__(self, frame: pd.DataFrame, night: str):
        self.found = series(frame, stamps(frame, night))
        self.places = {key: place for place, key in enumerate(self.found.keys)}
        self.limits = limits(len(self.places))

    def get(self, key: tuple[str, str, str, str]) -> tuple[float, float] | None:
        """Of (cell, stage, mode, metric): around its good level; None where it is not judged or has too few nights."""
        if (place := self.places.get(key)) is None:
            return None
        values = self.found.values[:, place]
        values = values[~np.isnan(values)]
        if len(values) <= NEEDED:
            return None

        def least(centre) -> float:
            return float(self.found.least(np.asarray(centre), place))

        found = levels(values, Rule(least, self.found.quiet[place], self.limits))
        good = standing(found, float(self.found.sign[place]), least).base
        half = max(OUTSIDE * good.deviation, least(good.centre))
        return good.centre - half, good.centre + half
