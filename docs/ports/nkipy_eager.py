"""NKIPy's names off the hardware: kernels run eagerly in NumPy, tensors stay on the host, one rank.

A port that imports NKIPy runs with these in its place, its kernels untouched; where NKIPy and a Neuron device are, this
file is not needed.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch


class DeviceTensor:
    """A named buffer; a kernel that writes it in place writes `array`."""

    def __init__(self, array: np.ndarray, name: str) -> None:
        self.array, self.name, self.shape, self.dtype = array, name, array.shape, array.dtype

    @classmethod
    def from_numpy(cls, array: np.ndarray, name: str = "") -> DeviceTensor:
        return cls(np.array(array), name)

    @classmethod
    def from_torch(cls, tensor: torch.Tensor, name: str = "") -> DeviceTensor:
        return cls(to_numpy(tensor).copy(), name)

    def write_from_numpy(self, array: np.ndarray) -> None:
        self.array[...] = array

    def write_from_torch(self, tensor: torch.Tensor) -> None:
        self.array[...] = to_numpy(tensor)

    def numpy(self) -> np.ndarray:
        return self.array

    def torch(self) -> torch.Tensor:
        return to_torch(self.array)


class DeviceKernel:
    """A kernel with its static arguments; a call is a launch, which `watch` is given to carry out."""

    watch: Any = staticmethod(lambda name, inputs, outputs, launch: launch())

    def __init__(self, kernel: Any, name: str, static: dict[str, Any]) -> None:
        self.kernel, self.name, self.static = kernel, name, static

    @classmethod
    def compile_and_load(cls, kernel: Any, name: str, build_dir: Any = None, **arguments: Any) -> DeviceKernel:
        arguments.pop("additional_compiler_args", None)
        return cls(kernel, name, {k: v for k, v in arguments.items() if not isinstance(v, DeviceTensor)})

    def __call__(self, inputs: dict[str, DeviceTensor], outputs: dict[str, DeviceTensor]) -> None:
        self.watch(self.name, inputs, outputs, lambda: self._launch(inputs, outputs))

    def _launch(self, inputs: dict[str, DeviceTensor], outputs: dict[str, DeviceTensor]) -> None:
        result = self.kernel(**{name.split(".")[0]: one.array for name, one in inputs.items()}, **self.static)
        first = outputs["output0"]  # the others are caches, written in place
        result = result[0] if isinstance(result, tuple) else result
        first.array = np.asarray(result).astype(first.dtype).reshape(first.shape)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A torch tensor's values; NumPy has bfloat16 from ml_dtypes."""
    if tensor.dtype != torch.bfloat16:
        return tensor.contiguous().numpy()
    return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def to_torch(array: np.ndarray) -> torch.Tensor:
    """An array's values as a torch tensor."""
    array = np.ascontiguousarray(array)
    if array.dtype != ml_dtypes.bfloat16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def topk(x: np.ndarray, k: int, axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """The k largest along an axis and their indices; of equal ones the first."""
    index = np.argsort(-x.astype(np.float32), axis=axis, kind="stable").take(np.arange(k), axis=axis)
    return np.take_along_axis(x, index, axis=axis), index.astype(np.uint32)


def install(dtype: Any) -> None:
    """Put the stand-ins where imports find them.

    Args:
        dtype: what the port's `nl.bfloat16` is: bfloat16, or float32 for a run without rounding.
    """
    language = {"bfloat16": dtype, "float32": np.float32}
    apis = ModuleType("nkipy.core.tensor_apis")
    vars(apis).update(topk=topk, constant=lambda x: x, zeros=lambda shape, dtype: np.zeros(shape, dtype))
    collectives = {"all_reduce": lambda x, **_: x, "all_gather": lambda x, **_: x}
    contents: dict[str, dict[str, Any]] = {
        "nki": {"jit": lambda kernel: kernel},
        "nki.isa": {},
        "nki.language": language,
        "neuronxcc": {},
        "neuronxcc.nki": {},
        "neuronxcc.nki.language": language,
        "nkipy": {},
        "nkipy.runtime": {"DeviceKernel": DeviceKernel, "DeviceTensor": DeviceTensor},
        "nkipy.core": {"tensor_apis": apis, "nki_op": None},
        "nkipy.core.typing": {"tensor": np.ndarray},
        "nkipy.distributed": {},
        "nkipy.distributed.collectives": collectives,
    }
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
