"""Quantised caches in plain PyTorch: keys and values through the numbers of a format; see `parity.kv_cache`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from parity.errors import UsageError
from parity.references.checkpoint import SCALE, shards
from parity.references.drafter_layers import KVCache, LayerTap
from parity.references.points import point

DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


class Quantiser:
    """What a side's caches make of the keys and values that pass through them.

    Args:
        kind: the format, a name of `parity.kv_cache.FORMATS`.
        scales: of each part, `k` and `v`, one for each layer.
    """

    def __init__(self, kind: str, scales: dict[str, tuple[float, ...]]):
        self.kind, self.dtype, self.scales = kind, DTYPES[kind], scales

    def through(self, part: str, rows: Tensor, layer: int) -> Tensor:
        """Rows of any shape as attention reads them, in their own dtype."""
        written, read = self.write_scale(layer, part), self.read_scale(layer, part)
        kept: Tensor = self.nearest(rows.float() / written)
        return (kept * read).to(rows.dtype)

    @point
    def attended(self, part: str, rows: Tensor, own: Tensor, layer: int) -> Tensor:
        """What attention reads of all rows [..., S, D], the last of which hold `own` [..., W, D]: the same."""
        return rows

    @point
    def write_scale(self, layer: int, part: str) -> Tensor:
        """What a layer's keys or values are divided by."""
        return torch.tensor(self.scales[part][layer], dtype=torch.float32)

    @point
    def read_scale(self, layer: int, part: str) -> Tensor:
        """What they are multiplied by when they are read."""
        return torch.tensor(self.scales[part][layer], dtype=torch.float32)

    @point
    def nearest(self, x: Tensor) -> Tensor:
        """The nearest number of the format, in float32; the largest finite one beyond it."""
        largest = torch.finfo(self.dtype).max
        return x.clamp(-largest, largest).to(self.dtype).float()


class QuantisedKVCache(KVCache):
    """A drafter's cache in another format; it hands over what is written before that is quantised."""

    def __init__(self, quantiser: Quantiser):
        super().__init__()
        self.quantiser = quantiser

    def entering(self, k: Tensor, v: Tensor, tap: LayerTap) -> tuple[Tensor, Tensor]:
        """Hand over rows [B, G, W, D] as [B, W, G, D], before they are written."""
        k, v = (tap(part, rows.transpose(1, 2)).transpose(1, 2) for part, rows in (("k", k), ("v", v)))
        return k, v

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As the parent's, of quantised rows."""
        own, through, attended = {"k": k, "v": v}, self.quantiser.through, self.quantiser.attended
        kept = super().extend(layer, through("k", k, layer), through("v", v, layer))
        k, v = (attended(part, rows, own[part], layer) for part, rows in zip("kv", kept, strict=True))
        return k, v


def quantiser(kind: str, checkpoint: Path, layers: int) -> Quantiser | None:
    """What a format makes of a side's caches, by the scales of its checkpoint; None without a format.

    Raises:
        UsageError: as `read_scales`.
    """
    return Quantiser(kind, read_scales(checkpoint, layers)) if kind else None


def read_scales(checkpoint: Path, layers: int) -> dict[str, tuple[float, ...]]:
    """The scales of keys and values, one for each layer; 1 where a checkpoint has none for a layer.

    They are called `…self_attn.k_scale` and `…self_attn.v_scale` as llm-compressor writes them, or
    `…self_attn.k_proj.k_scale` and `…self_attn.v_proj.v_scale` as ModelOpt does.

    Raises:
        UsageError: one is no positive number, is there twice or without its fellow, or is of no layer.
    """
    files = shards(checkpoint, scales=True)
    named: dict[tuple[int, str], str] = {}
    for name in sorted(files):
        read = re.fullmatch(SCALE, name)
        if read is None:
            continue
        place = int(read["layer"] or 0), name[-7]
        if place in named:
            raise UsageError(f"{files[name]}: tensors {named[place]} and {name} are scales of the same")
        if place[0] >= layers:
            raise UsageError(f"{files[name]}: tensor {name} is the scale of a layer that is not there")
        named[place] = name
    for layer, part in named:
        if (layer, other := "v" if part == "k" else "k") not in named:
            raise UsageError(f"{checkpoint}: {named[layer, part]} is there, and no {other}_scale of that layer")
    found = {place: _scale(files[name], name) for place, name in named.items()}
    return {part: tuple(found.get((layer, part), 1.0) for layer in range(layers)) for part in "kv"}


def _scale(path: Path, name: str) -> float:
    with safe_open(path, framework="pt") as file:
        held: Tensor = file.get_tensor(name)
    if held.numel() != 1 or not held.is_floating_point():
        raise UsageError(f"{path}: tensor {name} is {held.dtype} of shape {_shape(held.shape)}; one number is due")
    value = float(held.float())
    if not 0 < value < float("inf"):
        raise UsageError(f"{path}: tensor {name} is {value}, no positive number")
    return value


def _shape(shape: Sequence[int]) -> list[int]:
    return [*shape]
