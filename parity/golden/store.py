"""Opening a dump folder: every tensor is checked against its digest as it is read."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity import files, limits
from parity.errors import UsageError
from parity.golden import shards
from parity.golden.aligned import refuse_misaligned
from parity.golden.case import declared_shown
from parity.golden.checkpoints import Model
from parity.golden.consistent_tensors import refuse_untold
from parity.golden.digests import sealed
from parity.golden.fields import Variant
from parity.golden.keeping import WHOLE, Form, Record
from parity.golden.manifest import FILE, SCHEMA_VERSION, Manifest, TensorRow
from parity.golden.ranks import by_place, merge, merged_row
from parity.golden.reading import checked_manifest, read_manifest
from parity.golden.views import DumpView, TensorPlace
from parity.golden.writer import DumpWriter as DumpWriter  # captures of vLLM: their goldens hold their digests
from parity.reproducing import quoted
from parity.shown import there
from parity.stages import TARGET_EMBED


class Dump(DumpView):
    """A dump folder, opened to look at; `parity.golden.trust` opens a golden to judge by.

    Args:
        folder: of `manifest.json` and the shards.
        manifest: where it was read already.

    Raises:
        UsageError: it is none, or a golden's tensors contradict its manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None):
        manifest = manifest or read_manifest(folder)
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
    dump = Dump(folder, checked_manifest(data, path))
    files.put(path, data)
    return dump
