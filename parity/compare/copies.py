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
a single sum, a norm or a residual may come out alike. Of clean devices at most 47 % of such a tensor's elements are
the golden's or the floor's in either precision and mode, and no whole tensor of the
numpy and xla engines' 8,000."""

DUE = 0.1
"""Share of elements in which the floor has to differ from the golden rounded once: where one rounding is all, equal
bits are no copy."""

SHARE = 0.5
"""Share that has to be copies, of a prompt's tensors compared with one source: a whole prompt is judged, not a tensor
that came out alike. A clean implementation that rounds in the places in which the reference does has the floor's own
bits in 15 % of its local tensors (drafter rows by the handful, from the same input); in a prompt that was handed in all
of them are."""


class Copies:
    """Counts, stage by stage, the tensors of each prompt that are a copy of something in the golden."""

    def __init__(self, golden: Dump, mode: str):
        self.golden, self.mode = golden, mode
        self.told: dict[tuple[int, str], int] = {}
        self.alike: dict[tuple[int, str], int] = {}
        self.stages: dict[tuple[int, str], set[str]] = {}

    def look(self, rows: StageRows, row: Row) -> None:
        """One approximate stage; nothing where equal bits prove nothing."""
        if row.copies or not self._tells(rows.named):
            return
        parts = _tensors(rows)
        due = [part for part in parts if _due(rows.golden[part], rows.floor[part])]
        for source, values in self._sources(rows):
            for part in due:
                place = int(rows.prompt[part.start]), source
                self.told[place] = self.told.get(place, 0) + 1
                if _same(values[part], rows.device[part]):
                    self.alike[place] = self.alike.get(place, 0) + 1
                    self.stages.setdefault(place, set()).add(rows.named.name)

    def laid_on(self, results: Sequence[StageResult]) -> list[StageResult]:
        """The results, inconclusive where the stage of a prompt is a copy among many."""
        notes: dict[str, str] = {}
        for (prompt, source), count in self.alike.items():
            told = self.told[prompt, source]
            if count >= SHARE * told:
                note = f"prompt {prompt} is {source} bit for bit in {count} of {told} tensors: was the answer handed in?"
                notes = {stage: note for stage in self.stages[prompt, source]} | notes
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


def _tensors(rows: StageRows) -> list[slice]:
    """The rows of each prompt and round."""
    changes = np.flatnonzero(np.diff(rows.prompt) | np.diff(rows.round)) + 1
    edges = [0, *changes.tolist(), len(rows.prompt)]
    return [slice(*pair) for pair in zip(edges, edges[1:], strict=False)]


def _due(golden: np.ndarray, floor: np.ndarray) -> bool:
    """Whether more than one rounding lies between the golden and its floor."""
    return golden.size >= FEW and float((golden.astype(floor.dtype) != floor).mean()) > DUE


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """The same values, whatever they are stored as; the first row tells nearly always."""
    first, second = (side[:1].astype(np.float32) for side in (one, other))
    return np.array_equal(first, second) and np.array_equal(one.astype(np.float32), other.astype(np.float32))


def _noted(result: StageResult, note: str) -> StageResult:
    if result.verdict == NOT_JUDGED:
        return result
    return replace(result, verdict=join([result.verdict, INCONCLUSIVE]), note=result.note or note)
