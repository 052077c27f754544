"""A device's rotation compared with float64 at every position of a checkpoint, and which known defect a wrong one
is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np

from parity.errors import DeviceEnded, NotOffered
from parity.gates import rope
from parity.gates.rope import DEFAULTS, RopeSchedule, read_schedule
from parity.raised import raised_text
from parity.seam import Rotary, Side

HEADS, ROWS = 2, 32768

ALONE = 3
"""Positions that are asked one at a time, as decoding does: a program of one row is another one."""


class RotationError(Exception):
    """The device has no rotation to judge where it must have one."""


@dataclass(frozen=True)
class RotationResult:
    """What one checkpoint's rotation came to.

    Attributes:
        what: the checkpoint and its schedule, in words.
        positions: how many were rotated.
        worst: the largest error (radians for an angle), and where.
        share: the largest error over its own bound; above 1 is a failure.
        floor: the largest error of float32 angles over the same positions.
        halves: the largest error in the first and in the second half of the positions.
        wrong: rows outside their bound, the first of them, and what the rotation looks like; empty where none is.
    """

    what: str
    positions: int
    worst: float
    place: str
    share: float
    floor: float
    halves: tuple[float, float]
    wrong: str = ""

    def __str__(self) -> str:
        """One line of evidence."""
        grow = f"first half {self.halves[0]:.1e}, second half {self.halves[1]:.1e}"
        figures = (
            f"worst error {self.worst:.1e} at {self.place}, {self.worst / self.floor:.2g}x the float32 floor ({grow})"
        )
        return f"{self.what}: {self.wrong or f'{self.positions:,} positions'}, {figures}"


def judge_rotation(
    rotate: Rotary, folder: Path, side: Side, name: str, seed: int, some: int | None = None
) -> RotationResult:
    """Rotate random heads at every position below max_position_embeddings, in random order.

    Args:
        name: of the checkpoint, for the evidence.
        some: only about so many positions, spread over all of them.

    Raises:
        UsageError: the schedule is none that is known here, so that there is no truth.
        NotOffered: the device cannot rotate heads alone.
        RotationError: the device raised, or gave something else than rotated heads.
    """
    schedule, count = read_schedule(folder)
    rng = np.random.default_rng(seed)
    # In random order, so that the number of a row cannot pass for its position.
    positions = rng.permutation(np.unique(np.linspace(0, count - 1, some or count).astype(np.int64)))
    x = rope.unit_heads(rng, len(positions), HEADS, schedule.head_dim)
    got = np.concatenate([_ask(rotate, folder, side, x[rows], positions[rows]) for rows in _chunks(len(x))])
    return _judged(f"{name} {schedule}", schedule, x, positions, got)


def _chunks(rows: int) -> list[slice]:
    """Many rows at once, and the last few each alone."""
    many = max(rows - ALONE, 0)
    together = [slice(at, min(at + ROWS, many)) for at in range(0, many, ROWS)]
    return [*together, *(slice(at, at + 1) for at in range(many, rows))]


def _ask(rotate: Rotary, folder: Path, side: Side, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    try:
        got = np.asarray(rotate(folder, side, x.copy(), positions.copy()))
    except (NotOffered, DeviceEnded):
        raise
    except Exception as error:
        where = f"positions up to {positions.max():,}"
        raise RotationError(f"rotate raised at {where}: {raised_text(error)}") from error
    if got.shape != x.shape or got.dtype != np.float32:
        raise RotationError(f"rotate gave {got.dtype} {list(got.shape)}, float32 {list(x.shape)} is expected")
    return got


def _judged(what: str, schedule: RopeSchedule, x: np.ndarray, positions: np.ndarray, got: np.ndarray) -> RotationResult:
    error, floor = np.empty((2, len(x), schedule.head_dim // 2))
    for rows in _chunks(len(x)):
        true = rope.rotate(schedule, x[rows], positions[rows])
        narrow = rope.rotate_float32(schedule, x[rows], positions[rows])
        floor[rows] = rope.error(schedule, narrow, x[rows], true).max(axis=1)
        # NaN compares as no error at all; here it is one without end.
        error[rows] = np.nan_to_num(rope.error(schedule, got[rows], x[rows], true), nan=np.inf).max(axis=1)
    share = (error / rope.bound(schedule, positions)).max(axis=1)
    row, pair = np.unravel_index(error.argmax(), error.shape)
    second = positions > positions.max() // 2
    outside = share > 1
    wrong = ""
    if outside.any():
        wrong = f"outside float32 at {outside.sum():,} of {len(x):,} positions, from {positions[outside].min():,} on; "
        numbers = np.concatenate([np.arange(some.stop - some.start) for some in _chunks(len(x))])
        asked = slice(None) if outside[:-ALONE].any() else slice(-ALONE, None)
        wrong += "where one is asked alone, " if asked.start else ""
        wrong += name_suspect(schedule, x[asked], positions[asked], numbers[asked], got[asked])
    return RotationResult(
        what,
        len(x),
        float(error[row, pair]),
        f"position {positions[row]:,}, pair {pair}",
        float(share.max()),
        float(floor.max()),
        (float(error[~second].max()), float(error[second].max())),
        wrong,
    )


SAMPLE = 4096
EXPLAINED = 0.1
"""Part of the wrong rotation's error that a named suspect may leave. Over the published configs the right schedule
leaves at most 0.1 %, in float32 angles too, and the next other one at least 20 %."""

LLAMA31 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def name_suspect(
    schedule: RopeSchedule, x: np.ndarray, positions: np.ndarray, rows: np.ndarray, got: np.ndarray
) -> str:
    """What the rotation `got` [S, N, D] of x at positions is, in words; `rows` [S] are the numbers of the rows."""
    theta = measured_theta(x, positions, got)
    some = np.linspace(0, len(x) - 1, min(len(x), SAMPLE)).astype(np.int64)
    x, positions, rows, got = x[some], positions[some], rows[some], got[some]
    whole = _rms(got - rope.dimensions(rope.rotate(schedule, x, positions)))
    if not np.isfinite(whole):
        return "it holds NaN or infinity"
    left = {name: _rms(got - rotated) / whole for name, rotated in _suspects(schedule, theta, x, positions, rows)}
    name = min(left, key=left.__getitem__)
    if left[name] <= EXPLAINED:
        return f"it is {name}"
    return f"no defect known here; nearest is {name}, which leaves {left[name]:.0%} of the error"


def measured_theta(x: np.ndarray, positions: np.ndarray, got: np.ndarray) -> float | None:
    """The base that the second pair turns by, were it not slowed; None without position 1."""
    if 1 not in positions:
        return None

    def angle(row: int) -> float:
        return float(np.angle(rope.pairs(got[row, 0])[1] / rope.pairs(x[row, 0])[1]))

    far = int(positions.argmax())
    frequency, position = angle(int(np.flatnonzero(positions == 1)[0])), int(positions[far])
    # One position gives the turn to 1e-7, the far one to that over its distance, once its whole turns are known.
    frequency += float(np.angle(np.exp(1j * (angle(far) - position * frequency)))) / position
    theta = abs(frequency) ** (-x.shape[-1] / 2) if frequency else np.inf
    return float(f"{theta:.6g}") if 1 < theta < np.inf else None


def _suspects(
    schedule: RopeSchedule, theta: float | None, x: np.ndarray, positions: np.ndarray, rows: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Names and rotations, float64 [S, N, D]."""
    true, z = schedule.frequencies(), rope.pairs(x)

    def rotated(
        frequencies: np.ndarray = true, at: np.ndarray = positions, scale: float = schedule.concentration
    ) -> np.ndarray:
        return rope.dimensions(scale * rope.turn(frequencies, at)[:, None] * z)

    for other in _schedules(schedule, theta):
        yield str(other), rotated(other.frequencies(), scale=other.concentration)
        if other.concentration != schedule.concentration:
            yield f"{other}, at concentration {schedule.concentration:.4f}", rotated(other.frequencies())
    if schedule.concentration != 1:
        yield "without the concentration", rotated(scale=1.0)
    if "factor" in schedule.parameters:
        yield f"linear (all positions divided by {schedule['factor']:g})", rotated(schedule.blend()[1])
        original = int(schedule["original_max_position_embeddings"])
        yield f"positions wrapped at {original}", rotated(at=positions % original)
        yield f"positions held at {original - 1}", rotated(at=positions.clip(max=original - 1))
    yield "turned by the number of the row, not by the given position", rotated(at=rows)
    yield "one position late", rotated(at=positions + 1)
    yield "turned backwards", rotated(at=-positions)
    yield "the interleaved form where half-split is meant", _interleaved(schedule, x, positions)
    yield from _rounded(schedule, x, positions)


def _schedules(schedule: RopeSchedule, theta: float | None) -> Iterator[RopeSchedule]:
    """Other schedules that the same config can be read as."""
    numbers = schedule.parameters
    kinds = [replace(schedule, kind="default", parameters={})]
    if schedule.kind == "yarn":
        kinds.append(replace(schedule, kind="llama3", parameters=LLAMA31 | numbers))
        kinds.append(replace(schedule, parameters=numbers | {"truncate": not numbers["truncate"]}))
    if schedule.kind == "llama3":
        for truncate in (True, False):
            kinds.append(replace(schedule, kind="yarn", parameters=DEFAULTS | numbers | {"truncate": truncate}))
    yield from kinds
    if theta is not None and theta != schedule.theta:
        yield from (replace(other, theta=theta) for other in (schedule, *kinds))


def _interleaved(schedule: RopeSchedule, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    turn = rope.turn(schedule.frequencies(), positions)[:, None]
    return rope.interleaved_dimensions(schedule.concentration * turn * rope.interleaved_pairs(x))


def _rounded(schedule: RopeSchedule, x: np.ndarray, positions: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The right schedule, something of it kept in too few bits."""
    frequencies, z = schedule.frequencies(), rope.pairs(x)
    for name, dtype in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):

        def kept(value: np.ndarray, dtype: type = dtype) -> np.ndarray:
            return value.astype(dtype).astype(np.float64)

        table = schedule.concentration * rope.turn(frequencies, positions)[:, None]
        yield f"a table of cos and sin in {name}", rope.dimensions((kept(table.real) + 1j * kept(table.imag)) * z)
        scaled = schedule.concentration * z
        with np.errstate(over="ignore", invalid="ignore"):
            coarse = rope.turn(kept(frequencies), positions)[:, None]
            yield f"frequencies in {name}", rope.dimensions(coarse * scaled)
            held = np.nan_to_num(kept(positions.astype(np.float64)), posinf=0)
        yield f"positions in {name}", rope.dimensions(rope.turn(frequencies, held)[:, None] * scaled)


def _rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(difference))))
