"""The manifest of a dump: what was run, which stages were declared, and one row per tensor.

The JSON Schema of `Manifest` is published in docs/golden.schema.json; a test keeps it current.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import FailFast, Field, StringConstraints

from parity import files, limits
from parity.golden.case import Case
from parity.golden.case import Generation as Generation  # captures of vLLM: their goldens hold their digests
from parity.golden.checkpoints import Model
from parity.golden.digests import UNSEALED, sealed
from parity.golden.fields import Axes, Line, ManifestPart, Shape, Size, TensorKey, Variant
from parity.golden.keeping import Keeping
from parity.golden.producer import Corroboration
from parity.golden.producer import Producer as Producer  # as well
from parity.kv_cache import of_drafter
from parity.stages import Named, declared

SCHEMA_VERSION: Literal[2] = 2
FILE = "manifest.json"


class TensorRow(ManifestPart):
    """One stored tensor.

    `start` is 0 except for cache stages, where rows below it are those of the round before. A tensor of a
    tensor-parallel run has one row per `rank`; `sharding` tells how they merge: an axis letter
    (concatenated along it in rank order; `G/2`: two neighbouring ranks each hold the same), `sum` (partial
    sums), or `replicated` (all alike).
    """

    key: TensorKey
    variant: Variant
    axes: Axes
    dtype: Line
    shape: Shape
    start: Size
    shard: Line
    sha256: str
    rank: Annotated[int, Field(ge=0, lt=limits.RANKS)] = 0
    sharding: Line = "replicated"

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor, the rows of earlier rounds included."""
        return (self.start + self.shape[0], *self.shape[1:])

    @cached_property
    def place(self) -> tuple[int, int, str]:
        """Prompt number, round number and stage name, out of the key, which no copy of a row changes."""
        prompt, round_, stage = self.key.split("/")
        return int(prompt[1:]), int(round_[1:]), stage


class Manifest(ManifestPart):
    """The whole of manifest.json; `corroborations` are added by `parity corroborate`.

    `derived` says what a golden was cut from, and by what: it judges where it is named, never by default.

    `digest` is the sha256 of the file's bytes with 64 zeros in its own place.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    kind: Literal["golden", "run"]
    created: Line
    producer: Producer
    model: Model
    case: Case
    derived: Line = ""
    stages: Annotated[tuple[Line, ...], FailFast()]
    tensors: Annotated[tuple[TensorRow, ...], FailFast()]
    corroborations: tuple[Corroboration, ...] = ()
    digest: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] = UNSEALED

    @property
    def table(self) -> dict[str, Named]:
        """Every stage of its pair and case, by full name."""
        model = self.model
        kept = bool(self.case.partial_kv), of_drafter(self.case.kv_cache)
        return declared(model.num_layers, model.num_drafter_layers, model.family, *kept)

    @property
    def keeping(self) -> Keeping:
        """What it keeps of each stage."""
        return Keeping(self.case.kept, self.case.positions, self.table)

    def written(self) -> bytes:
        """The bytes of manifest.json, with their digest."""
        return sealed(self.model_dump(mode="json"))

    def replace(self, folder: Path) -> None:
        """Write this over `folder`/manifest.json: the old one or the new one is there, never half of one."""
        files.put(folder / FILE, self.written())


def key(prompt: int, round_: int, stage: str) -> str:
    """The name of a tensor in its shard."""
    return f"p{prompt:03d}/r{round_:04d}/{stage}"
