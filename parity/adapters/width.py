"""Kernels of fixed width: rows padded to it, what each may see, and the logical rows back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from parity.adapters.convert import replaced, to_numpy
from parity.adapters.launches import tapped_parts
from parity.arrays import Array
from parity.errors import UsageError


@dataclass(frozen=True)
class FixedWidth:
    """W rows of a pass whatever its logical ones are, these first."""

    width: int

    def pad(self, rows: Any, fill: float = 0) -> Any:
        """[n, ...] to [W, ...], of the same library and dtype.

        Raises:
            UsageError: there are more than W rows.
        """
        array = to_numpy(rows)
        self._refuse(len(array))
        padded = np.full((self.width, *array.shape[1:]), fill, array.dtype)
        padded[: len(array)] = array
        return replaced(rows, padded)

    def mask(self, positions: Sequence[int] | Array, keys: int, window: int | None = None) -> Array:
        """Which keys each row sees, bool [W, T]: those up to its own position, the last `window` of them.

        A padding row sees the first key alone: without any, its softmax is NaN.
        """
        place = np.asarray(positions)[:, None] - np.arange(keys)
        seen = (place >= 0) & (place < (keys if window is None else window))
        alone = np.arange(keys) == 0
        self._refuse(len(seen))
        return np.concatenate([seen, np.broadcast_to(alone, (self.width - len(seen), keys))])

    def launch(
        self, function: Callable[..., Any], pads: Mapping[str, float], cuts: Sequence[int | str] = (0,)
    ) -> Callable[..., Any]:
        """The function for any number of rows up to W.

        Args:
            pads: keyword arguments [n, ...] to what their padding is filled with.
            cuts: which returned values have a row each: their first n come back. 0 is the only one, or the first.
        """

        @wraps(function)
        def launched(*args: Any, **kwargs: Any) -> Any:
            counts = {len(kwargs[name]) for name in pads}
            if len(counts) != 1:
                raise UsageError(f"{', '.join(pads)} have {sorted(counts)} rows: they are the rows of one pass")
            count = counts.pop()
            padded = {name: self.pad(kwargs[name], fill) for name, fill in pads.items()}
            result = function(*args, **kwargs | padded)
            return tapped_parts(result, {part: lambda value: value[:count] for part in cuts})

        return launched

    def _refuse(self, count: int) -> None:
        if count > self.width:
            raise UsageError(f"{count} rows are more than the {self.width} of this kernel")
