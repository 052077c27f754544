"""Writing a dump folder, whole or not at all: tensors as shards, then the manifest."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from parity import files
from parity.errors import UsageError
from parity.golden import shards
from parity.golden.case import Case
from parity.golden.checkpoints import Model
from parity.golden.fields import Variant
from parity.golden.keeping import Keeping, packed, packed_floor
from parity.golden.manifest import FILE, Manifest, TensorRow, key
from parity.golden.producer import Producer
from parity.golden.ranks import REPLICATED, by_place, merged_row
from parity.partial import partial_folder, taken
from parity.sketch import Sketched
from parity.stages import Named
from parity.trace import Recorded

SHARD = 2**28
"""Bytes of tensors from which a shard is written and another one begun: so much of them is in memory at a time."""


@dataclass
class _Shard:
    """What goes into one file: the first of a prompt's variant, or one of those that follow it."""

    stem: str
    number: int = 0
    held: dict[str, NDArray[Any]] = field(default_factory=dict)
    bytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.stem}{f'.{self.number}' if self.number else ''}.safetensors"

    def hold(self, key: str, array: NDArray[Any]) -> str:
        """Take a tensor in; its digest."""
        self.held[key] = np.ascontiguousarray(array)
        self.bytes += array.nbytes
        return shards.digest(self.held[key])


class DumpWriter:
    """Collects shards in a temporary folder beside `out`; `finish` renames it, an exception removes it.

    Args:
        most: bytes of the whole folder that are never exceeded; no limit where None.
        keep: what is kept of each stage; all of it where None.
        lengths: tokens of each prompt, where `keep` says which positions are kept.
    """

    def __init__(self, out: Path, most: int | None = None, keep: Keeping | None = None, lengths: Sequence[int] = ()):
        if taken(out):
            raise UsageError(f"{out} exists already; choose another --out or remove it")
        self.out, self.most, self.bytes = out, most, 0
        self.keep, self.lengths = keep, lengths
        self.rows: list[TensorRow] = []

    def __enter__(self) -> Self:
        self._folder = partial_folder(self.out)
        self.partial = self._folder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.__exit__(kind, error, trace)

    def add(
        self,
        prompt: int,
        variant: Variant,
        stages: Iterable[Named],
        tensors: Mapping[tuple[int, str], NDArray[Any] | Sketched],
        rank: int = 0,
        sharding: Mapping[str, str] | None = None,
        whole: Recorded | None = None,
        truth: Recorded | None = None,
    ) -> None:
        """Write one prompt's tensors of one variant, as a shard or several; cache stages as what changed.

        Args:
            rank: of a tensor-parallel run; each rank is added alone.
            sharding: full stage name to how its ranks merge (see `TensorRow`); replicated where absent.
            whole: the merged tensors, which decide for all ranks alike what changed in a cache stage.
            truth: the whole tensors that a golden's noise floor is of, where less than these is kept.

        Raises:
            UsageError: a tensor is of a dtype that the format does not hold, or of ranks and less than whole.
        """
        by_name = {named.name: named for named in stages}
        shard = _Shard(f"p{prompt:03d}.{variant}{f'.rank{rank}' if rank else ''}")
        previous: dict[str, NDArray[Any] | Sketched] = {}
        for (round_, stage), value in tensors.items():
            start = 0
            if by_name[stage].stage.cache:
                merged = value if whole is None else whole[round_, stage]
                start = unchanged_rows(previous.get(stage), merged)
                previous[stage] = merged
            name = key(prompt, round_, stage)
            described = TensorRow(
                key=name,
                variant=variant,
                axes=by_name[stage].stage.axes,
                dtype=_dtype(value, f"{stage} came as {value.dtype}", f"(prompt {prompt}, round {round_})"),
                shape=(value.shape[0] - start, *value.shape[1:]),
                start=start,
                shard=shard.name,
                sha256="",
                rank=rank,
                sharding=(sharding or {}).get(stage, REPLICATED),
            )
            of = None if truth is None else truth.get((round_, stage))
            digest = shard.hold(name, self._kept(described, value, of))
            self.rows.append(described.model_copy(update={"sha256": digest}))
            if shard.bytes >= SHARD:
                self._write(shard)
                shard = _Shard(shard.stem, shard.number + 1)
        if shard.held or not shard.number:
            self._write(shard)

    def _write(self, shard: _Shard) -> None:
        self._take(shard.bytes, shard.name)
        shards.write(self.partial / shard.name, shard.held)
        self._take((self.partial / shard.name).stat().st_size - shard.bytes, shard.name)

    def _kept(self, row: TensorRow, value: NDArray[Any] | Sketched, truth: NDArray[Any] | None) -> NDArray[Any]:
        """What is stored of a tensor; of a floor's where there is a `truth`."""
        if not self.keep:
            if isinstance(value, Sketched):
                raise UsageError(f"{row.place[2]} came as a sketch, and nobody asked for one")
            return value[row.start :]
        if row.rank or row.sharding != REPLICATED:
            raise UsageError(f"{row.place[2]} is of ranks: sketches, best logits and positions are of devices without")
        stage, form = row.place[2], self.keep.form(row.place[2], row.full_shape)
        index = self.keep.rows(row, self.lengths[row.place[0]])
        if isinstance(value, Sketched):
            if not form.sketch or form.top or value.numbers.shape != (value.shape[0], form.columns(False)):
                raise UsageError(f"{stage} came as a sketch of another size than was asked for")
            return value.numbers[index]
        if not form:
            return value[index]
        return packed(form, value[index]) if truth is None else packed_floor(form, truth[index], value[index])

    def adopt(self, rows: Iterable[TensorRow]) -> None:
        """Count in shards that lie in the folder already, with their rows."""
        rows = tuple(rows)
        for shard in sorted({row.shard for row in rows}):
            self._take((self.partial / shard).stat().st_size, shard)
        self.rows.extend(rows)

    def _take(self, size: int, what: str) -> None:
        """So many bytes are about to be written.

        Raises:
            UsageError: that is more than there may be.
        """
        self.bytes += size
        if self.most is not None and self.bytes > self.most:
            raise UsageError(f"--max-bytes {self.most}: {what} would make it {self.bytes} bytes; nothing was written")

    def finish(
        self,
        *,
        kind: Literal["golden", "run"],
        stages: Iterable[str],
        created: str,
        producer: Producer,
        model: Model,
        case: Case,
        derived: str = "",
    ) -> Manifest:
        """Write the manifest and put the folder in place, whole; `stages` is what was asked for, the contract.

        Raises:
            UsageError: ranks do not merge: nothing could read such a folder.
        """
        for parts in by_place(self.rows).values():
            merged_row(parts)
        manifest = Manifest(
            kind=kind,
            created=created,
            producer=producer,
            model=model,
            case=case,
            derived=derived,
            stages=tuple(stages),
            tensors=tuple(self.rows),
        )
        written = manifest.written()
        self._take(len(written), FILE)
        files.put(self.partial / FILE, written)
        try:
            self.partial.rename(self.out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise UsageError(f"{self.out} was written meanwhile by another command; this one's is dropped") from None
        return manifest


def _dtype(value: NDArray[Any] | Sketched, came: str, place: str) -> str:
    """The name of a tensor's dtype.

    Raises:
        UsageError: the format does not hold it.
    """
    if isinstance(value, Sketched):
        return value.dtype
    if value.dtype not in shards.DTYPES.values():
        raise UsageError(f"{came}, which the format does not hold {place}")
    return value.dtype.name


def unchanged_rows(before: NDArray[Any] | Sketched | None, now: NDArray[Any] | Sketched) -> int:
    """Leading rows that are bit for bit those of the round before: none where their dtype or shape is another one."""
    if isinstance(before, Sketched) and isinstance(now, Sketched):
        before, now = before.numbers, now.numbers
    if before is None or isinstance(before, Sketched) or isinstance(now, Sketched):
        return 0
    if (before.dtype, before.shape[1:]) != (now.dtype, now.shape[1:]):
        return 0
    common = min(len(before), len(now))
    width = before[:1].nbytes
    old, new = (np.ascontiguousarray(x[:common]).view(np.uint8).reshape(common, width) for x in (before, now))
    differing = np.flatnonzero((old != new).any(axis=1))
    return int(differing[0]) if differing.size else common
