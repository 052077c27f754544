"""Rows behind a router tie: where the device or the floor chose other experts than the golden.

Such a row runs through other weights from there on. Its error says nothing about rounding, so it is set
apart from the statistics (and the choice itself is judged as a choice). A run that was made with the
experts forced has no such rows.
"""

from __future__ import annotations

import numpy as np

from parity.compare.rows import StageRows, stage_rows
from parity.golden.store import Dump
from parity.stages import Named


EXPERTS = "target.layers.{l}.experts"


class Flips:
    """For each prompt and position, the first layer whose experts differ, on the device or in the floor."""

    def __init__(self, golden: Dump, run: Dump):
        self.layers: dict[tuple[int, int], int] = {}
        if EXPERTS in run.manifest.case.forced:
            return
        for named in golden.declared.values():
            if named.stage.part == "experts":
                for dump, variant in ((run, None), (golden, "bfloat16")):
                    self._find(stage_rows(golden, dump, named, device=variant))

    def _find(self, rows: StageRows | None) -> None:
        if rows is None:
            return
        differ = (np.sort(rows.golden, axis=1) != np.sort(rows.device, axis=1)).any(axis=1)
        for place in zip(rows.prompt[differ].tolist(), rows.position[differ].tolist(), strict=True):
            self.layers.setdefault(place, rows.named.layer)

    def apart(self, rows: StageRows) -> np.ndarray:
        """Which of these rows [R] lie behind a flip; none where the experts were forced."""
        reach = _reach(rows.named)
        places = zip(rows.prompt.tolist(), rows.position.tolist(), strict=True)
        return np.array([self.layers.get(place, np.inf) < reach for place in places], dtype=bool)


def _reach(named: Named) -> float:
    """A flip at a layer below this one reaches the stage; its own layer's counts from ffn_out on."""
    if named.name == "target.embed":
        return 0
    if named.layer is None or "drafter" in named.name:
        return np.inf
    return named.layer + (named.stage.part in ("ffn_out", "out"))
