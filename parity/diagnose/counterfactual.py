"""A golden as it would be under a hypothesis: its float32 tensors are a counterfactual reference's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.compare.rows import FLOOR
from parity.golden.case import Generation
from parity.golden.fields import Variant
from parity.golden.manifest import TensorRow, key
from parity.golden.views import TensorPlace, TrustedGolden
from parity.trace import Recorded


class CounterfactualGolden(TrustedGolden):
    """A view of a golden of one prompt; nothing is written, and nothing of it is ever taken for a golden on disk.

    Its noise floor is what the same counterfactual loses in bfloat16 (`rough`): some defects, like scores
    that are not scaled, make rounding worse. Without it the golden's own error is moved onto the
    counterfactual, which is nearly always the same; where the rows differ, the noise rows repeat.

    Args:
        golden: the golden, cut to one prompt.
        tensors: the counterfactual's stage tensors, by (round, stage).
        mode: local or chained, which floor to use.
        rough: the counterfactual in bfloat16, or None.
    """

    imagined = True

    def __init__(self, golden: TrustedGolden, tensors: Recorded, mode: str, rough: Recorded | None = None):
        self.golden, self.tensors, self.rough = golden, tensors, rough
        self.floor: Variant = FLOOR[mode]
        super().__init__(golden.folder, golden.manifest, golden.declared, {}, {})
        self.rows = dict(self._all_rows())
        self.parts = {place: [row] for place, row in self.rows.items()}
        model = golden.manifest.model
        drafter = model.drafter.model_copy(update={"path": ""})  # its ids are mapped as the hypothesis has it
        model = model.model_copy(update={"draft_vocabulary": None, "drafter": drafter})
        self.manifest = golden.manifest.model_copy(update={"tensors": tuple(self.rows.values()), "model": model})

    def _all_rows(self) -> Iterator[tuple[TensorPlace, TensorRow]]:
        for (round_, stage), value in self.tensors.items():
            yield ("float32", 0, round_, stage), self._row("float32", round_, stage, value)
            floored = self.rough is not None or (self.floor, 0, round_, stage) in self.golden.rows
            if floored and not self.declared[stage].stage.exact:
                yield (self.floor, 0, round_, stage), self._row(self.floor, round_, stage, value)

    def emitting(self, generation: Generation) -> CounterfactualGolden:
        """The same view of a prompt that emits something else."""
        case = self.manifest.case
        prompt = case.prompts[0].model_copy(update={"generation": generation})
        self.manifest = self.manifest.model_copy(update={"case": case.model_copy(update={"prompts": (prompt,)})})
        return self

    def _row(self, variant: Variant, round_: int, stage: str, value: np.ndarray) -> TensorRow:
        return TensorRow(
            key=key(0, round_, stage),
            variant=variant,
            axes=self.declared[stage].stage.axes,
            dtype=value.dtype.name,
            shape=value.shape,
            start=0,
            shard="",
            sha256="",
        )

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The counterfactual's tensor, or its noise floor."""
        value = self.tensors.get((round_, stage))
        if value is None or variant == "float32":
            return value
        if self.rough is not None:
            return self.rough[round_, stage]
        true, floor = (self.golden.contents(one, prompt, round_, stage) for one in ("float32", self.floor))
        if true is None or floor is None:
            return None
        if np.array_equal(value, true):
            return floor
        noise = np.resize(floor.astype(np.float32) - true, value.shape) if true.size else np.zeros_like(value)
        zero = ~value.any(axis=tuple(range(1, value.ndim)))
        noise[zero] = 0.0  # rounding costs a row of zeros nothing
        return value + noise
