"""Pairs of arrays to measure: shapes, dtypes, strides, NaN and Inf patterns."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.metrics.oracle import DTYPES

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0)
FUSED = tuple(d for d in DTYPES if d.name in ("float32", "bfloat16"))

shapes = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)
engines = st.sampled_from(("numpy", "fused"))
chunks = st.sampled_from((1, 2, 7, 64, 1 << 20))


@st.composite
def pairs(draw, dtypes=DTYPES, shapes=shapes, special=True):
    """Golden and device of one shape: noise of any size on data of any scale and offset."""
    shape = draw(shapes)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** draw(st.integers(-3, 3))
    offset = draw(st.sampled_from((0.0, 0.0, 1.0, -30.0))) * scale
    noise = 10.0 ** draw(st.integers(-6, 1)) * scale
    golden = random.standard_normal(shape) * scale + offset
    device = golden * draw(st.sampled_from((1.0, 1.001, -1.0, 0.0))) + random.standard_normal(shape) * noise
    if draw(st.booleans()):
        device = golden.copy()
    sides = [_sprinkle(x, random, draw(st.sampled_from((0.0, 0.2))) * special) for x in (golden, device)]
    with np.errstate(over="ignore"):
        sides = [x.astype(draw(st.sampled_from(dtypes))) for x in sides]
    return tuple(_strided(x, draw(st.integers(0, 3))) for x in sides)


def _sprinkle(values, random, share):
    chosen = random.random(values.shape) < share
    return np.where(chosen, random.choice(SPECIAL, values.shape), values)


def _strided(values, layout):
    """The same values behind other strides: C order, Fortran order, every second element, reversed."""
    if layout == 1 and values.ndim:
        return np.asfortranarray(values)
    if layout == 2 and values.ndim:
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    if layout == 3 and values.ndim:
        return np.ascontiguousarray(values[::-1])[::-1]
    return values
