"""Types of arrays, for annotations."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[Any]]
"""An array of any shape and dtype (`numpy.typing.NDArray[Any]`, without importing numpy.typing)."""

DType: TypeAlias = np.dtype[Any]
"""A dtype of any scalar."""
