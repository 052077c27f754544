"""Views in which the references' re-run takes a golden's place, and a run is as it is compared with that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parity.golden.case import ShownRecord
from parity.golden.fields import Variant
from parity.golden.keeping import Record
from parity.golden.manifest import TensorRow
from parity.golden.views import DumpView, TensorPlace, TrustedGolden
from parity.shown import View


class RebasedGolden(TrustedGolden):
    """A golden in which the references' re-run takes the place of some prompts; a view, nothing is written."""

    def __init__(self, golden: TrustedGolden, rerun: DumpView, prompts: Iterable[int]):
        self.golden, self.rerun, self.prompts = golden, rerun, frozenset(prompts)
        places = [place for place in golden.rows if place[1] not in self.prompts]
        places += [place for place in rerun.rows if place[1] in self.prompts]
        rows: dict[TensorPlace, TensorRow] = {place: self._side(place[1]).rows[place] for place in places}
        parts = {place: self._side(place[1]).parts[place] for place in places}
        manifest = golden.manifest.model_copy(update={"tensors": tuple(rows.values())})
        super().__init__(golden.folder, manifest, golden.declared, rows, parts)

    def _side(self, prompt: int) -> DumpView:
        return self.rerun if prompt in self.prompts else self.golden

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The re-run's rows of a tensor, or the golden's."""
        return self._side(prompt).stored(variant, prompt, round_, stage)

    def record(self, variant: Variant, prompt: int, round_: int, stage: str) -> Record | None:
        """The re-run's, which is whole, or the golden's."""
        return self._side(prompt).record(variant, prompt, round_, stage)


class Overlaid(DumpView):
    """The float32 tensors of some prompts run again, and otherwise the golden's."""

    def __init__(self, golden: DumpView, again: DumpView, prompts: Iterable[int]):
        self.golden, self.again, self.prompts = golden, again, frozenset(prompts)
        rows = {place: self._side(place[0], place[1]).rows[place] for place in golden.rows}
        super().__init__(golden.folder, golden.manifest, golden.declared, rows, golden.parts)

    def _side(self, variant: Variant, prompt: int) -> DumpView:
        return self.again if variant == "float32" and prompt in self.prompts else self.golden

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> NDArray[np.generic] | None:
        """The rows of whichever side has this prompt."""
        return self._side(variant, prompt).stored(variant, prompt, round_, stage)


class ForcedGolden(TrustedGolden):
    """A golden with the experts of a run, which it was made with, in the place of those the reference would choose."""

    def __init__(self, golden: TrustedGolden, run: DumpView):
        self.golden, self.run, self.precision = golden, run, run.manifest.case.precision
        super().__init__(golden.folder, golden.manifest, golden.declared, golden.rows, golden.parts)

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The run's experts, the golden's tensor of everything else."""
        if variant == "float32" and stage.endswith(".experts"):
            own = self.run.stored(self.precision, prompt, round_, stage)
            return self.golden.stored(variant, prompt, round_, stage) if own is None else own
        return self.golden.stored(variant, prompt, round_, stage)

    def record(self, variant: Variant, prompt: int, round_: int, stage: str) -> Record | None:
        """As `stored`, of what the golden keeps."""
        exact = stage.endswith(".experts")
        return (
            super().record(variant, prompt, round_, stage)
            if exact
            else self.golden.record(variant, prompt, round_, stage)
        )


class WithTensors(DumpView):
    """A run with tensors that it does not show, as they are inferred: the experts that it is taken to have chosen, what
    leaves a layer."""

    def __init__(self, run: DumpView, golden: TrustedGolden, tensors: Mapping[TensorPlace, NDArray[np.generic]]):
        self.run, self.tensors = run, tensors
        rows: dict[TensorPlace, TensorRow] = {**run.rows}
        for place in tensors:
            rows[place] = golden.rows["float32", *place[1:]].model_copy(update={"variant": place[0]})
        names = {place[3] for place in tensors}
        stages = tuple(name for name in run.declared if name in names or name in run.manifest.stages)
        manifest = run.manifest.model_copy(update={"stages": stages, "tensors": tuple(rows.values())})
        parts = {**run.parts, **{place: (rows[place],) for place in tensors}}
        super().__init__(run.folder, manifest, run.declared, rows, parts)

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> NDArray[np.generic] | None:
        """What was inferred, or what the run recorded."""
        place = variant, prompt, round_, stage
        return self.tensors[place] if place in self.tensors else self.run.stored(*place)

    def record(self, variant: Variant, prompt: int, round_: int, stage: str) -> Record | None:
        """As `stored`, of what a run keeps."""
        place = variant, prompt, round_, stage
        return super().record(*place) if place in self.tensors else self.run.record(*place)


class SettledRun(DumpView):
    """A run that is compared with what `settle` gives beside it."""

    settled = True

    def __init__(self, run: DumpView, forced: Sequence[str] = ()):
        self.run = run
        case = run.manifest.case.model_copy(update={"forced": (*run.manifest.case.forced, *forced)})
        view = View(
            (*case.shown, *(ShownRecord(stages=glob.replace("{l}", "*")) for glob in forced)) if case.shown else (),
            run.declared,
        )
        manifest = run.manifest.model_copy(update={"case": case})
        super().__init__(run.folder, manifest, run.declared, run.rows, run.parts)
        self.__dict__["view"] = view

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The run's rows."""
        return self.run.stored(variant, prompt, round_, stage)

    def record(self, variant: Variant, prompt: int, round_: int, stage: str) -> Record | None:
        """The run's."""
        return self.run.record(variant, prompt, round_, stage)
