"""Writing and reading a dump folder: atomic on the way in, checked against its digests on the way out."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from parity import files, limits
from parity.errors import UsageError
from parity.golden import shards
from parity.golden.aligned import refuse_misaligned
from parity.golden.consistent import refuse_untold
from parity.golden.digests import sealed
from parity.golden.keeping import WHOLE, Form, Keeping, Record, packed, packed_floor
from parity.golden.manifest import (
    FILE,
    SCHEMA_VERSION,
    Case,
    Manifest,
    Model,
    Producer,
    TensorRow,
    Variant,
    declared_shown,
    key,
)
from parity.golden.shards import REPLICATED, merge, merged_row
from parity.golden.views import DumpView, TensorPlace
from parity.partial import partial_folder, taken
from parity.reproducing import quoted
from parity.shown import there
from parity.sketch import Sketched
from parity.stages import TARGET_EMBED, Named
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


def by_place(rows: Iterable[TensorRow]) -> dict[TensorPlace, list[TensorRow]]:
    """The rows of each variant, prompt, round and stage, in the order of their ranks."""
    grouped: dict[TensorPlace, list[TensorRow]] = {}
    for row in sorted(rows, key=lambda row: row.rank):
        grouped.setdefault((row.variant, *row.place), []).append(row)
    return grouped


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


class Dump(DumpView):
    """A dump folder, opened to look at; `parity.golden.trust` opens a golden to judge by.

    Args:
        folder: of `manifest.json` and the shards.
        manifest: where it was read already.

    Raises:
        UsageError: it is none, or a golden's tensors contradict its manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None):
        manifest = manifest or Manifest.read(folder)
        names = manifest.table
        super().__init__(folder, manifest, names, {}, {})
        self.index()
        self.keeping = manifest.keeping
        self._shards: dict[str, dict[str, NDArray[Any]]] = {}
        self.asked = ""
        self._verified: dict[TensorPlace, NDArray[Any]] = {}
        if manifest.kind == "golden":
            refuse_untold(self)

    def index(self) -> None:
        """Group the manifest's rows by place."""
        self.parts = by_place(self.manifest.tensors)
        self.rows = {place: merged_row(parts) for place, parts in self.parts.items()}

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> NDArray[Any] | None:
        """The stored rows of a tensor, its ranks merged; read and checked once."""
        place = (variant, prompt, round_, stage)
        if self.keeps and place in self.rows and (less := self._less(place)):
            raise UsageError(f"{self.folder} keeps {less} of {stage}: what is asked for needs the whole tensor")
        return self._read(place)

    def _read(self, place: TensorPlace) -> NDArray[Any] | None:
        """What is stored of a tensor, its ranks merged."""
        if place not in self._verified:
            if place not in self.rows:
                return None
            self._verified[place] = merge(self.parts[place], self.shards(*place))
        return self._verified[place]

    def record(self, variant: Variant, prompt: int, round_: int, stage: str) -> Record | None:
        """What is held of a tensor's stored rows; read and checked once."""
        place = (variant, prompt, round_, stage)
        rows = self._read(place)
        return None if rows is None else Record(self._index(self.rows[place]), rows, self._form(self.rows[place]))

    def _form(self, row: TensorRow) -> Form:
        return self.keeping.form(row.place[2], row.full_shape) if self.keeps else WHOLE

    def _index(self, row: TensorRow) -> NDArray[np.int64]:
        """Numbers of the rows that are held of a tensor, counted in the whole one."""
        if not self.keeps:
            return row.start + np.arange(row.shape[0])
        return self.keeping.rows(row, len(self.manifest.case.prompts[row.place[0]].ids))

    def _less(self, place: TensorPlace) -> str:
        """What less than the whole tensor is kept, in words; '' where it is whole."""
        row = self.rows[place]
        if form := self._form(row):
            return f"a sketch of {form.sketch} numbers a row" if form.sketch else f"the {form.top} best a row"
        return "some rows" if len(self._index(row)) < row.shape[0] else ""

    def shards(self, variant: Variant, prompt: int, round_: int, stage: str) -> list[NDArray[Any]]:
        """Each rank's stored rows of a tensor, checked against the manifest."""
        return [self.read(row) for row in self.parts.get((variant, prompt, round_, stage), ())]

    def read(self, row: TensorRow) -> NDArray[Any]:
        """One rank's tensor, checked against its row.

        Raises:
            UsageError: the shard lacks it, or its bytes do not match the manifest's digest.
        """
        array = self._shard(row.shard).get(row.key)
        if array is None:
            raise UsageError(f"{self.folder / row.shard} lacks tensor {row.key}, which the manifest lists")
        if (array.shape, shards.NAMES[array.dtype]) != self._stored_as(row) or shards.digest(array) != row.sha256:
            raise UsageError(f"{self.folder / row.shard}: tensor {row.key} does not match the manifest's digest")
        return array

    def _stored_as(self, row: TensorRow) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of what stands in a shard for a tensor."""
        if not self.keeps:
            return row.shape, row.dtype
        count = len(self._index(row))
        if form := self._form(row):
            floor = self.manifest.kind == "golden" and row.variant != "float32"
            return (count, form.columns(floor)), "float32"
        return (count, *row.shape[1:]), row.dtype

    def _shard(self, name: str) -> dict[str, NDArray[Any]]:
        if name not in self._shards:
            self._shards[name] = shards.read(files.inside(self.folder, name, str(self.folder / FILE)))
        return self._shards[name]

    def with_checkpoints(self, model: Model) -> Dump:
        """The same dump, its pair of checkpoints described anew: where they are now."""
        moved = copy(self)
        moved.manifest = self.manifest.model_copy(update={"model": model})
        return moved

    def partial(self, golden: DumpView) -> Dump:
        """The same run, said to show what it holds and no more; it is one over the golden's tokens.

        Raises:
            UsageError: it declares what it shows, or its embeddings are of other tokens.
        """
        case, sizes = self.manifest.case, _sizes(self)
        if case.shown:
            raise UsageError(f"--partial: {self.folder} declares what it shows, and is judged by that: leave it out")
        refuse_misaligned(golden, self._embeddings(), str(self.folder), True)
        held = {stage for _, _, stage in sizes}
        if owed := [name for name in self.manifest.stages if name not in held]:
            raise UsageError(f"--partial: {self.folder} lists {min(owed)} as recorded and has no tensor of it")
        made = copy(self)
        made.__dict__.pop("view", None)
        shown = declared_shown(there(sizes, _sizes(golden), self.declared))
        made.manifest = self.manifest.model_copy(update={"case": case.model_copy(update={"shown": shown})})
        made.asked = " --partial"
        return made

    def _embeddings(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        for variant, prompt, round_, stage in self.rows:
            rows = self.contents(variant, prompt, round_, stage) if stage == TARGET_EMBED else None
            if rows is not None:
                yield prompt, round_, rows

    @property
    def command(self) -> str:
        """How a command names this dump, with what was asked of it."""
        return quoted(self.folder) + self.asked


def _sizes(dump: DumpView) -> dict[tuple[int, int, str], int]:
    """Rows of every tensor of a run, or of the truth of a golden."""
    variant = dump.manifest.case.precision
    return {place[1:]: row.full_shape[0] for place, row in dump.rows.items() if place[0] == variant and row.full_shape}


def seal(folder: Path) -> Dump:
    """Give the manifest of an older parity, or of a program of one's own, its version and digest.

    Raises:
        UsageError: it is none, or contradicts itself or its tensors; nothing is changed.
    """
    path = files.inside(folder, FILE, str(folder))
    raw = files.parsed(files.content(path, limits.MANIFEST_BYTES), str(path))
    if not isinstance(raw, dict):
        raise UsageError(f"{path} holds no JSON object")
    data = sealed(raw | {"schema_version": SCHEMA_VERSION})
    dump = Dump(folder, Manifest.checked(data, path))
    files.put(path, data)
    return dump
