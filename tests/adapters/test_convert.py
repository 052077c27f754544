"""Tensors of torch, JAX and NumPy become each other without the loss of a bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.adapters import overwrite, replaced, to_numpy
from parity.errors import UsageError

PATTERNS = np.arange(2**16, dtype=np.uint16)
"""Every bfloat16 there is: NaN payloads, infinities, both zeros, subnormals."""


def every(library: str):
    bits = PATTERNS.reshape(256, 256)
    if library == "torch":
        import torch

        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).T
    import jax
    import jax.numpy as jnp

    return jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.bfloat16).T


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_every_bfloat16_survives_the_way_there_and_back(library):
    pytest.importorskip(library)
    value = every(library)
    array = to_numpy(value)
    assert array.dtype == ml_dtypes.bfloat16
    assert np.array_equal(array.view(np.uint16), PATTERNS.reshape(256, 256).T)
    back = replaced(value, array)
    assert type(back) is type(value) and back.dtype == value.dtype
    assert np.array_equal(to_numpy(back).view(np.uint16), array.view(np.uint16))


@pytest.mark.parametrize("name", ["float32", "float16", "float8_e4m3fn", "float8_e5m2", "int32", "bool"])
@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_other_dtypes_survive_as_well(library, name):
    module = pytest.importorskip(library)
    own = getattr(module, "bool_" if (library, name) == ("jax.numpy", "bool") else name)
    value = module.ones((3, 2), dtype=own)
    array = to_numpy(value)
    assert array.dtype.name == name and array.astype(np.float32).min() == 1
    back = replaced(value, np.zeros_like(array))
    assert back.dtype == value.dtype and back.shape == value.shape and not to_numpy(back).astype(np.float32).any()


def test_what_comes_back_has_the_dtype_of_what_it_stands_in_for():
    torch = pytest.importorskip("torch")
    value = torch.zeros(2, dtype=torch.bfloat16)
    assert replaced(value, np.array([1.5, 2.0], np.float32)).dtype == torch.bfloat16
    assert replaced(3, np.array(4)) == 4 and replaced([1, 2], np.array([3, 4])) == [3, 4]


def test_a_parameter_that_wants_gradients_and_a_read_only_array_are_read():
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    assert to_numpy(parameter).tolist() == [1, 1]
    array = np.zeros(2, np.float32)
    array.flags.writeable = False
    overwrite(parameter, array)
    assert parameter.tolist() == [0, 0]


class Buffer:
    """A device's memory, as accelerator runtimes hand it out."""

    def __init__(self, array):
        self.array = array

    def numpy(self):
        return self.array

    def write_from_numpy(self, array):
        assert array.dtype == self.array.dtype
        self.array = array


def test_a_runtimes_buffer_is_written_to():
    buffer = Buffer(np.zeros(2, ml_dtypes.bfloat16))
    assert replaced(buffer, np.ones(2, np.float32)) is buffer and buffer.array.tolist() == [1, 1]


def test_a_tracer_is_refused_in_one_sentence():
    jax = pytest.importorskip("jax")
    with pytest.raises(UsageError, match="tap the jitted function"):
        jax.jit(to_numpy)(1.0)


def test_what_cannot_be_written_to_is_refused():
    with pytest.raises(UsageError, match="cannot be written to"):
        overwrite(object(), np.zeros(1))
