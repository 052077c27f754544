"""The rows of a stage of dumps that keep less than all: those that every side holds, and how they are held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.rows import COMPARED, FLOOR, NOISY, Clock, StageRows, row_floors
from parity.errors import Inconclusive, UsageError
from parity.golden.fields import Variant
from parity.golden.keeping import FLOOR as SUMS
from parity.golden.keeping import LOGITS, Record, best, best_of
from parity.golden.views import DumpView, TensorPlace
from parity.stages import Named

Side = tuple[DumpView, Variant]


@dataclass(frozen=True, eq=False)
class Held:
    """One tensor of a stage as its sides hold it, the same rows of each.

    Attributes:
        prompt, round: of the tensor.
        position: of each row in its sequence, int64 [R].
        sides: golden, device, and the noise floor where the stage has one.
        shape: of a row of the tensor.
        dtypes: of the whole tensors, by side.
        due: rows that the golden has.
        lacking: rows that the golden keeps and the run does not.
    """

    prompt: int
    round: int
    position: np.ndarray
    sides: tuple[Record, ...]
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    due: int
    lacking: int

    @property
    def less(self) -> bool:
        """Whether any side holds something in place of whole rows."""
        return any(side.form for side in self.sides)


def held(
    golden: DumpView, run: DumpView, named: Named, *, device: Variant | None = None, mode: str | None = None
) -> list[Held]:
    """The tensors of a stage whose shapes agree; arguments as for `parity.compare.rows.stage_rows`."""
    case = run.manifest.case
    sides: list[Side] = [(golden, "float32"), (run, device or case.precision)]
    sides += [] if named.stage.exact else [(golden, FLOOR[mode or case.mode])]
    return list(_held(golden, sides, named))


def _held(golden: DumpView, sides: Sequence[Side], named: Named) -> Iterator[Held]:
    for prompt, clock in enumerate(Clock.all_of(golden)):
        for round_ in range(clock.rounds):
            places: list[tuple[DumpView, TensorPlace]] = [
                (dump, (variant, prompt, round_, named.name)) for dump, variant in sides
            ]
            records = _aligned(places, named, round_)
            if records is None:
                continue
            index = [record.index for record in records]
            common = index[0][np.isin(index[0], index[1])]
            if len(index) > 2:
                common = common[np.isin(common, index[2])]
            taken = tuple(record.take(np.isin(record.index, common)) for record in records)
            shape = golden.rows[places[0][1]].shape[1:]
            first = clock.first(named.name, round_, 0)
            due = len(records[0].index)
            dtypes = tuple(dump.rows[place].dtype for dump, place in places)
            yield Held(prompt, round_, first + common, taken, shape, dtypes, due, due - len(common))


def _aligned(places: Sequence[tuple[DumpView, TensorPlace]], named: Named, round_: int) -> list[Record] | None:
    """The same rows of each side as it holds them; None unless all are there with one shape."""
    if not all(place in dump.rows for dump, place in places):
        return None
    rows = [dump.rows[place] for dump, place in places]
    kinds = ("i", "u", "f") if named.stage.exact else ("f", "bf")
    if any(row.dtype not in COMPARED or not row.dtype.startswith(kinds) for row in rows):
        return None
    if len({row.shape[1:] for row in rows}) > 1:
        return None
    start, size = min(row.start for row in rows), max(row.full_shape[0] for row in rows)
    records = [dump.record_from(place, start) for dump, place in places]
    there = [record for record in records if record is not None]
    if len(there) < len(records):
        raise Inconclusive(f"{named.name} of round {round_} is listed and cannot be read")
    if any(dump.view.rows(named.name, round_) == "last" for dump, _ in places):
        last = [record.take(np.array([-1])) for record in there]
        return [Record(np.array([size - 1]), record.rows, record.form) for record in last]
    return there if len({row.full_shape[0] for row in rows}) == 1 else None


def whole_rows(
    golden: DumpView, run: DumpView, named: Named, *, device: Variant | None = None, mode: str | None = None
) -> StageRows | None:
    """As `parity.compare.rows.stage_rows`: the rows that every side holds whole, or logits of which the best are kept.

    Raises:
        UsageError: what is kept is a sketch.
    """
    tensors = [one for one in held(golden, run, named, device=device, mode=mode) if len(one.position)]
    if not tensors:
        return None
    if not any(one.less for one in tensors):
        sides = [np.concatenate([one.sides[side].rows for one in tensors]) for side in range(len(tensors[0].sides))]
        floor = sides[2] if len(sides) > 2 else None
        return StageRows(named, sides[0], sides[1], floor, *labelled(tensors), golden)
    if named.name not in LOGITS or not all(side.form.top or not side.form for one in tensors for side in one.sides):
        raise UsageError(f"{golden.folder} or {run.folder} keeps {named.name} as a sketch: this needs the whole tensor")
    return _of_best(golden, named, tensors)


def labelled(tensors: Sequence[Held]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompt, round and position of each row."""
    position = np.concatenate([one.position for one in tensors])
    prompt, round_ = (
        np.concatenate(
            [np.full(len(one.position), number, np.int64) for one, number in zip(tensors, numbers, strict=True)]
        )
        for numbers in ([one.prompt for one in tensors], [one.round for one in tensors])
    )
    return prompt, round_, position


def _of_best(golden: DumpView, named: Named, tensors: Sequence[Held]) -> StageRows:
    """Logits [R, V] of which some sides keep the best: the rest is at the least of these, which it is not above."""
    parts = [[_filled(one, side) for side in range(2)] for one in tensors]
    true, device = (np.concatenate([part[side] for part in parts]) for side in range(2))
    floors, known = [], []
    for one, (mine, _) in zip(tensors, parts, strict=True):
        ids = kept_ids(one)
        floors.append(_floor(one, mine, ids))
        known.append(ids)
    floor = np.concatenate(floors)
    size = np.sqrt(np.square(true, dtype=np.float64).sum(axis=1))
    error = np.concatenate([_error(one, mine) for one, (mine, _) in zip(tensors, parts, strict=True)])
    relative = np.divide(error, size, out=np.zeros_like(error), where=size > 0)
    noise = row_floors(relative, np.zeros(len(error), bool), NOISY) * size / np.sqrt(true.shape[1])
    return StageRows(named, true, device, floor, *labelled(tensors), golden, noise=noise, known=np.concatenate(known))


def _filled(one: Held, number: int) -> np.ndarray:
    """Logits of a side, in the dtype of its tensor, which choices were made in."""
    side, dtype = one.sides[number], np.dtype(one.dtypes[number])
    if not side.form:
        return np.asarray(side.rows)
    ids, values, _ = best_of(side)
    filled = np.repeat(values[:, -1:], one.shape[0], axis=1).astype(dtype)
    np.put_along_axis(filled, np.minimum(ids, one.shape[0] - 1), values.astype(dtype), axis=1)
    return filled


def kept_ids(one: Held) -> np.ndarray:
    """Columns that the golden keeps of each row: its best, as many as the side that keeps fewest."""
    count = min(side.form.top for side in one.sides if side.form.top)
    golden = one.sides[0]
    return best_of(golden)[0][:, :count] if golden.form else best(golden.rows, count)[0]


def _floor(one: Held, mine: np.ndarray, ids: np.ndarray) -> np.ndarray:
    floor = one.sides[2]
    if not floor.form:
        return np.asarray(floor.rows, np.float32)
    made = mine.copy()
    np.put_along_axis(made, ids, floor.rows[:, SUMS : SUMS + ids.shape[1]].astype(np.float32), axis=1)
    return made


def _error(one: Held, mine: np.ndarray) -> np.ndarray:
    """Norm of each row's error in the floor."""
    floor = one.sides[2]
    if floor.form:
        return floor.rows[:, 0].astype(np.float64)
    return np.asarray(np.sqrt(np.square(floor.rows.astype(np.float64) - mine).sum(axis=1)))
