"""NKIPy's example off the hardware: its kernels run eagerly in NumPy, tensors stay on the host, one rank.

The example imports NKIPy and finds these stand-ins; nothing in its files is changed. With NKIPy and a Neuron device
only `Example` is left of this file.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partialmethod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from parity.adapters import replaced, to_numpy

Call = Callable[..., Any]


class Rounded(np.ndarray):
    """bfloat16 as a compiler computes it: in float32, rounded once to the result's dtype.

    NumPy alone multiplies matrices of bfloat16 to float32, and adds one by one in bfloat16, which stops at 256.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (None,), **named: Any) -> Any:
        plain = [np.asarray(one) if isinstance(one, np.ndarray) else one for one in inputs]
        wide = [one.astype(np.float32) if _narrow(one) else one for one in plain]
        result = getattr(ufunc, method)(*wide, **named)
        arrays = [one for one in plain if isinstance(one, np.ndarray | np.generic)]
        if result.dtype == np.float32 and all(map(_narrow, arrays)):
            result = result.astype(ml_dtypes.bfloat16)
        if out[0] is None:
            return np.asarray(result).view(Rounded)
        out[0][...] = result
        return out[0]


def _narrow(one: Any) -> bool:
    return getattr(one, "dtype", None) == ml_dtypes.bfloat16


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
        return replaced(torch.empty(0, dtype=getattr(torch, self.dtype.name)), self.array)


class DeviceKernel:
    """A kernel with its static arguments; a call is a launch."""

    arrays: type[np.ndarray] = np.ndarray

    def __init__(self, kernel: Any, name: str, static: dict[str, Any]) -> None:
        self.kernel, self.name, self.static = kernel, name, static

    @classmethod
    def compile_and_load(cls, kernel: Any, name: str, build_dir: Any = None, **arguments: Any) -> DeviceKernel:
        arguments.pop("additional_compiler_args", None)
        return cls(kernel, name, {k: v for k, v in arguments.items() if not isinstance(v, DeviceTensor)})

    def launch(self, inputs: dict[str, DeviceTensor], outputs: dict[str, DeviceTensor]) -> None:
        result = self.kernel(
            **{name.split(".")[0]: one.array.view(self.arrays) for name, one in inputs.items()}, **self.static
        )
        first = outputs["output0"]  # the others are caches, written in place
        result = result[0] if isinstance(result, tuple) else result
        first.array = np.array(result).astype(first.dtype).reshape(first.shape)

    __call__ = launch


def topk(x: np.ndarray, k: int, axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """The k largest along an axis and their indices; of equal ones the first."""
    index = np.argsort(-x.astype(np.float32), axis=axis, kind="stable").take(np.arange(k), axis=axis)
    return np.take_along_axis(x, index, axis=axis), index.astype(np.uint32)


def install(dtype: Any, kernels: type[DeviceKernel]) -> None:
    """Put the stand-ins where imports find them.

    Args:
        dtype: what the port's `nl.bfloat16` is: bfloat16, or float32 for a run without rounding.
        kernels: the class whose calls are launches.
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
        "nkipy.runtime": {"DeviceKernel": kernels, "DeviceTensor": DeviceTensor},
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


def _carried_out(model: Any, by: Call, call: Call, *args: Any) -> Any:
    return by(call, model, *args)


class Example:
    """The example's modules at one commit, imported anew, on a pair of checkpoints; and its tokenizer.

    Args:
        root: holds `examples/models/gpt_oss`; $PARITY_NKIPY_EXAMPLE where empty.
        precision: what stands for the bfloat16 that the example writes everywhere.
        positions: rows of its caches.
        rounding: `numpy` for kernels that compute with NumPy's own arrays, `compiler` for `Rounded` ones.

    Attributes:
        layers: of target and drafter.
        vocab: of the drafter.
        target: the class whose `verify` the loop calls.
        drafter: the class whose `draft` (and `prefill`) the loop calls.
        emitted: ids that it printed.
        timed: whether it is behind its barrier; what runs before is a warm-up.
    """

    chat_template = None

    def __init__(
        self, root: str, target: Path, drafter: Path, k: int, precision: str, positions: int, rounding: str
    ) -> None:  # fmt: skip
        base = Path(root or os.environ["PARITY_NKIPY_EXAMPLE"]) / "examples/models/gpt_oss"
        self.paths, self.k, self.precision, self.positions = (str(target), str(drafter)), k, precision, positions
        self.dtype, self.emitted, self.timed = getattr(torch, precision), [], False
        self.target_config, self.drafter_config = one, other = [*map(AutoConfig.from_pretrained, self.paths)]
        self.layers, self.eos = (one.num_hidden_layers, other.num_hidden_layers), tuple(one.eos_token_id)
        self.vocab, arrays = other.draft_vocab_size, {"numpy": np.ndarray, "compiler": Rounded}[rounding]
        self.kernels = type("DeviceKernel", (DeviceKernel,), {"arrays": arrays})
        install(np.dtype(getattr(ml_dtypes, precision, np.float32)), self.kernels)
        for name in [n for n, m in sys.modules.items() if "models/gpt_oss" in str(getattr(m, "__file__", ""))]:
            del sys.modules[name]
        with mock.patch.object(sys, "path", [str(base), *sys.path]):
            folder = next(name for name in ("peagle", "eagle") if (base / name).is_dir())
            names = (f"{folder}.speculate", f"{folder}.kernels.verify", f"{folder}.tensor_preparation")
            speculate, _, self._drafter_weights = map(importlib.import_module, names)
            self._target_weights = importlib.import_module("tensor_preparation")
        self.modules = {n: m for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(str(base))}
        self._main, self.target, names = speculate.main, speculate.SpeculativeGptOss, vars(speculate)
        self.drafter = next(names[n] for n in ("_DeviceDrafterAdapter", "DrafterCPU", "DrafterModel") if n in names)
        self._put_stand_ins(self._shards())

    def watch(self, prefilling: Call, drafting: Call, verifying: Call, launching: Call) -> None:
        """Have the loop's calls of drafter and target, and every kernel launch, carried out by these.

        Args:
            prefilling, drafting, verifying: given the method, then what it is called with.
            launching: given the kernel, its inputs and its outputs.
        """
        for owner, name, by in (
            (self.drafter, "prefill", prefilling),
            (self.drafter, "draft", drafting),
            (self.target, "verify", verifying),
        ):
            if hasattr(owner, name):
                setattr(owner, name, partialmethod(_carried_out, by, getattr(owner, name)))
        self.kernels.__call__ = lambda kernel, inputs, outputs: launching(kernel, inputs, outputs)

    def generate(self, prompt: Sequence[int], budget: int) -> list[int]:
        """What the example's own `main` emits."""
        where = ("--model", self.paths[0], "--draft-model", self.paths[1], "--draft-checkpoint", tempfile.gettempdir())
        self._prompt, self.emitted, self.timed = np.array([prompt]), [], False
        with mock.patch.object(sys, "argv", ["speculate", "-k", str(self.k), "-n", str(budget), *where]):
            self._main()
        return self.emitted

    def __call__(self, text: str, return_tensors: str) -> dict[str, np.ndarray]:
        return {"input_ids": self._prompt}

    def decode(self, ids: list[int]) -> str:
        self.emitted += ids
        return ""

    def _put_stand_ins(self, shards: dict[str, Any]) -> None:
        """For what the example's modules read from disk, from other processes, and write to a terminal."""
        rank = dict(get_rank=int, get_world_size=lambda: 1, is_initialized=bool, init_process_group=lambda: None)
        instead = {
            "torch": SimpleNamespace(**{**vars(torch), "bfloat16": self.dtype, "set_num_interop_threads": id}),
            "dist": SimpleNamespace(**rank, barrier=lambda: vars(self).update(timed=True)),
            "AutoTokenizer": SimpleNamespace(from_pretrained=lambda _: self),
            "load_file": lambda path, device: shards[Path(path).name],
            "USE_NKI_RMSNORM": False,
        }
        for module in self.modules.values():
            vars(module).update({name: value for name, value in instead.items() if name in vars(module)})
            vars(module)["print"] = lambda *words, **_: None
            for name in {"get_config", "get_eagle_config"} & set(vars(module)):
                setattr(module, name, self._sized(getattr(module, name)))

    def _sized(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def config(*args: Any, **named: Any) -> Any:
            made = read(*args, **named)
            made.max_seq_len = self.positions
            return made

        return config

    def _shards(self) -> dict[str, Any]:
        """The weights as the example prepares them; experts that are not in MXFP4 pass for dequantised ones."""
        target, drafter = map(Path, self.paths)
        tensors = {name: one for file in target.glob("*.safetensors") for name, one in load_file(file).items()}
        weights = SimpleNamespace(get=lambda n: None if n.endswith("_scales") else tensors[n.removesuffix("_blocks")])
        if not any(name.endswith("_blocks") for name in tensors):
            vars(self._target_weights)["convert_moe_packed_tensors"] = lambda blocks, scales: blocks
        get = load_file(drafter / "model.safetensors").__getitem__
        return {
            "shard_0.safetensors": self._target_weights.build_shard(weights, self.target_config, 0, 1, self.dtype),
            "drafter.safetensors": self._drafter_weights.build(get, self.drafter_config, self.dtype),
        }
