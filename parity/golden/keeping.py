"""What a dump keeps of its tensors, where that is not all: some rows, sketches of rows, the best of logits.

A manifest says it by stage (`Case.kept`, `Case.positions`); rows of the manifest describe whole tensors either way.
What is stored in their place is one float32 array, [rows kept, columns]:

| of | columns |
|---|---|
| a sketch of N numbers | N sums, norm, plain sum (`parity.sketch`) |
| the k best logits | k ids, k values, log-sum-exp of all; behind a sketch where both are kept |
| a golden's noise floor of either | norm, product with the golden, plain sum and largest element of its error; k values at the golden's ids and log-sum-exp where the best are kept |
"""  # noqa: E501 (a table)

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parity.errors import UsageError
from parity.sketch import EXTRA, Floats, Sketched, sketch
from parity.stages import DRAFTER_LOGITS, TARGET_LOGITS, VERIFY_LOGITS, Named, matches

if TYPE_CHECKING:
    from parity.golden.manifest import TensorRow

LOGITS = (TARGET_LOGITS, VERIFY_LOGITS, DRAFTER_LOGITS)
SCORES = ("router_logits", "page_scores")
"""Narrow scores that choices are judged by: whole, as what is exact."""

FLOOR = 4
"""Numbers of a row of a floor: norm of the error, its product with the golden, plain sum, largest element."""

ALWAYS = 2
"""Positions at the end of a prompt whose rows are kept whatever is asked for: the drafter's last, the target's last."""

POSITIONS = r"[0-9]{1,8}(-([0-9]{1,8})?)?(,[0-9]{1,8}(-([0-9]{1,8})?)?)*"


class KeptStage(Protocol):
    """What a manifest says of some stages: see `parity.golden.case.KeptStages`."""

    @property
    def stages(self) -> str: ...
    @property
    def form(self) -> str: ...
    @property
    def numbers(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class Form:
    """How a tensor is kept: a sketch of so many numbers by this seed, so many of its best elements; else whole."""

    sketch: int = 0
    seed: int = 0
    top: int = 0

    def __bool__(self) -> bool:
        return bool(self.sketch or self.top)

    def columns(self, floor: bool) -> int:
        """Numbers of a row, of a floor or of anything else."""
        best = self.top + 1 if self.top else 0
        return FLOOR + best if floor else (self.sketch + EXTRA if self.sketch else 0) + best + self.top


WHOLE = Form()


class Keeping:
    """What is kept of each stage of a pair of models.

    Args:
        kept, positions: as a manifest has them.
        declared: the pair's stages.
    """

    def __init__(self, kept: Iterable[KeptStage], positions: str, declared: Mapping[str, Named]):
        self.kept, self.positions, self.declared = tuple(kept), positions, declared
        self.ranges = ranges(positions)

    def __bool__(self) -> bool:
        return bool(self.kept or self.positions)

    def form(self, stage: str, shape: Sequence[int]) -> Form:
        """How a tensor of this stage and whole shape is kept: whole where that takes no more numbers."""
        named = self.declared.get(stage)
        if named is None or named.stage.exact or named.stage.part in SCORES or len(shape) < 2:
            return WHOLE
        width = prod(shape[1:])
        found: dict[str, KeptStage] = {}
        for one in self.kept:
            if matches(one.stages, stage):
                found.setdefault(one.form, one)
        summed, best = found.get("sketch"), found.get("top")
        wide = summed is not None and summed.numbers + EXTRA < width
        long = best is not None and 2 * best.numbers + 1 < width and stage in LOGITS
        return Form(
            summed.numbers if summed is not None and wide else 0,
            summed.seed if summed is not None and wide else 0,
            best.numbers if best is not None and long else 0,
        )

    def count(self, prompt: int) -> int:
        """Rows that are kept of a prompt of so many tokens."""
        if not self.ranges:
            return prompt
        index = np.arange(prompt)
        return int(self._wanted(index, prompt).sum())

    def rows(self, row: TensorRow, prompt: int) -> NDArray[np.int64]:
        """Which rows of a stored tensor are kept, counted from 0 in the whole tensor.

        Args:
            prompt: tokens of its prompt.
        """
        index = row.start + np.arange(row.shape[0])
        named = self.declared.get(row.place[2])
        if not self.ranges or named is None or named.stage.exact or row.full_shape[0] <= 1:
            return index
        if named.stage.part in SCORES:
            return index
        if row.place[1] and not named.stage.cache:
            return index
        return np.asarray(index[self._wanted(index, prompt)])

    def _wanted(self, index: NDArray[np.int64], prompt: int) -> NDArray[np.bool_]:
        wanted = index >= prompt - ALWAYS
        for first, last in self.ranges:
            wanted |= (index >= first) & (index <= last)
        return wanted


def ranges(positions: str) -> tuple[tuple[int, int], ...]:
    """`0-15,40,100-` as inclusive ranges; nothing for all positions.

    Raises:
        UsageError: it is written otherwise, or a range ends before it begins.
    """
    if not positions:
        return ()
    if not re.fullmatch(POSITIONS, positions):
        raise UsageError(
            f"--positions {positions[:80]!r}: it takes positions and ranges of a prompt, as in 0-15,40,100-"
        )
    found = []
    for part in positions.split(","):
        first, dash, last = part.partition("-")
        found.append((int(first), int(last) if last else 2**31 if dash else int(first)))
        if found[-1][1] < found[-1][0]:
            raise UsageError(f"--positions {part}: the range ends before it begins")
    return tuple(found)


def best(logits: NDArray[Any], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Of rows [R, V] the `count` largest: ids and values [R, count], the largest first and equal ones by id; and the
    log-sum-exp of each row, [R]."""
    values = logits.astype(np.float64)
    finite = np.where(np.isfinite(values), values, -np.inf)
    ids = np.empty((len(values), count), np.int64)
    for number, row in enumerate(finite):
        least = np.partition(row, -count)[-count]
        above, equal = np.flatnonzero(row > least), np.flatnonzero(row == least)
        chosen = np.concatenate([above, equal[: count - len(above)]])
        ids[number] = chosen[np.lexsort((chosen, -row[chosen]))]
    return ids, np.take_along_axis(values, ids, axis=1), log_sum_exp(values)


def log_sum_exp(values: NDArray[Any]) -> NDArray[np.float64]:
    """Of each row [R, V], in float64; NaN where one is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        wide = values.astype(np.float64)
        largest = wide.max(axis=1, keepdims=True)
        return np.asarray(np.log(np.exp(wide - largest).sum(axis=1)) + largest[:, 0])


def packed(form: Form, rows: NDArray[Any] | Sketched) -> Floats:
    """What stands in the place of rows [R, ...] of a truth or a device."""
    if isinstance(rows, Sketched):
        return rows.numbers
    parts = [sketch(rows, form.sketch, form.seed)] if form.sketch else []
    if form.top:
        parts += [part.astype(np.float32) for part in _columns(rows, form.top)]
    return np.concatenate(parts, axis=1)


def _columns(rows: NDArray[Any], count: int) -> tuple[NDArray[Any], ...]:
    ids, values, total = best(rows, count)
    return ids, values, total[:, None]


def packed_floor(form: Form, truth: NDArray[Any], rows: NDArray[Any]) -> Floats:
    """What stands in the place of rows [R, ...] of a noise floor: the sums of its error, exact."""
    golden, floor = (side.reshape(len(side), prod(side.shape[1:])).astype(np.float64) for side in (truth, rows))
    with np.errstate(invalid="ignore", over="ignore"):
        error = floor - golden
        parts = [
            np.sqrt(np.square(error).sum(axis=1)),
            (golden * error).sum(axis=1),
            error.sum(axis=1),
            np.abs(error).max(axis=1),
        ]
    if form.top:
        ids, _, _ = best(truth, form.top)
        parts += [*np.take_along_axis(floor, ids, axis=1).T, log_sum_exp(floor)]
    return np.stack(parts, axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Record:
    """What a dump holds of a tensor.

    Attributes:
        index: numbers of the rows that are held, counted in the whole tensor, int64 [R].
        rows: of them the tensor's own, [R, ...]; or what stands in their place, [R, columns].
        form: how they are kept.
    """

    index: NDArray[np.int64]
    rows: NDArray[Any]
    form: Form = WHOLE

    def take(self, wanted: NDArray[Any]) -> Record:
        """Some of the rows, by place or by mask."""
        return Record(self.index[wanted], self.rows[wanted], self.form)

    def at(self, wanted: NDArray[np.int64]) -> NDArray[Any]:
        """The rows of these numbers, all of which are there, in ascending order."""
        return np.asarray(self.rows[np.isin(self.index, wanted)])


def joined(parts: Sequence[Record]) -> Record:
    """Records of successive rows as one."""
    return Record(
        np.concatenate([part.index for part in parts]), np.concatenate([part.rows for part in parts]), parts[0].form
    )


def best_of(record: Record) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Ids and values [R, k] of the best logits of a record that keeps them, and the log-sum-exp of all [R]."""
    count, first = record.form.top, record.form.columns(False) - 2 * record.form.top - 1
    numbers = record.rows[:, first:].astype(np.float64)
    ids = np.nan_to_num(numbers[:, :count], posinf=0, neginf=0).astype(np.int64)
    return ids, numbers[:, count : 2 * count], numbers[:, -1]
