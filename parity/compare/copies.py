"""Answers that were handed in: prompts whose tensors are the golden, or one of its floors, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from parity.compare.evidence import FEW
from parity.compare.flow import behind
from parity.compare.report import INCONCLUSIVE, NOT_JUDGED, StageResult, join
from parity.compare.rows import FLOOR, StageRows, stage_rows
from parity.golden.store import Dump
from parity.policy import Row
from parity.stages import Named

INNER = ("attn_out", "ffn_out")
"""Stages of several sums and a nonlinearity: two implementations give them other bits from the same input, while
a single sum, a norm or a residual may come out alike."""

DUE = 0.1
"""Share of elements in which the floor has to differ from the golden rounded once: where one rounding is all, equal
bits are no copy."""

FIRST = 8
"""Columns by which nearly every row is told from another."""

SHARE = 0.5
"""Share that has to be copies, of the rows of a prompt's prefill or of its later passes: a whole pass is judged, not a
row that came out alike. A clean implementation that rounds where the reference does has rows of the floor's own bits,
too, from the same input; `python benchmarks/copies.py` counts them."""

PASSES = ("prefill", "verify rounds")

Place = tuple[int, str, str]
"""A prompt, one of PASSES, and what the rows may be a copy of."""


class Copies:
    """Counts, stage by stage, the rows of each prompt's passes that are a copy of something in the golden.

    The prefill and what follows are counted apart: either has most of the rows in some prompt.
    """

    def __init__(self, golden: Dump, mode: str):
        self.golden, self.mode = golden, mode
        self.told: dict[Place, int] = {}
        self.alike: dict[Place, int] = {}
        self.stages: dict[Place, set[str]] = {}

    def look(self, rows: StageRows, row: Row) -> None:
        """One approximate stage; nothing where equal bits prove nothing."""
        if row.copies or not self._tells(rows.named):
            return
        due = _due(rows)
        for source, values in self._sources(rows):
            alike = due & _alike(values, rows.device)
            for prompt in np.unique(rows.prompt).tolist():
                for name, within in zip(PASSES, (rows.round == 0, rows.round > 0), strict=True):
                    here = within & (rows.prompt == prompt)
                    self._count(
                        (prompt, name, source), rows.named.name, int((due & here).sum()), int((alike & here).sum())
                    )

    def _count(self, place: Place, stage: str, told: int, alike: int) -> None:
        self.told[place] = self.told.get(place, 0) + told
        if alike:
            self.alike[place] = self.alike.get(place, 0) + alike
            self.stages.setdefault(place, set()).add(stage)

    def laid_on(self, results: Sequence[StageResult]) -> list[StageResult]:
        """The results, inconclusive where the stage of a prompt is a copy among many."""
        notes: dict[str, str] = {}
        for place, count in self.alike.items():
            if count >= SHARE * self.told[place]:
                prompt, passes, source = place
                rows = f"{count} of {self.told[place]} rows of its {passes}"
                note = f"prompt {prompt} is {source} bit for bit in {rows}: was the answer handed in?"
                notes = dict.fromkeys(self.stages[place], note) | notes
        return [_noted(result, notes[result.stage]) if result.stage in notes else result for result in results]

    def _tells(self, named: Named) -> bool:
        """Whether bits tell here: inside a layer's halves, and chained in all that is computed from them."""
        if named.stage.part in INNER or self.mode != "chained":
            return named.stage.part in INNER
        return any(self.golden.declared[name].stage.part in INNER for name in behind(named.name, self.golden.declared))

    def _sources(self, rows: StageRows) -> Iterator[tuple[str, np.ndarray]]:
        """What a device may be a copy of. A floor of the other mode is read inside the layers only: that tells enough."""
        yield "the golden", rows.golden.astype(rows.device.dtype)
        yield "the golden's noise floor", rows.floor
        if rows.named.stage.part not in INNER:
            return
        for variant in sorted({*FLOOR.values()} - {FLOOR[self.mode]}):
            other = stage_rows(self.golden, self.golden, rows.named, device=variant, mode=self.mode)
            if other is not None and other.device.shape == rows.device.shape:
                yield f"the golden's {variant} noise floor", other.device


def _due(rows: StageRows) -> np.ndarray:
    """Rows [R] of tensors in which more than one rounding lies between the golden and its floor."""
    due = np.zeros(len(rows.prompt), dtype=bool)
    changes = np.flatnonzero(np.diff(rows.prompt) | np.diff(rows.round)) + 1
    edges = [0, *changes.tolist(), len(rows.prompt)]
    for part in (slice(*pair) for pair in zip(edges, edges[1:], strict=False)):
        golden, floor = rows.golden[part], rows.floor[part]
        due[part] = golden.size >= FEW and float((golden.astype(floor.dtype) != floor).mean()) > DUE
    return due


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Rows [R] of the same values, whatever they are stored as; the first few of a row tell nearly always."""
    one, other = (side.reshape(len(side), -1) for side in (one, other))
    found = (one[:, :FIRST].astype(np.float32) == other[:, :FIRST].astype(np.float32)).all(axis=1)
    left = np.flatnonzero(found)
    found[left] = (one[left].astype(np.float32) == other[left].astype(np.float32)).all(axis=1)
    return found


def _noted(result: StageResult, note: str) -> StageResult:
    if result.verdict == NOT_JUDGED:
        return result
    return replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=result.note or note)
