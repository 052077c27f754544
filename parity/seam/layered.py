"""A target that is run layer by layer, one of them in memory at a time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from parity.seam.device import Description
from parity.seam.taps import Tap


@runtime_checkable
class Layered(Protocol):
    """A device's target, one layer at a time: how a model that does not fit into memory is judged.

    Optional. The function `layered` in the module that holds the factory makes it; it takes what the factory takes.
    Parity takes the layers in turn, and through each all prompts and rounds of a golden.
    """

    def describe(self) -> Description:
        """As `Device.describe`."""
        ...

    def open(self, layer: int) -> None:
        """Take the weights of this layer, 0 to L - 1, in the place of any other's."""
        ...

    def clear(self) -> None:
        """Begin a sequence: no row in the layer's cache."""
        ...

    def forward(self, x: np.ndarray, tap: Tap) -> None:
        """The next rows through the layer, at the positions behind those that its cache keeps; its stages to the tap.

        Args:
            x: float32 [S, H], the residual stream that enters the layer: in_of[l].
        """
        ...

    def keep(self, length: int, tap: Tap) -> None:
        """Keep the first `length` rows of the cache, show them, and continue with what the tap returns."""
        ...
