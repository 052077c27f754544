"""RMSNorm: one primitive, and the two orders of cast and weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.kernels.program import program


def normalise(x: Any, eps: float) -> Any:
    """x over its root mean square along the last axis, in float32."""
    wide = x.astype(np.float32)
    return wide / np.sqrt(np.mean(np.square(wide), axis=-1, keepdims=True) + eps)


@program
def gpt_oss_norm(x: Any, weight: Any, eps: float) -> Any:
    """gpt-oss: the weight multiplies in float32, one cast afterwards. x [B, S, H], weight [H]."""
    return (normalise(x, eps) * weight.astype(np.float32)).astype(x.dtype)


@program
def llama_norm(x: Any, weight: Any, eps: float) -> Any:
    """Llama: cast first, the weight multiplies in x's dtype. x [B, S, H], weight [H]."""
    return normalise(x, eps).astype(x.dtype) * weight
