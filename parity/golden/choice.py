"""Which golden is meant: the one named, or the newest that stands for a whole case; and where its checkpoints are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from parity.errors import UsageError
from parity.golden.checkpoints import Checkpoint, Model
from parity.golden.manifest import FILE, Manifest
from parity.golden.provenance import checkpoint
from parity.golden.reading import read_manifest
from parity.golden.store import Dump
from parity.golden.trust import DIGESTS, OpenedGolden, trusted

SIDES = ("target", "drafter")


@dataclass(frozen=True)
class Wanted:
    """What a user names: a golden's folder, and checkpoints that moved; each may be None."""

    golden: Path | None = None
    target: Path | None = None
    drafter: Path | None = None


def choose(wanted: Wanted, goldens: Path) -> tuple[Dump, str]:
    """The golden that is meant, to look at, its checkpoints where they are now; and in a few words why it is this one.

    Args:
        goldens: the folder whose newest golden is the default.

    Raises:
        UsageError: there is none, the folder is a device's run, or a named checkpoint is not the golden's.
    """
    dump, why = (Dump(wanted.golden), "named") if wanted.golden else newest(goldens)
    if dump.manifest.kind != "golden":
        raise UsageError(f"{dump.folder} is a device's run, not a golden; a golden comes from a reference only")
    return dump.with_checkpoints(_located(dump, wanted)), why


def open_for_judging(wanted: Wanted, goldens: Path, sampled: bool = False, smaller: bool = False) -> OpenedGolden:
    """The golden to judge by, checked: see `choose` and `parity.golden.trust.trusted`.

    Raises:
        UsageError: as both.
    """
    return trusted(choose(wanted, goldens)[0], sampled, smaller)


def newest(goldens: Path) -> tuple[Dump, str]:
    """Of the goldens in a folder that stand for a whole case, the one that was dumped last; and of how many.

    Marks of `parity corroborate` are written later, and make no golden newer.

    Raises:
        UsageError: there is none, or the newest cannot be read.
    """
    apart: list[str] = []
    paths = [path for path in goldens.glob(f"*/{FILE}") if not path.parent.name.startswith(".")]
    for path in sorted(paths, key=_dumped, reverse=True):
        manifest = read_manifest(path.parent)
        if not (why := special(manifest)):
            others = f"; set apart: {_enumerated(apart)}" if apart else ""
            return Dump(path.parent, manifest), f"the newest of {len(paths)} in {goldens}{others}"
        apart.append(f"{path.parent.name}, which {why}")
    others = f": {_enumerated(apart)}" if apart else ""
    raise UsageError(
        f"no golden of a whole case in {goldens}{others}; make one with `parity dump-golden`, or name --golden DIR"
    )


def _dumped(path: Path) -> tuple[str, int]:
    """When a golden says it was dumped, then when it was written; only the latter where it cannot be read."""
    written = path.stat().st_mtime_ns
    try:
        return read_manifest(path.parent).created, written
    except UsageError:
        return datetime.fromtimestamp(written / 1e9, UTC).isoformat(timespec="seconds"), written


def special(manifest: Manifest) -> str:
    """Why a dump is none to judge by unless it is named, in words; '' where nothing speaks against it."""
    every = manifest.table
    missing = len(every.keys() - set(manifest.stages))
    reasons = {
        "is a device's run": manifest.kind != "golden",
        f"is {manifest.derived}": bool(manifest.derived),
        "samples": bool(manifest.case.sampling),
        "keeps less than whole tensors": bool(manifest.case.kept or manifest.case.positions),
        "is imported": not manifest.producer.modules,
        f"lacks {missing} of {len(every)} stages": bool(missing),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _enumerated(names: list[str], most: int = 3) -> str:
    return "; ".join(names[:most]) + (f"; and {len(names) - most} more" if len(names) > most else "")


def _located(dump: Dump, wanted: Wanted) -> Model:
    """The pair of checkpoints with their folders as they are now."""
    model = dump.manifest.model
    places = {side: _place(dump, side, getattr(wanted, side)) for side in SIDES}
    moved = {side: getattr(model, side).model_copy(update={"path": str(place)}) for side, place in places.items()}
    return model.model_copy(update=moved)


def _place(dump: Dump, side: str, named: Path | None) -> Path:
    """Where the checkpoint of one side is: as named, or as recorded.

    Raises:
        UsageError: what is named is another checkpoint.
    """
    known: Checkpoint = getattr(dump.manifest.model, side)
    if named is None:
        recorded = Path(known.path)
        return recorded if recorded.is_absolute() else next(_below(dump.folder, recorded), recorded)
    now = checkpoint(named)
    if other := [what for field, what in DIGESTS.items() if getattr(now, field) != getattr(known, field)]:
        raise UsageError(
            f"--{side} {named} is not the {side} that {dump.folder} was dumped from: its {', '.join(other)} differ"
        )
    return Path(os.path.realpath(named))


def _below(folder: Path, recorded: Path) -> Iterator[Path]:
    """A relative path, as a golden handed on beside its checkpoints has it: from here, or from around the dump."""
    places = (above / recorded for above in (Path.cwd(), *folder.resolve().parents))
    yield from (place for place in places if (place / "config.json").is_file())
