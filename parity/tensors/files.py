"""Files and folders as arrays by name: array files, folders of them, the state dicts of checkpoints; never a dump."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity import files, limits
from parity.errors import UsageError
from parity.golden import shards
from parity.golden.manifest import FILE
from parity.imports import arrays
from parity.imports.files import read
from parity.imports.torch_file import torch_load
from parity.reproducing import command_line

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Files of a checkpoint's state dict; of both kinds the first are read."""

INDEX = ".index.json"
"""Behind the pattern of a kind: which shard holds which tensor."""

CODES = {"F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E8M0": np.uint8}
"""Floats of a byte are compared as codes: an error of their size is another code."""
DTYPES = shards.DTYPES | {
    name: np.dtype(kind)
    for name, kind in ({"I8": np.int8, "I16": np.int16, "U16": np.uint16, "U32": np.uint32} | CODES).items()
}
"""What weights are stored in, beside the dtypes of a dump."""

Reads = Iterator[tuple[str, Callable[[], NDArray[Any]]]]


def read_arrays(path: Path, side: str) -> Reads:
    """Every tensor of a file or folder by its name, with how to read it.

    A bare array has no name: ''. Of a checkpoint (a folder with config.json or an index beside its weights) it is
    the state dict's; of another folder the path without suffix, then `/key`.

    Args:
        side: `actual`, `expected` or `floor`, for sentences.

    Raises:
        UsageError: it is a dump or none of these, a name is there twice, or something cannot be read.
    """
    arrays.refuse_executed(path)
    if not path.is_dir():
        if path.suffix not in arrays.ARRAYS:
            raise UsageError(f"{side} {path} is no folder and none of {', '.join(arrays.ARRAYS)}")
        yield from arrays.held(path, torch_load, DTYPES)
    elif weights := _weights(path):
        yield from _state_dict(path, weights)
    else:
        for captured in read([path], torch_load):
            yield captured.name, captured.load


def refuse_dumps(*sides: Path) -> None:
    """Refuse goldens and runs: they are compared by the noise that they know, never by a dtype's preset.

    Raises:
        UsageError: a side is one; the command that compares it.
    """
    kinds = [_dump_kind(side) for side in sides]
    first, second = sides[0], sides[-1]
    if sorted(kinds) == ["golden", "run"]:
        golden, run = sides[kinds.index("golden")], sides[kinds.index("run")]
        raise UsageError(
            f"{run} is a run and {golden} a golden: `{command_line('diff', run, golden=golden)}` compares them"
        )
    if kinds == ["run", "run"]:
        raise UsageError(
            f"{first} and {second} are runs: `{command_line('diff', first, against=second)}` compares them"
        )
    if kinds == ["golden", "golden"]:
        raise UsageError(
            f"{first} and {second} are goldens: `{command_line('corroborate', first, second)}` compares them"
        )
    for side, kind in zip(sides, kinds, strict=True):
        if kind:
            raise UsageError(
                f"{side} is a {kind} and the other side none: make plain tensors of it (`"
                f"{command_line('export', side, 'OUT.npz')}`), or a run of the other (`parity import`)"
            )


def _dump_kind(path: Path) -> str:
    """`golden` or `run`; '' for what is no dump, another tool's manifest.json among it."""
    manifest = path / FILE
    if not manifest.exists():
        return ""
    held = files.parsed(files.content(manifest, limits.MANIFEST_BYTES), str(manifest))
    kind = held.get("kind") if isinstance(held, dict) and "schema_version" in held else ""
    return kind if kind in ("golden", "run") else ""


def _weights(folder: Path) -> dict[Path, set[str] | None]:
    """A checkpoint's files, each with the tensors that its index places there, None without one; {} for no checkpoint.

    Files may be links: the hub's cache keeps every checkpoint so.
    """
    for pattern in WEIGHTS:
        indices = sorted(folder.glob(pattern + INDEX))
        if len(indices) > 1:
            raise UsageError(f"{folder} has the indices {indices[0].name} and {indices[1].name}: name the files of one")
        if indices:
            return dict(_indexed(indices[0]))
        found = sorted(folder.glob(pattern))
        if found and (folder / "config.json").exists():
            return dict.fromkeys(found)
    return {}


def _indexed(index: Path) -> dict[Path, set[str]]:
    placed = arrays.read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise UsageError(f"{index} has no weight_map")
    shards: dict[Path, set[str]] = {}
    for name, shard in placed.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise UsageError(f"{index} places {name} in {shard!r}, which is no file beside it")
        shards.setdefault(index.parent / shard, set()).add(name)
    return shards


def _state_dict(folder: Path, weights: dict[Path, set[str] | None]) -> Reads:
    for path, placed in weights.items():
        held = arrays.held(path, torch_load, DTYPES)
        if placed is not None and (odd := placed ^ {name for name, _ in held}):
            raise UsageError(f"{folder} is no whole checkpoint: its index and {path.name} disagree on {min(odd)}")
        yield from held
