"""How far the passes of a sequence reached before a round: behind it are positions that no pass had a row at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from parity.compare.rows import Clock, StageRows
from parity.golden.views import DumpView
from parity.stages import DRAFTER_INPUT_IDS


def computed_before(golden: DumpView, rows: StageRows) -> np.ndarray:
    """Whether an earlier pass of the same model had a row at each row's position: what a rollback discarded, or a cache
    overwrites; int64 [R], -1 in the prefill and where that is not known."""
    of_drafter, found = "drafter" in rows.named.name, np.full(len(rows.prompt), -1)
    for prompt in np.unique(rows.prompt).tolist():
        here = (rows.prompt == prompt) & (rows.round > 0)
        reached = np.array([*accumulate(_ends(golden, of_drafter, prompt), max)])[rows.round[here] - 1]
        found[here] = np.where(reached < 0, -1, rows.position[here] <= reached)
    return found


def _ends(golden: DumpView, of_drafter: bool, prompt: int) -> Iterator[int]:
    """The last position of every pass, the prefill's first; a pass that the golden does not have reaches nowhere."""
    clock = Clock.all_of(golden)[prompt]
    yield (clock.drafted[0] if of_drafter else clock.prompt) - 1
    for round_ in range(1, clock.rounds):
        if of_drafter:
            row = golden.rows.get(("float32", prompt, round_, DRAFTER_INPUT_IDS))
            yield clock.drafted[round_ - 1] + row.full_shape[0] - 1 if row is not None else -1
        else:
            yield clock.length(round_ - 1) + golden.manifest.case.drafts(round_)
