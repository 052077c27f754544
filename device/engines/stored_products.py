"""Weights within an XLA program as they are stored: an expert, or some columns of a matrix, widened when multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parity.device import mxfp4, stored
from parity.device.engines import numpy_engine as base
from parity.device.engines import xla_engine

PART = 2**25
"""Numbers of a matrix that are widened at a time: 128 MiB of float32."""


@dataclass(frozen=True)
class Form:
    """How a weight lies in memory when it enters a program.

    Args:
        layout: `rows`, or `columns` where the last two axes are swapped, or `packed`: MXFP4, `columns`, a byte of scale
            behind each block's 16.
        shape: of the weight, [in, out], [E, in, out] or a table [V, H].
        rounded: the dtype that its values are rounded to.
    """

    layout: str
    shape: tuple[int, ...]
    rounded: np.dtype


def layout(value: Any) -> str:
    """Of a weight in a file, or a view of one."""
    if isinstance(value, mxfp4.Packed):
        return "packed"
    return "columns" if value.swapaxes(-1, -2).flags.c_contiguous else "rows"


def read(source: Any, layout: str) -> np.ndarray:
    """A weight's bytes out of its file, in the order in which they enter a program."""
    if layout == "packed":
        read: np.ndarray = np.concatenate([source.blocks, source.scales[..., None]], axis=-1)
    else:
        read = np.array(source.swapaxes(-1, -2) if layout == "columns" else source, order="C")
    stored.release(source)
    return read


def widened(held: jax.Array, form: Form) -> jax.Array:
    """A part of a weight, [..., in, out] in float32."""
    if form.layout == "packed":
        return _decoded(held).swapaxes(-1, -2)
    wide = held.astype(jnp.float32)
    if form.rounded == base.BFLOAT16:
        wide = lax.reduce_precision(wide, xla_engine._NARROW.nexp, xla_engine._NARROW.nmant)
    return wide.swapaxes(-1, -2) if form.layout == "columns" else wide


def _decoded(packed: jax.Array) -> jax.Array:
    """Float32 [..., out, in] of MXFP4 [..., out, in / 32, 17]: what `mxfp4.decode` makes of it, by its bits.

    The scale is applied in two steps: a power of two that float32 has as a subnormal number only is flushed by XLA.
    """
    blocks, scales = packed[..., :-1].astype(jnp.uint32), packed[..., -1].astype(jnp.int32) - mxfp4.SCALE_BIAS
    codes = jnp.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, mxfp4.BLOCK)
    size = codes & 7
    normal = ((size >> 1) + 126) << 23 | (size & 1) << 22
    bits = jnp.where(size > 1, normal, size * np.uint32(126 << 23))  # 0 and 0.5 have no implied leading one
    values = lax.bitcast_convert_type(bits | (codes & 8) << 28, jnp.float32)
    half = scales >> 1
    values = values * _power(half)[..., None] * _power(scales - half)[..., None]
    return values.reshape(*scales.shape[:-1], -1)


def _power(exponents: jax.Array) -> jax.Array:
    """2^n for what float32 has as normal numbers."""
    return lax.bitcast_convert_type((exponents + 127) << 23, jnp.float32)


@partial(jax.jit, static_argnames="form")
def experts(rows: jax.Array, held: jax.Array, form: Form) -> jax.Array:
    """rows [1, T, in], or [E, T, in], to [E, T, out], one expert after the other."""

    def one(each: jax.Array) -> jax.Array:
        return jnp.matmul(rows[each % len(rows)], widened(held[each], form), precision=lax.Precision.HIGHEST)

    products: jax.Array = lax.map(one, jnp.arange(form.shape[0]))
    return products


@partial(jax.jit, static_argnames="form")
def columns(rows: jax.Array, held: jax.Array, form: Form) -> jax.Array:
    """rows [..., in] to [..., out], some columns at a time; the last ones reach back over those before."""
    out, axis = form.shape[1], 0 if form.layout == "columns" else 1
    step = min(out, max(1, PART // form.shape[0]))

    def part(number: jax.Array, made: jax.Array) -> jax.Array:
        begin = jnp.minimum(number * step, out - step)
        matrix = widened(lax.dynamic_slice_in_dim(held, begin, step, axis), form)
        product = jnp.matmul(rows, matrix, precision=lax.Precision.HIGHEST)
        return lax.dynamic_update_slice_in_dim(made, product, begin, made.ndim - 1)

    products: jax.Array = lax.fori_loop(0, -(-out // step), part, jnp.zeros((*rows.shape[:-1], out), jnp.float32))
    return products


@partial(jax.jit, static_argnames="form")
def taken(held: jax.Array, index: jax.Array, form: Form) -> jax.Array:
    """Some rows of a table, or some experts, widened."""
    return widened(jnp.take(held, index, axis=0), form)
