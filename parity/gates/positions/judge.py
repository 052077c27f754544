"""A device's rotation held against the truth, over all positions of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.errors import DeviceEnded, NotOffered
from parity.gates.positions import rotation
from parity.gates.positions.schedule import RopeSchedule, read_schedule
from parity.gates.positions.suspects import name_suspect
from parity.guard import raised_text
from parity.seam import Rotary

HEADS, ROWS = 2, 32768


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
        found = (
            f"worst error {self.worst:.1e} at {self.place}, {self.worst / self.floor:.2g}x the float32 floor ({grow})"
        )
        return f"{self.what}: {self.wrong or f'{self.positions:,} positions'}, {found}"


def judge_rotation(
    rotate: Rotary, folder: Path, side: str, name: str, seed: int, some: int | None = None
) -> RotationResult:
    """Rotate random heads at every position below max_position_embeddings, in random order.

    Args:
        name: of the checkpoint, for the evidence.
        some: only about so many positions, spread over all of them.

    Raises:
        UsageError: the schedule is none that is known here, so that there is no truth.
        NotOffered: the device cannot rotate heads by themselves.
        RotationError: the device raised, or gave something else than rotated heads.
    """
    schedule, count = read_schedule(folder)
    rng = np.random.default_rng(seed)
    # In random order, so that the number of a row cannot pass for its position.
    positions = rng.permutation(np.unique(np.linspace(0, count - 1, some or count).astype(np.int64)))
    x = rotation.unit_heads(rng, len(positions), HEADS, schedule.head_dim)
    got = np.concatenate([_ask(rotate, folder, side, x[rows], positions[rows]) for rows in _chunks(len(x))])
    return _judged(f"{name} {schedule}", schedule, x, positions, got)


def _chunks(rows: int) -> list[slice]:
    return [slice(at, at + ROWS) for at in range(0, rows, ROWS)]


def _ask(rotate: Rotary, folder: Path, side: str, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
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
        true = rotation.rotate(schedule, x[rows], positions[rows])
        narrow = rotation.rotate_float32(schedule, x[rows], positions[rows])
        floor[rows] = rotation.error(schedule, narrow, x[rows], true).max(axis=1)
        # NaN compares as no error at all; here it is one without end.
        error[rows] = np.nan_to_num(rotation.error(schedule, got[rows], x[rows], true), nan=np.inf).max(axis=1)
    share = (error / rotation.bound(schedule, positions)).max(axis=1)
    row, pair = np.unravel_index(error.argmax(), error.shape)
    second = positions > positions.max() // 2
    outside = share > 1
    wrong = ""
    if outside.any():
        wrong = f"outside float32 at {outside.sum():,} of {len(x):,} positions, from {positions[outside].min():,} on; "
        wrong += name_suspect(schedule, x, positions, np.arange(len(x)) % ROWS, got)
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
