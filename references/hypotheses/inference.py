"""Values of a parameter read out of the device's own tensors, where these hold them plainly."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.references.hypotheses.catalogue import Tensors


def _pairs(device: Tensors, golden: Tensors, stage: str) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """(device, golden) of a stage in every round that has both in one shape."""
    for place, true in golden.items():
        if place[1] == stage and place in device and device[place].shape == true.shape and true.size:
            yield device[place], true


def placeholder(device: Tensors, golden: Tensors) -> int | None:
    """The one id that stands on the last masked row in every verify round."""
    found = {
        int(ids[-1]) for (round_, stage), ids in device.items() if stage == "drafter.input_ids" and round_ and len(ids)
    }
    true = {
        int(ids[-1]) for (round_, stage), ids in golden.items() if stage == "drafter.input_ids" and round_ and len(ids)
    }
    return found.pop() if len(found) == 1 and found != true else None


class Offset:
    """The one number, not 0, by which integers of a stage differ from the golden's wherever they differ."""

    def __init__(self, stage: str):
        self.stage = stage

    def __call__(self, device: Tensors, golden: Tensors) -> int | None:
        apart = [np.unique(mine.astype(np.int64) - true) for mine, true in _pairs(device, golden, self.stage)]
        found = set(np.concatenate(apart).tolist()) - {0} if apart else set()
        return found.pop() if len(found) == 1 else None


class Ratio:
    """The factor that takes the golden's stage nearest to the device's."""

    def __init__(self, stage: str):
        self.stage = stage

    def __call__(self, device: Tensors, golden: Tensors) -> float | None:
        along = squares = 0.0
        for mine, true in _pairs(device, golden, self.stage):
            wide = true.astype(np.float64)
            along += float((mine.astype(np.float64) * wide).sum())
            squares += float((wide * wide).sum())
        return along / squares if squares and np.isfinite(along) and along != squares else None


class Margin:
    """How near the second best of a stage's logits has to be to be chosen: half way between the widest gap of the rows
    whose id is another and the narrowest wider one of those whose id is the golden's."""

    def __init__(self, logits: str, ids: str):
        self.logits, self.ids = logits, ids

    def __call__(self, device: Tensors, golden: Tensors) -> float | None:
        right, wrong = list[float](), list[float]()
        for round_, stage in golden:
            scores = golden.get((round_, self.logits))
            if stage != self.ids or scores is None or (round_, stage) not in device:
                continue
            mine, true = device[round_, stage], golden[round_, stage]
            if mine.shape == true.shape == scores.shape[:-1]:
                best = np.sort(scores, axis=-1)
                gaps = (best[..., -1] - best[..., -2]).astype(np.float64)
                right += gaps[mine == true].tolist()
                wrong += gaps[mine != true].tolist()
        wider = [gap for gap in right if gap > max(wrong, default=np.inf)]
        return (max(wrong) + min(wider)) / 2 if wrong and wider else None


def _error(mine: NDArray[Any], true: NDArray[Any]) -> NDArray[Any]:
    """Relative L2 of each row."""
    mine, true = (x.reshape(len(x), -1).astype(np.float64) for x in (mine, true))
    error: NDArray[Any] = np.linalg.norm(mine - true, axis=1) / np.maximum(np.linalg.norm(true, axis=1), 1e-30)
    return error


APART = 5.0
"""How many times as large the errors of what is wrong have to be as those of what is not: rounding is below 2 percent,
other weights are above 10."""


def exchanged_experts(device: Tensors, golden: Tensors) -> tuple[int, int, int] | None:
    """(layer, expert, other): the two experts whose rows of one layer's ffn_out, and theirs alone, are wrong; of
    what leaves the layer where that is hidden."""
    layers = {
        stage.split(".")[2] for _, stage in golden if stage.startswith("target.layers.") and stage.endswith(".experts")
    }
    for layer in sorted(layers, key=int):
        errors, chosen = [], []
        for (round_, stage), ids in golden.items():
            parts = ((round_, f"target.layers.{layer}.{part}") for part in ("ffn_out", "out"))
            place = next((place for place in parts if place in device), (round_, ""))
            if (
                stage == f"target.layers.{layer}.experts"
                and place in device
                and device[place].shape == golden[place].shape
            ):
                errors.append(_error(device[place], golden[place]))
                chosen.append(ids)
        rows = (np.concatenate(errors), np.concatenate(chosen)) if errors else None
        found = rows and (_two_experts(*rows) or _two_experts_of_some(*rows))
        if found:
            return (int(layer), *found)
    return None


def _two_experts(errors: NDArray[Any], chosen: NDArray[Any]) -> tuple[int, int] | None:
    has = np.stack([(chosen == expert).any(1) for expert in range(int(chosen.max()) + 1)])
    log = np.log(np.maximum(errors, 1e-9))
    least = np.log(APART)
    for one in range(len(has)):
        for other in range(one + 1, len(has)):
            wrong = has[one] | has[other]
            if has[one].any() and has[other].any() and not wrong.all():
                gap = np.median(log[wrong]) - np.median(log[~wrong])
                split = np.mean(log[wrong] > np.median(log[~wrong]) + least / 2) + np.mean(
                    log[~wrong] < np.median(log[wrong]) - least / 2
                )
                if gap > least and split > 1.9:
                    return one, other
    return None


def _two_experts_of_some(errors: NDArray[Any], chosen: NDArray[Any]) -> tuple[int, int] | None:
    """The two of which every wrong row has one, and the fewest right rows: where some of their rows alone are wrong."""
    wrong = errors > APART * max(float(np.median(errors)), 1e-9)
    has = np.stack([(chosen == expert).any(1) for expert in range(int(chosen.max()) + 1)])
    pairs = combinations(range(len(has)), 2)
    all_wrong = [
        (int((has[one] | has[other])[~wrong].sum()), one, other)
        for one, other in pairs
        if (has[one] | has[other])[wrong].all()
        and (has[one] & ~has[other])[wrong].any()
        and (has[other] & ~has[one])[wrong].any()
    ]
    return min(all_wrong)[1:] if all_wrong else None


class LayerPair:
    """The two layers whose errors at a stage, `{l}` for the layer, stand out from all others."""

    def __init__(self, stage: str):
        self.head, self.tail = stage.split("{l}")

    def __call__(self, device: Tensors, golden: Tensors) -> tuple[int, int] | None:
        stages = {stage for _, stage in golden if stage.startswith(self.head) and stage.endswith(self.tail)}
        errors = {}
        for stage in stages:
            each = [_error(mine, true) for mine, true in _pairs(device, golden, stage)]
            if each:
                errors[int(stage[len(self.head) : len(stage) - len(self.tail)])] = float(
                    np.median(np.concatenate(each))
                )
        ranked = sorted(errors, key=lambda layer: errors[layer], reverse=True)
        if len(ranked) < 3 or errors[ranked[1]] <= APART * errors[ranked[2]]:
            return None
        return min(ranked[:2]), max(ranked[:2])


JUMP, BELOW = 3.0, 8
"""How many times as large the first error behind a table's end is as any before it, of so many rows at the least."""


class TableEnd:
    """The first position whose row of a side's first layer is wrong, where all rows before it are right.

    Of the target in its prefill alone: of its other passes nothing here says where they begin.
    """

    def __init__(self, side: str):
        self.side, self.stages = side, [f"{side}.layers.0.{part}" for part in ("k", "attn_out", "out")]

    def __call__(self, device: Tensors, golden: Tensors) -> int | None:
        stage = next((one for one in self.stages for _, shown in device if shown == one), "")
        rows: list[tuple[int, float]] = []
        for (round_, shown), true in golden.items():
            mine = device.get((round_, shown))
            at = self._positions(golden, round_, len(true)) if shown == stage else None
            if at is not None and mine is not None and mine.shape == true.shape and len(at) == len(true):
                rows += zip(at.tolist(), _error(mine, true).tolist(), strict=True)
        rows.sort()
        most = np.maximum.accumulate(np.array([error for _, error in rows]))
        jumps = (place for place in range(BELOW, len(rows)) if rows[place][1] > JUMP * most[place - 1])
        first = next(jumps, None)
        return None if first is None else int(rows[first][0])

    def _positions(self, golden: Tensors, round_: int, count: int) -> NDArray[Any] | None:
        if self.side == "drafter":
            return golden.get((round_, "drafter.positions"))
        return None if round_ else np.arange(count)


def chunk_size(device: Tensors, golden: Tensors) -> int | None:
    """What the numbers of the wrong rows of the prompt have in common: each is the last of a chunk.

    Where the ids are hidden, the first wrong row of the drafter's first layer is: those behind it attend to it.
    """
    place = (0, "drafter.input_ids")
    if place not in device:
        return _first_chunk(device, golden)
    if place not in golden or device[place].shape != golden[place].shape:
        return None
    size = int(np.gcd.reduce(np.flatnonzero(device[place] != golden[place]) + 1, initial=0))
    return size if size > 1 else None


OTHER_TOKEN = 0.05
"""A row with another token's embedding is further off than this; bfloat16's rounding is below 2 percent."""


def _first_chunk(device: Tensors, golden: Tensors) -> int | None:
    places = ((0, f"drafter.layers.0.{part}") for part in ("attn_out", "out"))
    shown = (place for place in places if place in device and place in golden)
    place = next((place for place in shown if device[place].shape == golden[place].shape), None)
    if place is None:
        return None
    wrong = np.flatnonzero(_error(device[place], golden[place]) > OTHER_TOKEN)
    return int(wrong[0]) + 1 if len(wrong) and wrong[0] > 0 else None


MOST_IDS = 32


def isolated_ids(device: Tensors, golden: Tensors) -> tuple[tuple[int, int], ...] | None:
    """((position, id), …) of committed rows whose id is another, where these are few."""
    found: dict[int, int] = {}
    rows = 0
    for (round_, stage), true in golden.items():
        mine, positions = device.get((round_, stage)), golden.get((round_, "drafter.positions"))
        if stage != "drafter.input_ids" or mine is None or mine.shape != true.shape or positions is None:
            continue
        masked = max(len(golden.get((round_, "drafter.draft_tokens"), ())) - 1, 0)
        committed = slice(0, len(true) - masked)
        rows += len(true) - masked
        wrong = np.flatnonzero(mine[committed] != true[committed])
        found |= {int(positions[row]): int(mine[row]) for row in wrong}
    return tuple(sorted(found.items())) if 0 < len(found) <= min(MOST_IDS, rows / 4) else None
