"""What a reader of another tool's dump yields: tensors by the tool's own names, read when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

TorchLoad = Callable[[Path | BinaryIO, str], Any]
"""Reads a torch file given open or by path, and named for sentences; tensors and plain containers only."""


@dataclass(frozen=True)
class Captured:
    """One tensor of one rank.

    Args:
        name: as the tool has it; what the rows of a map are matched against.
        source: the file it lies in, for sentences.
        load: reads it.
        rank: of a tensor-parallel run.
        step: the tool's own count of forward passes; None where it keeps none.
    """

    name: str
    source: str
    load: Callable[[], NDArray[Any]]
    rank: int = 0
    step: int | None = None


Reader = Callable[[Sequence[Path], TorchLoad], Iterable[Captured]]
"""Lists what the named files and folders hold; reads only the tensors that are asked for, where the format allows."""


def numbered(tensors: Iterable[Captured]) -> Iterator[Captured]:
    """Names that come again in one step of one rank get ` #1`, ` #2`, … in the order they came."""
    seen: Counter[tuple[str, int, int | None]] = Counter()
    for tensor in tensors:
        place = tensor.name, tensor.rank, tensor.step
        yield replace(tensor, name=f"{tensor.name} #{seen[place]}") if seen[place] else tensor
        seen[place] += 1
