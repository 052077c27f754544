"""The traced HLO on XLA:CPU: what the Neuron compiler would get, executed without the hardware."""

from __future__ import annotations

import re
from hashlib import sha256
from io import BytesIO
from typing import Any

import jax
import numpy as np
from jax.extend.backend import get_backend, get_compile_options
from jax.extend.mlir import hlo_to_stablehlo
from jax.interpreters import mlir

from parity.device.engines import cpu_devices
from parity.errors import UsageError

_TOPK = re.compile(
    r'stablehlo\.custom_call @AwsNeuronTopK\((%\S+)\) \{[^\n]*backend_config = "(\d+)"[^\n]*\} : '
    r"\((tensor<\S+>)\) -> (tuple<tensor<\S+>, tensor<\S+>>)"
)

cpu_devices.several()

OVERRIDES: dict[str, Any] = {"xla_allow_excess_precision": False}
"""Without this XLA drops pairs of conversions: bfloat16 stages would keep float32 inside whole programs."""

KEPT = 512
"""Compiled programs of a process, the oldest dropped first; a watched and a free run of the tiny pair have 131."""
_COMPILED: dict[bytes, Any] = {}


def devices(ranks: int) -> list[jax.Device]:
    """XLA:CPU's, one for each rank.

    Raises:
        UsageError: there are fewer.
    """
    return cpu_devices.one_each(get_backend("cpu").local_devices(), ranks)


def buffer(value: np.ndarray, device: jax.Device) -> jax.Array:
    """An array on this device of XLA:CPU; the caller does not change `value` any more."""
    held: jax.Array = jax.device_put(np.ascontiguousarray(value), device)
    return held


def executable(module: Any, on: list[jax.Device]) -> Any:
    """A traced HLO module, as its proto, compiled for as many replicas as there are devices, replica r on device r.

    What was compiled from the same HLO before, for whatever engine of this process, is not compiled again.

    Raises:
        UsageError: the module calls what only the hardware knows.
    """
    places = np.arange(len(on)).reshape(-1, 1)
    options = get_compile_options(len(on), 1, device_assignment=places, env_options_overrides=OVERRIDES)
    content = module.SerializeToString(deterministic=True) + options.SerializeAsString()
    key = sha256(content).digest()
    if key not in _COMPILED:
        while len(_COMPILED) >= KEPT:
            del _COMPILED[next(iter(_COMPILED))]
        _COMPILED[key] = get_backend("cpu").compile_and_load(stablehlo(module), on, options)
    return _COMPILED[key]


def stablehlo(module: Any) -> bytes | str:
    """A traced HLO module, as its proto, as StableHLO that XLA:CPU can run: without aliases, row by row."""
    plain = type(module)()
    plain.CopyFrom(module)
    plain.ClearField("input_output_alias")
    with mlir.make_ir_context():
        parsed = mlir.ir.Module.parse(hlo_to_stablehlo(plain.SerializeToString()))
        _row_major(parsed)
        if any(one.opcode == "custom-call" for some in module.computations for one in some.instructions):
            return replace_topk(str(parsed))
        held = BytesIO()
        parsed.operation.write_bytecode(held)
        return held.getvalue()


def _row_major(module: Any) -> None:
    """Have arguments and results lie row by row: left to choose, XLA gathers along the last axis into another layout,
    and the program that takes it reads it as if it were this one."""
    (main,) = (one for one in module.body.operations if one.attributes["sym_name"].value == "main")
    plain = mlir.ir.DictAttr.get({"mhlo.layout_mode": mlir.ir.StringAttr.get("default")})
    for name, types in (("arg_attrs", main.type.inputs), ("res_attrs", main.type.results)):
        main.attributes[name] = mlir.ir.ArrayAttr.get([plain] * len(types))


def replace_topk(text: str) -> str:
    """StableHLO with every AwsNeuronTopK as a stable descending sort of (value, iota) and a slice.

    Raises:
        UsageError: another custom call is left.
    """
    functions: list[str] = []

    def call(found: re.Match[str]) -> str:
        operand, k, given, returned = found.groups()
        functions.append(_topk_function(f"neuron_topk_{len(functions)}", int(k), given, returned))
        return f"func.call @neuron_topk_{len(functions) - 1}({operand}) : ({given}) -> {returned}"

    text = _TOPK.sub(call, text)
    left = re.search(r"custom_call @(\w+)", text)
    if left:
        raise UsageError(f"custom call {left[1]} runs on Neuron hardware only, and nothing is known to replace it.")
    head, tail = text.rstrip().rsplit("}", 1)
    return "\n".join([head, *functions, "}" + tail])


def _topk_function(name: str, k: int, given: str, returned: str) -> str:
    """Values and places of the k largest along the last axis, the lower place first on a tie."""
    *sizes, element = given.removeprefix("tensor<").removesuffix(">").split("x")
    values, places = returned.removeprefix("tuple<").removesuffix(">").split(", ")
    axis, counted = len(sizes) - 1, "x".join([*sizes, "ui32"])
    window = ", ".join([f"0:{size}" for size in sizes[:-1]] + [f"0:{k}"])
    return f"""  func.func private @{name}(%x: {given}) -> {returned} {{
    %i = stablehlo.iota dim = {axis} : tensor<{counted}>
    %s:2 = "stablehlo.sort"(%x, %i) <{{dimension = {axis} : i64, is_stable = true}}> ({{
    ^bb0(%a: tensor<{element}>, %b: tensor<{element}>, %c: tensor<ui32>, %d: tensor<ui32>):
      %more = stablehlo.compare GT, %a, %b : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }}) : ({given}, tensor<{counted}>) -> ({given}, tensor<{counted}>)
    %v = stablehlo.slice %s#0 [{window}] : ({given}) -> {values}
    %p = stablehlo.slice %s#1 [{window}] : (tensor<{counted}>) -> {places}
    %t = stablehlo.tuple %v, %p : {returned}
    return %t : {returned}
  }}"""
