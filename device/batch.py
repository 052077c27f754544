"""Several sequences at once: a `parity.seam.Batched`, each lane a pipeline of its own on common weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parity.device.engines import stacked
from parity.device.engines.lockstep import Lockstep
from parity.device.pipeline import Pipeline
from parity.seam import Description, Sampling, Tap


class Batch:
    """B lanes, which join, leave and accept as their sequences do; programs run over all lanes of a verb at once.

    Attributes:
        lanes: the pipelines, one sequence each.
    """

    def __init__(self, pipeline: Pipeline, lanes: int) -> None:
        self._lockstep = Lockstep()
        self.lanes = [pipeline.lane(stacked.engine(pipeline.engine, self._lockstep)) for _ in range(lanes)]

    def describe(self) -> Description:
        """What this device is; its notes say how many programs ran for several lanes."""
        says, count = self.lanes[0].describe(), len(self.lanes)
        together = f"{self._lockstep.shared} of {self._lockstep.calls} calls of programs were of several lanes"
        return replace(says, name=f"{says.name}, {count} lanes", lanes=count, notes=says.notes | {"batch": together})

    def prefill_batch(
        self, lanes: Sequence[int], prompts: Sequence[Sequence[int]], budgets: Sequence[int], taps: Sequence[Tap]
    ) -> list[int]:
        """See `parity.seam.Batched`."""
        return self._together("prefill", lanes, prompts, budgets, taps)

    def prefill_from_batch(
        self,
        lanes: Sequence[int],
        cached: Sequence[int],
        prompts: Sequence[Sequence[int]],
        budgets: Sequence[int],
        taps: Sequence[Tap],
    ) -> list[int]:
        """See `parity.seam.ContinuingInLanes`."""
        return self._together("prefill_from", lanes, cached, prompts, budgets, taps)

    def save_batch(self, lanes: Sequence[int], names: Sequence[str]) -> None:
        """See `parity.seam.SavingInLanes`."""
        self._together("save", lanes, names)

    def restore_batch(self, lanes: Sequence[int], names: Sequence[str]) -> None:
        """See `parity.seam.SavingInLanes`."""
        self._together("restore", lanes, names)

    def draft_batch(
        self, lanes: Sequence[int], taps: Sequence[Tap], ks: Sequence[int] | None = None
    ) -> list[np.ndarray]:
        """See `parity.seam.Batched`."""
        return self._together("draft", lanes, taps, *(() if ks is None else (ks,)))

    def verify_batch(self, lanes: Sequence[int], drafts: Sequence[np.ndarray], taps: Sequence[Tap]) -> list[np.ndarray]:
        """See `parity.seam.Batched`."""
        return self._together("verify", lanes, drafts, taps)

    def commit_batch(
        self,
        lanes: Sequence[int],
        drafts: Sequence[np.ndarray],
        verified: Sequence[np.ndarray],
        taps: Sequence[Tap],
    ) -> list[np.ndarray]:
        """See `parity.seam.Batched`."""
        return self._together("commit", lanes, drafts, verified, taps)

    def sample_batch(
        self, lanes: Sequence[int], settings: Sequence[Sampling | None], uniforms: Sequence[np.ndarray]
    ) -> None:
        """See `parity.seam.SamplesInLanes`."""
        for lane, own, numbers in zip(lanes, settings, uniforms, strict=True):
            self.lanes[lane].sample(own, numbers)

    def decide(self, settings: Sampling, *arrays: np.ndarray) -> np.ndarray:
        """See `parity.seam.Decides`; the rule is every lane's."""
        return self.lanes[0].decide(settings, *arrays)

    def synchronize(self) -> None:
        """See `parity.seam.Synchronizes`."""
        for lane in self.lanes:
            lane.synchronize()

    def poison(self, value: float) -> None:
        """Every lane's dead cache rows."""
        for lane in self.lanes:
            lane.poison(value)

    def _together(self, verb: str, lanes: Sequence[int], *columns: Sequence[Any]) -> list[Any]:
        rows = zip(lanes, *columns, strict=True)
        with ExitStack() as all_or_none:
            for lane in lanes:
                all_or_none.enter_context(self.lanes[lane].whole())
            return self._lockstep.run([partial(getattr(self.lanes[lane], verb), *given) for lane, *given in rows])
