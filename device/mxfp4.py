"""MXFP4 decoding: blocks of 32 four-bit floats that share one power-of-two scale."""

from __future__ import annotations

import numpy as np

# E2M1: sign, two exponent bits, one mantissa bit; the sign is the code's highest bit.
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
SCALE_BIAS = 127
BLOCK = 32


def decode(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Decode to float32 [E, in, out], the x@W form.

    Args:
        blocks: uint8 [E, out, in / 32, 16]; each byte holds two values, the low nibble first.
        scales: uint8 [E, out, in / 32], exponents with a bias of 127.

    Source: OCP Microscaling Formats 1.0; layout of openai/gpt-oss `gpt_oss/torch/weights.py`.
    """
    experts, out, groups, _ = blocks.shape
    nibbles = np.stack([blocks & 0x0F, blocks >> 4], axis=-1).reshape(experts, out, groups, BLOCK)
    exponents = scales.astype(np.int32) - SCALE_BIAS
    values = np.ldexp(VALUES[nibbles], exponents[..., None])
    return np.ascontiguousarray(values.reshape(experts, out, groups * BLOCK).swapaxes(1, 2))
