"""Weights that stay in their files, as stored, until they are used: references of models larger than memory.

A table is read by rows, or multiplied some rows at a time; an expert is decoded where a row is routed to it. What was
converted last is kept as far as the memory given allows (`Hot`). The values are those that whole weights in memory
have; products of a table in parts may round otherwise in the last bit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F

from parity.references import gpt_oss
from parity.references.checkpoint import check_names, read_tensors, shards, spelled
from parity.references.company import Company
from parity.references.drafter_config import PEagleConfig
from parity.references.peagle import PEagle
from parity.references.rope import schedule

LARGE = 2**20
"""Numbers of a matrix from which it stays in its file."""

ROWS = 2**14
"""Rows of a table that are converted at a time: 190 MB of float32 at a width of 2,880."""


class Hot:
    """Converted tensors that are kept: those used last up to so many bytes, or else the one that is larger alone."""

    def __init__(self, most: int):
        self.most, self.bytes = most, 0
        self.large: tuple[Hashable, torch.Tensor] | None = None
        self.company = Company()
        self.held: OrderedDict[tuple[object, ...], torch.Tensor] = OrderedDict()

    def get(
        self, name: tuple[object, ...], make: Callable[[], torch.Tensor], layer: Hashable = None, expert: int = 0
    ) -> torch.Tensor:
        """The tensor of this name, made where it is not held, when it is the turn of the run that asks."""
        self.company.wait(name, layer, expert)
        if self.large and self.large[0] == name:
            return self.large[1]
        if name not in self.held:
            self.large = None
            made = make()
            if made.nbytes > self.most:
                self.large = name, made
                return made
            self.held[name] = made
            self.bytes += made.nbytes
            while self.bytes > self.most:
                self.bytes -= self.held.popitem(last=False)[1].nbytes
        self.held.move_to_end(name)
        return self.held[name]


@dataclass(frozen=True)
class Stored:
    """A tensor of a file.

    Attributes:
        shape: as the config asks for it; compared with the file's when it is first made.
        dtype: that it is converted to.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    hot: Hot

    def __post_init__(self) -> None:
        read_tensors({self.name: self.path}, {self.name: self.shape})  # mapped, not read

    def __len__(self) -> int:
        return self.shape[0]

    def raw(self, first: int, last: int) -> torch.Tensor:
        """Rows as they are stored."""
        with safe_open(self.path, framework="pt") as file:
            rows: torch.Tensor = file.get_slice(self.name)[first:last]
        return rows

    def part(self, first: int, last: int) -> torch.Tensor:
        """Rows, converted."""
        name = self.path, self.name, first, last, self.dtype
        return self.hot.get(name, lambda: self.raw(first, last).to(self.dtype))

    def whole(self) -> torch.Tensor:
        """All of it, converted."""
        return self.part(0, len(self))

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows [S, H] of some ids [...]."""
        flat = rows.flatten().tolist()
        held = {row: self.raw(row, row + 1)[0].to(self.dtype) for row in dict.fromkeys(flat)}
        return torch.stack([held[row] for row in flat]).view(*rows.shape, *self.shape[1:])

    def multiplied(self, x: torch.Tensor) -> torch.Tensor:
        """W x: [..., in] to [..., out]."""
        edges = range(0, len(self), ROWS)
        return torch.cat([F.linear(x, self.part(first, min(first + ROWS, len(self)))) for first in edges], dim=-1)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """`F.linear` with a stored weight."""
        if func is not F.linear or not isinstance(args[1], Stored) or kwargs:
            return NotImplemented
        product, bias = args[1].multiplied(args[0]), args[2:]
        return product + bias[0] if bias and bias[0] is not None else product


@dataclass(frozen=True)
class StoredExperts:
    """The experts' matrices of a layer, each decoded when it is asked for: `[number]` is [in, out]."""

    parts: tuple[Stored, ...]
    hot: Hot

    def __getitem__(self, number: int) -> torch.Tensor:
        first = self.parts[0]
        name, layer = (first.path, first.name, number, first.dtype), first.name.rpartition(".")[0]
        return self.hot.get(name, lambda: self._decoded(number), layer, number)

    def _decoded(self, number: int) -> torch.Tensor:
        first, *scales = [part.raw(number, number + 1) for part in self.parts]
        dtype = self.parts[0].dtype
        return gpt_oss.decode_mxfp4(first, scales[0], dtype)[0] if scales else first[0].to(dtype)


class StoredLayer(Mapping[str, Any]):
    """A layer's weights by the names that `gpt_oss.layer` asks for."""

    def __init__(self, tensors: Mapping[str, Stored], hot: Hot):
        self.tensors, self.hot = tensors, hot

    def __getitem__(self, name: str) -> Any:
        if name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
            parts = [
                self.tensors[f"{name}{end}"] for end in ("", "_blocks", "_scales") if f"{name}{end}" in self.tensors
            ]
            return StoredExperts(tuple(parts), self.hot)
        return self.tensors[name].whole()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class StoredCheckpoint(gpt_oss.Checkpoint):
    """A gpt-oss checkpoint of which nothing large is read before it is used."""

    def __init__(self, folder: Path, dtype: torch.dtype, hot: Hot):
        super().__init__(folder, dtype)
        self.hot = hot

    def outer(self) -> dict[str, Any]:
        """Embedding and head stored, the norm read."""
        made: dict[str, Any] = self._stored(gpt_oss.outer_shapes(self.config))
        return made | {"model.norm.weight": made["model.norm.weight"].whole()}

    def layer(self, number: int) -> Any:
        """A layer, stored."""
        made = self._stored(gpt_oss.layer_shapes(self.config, number))
        return StoredLayer({name.removeprefix(f"model.layers.{number}."): one for name, one in made.items()}, self.hot)

    def _stored(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Stored]:
        return {name: Stored(self.shards[name], name, shape, self.dtype, self.hot) for name, shape in shapes.items()}


class StoredModule(nn.Module):
    """A linear layer without bias, or an embedding, whose table is stored."""

    def __init__(self, table: Stored, by_rows: bool):
        super().__init__()
        self.table, self.by_rows = table, by_rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ids [...] to rows, or [..., in] to [..., out]."""
        return self.table[x] if self.by_rows else self.table.multiplied(x)


def load_peagle(checkpoint: Path, dtype: torch.dtype, hot: Hot) -> PEagle:
    """The drafter with its large matrices stored.

    Raises:
        UsageError: a tensor is missing, surplus or of the wrong shape.
    """
    config, held = PEagleConfig.read(checkpoint), shards(checkpoint)
    names = {name: spelled(name, PEagle.layouts) for name in held}
    with torch.device("meta"):
        model = PEagle(config)
    wanted = model.state_dict()
    check_names(checkpoint, {names[name]: path for name, path in held.items()}, wanted, ("t2d", "d2t"))
    small: dict[str, torch.Tensor] = {}
    for name, path in held.items():
        ours = names[name]
        if wanted[ours].dim() == 2 and wanted[ours].numel() >= LARGE:
            parent, _, leaf = ours.removesuffix(".weight").rpartition(".")
            stored = Stored(path, name, tuple(wanted[ours].shape), dtype, hot)
            owner = model.get_submodule(parent)
            setattr(owner, leaf, StoredModule(stored, isinstance(getattr(owner, leaf), nn.Embedding)))
        else:
            read = read_tensors({name: path}, {name: wanted[ours].shape})[name]
            small[ours] = read.to(dtype) if read.is_floating_point() else read
    return _filled(model, config, small)


def _filled(model: PEagle, config: PEagleConfig, small: Mapping[str, torch.Tensor]) -> PEagle:
    """The small tensors in place, and what is computed."""
    model.d2t = torch.zeros(config.draft_vocab_size, dtype=torch.long)
    model.t2d = torch.ones(config.vocab_size, dtype=torch.bool)
    model.frequencies, model.rope_scale = schedule(config.rope, config.head_dim)
    model.load_state_dict(dict(small), strict=False, assign=True)
    return model.eval()
