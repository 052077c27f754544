"""Functions beside a factory: the device's rotation, products and operations alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from parity.operations import Operation
from parity.seam.taps import Side


class Rotary(Protocol):
    """A device's rotary embedding alone: the function `rotate`, in the module that holds the device's factory.

    Optional. It shows long positions, which no small pass reaches, so it must use what a pass uses: the same reading
    of the config, the same tables, the same kernel.
    """

    def __call__(self, folder: Path, side: Side, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Rotate head vectors as a pass under this checkpoint's config.json rotates q and k; no weights are read.

        Args:
            folder: holds config.json of a target or of a drafter.
            x: float32 [S, N, D], in the checkpoint's order of the head dimensions.
            positions: int64 [S], absolute, in any order; one alone as well, as decoding has it.

        Returns:
            float32 [S, N, D].

        Raises:
            Exception: a RoPE schedule this device does not know in full, or a position outside
                [0, max_position_embeddings).
        """
        ...


@dataclass(frozen=True)
class Gemm:
    """One shape of matrix multiplication: [batch, M, K] times [batch, K, N].

    Args:
        shared: one left operand [M, K] meets all of the batch.
        dtype: of the operands and of the result in the program, the accumulator being float32 at least.
        values: the narrowest dtype that holds the operands' values; bfloat16 where a cast to float32 is all that
            made them float32.
    """

    m: int
    k: int
    n: int
    batch: int = 1
    shared: bool = False
    dtype: str = "bfloat16"
    values: str = "bfloat16"

    def __str__(self) -> str:
        left = f"{self.batch}x" if self.batch > 1 else ""
        return f"{left}{self.m}x{self.k}x{self.n}"


class Multiply(Protocol):
    """A device's matrix multiplication alone: the function `multiply`, in the module that holds its factory.

    Optional. It shows which shapes a device multiplies well, so it must use what a pass uses.
    """

    def __call__(self, left: np.ndarray, right: np.ndarray, dtype: str) -> np.ndarray:
        """Multiply in the program's dtype.

        Args:
            left: [M, K] or [batch or 1, M, K], bfloat16 (ml_dtypes) or float32.
            right: [K, N] or [batch, K, N], of the same dtype.
            dtype: `bfloat16` or `float32`: what both are cast to before, and the dtype of the result.

        Returns:
            [M, N] or [batch, M, N] of this dtype.
        """
        ...


class Operate(Protocol):
    """A device's operations one by one: the function `operate`, in the module that holds its factory.

    Optional. It shows which operations a compiler gets wrong before a model runs, so it must compile and run them as a
    pass does. Where arrays follow NumPy's protocols this is `operation.apply` on the device's arrays.
    """

    def __call__(self, operation: Operation, *arrays: np.ndarray) -> np.ndarray | Sequence[np.ndarray]:
        """Carry out one operation.

        Args:
            arrays: its operands, of their shapes and dtypes (bfloat16 as ml_dtypes); they may be written to.

        Returns:
            its results, as declared; of integers any width will do. One array, or a sequence where it makes several.
        """
        ...


class Operations(Protocol):
    """The operations of a device's own programs: the function `operations`, in the module that holds its factory.

    Optional, beside `operate`; without it a device is asked for those of this project's pipeline. NumPy-style kernels
    are recorded by `parity.ops.record`.
    """

    def __call__(self) -> Iterable[Operation]:
        """Every operation of its programs."""
        ...


@dataclass(frozen=True)
class Work:
    """What a phase asks of a machine.

    Args:
        flops: multiplications and additions.
        bytes: that its multiplications read and write: weights, cache, rows.
    """

    flops: float
    bytes: float


class Works(Protocol):
    """The work of a device's phases: the function `work`, in the module that holds the device's factory.

    Optional. It gives the roofline of a round; options behind the device's name are handed on where it takes them.
    """

    def __call__(self, target: Path, drafter: Path, k: int, context: int, precision: str) -> Mapping[str, Work]:
        """Of a round behind so many positions; no weights are read.

        Args:
            target, drafter: hold config.json.
            k: drafts of the round.
            context: committed rows.

        Returns:
            `plain` (one step without drafts), `draft`, `verify`, and more phases of a round where there are some.
        """
        ...
