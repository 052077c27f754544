"""Reading a checkpoint folder for the references: config.json and safetensors, single or sharded."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from parity.errors import UsageError

BYTES = 2**26
"""Of a config or an index: the index of a model of 1,024 layers has 10 MB."""

TARGET = "GptOssForCausalLM"
"""What a target calls itself."""

LARGEST = {
    "num_hidden_layers": 2**10,
    "hidden_size": 2**18,
    "target_hidden_size": 2**18,
    "intermediate_size": 2**20,
    "vocab_size": 2**24,
    "draft_vocab_size": 2**24,
    "num_attention_heads": 2**12,
    "num_key_value_heads": 2**12,
    "head_dim": 2**14,
    "num_local_experts": 2**12,
    "num_experts_per_tok": 2**12,
    "max_position_embeddings": 2**27,
    "sliding_window": 2**27,
    "num_parallel_positions": 2**10,
    "block_size": 2**10,
    "num_target_layers": 2**10,
}
"""Eight times the largest published, at the least. Such tensors are compared with the files before any is made."""


def read_config(checkpoint: Path, *architectures: str) -> dict[str, Any]:
    """Read config.json and check that it is of one of these architectures.

    Raises:
        UsageError: no readable config.json, or another architecture.
    """
    path = checkpoint / "config.json"
    raw = _object(path, f"{checkpoint} is no checkpoint: {path} cannot be read")
    found = raw.get("architectures") or ["none"]
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise UsageError(f"{path}: architectures is no list of names")
    if not set(architectures) & set(found):
        if TARGET in found:
            due = ", ".join(architectures)
            raise UsageError(f"{path}: architectures is {TARGET}: that is a target, and a drafter is needed ({due})")
        raise UsageError(f"{path}: architectures is {', '.join(found)}, {' or '.join(architectures)} is needed")
    check_sizes(raw, path)
    return raw


def check_sizes(raw: Mapping[str, Any], path: Path) -> None:
    """Every size is a whole number within LARGEST.

    Raises:
        UsageError: one is not.
    """
    for name, most in LARGEST.items():
        value = raw.get(name)
        if value is not None and not (type(value) is int and 0 < value <= most):
            raise UsageError(f"{path}: {name} is {str(value)[:40]}, it should be a whole number of 1 to {most}")


def _object(path: Path, absent: str) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint."""
    try:
        if not path.is_file() or path.stat().st_size > BYTES:
            raise UsageError(absent)
        raw = json.loads(path.read_text())
    except OSError:
        raise UsageError(absent) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {str(error)[:200]}") from None
    if not isinstance(raw, dict):
        raise UsageError(f"{path} holds no JSON object")
    return raw


def read_eos(checkpoint: Path) -> tuple[int, ...]:
    """The ids that end a sequence: generation_config.json decides, else config.json; an int or a list.

    Raises:
        UsageError: neither file can be read, or they are no ids.
    """
    path = checkpoint / "generation_config.json"
    raw = _object(path, f"{path} cannot be read") if path.exists() else {}
    if raw.get("eos_token_id") is None:
        path = checkpoint / "config.json"
        raw = _object(path, f"{path} cannot be read")
    eos = raw.get("eos_token_id")
    ids = [eos] if isinstance(eos, int) else [] if eos is None else eos
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        raise UsageError(f"{path}: eos_token_id {str(eos)[:40]} is no token id and no list of them")
    return tuple(ids)


SCALE = r"(?:model\.)?(?:midlayer|layers\.(?P<layer>\d{1,4}))\.self_attn\.(?:k_proj\.k|v_proj\.v|k|v)_scale"
"""Names of the scales of a cache, by layer: of a drafter's first one where it has no number."""


def shards(checkpoint: Path, scales: bool = False) -> dict[str, Path]:
    """Tensor name to the safetensors file that holds it.

    Args:
        scales: of caches, too; no model has them, and without quantised caches nothing reads them.

    Raises:
        UsageError: no weights, an unreadable or truncated file, or an index that names what no file holds.
    """
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{checkpoint} holds no .safetensors file")
    held = {name: path for path in files for name in _names(path)}
    index = checkpoint / "model.safetensors.index.json"
    if index.exists():
        placed = _object(index, f"{index} cannot be read").get("weight_map")
        if not isinstance(placed, dict):
            raise UsageError(f"{index} has no weight_map")
        for name, shard in placed.items():
            if not isinstance(shard, str) or held.get(name) != checkpoint / shard:
                raise UsageError(f"{index} places tensor {name} in {shard}, which does not hold it")
    return {name: path for name, path in held.items() if scales or re.fullmatch(SCALE, name, re.ASCII) is None}


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is truncated or not a safetensors file ({error})") from None


def check_names(
    checkpoint: Path, held: Mapping[str, Path], wanted: Collection[str], optional: Collection[str] = ()
) -> None:
    """Compare the names of a checkpoint's tensors, as `shards` gives them, with those of its architecture.

    Raises:
        UsageError: a tensor is missing or surplus.
    """
    for name in set(wanted) - held.keys() - set(optional):
        raise UsageError(f"{checkpoint}: tensor {name} is missing")
    for name in held.keys() - set(wanted):
        raise UsageError(f"{held[name]}: tensor {name} is not part of this architecture")


def read_tensors(held: Mapping[str, Path], wanted: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """Read these tensors, each of the shape that the config asks for, from the files that hold them.

    Raises:
        UsageError: one is of another shape.
    """
    state = {}
    for name, shape in wanted.items():
        with safe_open(held[name], framework="pt") as file:
            state[name] = file.get_tensor(name)
        if state[name].shape != torch.Size(shape):
            raise UsageError(
                f"{held[name]}: tensor {name} has shape {tuple(state[name].shape)}, the config asks for {tuple(shape)}"
            )
    return state


def read_state(
    checkpoint: Path,
    wanted: Mapping[str, torch.Tensor],
    optional: Collection[str] = (),
    layouts: Mapping[str, str] | None = None,
) -> dict[str, torch.Tensor]:
    """Read every wanted tensor; its names and shapes are those of `wanted`.

    Args:
        layouts: beginnings of names in files that have another layout, to those of `wanted`; one after the other.

    Raises:
        UsageError: a tensor is missing, surplus, twice there or of the wrong shape.
    """
    held = shards(checkpoint)
    names = {name: spelled(name, layouts or {}) for name in held}
    if len(set(names.values())) < len(names):
        raise UsageError(f"{checkpoint}: a tensor is there in two layouts (of {', '.join(layouts or {})})")
    check_names(checkpoint, {names[name]: path for name, path in held.items()}, wanted, optional)
    state = read_tensors(held, {name: wanted[names[name]].shape for name in held})
    return {names[name]: tensor for name, tensor in state.items()}


def spelled(name: str, layouts: Mapping[str, str]) -> str:
    """A file's name of a tensor as this project has it; see `read_state`."""
    for begins, ours in layouts.items():
        name = ours + name.removeprefix(begins) if name.startswith(begins) else name
    return name
