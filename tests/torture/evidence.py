"""Evidence opened to be edited: the manifest as plain data, the tensors as arrays, digests made right again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from parity.golden import shards
from tests.torture.bases import manifest, rewrite, sealed

Place = tuple[str, int, int, str]
"""Variant, prompt, round, stage."""


class Evidence:
    """A golden or run folder, edited as somebody would who knows the format.

    Attributes:
        data: the manifest.
        rows: the manifest's row of each place.
        arrays: a tensor of each place, to be replaced or changed in place.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.data = manifest(folder)
        self.rows = {_place(row): row for row in self.data["tensors"]}
        files = {name: shards.read(folder / name) for name in {row["shard"] for row in self.data["tensors"]}}
        self.arrays = {_place(row): np.array(files[row["shard"]][row["key"]]) for row in self.data["tensors"]}

    def places(self, stage: str, variant: str | None = None) -> list[Place]:
        """Every place of a stage."""
        return [place for place in self.arrays if place[3] == stage and variant in (None, place[0])]

    def stages(self, kind: str = "") -> list[str]:
        """Stages that have tensors: all, those of floats ('f') or of integers ('i')."""
        found = {place[3]: array.dtype.kind in "iu" for place, array in self.arrays.items()}
        return [stage for stage in self.data["stages"] if stage in found and kind in ("", "i" if found[stage] else "f")]

    def prompts(self) -> list[dict]:
        """The prompts of the case, with what each emitted."""
        return self.data["case"]["prompts"]

    def drop(self, place: Place) -> None:
        """Take a tensor out of the manifest and out of its shard."""
        del self.arrays[place]
        self.data["tensors"].remove(self.rows.pop(place))

    def save(self) -> None:
        """Write manifest and shards anew: dtype, shape and sha256 are those of the arrays."""
        files: dict[str, dict[str, np.ndarray]] = {}
        for place, row in self.rows.items():
            array = np.ascontiguousarray(self.arrays[place])
            data = hashlib.sha256(array.tobytes()).hexdigest()
            row |= {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": data}
            files.setdefault(row["shard"], {})[row["key"]] = array
        for name, tensors in files.items():
            rewrite(self.folder / name, save(tensors))
        rewrite(self.folder / "manifest.json", sealed(self.data))


def both(work: Path) -> tuple[Evidence, Evidence]:
    """Golden and run of an attempt."""
    return Evidence(work / "golden"), Evidence(work / "run")


def truth(golden: Evidence, run: Evidence, stage: str) -> Iterator[tuple[Place, np.ndarray]]:
    """The run's places of a stage, each with the golden's float32 tensor."""
    for place in run.places(stage):
        yield place, golden.arrays["float32", *place[1:]]


def _place(row: dict) -> Place:
    prompt, round_, stage = row["key"].split("/")
    return row["variant"], int(prompt[1:]), int(round_[1:]), stage
