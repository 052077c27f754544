"""Heads that are rotated by position: pairs of dimensions that turn otherwise, and numbers added before they turn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.diagnose.components.turned_queries import listed_steps
from parity.diagnose.components.wrong import Component, WrongRows

LEAST = 3
"""Positions from which a turn is told."""

ANGLES = 4096
"""Turns a position that are tried first, from -pi to pi."""

FINER = 2.0**-12
"""What float32 hides of a turn, over what bfloat16 does: 16 bits, and a margin."""

TURNED, ASKEW = 1e-4, 0.02
"""Radians a position, and in all, that a pair is off: bfloat16 hides less over 200 positions, and less in a row."""


SURELY, MOVED = 4.0, 0.1
"""Standard errors by which a pair of a row is moved, and the share of the rows in which one is that is told."""


SCALED = 0.02
"""How far a factor of all pairs is from 1 that is told beside a turn."""

REACH = 21
"""Positions away that one turn of the first pair tells from each other: the next that turns alike is 44 away."""

SLOWER = 0.9
"""A pair turns by less than this share of the pair before: base 10,000 over 64 pairs has 0.87."""


def in_rotations(wrong: WrongRows) -> Iterator[Component | None]:
    """Readings of a stage of heads whose halves are pairs that are rotated, or are not (values)."""
    part = wrong.rows.named.stage.part
    if part not in ("q", "k", "v") or len(wrong.tail) != 2 or wrong.tail[1] % 2:
        return
    steady = _turned(wrong, by_position=False)
    yield steady
    if steady is None or not steady.whole:  # over few positions the two are alike
        yield _turned(wrong, by_position=True)
        yield _row_by_row(wrong)
    if part == "v":  # nothing turns them
        return
    yield _constant_before(wrong)
    yield _by_pair(wrong)


def _pairs(wrong: WrongRows, values: np.ndarray) -> np.ndarray:
    """Pairs of a side as complex numbers [R, N, D / 2]."""
    heads = values.reshape(len(values), *wrong.tail)
    half = wrong.tail[1] // 2
    return np.asarray(heads[..., :half] + 1j * heads[..., half:])


def _flat(wrong: WrongRows, pairs: np.ndarray) -> np.ndarray:
    return np.concatenate([pairs.real, pairs.imag], axis=-1).reshape(len(pairs), -1)[:, wrong.columns]


def _turned(wrong: WrongRows, by_position: bool) -> Component | None:
    """Each pair turned, the same in every head: by an angle of its own, or by one a position; and by one factor, where
    cos and sin have one (YaRN's)."""
    golden, device = _pairs(wrong, wrong.golden), _pairs(wrong, wrong.device)
    position = wrong.rows.position.astype(np.float64)
    if by_position and len(np.unique(position)) < LEAST:
        return None
    products = (device * golden.conj()).sum(axis=1, keepdims=True)
    turns = _turns(products, position) if by_position else np.zeros(golden.shape[2])
    start = np.angle((np.exp(-1j * np.outer(position, turns)) * products[:, 0]).sum(axis=0))
    size, least, what = (turns, TURNED, " a position") if by_position else (start, ASKEW, "")
    which = np.flatnonzero(np.abs(size) > least * (FINER if wrong.precision == "float32" else 1.0))
    if not len(which):
        return None
    first = which[0]
    many = f"pair {first}" if len(which) == 1 else f"{len(which)} of {len(turns)} pairs, {first} the first,"
    turned = golden * np.exp(1j * (np.outer(position, turns) + start))[:, None, :]
    factor = float((turned.conj() * device).sum().real / (np.abs(turned) ** 2).sum())
    factor = factor if abs(factor - 1) > SCALED else 1.0
    says = f"{wrong.where}rotation: {many} turned by {size[first]:+.4g}{what} (radians)"
    says += "" if by_position else _moved(size)
    says += "" if factor == 1.0 else f", {factor:.4g} times as large"
    numbers = len(turns) * (1 + by_position) + (factor != 1.0)
    return wrong.judged(says, _flat(wrong, factor * turned - golden), numbers)


def _row_by_row(wrong: WrongRows) -> Component | None:
    """Each row turned as at another position, some further away than others: RoPE's first pair tells how far."""
    golden, device = _pairs(wrong, wrong.golden), _pairs(wrong, wrong.device)
    products = (device * golden.conj()).sum(axis=1, keepdims=True)
    every = np.array(sorted(range(-REACH, REACH + 1), key=abs))
    apart = np.abs(np.exp(1j * np.angle(products[:, 0, :1])) - np.exp(1j * every))
    steps = every[apart.argmin(axis=1)]
    if len(np.unique(steps)) < 2:
        return None
    turned = golden * np.exp(1j * np.outer(steps, _turns(products, steps.astype(np.float64))))[:, None, :]
    told = listed_steps(steps.tolist(), "{:+d}".format)
    says = f"rotation: rows turned as at positions so far from theirs: {told}"
    return wrong.judged(says, _flat(wrong, turned - golden), len(steps) + golden.shape[2])


def _moved(turns: np.ndarray) -> str:
    """Where pairs turn as at other positions: RoPE's first pair turns by one radian a position, each of the next ones
    by the same share of the one before (YaRN leaves the first ones as they are)."""
    some = turns[: max(3, len(turns) // 4)]
    far, share = round(float(some[0])), float(some[1] / some[0]) if len(some) > 2 and some[0] else 0.0
    alike = np.abs(some - far * share ** np.arange(len(some))).max() < ASKEW
    return f": as {far:+d} positions do" if far and alike and 0 < share < SLOWER else ""


def _by_pair(wrong: WrongRows) -> Component | None:
    """Each pair of each row turned and scaled by numbers of its own, the same in every head: another cos, another
    sin."""
    golden, device = _pairs(wrong, wrong.golden), _pairs(wrong, wrong.device)
    size = np.maximum((np.abs(golden) ** 2).sum(axis=1), 1e-300)
    by = (device * golden.conj()).sum(axis=1) / size
    sure = np.sqrt(golden.shape[1]) * wrong.noise / np.sqrt(size)  # by what rounding moves a turn
    moved = (np.abs(by - 1) > SURELY * sure).mean(axis=0) > MOVED
    if not moved.any():
        return None
    low, high = np.percentile(np.abs(by[:, moved]), (5, 95))
    many = f"all {len(moved)} pairs" if moved.all() else f"pairs {', '.join(map(str, np.flatnonzero(moved)))}"
    says = f"rotation: cos and sin are others, alike in every head ({many}, {low:.2g} to {high:.2g} times as large)"
    return wrong.judged(f"{wrong.where}{says}", _flat(wrong, golden * by[:, None] - golden), 2 * by.size)


def _constant_before(wrong: WrongRows) -> Component | None:
    """The same numbers in every row, turned with it."""
    error, position = _pairs(wrong, wrong.error), wrong.rows.position.astype(np.float64)
    if len(np.unique(position)) < LEAST:
        return None
    turns = _turns(error, position)
    steady = (np.exp(-1j * position[:, None] * turns)[:, None, :] * error).mean(axis=0)
    model = np.exp(1j * position[:, None] * turns)[:, None, :] * steady
    says = f"{wrong.where}the same numbers in every row before it is rotated: a bias"
    return wrong.judged(says, _flat(wrong, model), 2 * steady.size + len(turns))


def _turns(signal: np.ndarray, position: np.ndarray) -> np.ndarray:
    """The angle a position by which a signal [R, N, P] turns most steadily, each pair's, [P]."""

    def power(turns: np.ndarray) -> np.ndarray:
        spectrum = np.einsum("trp,rnp->tnp", np.exp(-1j * turns[:, None, :] * position[:, None]), signal)
        return np.asarray((np.abs(spectrum) ** 2).sum(axis=1))

    step = 2 * np.pi / ANGLES
    every = np.exp(-1j * np.outer(np.arange(ANGLES) * step - np.pi, position))
    coarse = np.abs(every @ signal.reshape(len(signal), -1)) ** 2
    best = coarse.reshape(ANGLES, *signal.shape[1:]).sum(axis=1).argmax(axis=0) * step - np.pi
    for _ in range(3):
        tried = best + np.linspace(-1, 1, 21)[:, None] * step
        best = np.take_along_axis(tried, power(tried).argmax(axis=0)[None], 0)[0]
        step /= 10
    return np.asarray(best)
