"""What is done of a golden, kept beside it until it is whole: a dump that was killed goes on there.

Whole prompts are shards with a file that says so; of those under way, what was recorded lies in spools.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from parity import files, limits
from parity.errors import UsageError
from parity.golden import shards
from parity.golden.case import Generation
from parity.golden.fields import ManifestPart, Variant
from parity.golden.manifest import TensorRow
from parity.golden.spool import Spool, of_another
from parity.golden.writer import DumpWriter
from parity.progress import note


class Part(ManifestPart):
    """One prompt of a golden: the digest of what it is a part of, what was emitted, and its tensors."""

    golden: str
    generation: Generation
    tensors: tuple[TensorRow, ...]


class Parts:
    """The prompts of a golden that are done, in the folder `OUT.parts`.

    Args:
        golden: a digest of all that decides what the golden holds: checkpoints, prompts, options, sources.

    Raises:
        UsageError: the folder is of another golden.
    """

    def __init__(self, out: Path, golden: str):
        self.folder, self.golden = out.with_name(f"{out.name}.parts"), golden
        self.done = {
            number: part
            for number, part in ((int(path.stem[1:]), self._read(path)) for path in sorted(self.folder.glob("p*.json")))
            if part is not None
        }
        if self.done:
            note(f"{self.folder}: {len(self.done)} prompts are done already")

    def take(self, number: int, writer: DumpWriter) -> Generation | None:
        """Put a prompt that is done into the golden; None where it is not, or is damaged."""
        part = self.done.get(number)
        if part is None:
            return None
        names = {row.shard for row in part.tensors}
        for name in names:
            _link(self.folder / name, writer.partial / name)
        writer.adopt(part.tensors)
        return part.generation

    def keep(self, number: int, generation: Generation, writer: DumpWriter) -> None:
        """Keep a prompt that the golden has now: its shards first, then what says that they are whole."""
        rows = tuple(row for row in writer.rows if row.place[0] == number)
        self.folder.mkdir(exist_ok=True)
        for name in {row.shard for row in rows}:
            (self.folder / name).unlink(missing_ok=True)
            _link(writer.partial / name, self.folder / name)
        part = Part(golden=self.golden, generation=generation, tensors=rows)
        files.put(self.folder / f"p{number:03d}.json", part.model_dump_json().encode())
        for spool in self.folder.glob(f"p{number:03d}.*.spool"):
            spool.unlink()

    def spool(self, number: int, variant: Variant) -> Spool:
        """Where a prompt's stages are recorded until it is done: with what an earlier run of the command recorded.

        Raises:
            UsageError: another process records there, or it is of another golden.
        """
        self.folder.mkdir(exist_ok=True)
        spool = Spool(self.folder, f"p{number:03d}.{variant}.spool", self.golden)
        if spool:
            note(f"{spool.path}: {len(spool)} tensors are recorded already")
        return spool

    def remove(self) -> None:
        """Remove the folder: the golden is whole."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, path: Path) -> Part | None:
        """A part; None, and a sentence, where it or a tensor of it is damaged."""
        try:
            part = Part.model_validate_json(files.content(path, limits.MANIFEST_BYTES))
            names = {row.shard for row in part.tensors}
            held = {name: shards.read(files.inside(self.folder, name, str(path))) for name in names}
            whole = all(shards.digest(held[row.shard][row.key]) == row.sha256 for row in part.tensors)
        except (UsageError, ValidationError, KeyError):
            whole = False
        if not whole:
            note(f"{path} is damaged: its prompt is computed again")
            return None
        if part.golden != self.golden:
            raise UsageError(of_another(self.folder))
        return part


def _link(source: Path, place: Path) -> None:
    """The same file under another name; a copy where the file system has no links."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copyfile(source, place)
