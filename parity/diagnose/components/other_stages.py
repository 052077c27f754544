"""A stage whose error is a multiple of another stage: added once more, left out, or taken in its place."""

from __future__ import annotations

import numpy as np

from parity.compare.rows import stage_rows
from parity.diagnose.components.wrong import Component, WrongRows
from parity.golden.views import DumpView

SHARE = 0.98
"""A sum of so much of the error is its reason; less is a likeness."""


def in_other_stages(wrong: WrongRows, golden: DumpView, mode: str) -> Component | None:
    """A multiple of one stage's golden rows, of the same width: added once more, left out, or in another's place."""
    best: Component | None = None
    for named in golden.declared.values():
        if named.stage.axes[1:] != wrong.rows.named.stage.axes[1:] or named.stage.exact or named.stage.cache:
            continue
        other = _beside(wrong, golden, named.name, mode)
        if other is None or other.shape != wrong.golden.shape:
            continue
        other, error = other[:, wrong.columns], wrong.error[:, wrong.columns]
        factor = float((other * error).sum() / max((other**2).sum(), 1e-300))
        found = wrong.judged(f"{wrong.where}{factor:+.4g} times {named.name}", factor * other, 1)
        if found and found.explained >= SHARE and (best is None or found.explained > best.explained):
            best = found
    return best


def _beside(wrong: WrongRows, golden: DumpView, name: str, mode: str) -> np.ndarray | None:
    """The golden's rows of another stage at the places of the wrong rows, [R, C]; None where one has none."""
    rows = stage_rows(golden, golden, golden.declared[name], device="float32", mode=mode)
    if rows is None:
        return None
    places = {tuple(place): number for number, place in enumerate(rows.labels.tolist())}
    found = [places.get(tuple(place), -1) for place in wrong.rows.labels.tolist()]
    return None if min(found) < 0 else rows.golden[found].reshape(len(found), -1).astype(np.float64)
