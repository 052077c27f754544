"""Trying hypotheses on one prompt: what a device's error is under them, beside what it is without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity.diagnose.counterfactual import CounterfactualGolden
from parity.diagnose.counterfactual_runs import (
    CounterfactualTensors,
    NothingChanged,
)
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis, NotComparable
from parity.diagnose.prompt_evidence import PromptEvidence
from parity.diagnose.residuals import Residual, red_rows, residuals
from parity.diagnose.tensors import contents_of, differ, sampled_gap, stage_error
from parity.golden.views import TrustedGolden
from parity.trace import Recorded

SAME = 1e-6
"""How far the size of an error may be from the one that was judged, relative: the same rows,
summed in another order."""


@dataclass(frozen=True)
class ResidualChange:
    """Residuals by stage without some assumptions and with them, over the same rounds and rows of one prompt.

    `sample` is one of what they change of the one stage judged, see `PromptTrials.gap`; NaN is not determined.
    """

    before: dict[str, Residual]
    after: dict[str, Residual]
    sample: np.ndarray | None = None


@dataclass
class PromptTrials(PromptEvidence):
    """Evidence of one prompt, and what is left of the device's error in it under hypotheses."""

    _contents: dict[int, Recorded] = field(default_factory=dict, init=False)
    _baselines: dict[tuple[object, ...], tuple[Recorded, dict[str, Residual]]] = field(default_factory=dict, init=False)

    def residuals(self, assumed: Sequence[Assumption], rounds: int) -> dict[str, Residual]:
        """What is left of the device's error under these hypotheses, by stage in the order in which it shows.

        Args:
            rounds: how many of the prompt's rounds to look at.
        """
        if assumed:
            return self._residuals(rounds, self.counterfactual(assumed, rounds), ())
        return residuals(*self.cut(rounds), self.policy)

    def fails_unassumed(self, stage: str, rounds: int) -> bool:
        """Whether a stage fails against the references without an assumption.

        Where it passes against the golden, a row that is set apart there, or a floor over other draws, is the reason.
        """
        left = self._baseline((), rounds, (), None)[1].get(stage)
        return left is not None and left.red

    def before(self, known: Sequence[Assumption], rounds: int, stage: str) -> Residual:
        """What is left at one stage under the known assumptions: what a further one starts from.

        Raises:
            NotComparable: the device's tensors of this stage are of other shapes, or of no round so far.
        """
        left = self._baseline(known, rounds, (stage,), stage)[1].get(stage)
        if left is None:
            raise NotComparable
        return left

    def weigh(
        self,
        known: Sequence[Assumption],
        assumed: Sequence[Assumption],
        rounds: int,
        stages: Sequence[str] = (),
        last: str | None = None,
        own_floor: bool = False,
    ) -> ResidualChange:
        """What further assumptions leave of the device's error, beside what is left without them.

        Both sides are counterfactuals of the same reference, judged over the same rounds and rows: without that, an
        assumption is credited with the difference between the two measurements.

        Args:
            known: assumptions made already.
            assumed: further ones.
            rounds: how many of the prompt's rounds to look at.
            stages: judge these only.
            last: stop each counterfactual once the last round has handed this stage over.
            own_floor: run the counterfactual in bfloat16 as well, for what rounding costs under it.

        Raises:
            NothingChanged: they change no bit of these stages.
        """
        golden, _ = self.cut(rounds)
        true, before = self._baseline(known, rounds, stages, last)
        made = self._tensors(golden, (*known, *assumed), stages, last)
        places = [place for place in true.keys() | made.tensors.keys() if not stages or place[1] in stages]
        if not any(differ(true.get(place), made.tensors.get(place)) for place in places):
            raise NothingChanged
        if made.undetermined:  # what is not determined explains nothing: out of the error on both sides
            rows = {
                place: missing
                for place, missing in made.undetermined.items()
                if place in true and true[place].shape == made.tensors[place].shape
            }
            same = self._filled(CounterfactualTensors(true, rows), rounds)
            before = self._residuals(rounds, CounterfactualGolden(golden, same, self.mode), stages)
        sample = sampled_gap(true, made.tensors, stages[0]) if len(stages) == 1 else None
        if len(stages) == 1 and not (made.undetermined or own_floor):
            hopeless = self._left_as_it_was(before[stages[0]], true, made.tensors, rounds)
            if hopeless is not None:
                return ResidualChange(before, {stages[0]: hopeless}, sample)
        view = self._view(golden, made, (*known, *assumed), last, stages, rounds, own_floor)
        return ResidualChange(before, self._residuals(rounds, view, stages), sample)

    def _left_as_it_was(self, before: Residual, true: Recorded, made: Recorded, rounds: int) -> Residual | None:
        """The residual under assumptions that take no more than chance off the error, told by its size alone.

        None where that does not tell: where the size is within its bound, or is of other rows than are judged.
        """
        if before.beyond.get("l2", 0.0) <= 1.0:
            return None
        if rounds not in self._contents:
            self._contents[rounds] = contents_of(self.cut(rounds)[1], self.run.manifest.case.precision)
        was, left = (stage_error(one, self._contents[rounds], before.stage) for one in (true, made))
        if was is None or left is None or abs(was.relative - before.error) > SAME * before.error:
            return None
        after = replace(before, error=left.relative, rms=left.rms, settled=False)
        return None if before.fell_to(after) else after

    def explained_in_bfloat16(
        self, known: Sequence[Assumption], assumed: Sequence[Assumption], rounds: int, stage: str
    ) -> float | None:
        """Share of the device's squared error at a stage that is gone beside the assumptions' own bfloat16 run.

        None for a float32 run, and where tensors have other shapes or are no numbers.
        """
        golden, run = self.cut(rounds)
        if run.manifest.case.precision != "bfloat16":
            return None
        device = contents_of(run, "bfloat16")
        rough = self._tensors(golden, (*known, *assumed), precision="bfloat16")
        before = stage_error(self._baseline(known, rounds, (), None)[0], device, stage)
        after = stage_error(rough.tensors, device, stage)
        if before is None or after is None or before.rms == 0.0:
            return None
        return 1.0 - max(after.rms / before.rms, after.relative / before.relative) ** 2

    def gap(self, known: Sequence[Assumption], rounds: int, stage: str) -> np.ndarray | None:
        """A sample [SAMPLED at the most] of the device's error at a stage under the known assumptions; None where it
        has no numbers of the same shapes."""
        _, run = self.cut(rounds)
        true, _ = self._baseline(known, rounds, (stage,), stage)
        apart = sampled_gap(true, contents_of(run, run.manifest.case.precision), stage)
        return None if apart is None else np.nan_to_num(apart)

    def stages_under(self, assumed: Sequence[Assumption], stages: Sequence[str]) -> CounterfactualGolden:
        """What these stages are under assumptions, over all rounds, with the golden's own floor."""
        golden, _ = self.cut(self.rounds)
        made = self._tensors(golden, assumed, stages)
        return self._view(golden, made, assumed, None, stages, self.rounds, own_floor=False)

    def harms_no_row(self, known: Sequence[Assumption], assumed: Sequence[Assumption], rounds: int, stage: str) -> bool:
        """Whether every row that is within its bound without an assumption still is with it."""
        _, run = self.cut(rounds)
        before, after = (
            red_rows(self.counterfactual(assumptions, rounds), run, stage)
            for assumptions in (known, (*known, *assumed))
        )
        return all(before.get(place, False) for place, red in after.items() if red)

    def counterfactual(self, assumed: Sequence[Assumption], rounds: int) -> CounterfactualGolden:
        """The golden of this prompt under assumptions, with its own floor; the golden's tensors where there are
        none."""
        golden, _ = self.cut(rounds)
        made = self._tensors(golden, assumed)
        return self._view(golden, made, assumed, None, (), rounds, own_floor=bool(assumed))

    def infer(self, hypothesis: CheckableHypothesis, known: Sequence[Assumption], rounds: int) -> Any:
        """The value of a hypothesis's parameter that the device's own tensors show; None where they do not."""
        if hypothesis.infer is None:
            return None
        golden, run = self.cut(rounds)
        truth: TrustedGolden = golden
        if known:
            made = self._tensors(golden, known)
            truth = self._view(golden, made, known, None, (), rounds, own_floor=False)
        return hypothesis.infer(contents_of(run, run.manifest.case.precision), contents_of(truth, "float32"))

    def _baseline(
        self, known: Sequence[Assumption], rounds: int, stages: Sequence[str], last: str | None
    ) -> tuple[Recorded, dict[str, Residual]]:
        """The tensors under the known assumptions, and what they leave; computed once."""
        key = tuple((hypothesis.id, value) for hypothesis, value in known), rounds, tuple(stages), last
        if key not in self._baselines:
            golden, _ = self.cut(rounds)
            made = self._tensors(golden, known, stages, last)
            view = self._view(golden, made, known, last, stages, rounds, own_floor=False)
            self._baselines[key] = made.tensors, self._residuals(rounds, view, stages)
        return self._baselines[key]

    def _residuals(self, rounds: int, view: CounterfactualGolden, stages: Sequence[str]) -> dict[str, Residual]:
        """The device's residuals against a counterfactual; unchanged choices are judged by the golden's own scores."""
        golden, run = self.cut(rounds)
        left = residuals(view, run, self.policy, stages)
        same = [name for name in left if golden.declared[name].stage.forced and self._unchanged(golden, view, name)]
        return left | (residuals(golden, run, self.policy, same) if same else {})

    def _unchanged(self, golden: TrustedGolden, view: CounterfactualGolden, name: str) -> bool:
        """Whether a hypothesis leaves a local choice as it is: then the golden's own scores are behind it."""
        if self.mode != "local":
            return False
        places = [place for place in view.tensors if place[1] == name]
        return not any(differ(golden.contents("float32", 0, *place), view.tensors[place]) for place in places)

    def _view(
        self,
        golden: TrustedGolden,
        made: CounterfactualTensors,
        assumed: Sequence[Assumption],
        last: str | None,
        stages: Sequence[str],
        rounds: int,
        own_floor: bool,
    ) -> CounterfactualGolden:
        """Tensors as a golden; rows that are not determined are the device's own."""
        tensors = self._filled(made, rounds)
        if not own_floor:
            return CounterfactualGolden(golden, tensors, self.mode)
        rough = self._filled(self._tensors(golden, assumed, stages, last, "bfloat16"), rounds)
        own = {place for place in tensors if not golden.declared[place[1]].stage.exact}
        same = all(place in rough and rough[place].shape == tensors[place].shape for place in own)
        return CounterfactualGolden(golden, tensors, self.mode, rough if same else None)

    def _filled(self, made: CounterfactualTensors, rounds: int) -> Recorded:
        """The tensors, with the device's own rows where they are not determined."""
        _, run = self.cut(rounds)
        filled = dict(made.tensors)
        for place, rows in made.undetermined.items():
            value, device = made.tensors[place], run.contents(run.manifest.case.precision, 0, *place)
            if device is None:
                del filled[place]  # not shown: nothing to compare with
                continue
            if device.shape != value.shape:
                raise NotComparable
            filled[place] = np.where(rows[(..., *(None,) * (value.ndim - 1))], device.astype(value.dtype), value)
        return filled
