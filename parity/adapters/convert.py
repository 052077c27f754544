"""Tensors of torch, JAX and device runtimes as NumPy arrays and back, bit for bit.

Nothing is imported for a tensor: whoever has one of a library has imported it.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from parity.arrays import Array
from parity.errors import UsageError


def to_numpy(value: Any) -> Array:
    """A tensor on the host: NumPy, torch and JAX ones, lists of numbers, and whatever has `numpy()`.

    bfloat16 and the float8 types come as those of ml_dtypes, which are NumPy dtypes; no bit changes.

    Raises:
        UsageError: it is a tracer: the values are not there yet.
    """
    if isinstance(value, np.ndarray):
        return value
    if _is_torch(value):
        return _from_torch(value.detach().cpu().contiguous())
    if _is_tracer(value):
        raise UsageError("a tracer has no values: tap the jitted function, or what runs outside of it")
    if not isinstance(value, np.generic) and hasattr(value, "numpy"):
        return to_numpy(value.numpy())
    return np.asarray(value)


def replaced(value: Any, array: Array) -> Any:
    """What stands in for `value`: the numbers of `array` in its library, dtype and place.

    A buffer of a device runtime is none of a library that is known here: it is written to and returned.
    """
    if _is_torch(value):
        return _to_torch(array, value.dtype).to(value.device)
    if _is_jax(value):
        jax = sys.modules["jax"]
        return jax.device_put(array.astype(value.dtype), value.sharding)
    if isinstance(value, np.ndarray | np.generic):
        return np.ascontiguousarray(array.astype(value.dtype))
    if isinstance(value, bool | int | float):
        return type(value)(array[()])
    if isinstance(value, list | tuple):
        return type(value)(array.tolist())
    overwrite(value, array)
    return value


def overwrite(buffer: Any, array: Array) -> None:
    """Put the numbers of `array` into a buffer: NumPy, torch, or one with `write_from_numpy`.

    Raises:
        UsageError: it is none that can be written to.
    """
    if isinstance(buffer, np.ndarray):
        buffer[...] = array
    elif _is_torch(buffer):
        with sys.modules["torch"].no_grad():
            buffer.copy_(_to_torch(array, buffer.dtype))
    elif hasattr(buffer, "write_from_numpy"):
        like = to_numpy(buffer)
        buffer.write_from_numpy(np.ascontiguousarray(array.astype(like.dtype)))
    else:
        raise UsageError(f"a {type(buffer).__name__} cannot be written to: take it as a returned value instead")


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _is_tracer(value: Any) -> bool:
    return _is_jax(value) and isinstance(value, sys.modules["jax"].core.Tracer)


def _from_torch(tensor: Any) -> Array:
    """Types that torch's own NumPy does not have travel as the integers of their bits."""
    dtype = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."), None)
    if dtype is None:
        array: Array = tensor.numpy()
        return array
    bits: Array = tensor.view(_bits(tensor.dtype)).numpy().view(dtype)
    return bits


def _to_torch(array: Array, dtype: Any) -> Any:
    """A tensor of `array`'s numbers; cast in torch only where the dtypes differ."""
    torch = sys.modules["torch"]
    array = np.array(array, order="C")  # torch would share, and warns of what is read-only
    name = array.dtype.name
    if hasattr(ml_dtypes, name):
        own = getattr(torch, name)
        return torch.from_numpy(array.view(f"i{array.itemsize}")).view(own).to(dtype)
    return torch.from_numpy(array).to(dtype)


def _bits(dtype: Any) -> Any:
    torch = sys.modules["torch"]
    return {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
