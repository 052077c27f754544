"""The noise band that history holds a figure to, for the figures that a page draws."""

from __future__ import annotations

import numpy as np

Key = tuple[str, str, str, str]
"""Cell, stage, mode, metric."""
Band = tuple[float, float]


class Bands:
    """Bands of a night's figures, each worked out when it is asked for.

    Args:
        frame: the table of `parity.history.load`.
        night: a night in it.
    """

    def __init__(self, frame, night: str):
        from parity.history.bands import limits
        from parity.history.series import series, stamps

        self.found = series(frame, stamps(frame, night))
        self.places = {key: place for place, key in enumerate(self.found.keys)}
        self.limits = limits(len(self.places))

    def get(self, key: Key) -> Band | None:
        """Around the figure's good level; None where history judges no such figure, or has too few nights."""
        from parity.history.bands import NEEDED, OUTSIDE
        from parity.history.steps import levels, standing

        if (place := self.places.get(key)) is None:
            return None
        values = self.found.values[:, place]
        values = values[~np.isnan(values)]
        if len(values) <= NEEDED:
            return None

        def least(centre) -> float:
            return float(self.found.least(np.asarray(centre), place))

        good = standing(levels(values, least, self.limits), float(self.found.sign[place]), least).base
        half = max(OUTSIDE * good.deviation, least(good.centre))
        return good.centre - half, good.centre + half
