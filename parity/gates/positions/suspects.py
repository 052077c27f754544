"""Which known defect a wrong rotation is: every suspect is computed, and the one that matches is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np

from parity.gates.positions import rotation
from parity.gates.positions.schedule import DEFAULTS, RopeSchedule

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
    whole = _rms(got - rotation.dimensions(rotation.rotate(schedule, x, positions)))
    if not np.isfinite(whole):
        return "it holds NaN or infinity"
    left = {name: _rms(got - one) / whole for name, one in _suspects(schedule, theta, x, positions, rows)}
    name = min(left, key=left.get)
    if left[name] <= EXPLAINED:
        return f"it is {name}"
    return f"no defect known here; nearest is {name}, which leaves {left[name]:.0%} of the error"


def measured_theta(x: np.ndarray, positions: np.ndarray, got: np.ndarray) -> float | None:
    """The base that the second pair turns by, were it not slowed; None without position 1."""
    if 1 not in positions:
        return None

    def angle(row: int) -> float:
        return float(np.angle(rotation.pairs(got[row, 0])[1] / rotation.pairs(x[row, 0])[1]))

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
    true, z = schedule.frequencies(), rotation.pairs(x)

    def rotated(frequencies: np.ndarray = true, at: np.ndarray = positions, scale: float = schedule.concentration):
        return rotation.dimensions(scale * rotation.turn(frequencies, at)[:, None] * z)

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
        yield from (replace(one, theta=theta) for one in (schedule, *kinds))


def _interleaved(schedule: RopeSchedule, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    turn = rotation.turn(schedule.frequencies(), positions)[:, None]
    return rotation.interleaved_dimensions(schedule.concentration * turn * rotation.interleaved_pairs(x))


def _rounded(schedule: RopeSchedule, x: np.ndarray, positions: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The right schedule, something of it kept in too few bits."""
    frequencies, z = schedule.frequencies(), rotation.pairs(x)
    for name, dtype in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):

        def kept(value: np.ndarray, dtype: type = dtype) -> np.ndarray:
            return value.astype(dtype).astype(np.float64)

        table = schedule.concentration * rotation.turn(frequencies, positions)[:, None]
        yield f"a table of cos and sin in {name}", rotation.dimensions((kept(table.real) + 1j * kept(table.imag)) * z)
        scaled = schedule.concentration * z
        with np.errstate(over="ignore", invalid="ignore"):
            coarse = rotation.turn(kept(frequencies), positions)[:, None]
            yield f"frequencies in {name}", rotation.dimensions(coarse * scaled)
            held = np.nan_to_num(kept(positions.astype(np.float64)), posinf=0)
        yield f"positions in {name}", rotation.dimensions(rotation.turn(frequencies, held)[:, None] * scaled)


def _rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(difference))))
