"""MXFP4 decoding: blocks of 32 four-bit floats that share one power-of-two scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

# E2M1: sign, two exponent bits, one mantissa bit; the sign is the code's highest bit.
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
PAIRS = VALUES[np.arange(256)[:, None] >> np.array([0, 4]) & 0x0F]
"""The two values of each byte, the low nibble first: [256, 2]."""
SCALE_BIAS = 127
BLOCK = 32


def decode(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Decode to float32 [E, in, out], the x@W form.

    Args:
        blocks: uint8 [E, out, in / 32, 16]; each byte holds two values, the low nibble first.
        scales: uint8 [E, out, in / 32], exponents with a bias of 127.

    Source: OCP Microscaling Formats 1.0; layout of openai/gpt-oss `gpt_oss/torch/weights.py`.
    """
    return np.ascontiguousarray(_decoded(blocks, scales))


def _decoded(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The same as a view of [E, out, in], the order of the file."""
    experts, out, groups, _ = blocks.shape
    values = PAIRS[blocks].reshape(experts, out, groups, BLOCK)
    values *= np.ldexp(np.float32(1), scales.astype(np.int32) - SCALE_BIAS)[..., None]
    weights: np.ndarray = values.reshape(experts, out, groups * BLOCK).swapaxes(1, 2)
    return weights


@dataclass(frozen=True)
class Packed:
    """Matrices [E, in, out] that stay packed; an index of experts decodes these alone, float32.

    Args:
        blocks, scales: as for `decode`.
    """

    blocks: np.ndarray
    scales: np.ndarray
    dtype = np.dtype(ml_dtypes.bfloat16)
    """The narrowest that has every value."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        experts, out, groups, _ = self.blocks.shape
        return experts, groups * BLOCK, out

    def __getitem__(self, experts: Any) -> Any:
        if isinstance(experts, tuple):  # of every expert some outputs, packed still
            return Packed(self.blocks[:, experts[-1]], self.scales[:, experts[-1]])
        chosen = np.arange(len(self.blocks))[experts]
        decoded = _decoded(self.blocks[chosen.reshape(-1)], self.scales[chosen.reshape(-1)])
        return decoded.reshape(*chosen.shape, *decoded.shape[1:])
