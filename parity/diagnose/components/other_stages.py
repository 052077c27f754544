"""A stage whose error is a multiple of another stage: added once more, left out, or taken in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from parity.compare.rows import StageRows, stage_rows
from parity.diagnose.components.wrong import Component, WrongRows, preferred
from parity.golden.views import DumpView

SHARE = 0.98
"""A sum of so much of the error is its reason; less is a likeness."""

ROWS = {0: "", -1: " of the row before", 1: " of the row behind"}
"""Rows of the same pass that may stand in a row's place."""

TAPS, HIDDEN = ("TH",), ("H",)
"""The axes of a row of taps side by side, and of one of the target's hidden states."""


def in_other_stages(wrong: WrongRows, golden: DumpView, mode: str) -> Component | None:
    """A multiple of one stage's golden rows, of the same width: added once more, left out, or in another's place.

    Of taps, which are hidden states side by side, each one's error is looked at alone.
    """
    axes, best = wrong.rows.named.stage.axes[1:], None
    for says, one in _taps(wrong, golden) if axes == TAPS else [("", wrong)]:
        beside = {
            f"{named.name}{where}": other[:, one.columns]
            for named in golden.declared.values()
            if named.stage.axes[1:] == (HIDDEN if says else axes) and not (named.stage.exact or named.stage.cache)
            for step, where in ROWS.items()
            for other in [_beside(one, golden, named.name, mode, fed=bool(says), step=step)]
            if other is not None and other.shape == one.golden.shape
        }
        own = wrong.rows.named.name  # a multiple of the stage itself is a factor, of which others say more
        multiples = (_multiple(one, says, name, other) for name, other in beside.items() if name != own)
        for found in (*multiples, _in_place_of(one, says, beside)):
            if found and found.explained >= SHARE and (best is None or preferred(found) > preferred(best)):
                best = found
    return best


def _taps(wrong: WrongRows, golden: DumpView) -> Iterator[tuple[str, WrongRows]]:
    """The rows of each tap, as far as they are wrong there and nowhere else."""
    width = golden.manifest.model.target.constants.get("hidden_size")
    if not isinstance(width, int) or wrong.golden.shape[1] % width:
        return
    for first in range(0, wrong.golden.shape[1], width):
        inside = slice(first, first + width)
        if wrong.columns[inside].any() and not np.delete(wrong.columns, np.arange(first, first + width)).any():
            sides = {name: getattr(wrong, name)[:, inside] for name in ("golden", "device")}
            yield f"tap {first // width}: ", replace(wrong, **sides, columns=wrong.columns[inside], tail=(width,))


def _multiple(wrong: WrongRows, says: str, name: str, other: np.ndarray) -> Component | None:
    """The error as a multiple of a stage's rows [R, wrong columns]."""
    error = wrong.error[:, wrong.columns]
    factor = float((other * error).sum() / max((other**2).sum(), 1e-300))
    return wrong.judged(f"{says}{wrong.where}{factor:+.4g} times {name}", factor * other, 1)


def _in_place_of(wrong: WrongRows, says: str, beside: Mapping[str, np.ndarray]) -> Component | None:
    """One stage's rows added where another's should be: of every two those that leave least."""
    if len(beside) < 2:
        return None
    names, held = list(beside), np.stack([other.ravel() for other in beside.values()])
    gram, met = held @ held.T, held @ wrong.error[:, wrong.columns].ravel()
    size = np.diag(gram)
    left = size[:, None] + size - 2 * gram - 2 * (met[:, None] - met)  # of the row's stage for the column's
    np.fill_diagonal(left, np.inf)
    one, other = np.unravel_index(left.argmin(), left.shape)
    model = beside[names[one]] - beside[names[other]]
    return wrong.judged(f"{says}{wrong.where}{names[one]} in the place of {names[other]}", model, 2)


def _beside(wrong: WrongRows, golden: DumpView, name: str, mode: str, fed: bool, step: int = 0) -> np.ndarray | None:
    """The golden's rows of another stage at the places of the wrong rows, or so many behind in the same pass, [R, C];
    None where one has none.

    Args:
        fed: the wrong rows are fed by earlier passes: what these had at the same position.
    """
    rows = stage_rows(golden, golden, golden.declared[name], device="float32", mode=mode)
    if rows is None:
        return None
    places = {tuple(place): number for number, place in enumerate(rows.labels.tolist())}
    labels = wrong.rows.labels.tolist()
    if fed:
        labels = [_earlier(rows, *place) for place in labels]
    found = [places.get((prompt, round_, position + step), -1) for prompt, round_, position in labels]
    return None if min(found) < 0 else rows.golden[found].reshape(len(found), -1).astype(np.float64)


def _earlier(rows: StageRows, prompt: int, round_: int, position: int) -> tuple[int, int, int]:
    """The label of a position's row in the last round before this one; of the prefill's in the prefill."""
    held = (rows.prompt == prompt) & (rows.position == position) & (rows.round < max(round_, 1))
    return prompt, int(rows.round[held].max(initial=-1)), position
