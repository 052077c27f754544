"""Reading a checkpoint folder for the references: config.json and safetensors, single or sharded."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import GptOssConfig, GptOssForCausalLM

from parity.errors import UsageError


def read_config(checkpoint: Path, *architectures: str) -> dict[str, Any]:
    """Read config.json and check that it is of one of these architectures.

    Raises:
        UsageError: no readable config.json, or another architecture.
    """
    path = checkpoint / "config.json"
    try:
        raw = json.loads(path.read_text())
    except OSError:
        raise UsageError(f"{checkpoint} is no checkpoint: {path} cannot be read") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    found = raw.get("architectures") or ["none"]
    if not set(architectures) & set(found):
        raise UsageError(f"{path}: architectures is {', '.join(found)}, {' or '.join(architectures)} is needed")
    return raw


def shards(checkpoint: Path) -> dict[str, Path]:
    """Tensor name to the safetensors file that holds it.

    Raises:
        UsageError: no weights, an unreadable or truncated file, or an index that names what no file holds.
    """
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{checkpoint} holds no .safetensors file")
    held = {name: path for path in files for name in _names(path)}
    index = checkpoint / "model.safetensors.index.json"
    if index.exists():
        for name, shard in json.loads(index.read_text())["weight_map"].items():
            if held.get(name) != checkpoint / shard:
                raise UsageError(f"{index} places tensor {name} in {shard}, which does not hold it")
    return held


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is truncated or not a safetensors file ({error})") from None


def read_state(
    checkpoint: Path, wanted: Mapping[str, torch.Tensor], optional: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """Read every wanted tensor, holding names and shapes against `wanted`.

    Raises:
        UsageError: a tensor is missing, surplus or of the wrong shape.
    """
    held = shards(checkpoint)
    for name in wanted.keys() - held.keys() - set(optional):
        raise UsageError(f"{checkpoint}: tensor {name} is missing")
    for name in held.keys() - wanted.keys():
        raise UsageError(f"{held[name]}: tensor {name} is not part of this architecture")
    state = {}
    for name, path in held.items():
        with safe_open(path, framework="pt") as file:
            state[name] = file.get_tensor(name)
        if state[name].shape != wanted[name].shape:
            found, need = tuple(state[name].shape), tuple(wanted[name].shape)
            raise UsageError(f"{path}: tensor {name} has shape {found}, the config asks for {need}")
    return state


def check_target(checkpoint: Path) -> None:
    """Hold a gpt-oss checkpoint's tensors against its own config; transformers only warns.

    Raises:
        UsageError: a tensor is missing, surplus or of the wrong shape.
    """
    with torch.device("meta"):
        model = GptOssForCausalLM(GptOssConfig.from_pretrained(checkpoint, local_files_only=True))
    wanted = dict(model.state_dict())
    if "quantization_config" in read_config(checkpoint, "GptOssForCausalLM"):
        wanted = _mxfp4_names(wanted)
    read_state(checkpoint, wanted)


def _mxfp4_names(wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Expert weights [E, in, out] are on disk as blocks [E, out, in/32, 16] and scales [E, out, in/32]."""
    found = {}
    for name, tensor in wanted.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = tensor.shape
            found[f"{name}_blocks"] = tensor.new_empty(experts, outputs, inputs // 32, 16)
            found[f"{name}_scales"] = tensor.new_empty(experts, outputs, inputs // 32)
        else:
            found[name] = tensor
    return found
