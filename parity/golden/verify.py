"""A golden against a second dump of its case: the same tensors, byte for byte, or where they first part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.golden.fields import Variant
from parity.golden.manifest import TensorRow
from parity.golden.trust import changes, enumerated
from parity.golden.views import DumpView, TensorPlace
from parity.stages import dataflow

VARIANTS: tuple[Variant, ...] = ("float32", "bfloat16", "bfloat16.local")


RankPlace = tuple[Variant, int, int, str, int]
"""A `TensorPlace` and a rank."""


@dataclass(frozen=True)
class Verified:
    """Two dumps of one case: tensors compared, those that differ (the first one named), what else differs.

    `versions` are packages that differ between the two, `sources` the references' modules that changed since.
    """

    golden: str
    tensors: int
    differing: int
    first: str
    case: tuple[str, ...]
    versions: tuple[str, ...]
    sources: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 where all is alike, 1 where anything is not."""
        return 1 if self.differing or self.case else 0

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "exit_code": self.exit_code}


def check_bytes(golden: DumpView) -> None:
    """Every stored tensor is what its digest says.

    Raises:
        UsageError: one is not, or a checkpoint is not the one that was dumped.
    """
    changed = changes(golden).checkpoints
    if changed:
        raise UsageError(f"{golden.folder} is stale: {enumerated(changed)} changed since it was dumped")
    for place in golden.rows:
        golden.record(*place)


def write_prompts(golden: DumpView, path: Path) -> Path:
    """The golden's prompts as a prompts file of token ids: nothing is tokenised again."""
    lines = (json.dumps({"id": prompt.id, "ids": prompt.ids}) for prompt in golden.manifest.case.prompts)
    path.write_text("\n".join(lines) + "\n")
    return path


def verified(golden: DumpView, again: DumpView) -> Verified:
    """Compare the second dump with the first: tensors by digest, and what each prompt emitted."""
    pairs = [_rows(dump) for dump in (golden, again)]
    places = sorted(pairs[0].keys() | pairs[1].keys())
    differing = [place for place in places if pairs[0].get(place) != pairs[1].get(place)]
    order = {place: number for number, place in enumerate(_order(golden))}
    first = min(differing, key=lambda place: order.get(place[:4], len(order)), default=None)
    since = changes(golden)
    return Verified(
        golden=str(golden.folder),
        tensors=len(pairs[0]),
        differing=len(differing),
        first="" if first is None else _named(first, *(pair.get(first) for pair in pairs)),
        case=tuple(_case(golden, again)),
        versions=tuple(_versions(golden, again)),
        sources=since.sources,
        unknown=since.unknown,
    )


def _rows(dump: DumpView) -> dict[RankPlace, TensorRow]:
    """Rows by variant, prompt, round, stage and rank, without the shard they lie in."""
    return {(row.variant, *row.place, row.rank): row.model_copy(update={"shard": ""}) for row in dump.manifest.tensors}


def _order(golden: DumpView) -> Iterator[TensorPlace]:
    """Places in the order a reader looks for the cause: the truth before its floors, round by round, with the data."""
    rounds = 1 + max(round_ for _, _, round_, _ in golden.rows)
    for variant in VARIANTS:
        for round_ in range(rounds):
            for named in dataflow(golden.declared.values(), round_):
                for prompt in range(len(golden.manifest.case.prompts)):
                    yield variant, prompt, round_, named.name


def _named(place: RankPlace, before: TensorRow | None, now: TensorRow | None) -> str:
    variant, prompt, round_, stage, _ = place
    said = f"{stage} ({variant}), prompt {prompt}, round {round_}"
    if before is None or now is None:
        return f"{said}: only {'the second dump' if before is None else 'the golden'} has it"
    if (before.shape, before.dtype) != (now.shape, now.dtype):
        return f"{said}: {before.dtype} {list(before.shape)} became {now.dtype} {list(now.shape)}"
    return f"{said}: sha256 {before.sha256[:12]} became {now.sha256[:12]}"


def _case(golden: DumpView, again: DumpView) -> Iterator[str]:
    """What was asked for and what came out of it, but for the file the prompts were read from."""
    same = {"prompts_digest": ""}
    before, now = (dump.manifest.case.model_copy(update=same) for dump in (golden, again))
    for field in type(before).model_fields:
        if getattr(before, field) != getattr(now, field):
            yield f"{field} of the case"
    if golden.manifest.stages != again.manifest.stages:
        yield "the declared stages"


def _versions(golden: DumpView, again: DumpView) -> Iterator[str]:
    before, now = golden.manifest.producer, again.manifest.producer
    for name in sorted(before.versions.keys() | now.versions.keys()):
        if before.versions.get(name) != now.versions.get(name):
            yield f"{name} {before.versions.get(name)} to {now.versions.get(name)}"
    if before.platform != now.platform:
        yield f"{before.platform} to {now.platform}"
