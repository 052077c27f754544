"""What has to hold after every verb, whatever was accepted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from parity.compare.report import Place
from parity.families import BLOCK, MODEL, family_of
from parity.gates.rollback.baseline import FLOAT32_BOUND, Baseline, row_errors
from parity.gates.rollback.kept import KeptRows
from parity.gates.rollback.sameness import BitExact, RepeatComparison, changed_row
from parity.gates.rollback.shown_caches import require_caches
from parity.seam import Device
from parity.shown import stages_of
from parity.stages import DRAFTER_INPUT_IDS, DRAFTER_LOGITS, DRAFTER_POSITIONS, DRAFTER_SLOTS


class InvariantBroken(Exception):
    """An invariant does not hold.

    Args:
        aspect: `rows` (lengths, tokens, contents bit for bit), `state` (against the never-speculated run), or
            `again` (a verb that was called again did something else).
    """

    def __init__(self, aspect: str, message: str, place: Place | None = None):
        super().__init__(message)
        self.aspect, self.message, self.place = aspect, message, place


@dataclass
class Coverage:
    """What the histories covered."""

    rounds: int = 0
    longest: int = 0
    accepted: Counter[tuple[int, int]] = field(default_factory=Counter)
    poisoned: Counter[float] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    worst: tuple[float, str] = (0.0, "nothing")
    rows: int = 0


@dataclass
class SequenceState:
    """The sequence in the device, as it has to be; `cached` are the rows of its drafter's cache."""

    baseline: Baseline
    budget: int
    emitted: list[int]
    cached: int
    drafting: bool = True
    round: int = 0
    caches: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Rows of the target's cache: all tokens but the last."""
        return len(self.baseline.ids) + len(self.emitted) - 1

    def known(self, first: int, count: int) -> list[int]:
        """Tokens of the sequence from place `first` on."""
        return [*self.baseline.ids, *self.emitted][first : first + count]


class Invariants:
    """The sequence in a device, compared with what it has to be.

    Args:
        exact: only what holds bit for bit, in any precision; without the never-speculated state.
        same: how a verb that is called again is compared with the first time. What stays in a cache is never computed
            again, and has the same bits on any device.
        kept: what the golden's caches keep of a row, where they are quantised.
    """

    sequence: SequenceState

    def __init__(self, device: Device, exact: bool, same: RepeatComparison | None = None, kept: KeptRows | None = None):
        says = device.describe()
        self.device, self.exact, self.coverage = device, exact, Coverage()
        self.kept = kept
        self.same = same or BitExact()
        self.k, self.eos, self.varies = says.k, says.eos, says.varies_k
        self.family = family_of(says.family)
        self.names = stages_of(says)

    @property
    def committed(self) -> int:
        """C of the next drafter pass."""
        return self.family.committed(self.sequence.length, self.sequence.cached)

    def drafter_rows(self, tensors: dict[str, np.ndarray], k: int) -> None:
        """Committed rows are the tokens that are not cached, in the slots behind the cache's rows; then the logits.

        Of a block the ids are the last token's alone. Rows behind the committed ones are as many as K of this round
        asks for.
        """
        sequence = self.sequence
        start, count = sequence.cached, self.committed
        block = BLOCK in self.family.has
        ids = sequence.known(sequence.length, 1) if block else sequence.known(start + self.family.ahead, count)
        for stage, expected in (
            (DRAFTER_INPUT_IDS, ids),
            (DRAFTER_POSITIONS, list(range(start, start + count))),
            (DRAFTER_SLOTS, list(range(start, start + count))),
        ):
            given = tensors.get(stage, np.array(expected))[: len(expected)].tolist()
            if given != expected:
                message = f"{stage} of the committed rows is {given}, not {expected}"
                raise InvariantBroken("rows", message, self.place(stage, start))
        same = k == self.k or (k and not block)  # in a block each row sees how many there are
        true = sequence.baseline.drafts.get(sequence.length) if same and not self.exact else None
        if true is not None:
            self._compare(DRAFTER_LOGITS, tensors[DRAFTER_LOGITS], true, start)

    def tokens(self, chosen: list[int], position: int, stage: str) -> None:
        """Greedy ids of true rows, from this position on, are the text's, or as high as those."""
        if self.exact:
            return
        baseline = self.sequence.baseline
        for row, token in enumerate(chosen, position):
            if token != baseline.text[row + 1] and not baseline.tie(row, token):
                message = (
                    f"{stage} row {row} is {token}; never having speculated the device says {baseline.text[row + 1]}"
                )
                raise InvariantBroken("state", message, self.place(stage, row))

    def caches(self, tensors: dict[str, np.ndarray], verified: dict[str, np.ndarray] | None = None) -> None:
        """Lengths, kept rows, new rows of what is shown of them."""
        sequence = self.sequence
        require_caches(self.device, tensors)
        drafter = sequence.cached if sequence.drafting and MODEL in self.family.has else None
        for side, length in (("target", sequence.length), ("drafter", drafter)):
            if length is None:
                continue
            if f"kv.{side}.length" in tensors:
                self._length(f"kv.{side}.length", tensors, length)
            for stage in (s for s in tensors if s.startswith(f"kv.{side}.") and not s.endswith(".length")):
                self._contents(stage, tensors[stage], length, verified)
        sequence.caches = {stage: x for stage, x in tensors.items() if stage.startswith("kv.")}

    def _length(self, stage: str, tensors: dict[str, np.ndarray], length: int) -> None:
        length_ = tensors[stage].tolist()
        if length_ != [length]:
            raise InvariantBroken(
                "rows", f"{stage} is {length_[0] if length_ else 'empty'}, not {length}", self.place(stage)
            )

    def _contents(self, stage: str, now: np.ndarray, length: int, verified: dict[str, np.ndarray] | None) -> None:
        if len(now) != length:
            raise InvariantBroken(
                "rows", f"{stage} has {len(now)} rows, not {length}", self.place(stage, min(len(now), length))
            )
        kept = self.sequence.caches.get(stage, now[:0])
        row = changed_row(kept, now[: len(kept)])
        if row is not None:
            raise InvariantBroken("rows", f"{stage} row {row} changed", self.place(stage, row))
        computed = (verified or {}).get(stage.replace("kv.target.", "target.layers."))
        if computed is not None and computed.dtype == now.dtype:
            new = computed[: len(now) - len(kept)], now[len(kept) :]
            row = self.kept.changed(stage, *new) if self.kept else changed_row(*new)
            if row is not None:
                row += len(kept)
                raise InvariantBroken("rows", f"{stage} row {row} is not what verify computed", self.place(stage, row))
        self.coverage.rows += len(kept)
        if not self.exact:
            self._compare(stage, now[len(kept) :], self.sequence.baseline.state[stage], len(kept), len(kept))

    def bound(self, stage: str) -> float:
        """Largest relative error of a float32 row against its never-speculated one."""
        return self.kept.bound(stage) if self.kept else FLOAT32_BOUND

    def against(self, stage: str, tensors: dict[str, np.ndarray], true: str, start: int, count: int) -> None:
        state = None if self.exact else self.sequence.baseline.state.get(true)
        if state is not None and stage in tensors:
            self._compare(stage, tensors[stage][:count], state, start, start)

    def _compare(self, stage: str, rows: np.ndarray, true: np.ndarray, position: int, start: int = 0) -> None:
        """Rows against the never-speculated ones, true[start:], within the float32 bound."""
        errors = row_errors(rows, true, start)
        if not len(errors):
            return
        worst = int(errors.argmax())
        self.coverage.worst = max(self.coverage.worst, (float(errors[worst]), stage))
        bound = self.bound(stage)
        if errors[worst] > bound:
            row = int((errors > bound).argmax())
            message = f"{stage} row {position + row} is {errors[row]:.2g} off the never-speculated one"
            raise InvariantBroken("state", message, self.place(stage, position + row))

    def routes(self, start: int, end: int) -> dict[str, np.ndarray]:
        return {} if self.exact else self.sequence.baseline.routes(start, end)

    def place(self, stage: str, position: int | None = None) -> Place:
        layer = self.names[stage].layer if stage in self.names else None
        return Place(stage, layer, self.sequence.baseline.prompt, self.sequence.round, position)


def position_of(verb: str, stage: str, row: int, length: int, cached: int) -> int | None:
    """The position of a tensor's row: a pass starts behind the cache's length, the drafter's at its committed rows."""
    if verb == "prefill" or stage.startswith("kv."):
        return row
    if stage.startswith("accept."):
        return None
    return row + (cached if stage.startswith("drafter.") else length)
