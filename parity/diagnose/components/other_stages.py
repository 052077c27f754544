"""A stage whose error is a multiple of another stage: added once more, left out, or taken in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity.compare.rows import StageRows, stage_rows
from parity.diagnose.components.wrong import Component, WrongRows
from parity.golden.views import DumpView

SHARE = 0.98
"""A sum of so much of the error is its reason; less is a likeness."""

TAPS, HIDDEN = ("TH",), ("H",)
"""The axes of a row of taps side by side, and of one of the target's hidden states."""


def in_other_stages(wrong: WrongRows, golden: DumpView, mode: str) -> Component | None:
    """A multiple of one stage's golden rows, of the same width: added once more, left out, or in another's place.

    Of taps, which are hidden states side by side, each one's error is looked at alone.
    """
    axes, best = wrong.rows.named.stage.axes[1:], None
    for says, one in _taps(wrong, golden) if axes == TAPS else [("", wrong)]:
        for named in golden.declared.values():
            if named.stage.axes[1:] != (HIDDEN if says else axes) or named.stage.exact or named.stage.cache:
                continue
            found = _multiple(one, says, golden, named.name, mode)
            if found and found.explained >= SHARE and (best is None or found.explained > best.explained):
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


def _multiple(wrong: WrongRows, says: str, golden: DumpView, name: str, mode: str) -> Component | None:
    """The error as a multiple of a stage's rows."""
    other = _beside(wrong, golden, name, mode, fed=bool(says))
    if other is None or other.shape != wrong.golden.shape:
        return None
    other, error = other[:, wrong.columns], wrong.error[:, wrong.columns]
    factor = float((other * error).sum() / max((other**2).sum(), 1e-300))
    return wrong.judged(f"{says}{wrong.where}{factor:+.4g} times {name}", factor * other, 1)


def _beside(wrong: WrongRows, golden: DumpView, name: str, mode: str, fed: bool) -> np.ndarray | None:
    """The golden's rows of another stage at the places of the wrong rows, [R, C]; None where one has none.

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
    found = [places.get(tuple(place), -1) for place in labels]
    return None if min(found) < 0 else rows.golden[found].reshape(len(found), -1).astype(np.float64)


def _earlier(rows: StageRows, prompt: int, round_: int, position: int) -> tuple[int, int, int]:
    """The label of a position's row in the last round before this one; of the prefill's in the prefill."""
    held = (rows.prompt == prompt) & (rows.position == position) & (rows.round < max(round_, 1))
    return prompt, int(rows.round[held].max(initial=-1)), position
