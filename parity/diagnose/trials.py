"""Trying hypotheses on one prompt: what a device's error is under them, beside what it is without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from parity.compare.places import segment
from parity.compare.rebased import SettledRun
from parity.diagnose.clock import SearchClock
from parity.diagnose.components.wrong import Component
from parity.diagnose.counterfactual import CounterfactualGolden
from parity.diagnose.counterfactual_runs import (
    CounterfactualReference,
    CounterfactualRuns,
    CounterfactualTensors,
    NothingChanged,
)
from parity.diagnose.deduced import DeducedTensors, HiddenLayers
from parity.diagnose.hypothesis import Assumption, CheckableHypothesis, NotComparable
from parity.diagnose.residuals import Residual, red_rows, residuals
from parity.diagnose.tensors import contents_of, differ, sampled_gap, stage_error
from parity.golden.case import Generation
from parity.golden.fields import Mode
from parity.golden.views import DumpView, GoldenSlice, PromptSlice, TrustedGolden
from parity.policy import Policy
from parity.trace import ForcingTrace, Recorded, Trace

SAME = 1e-6
"""How far the size of an error may be from the one that was judged, relative: the same rows,
summed in another order."""


@dataclass(frozen=True)
class ResidualChange:
    """Residuals by stage without some assumptions and with them, over the same rounds and rows of one prompt.

    `moved` is a sample of what they change of the one stage judged, see `PromptTrials.gap`.
    """

    before: dict[str, Residual]
    after: dict[str, Residual]
    moved: np.ndarray | None = None


@dataclass
class PromptTrials:
    """One prompt of a golden and of a device's run over it, and the references to try hypotheses on.

    Args:
        golden: the whole golden.
        run: the device's run over it, local or chained.
        prompt: which prompt to look at.
        policy: the bounds that say when a residual is noise.
        reference: makes what runs the counterfactuals, in a precision; called once for each.
        drive: runs the device over another golden of this prompt; None where there is only its run.
        free: what the device emits freely of this prompt; None where there is only its run.
        others: (golden, run, number) of the other prompts, made as they are asked for.
        clock: the time that all of it may take.
        hidden: layers that the run does not show, and that are deduced from what it shows.
        parts: what was read already, by what it was read of; see `parity.diagnose.causes.parts_of`.
    """

    golden: TrustedGolden
    run: DumpView
    prompt: int
    policy: Policy
    reference: Callable[[str], CounterfactualReference]
    drive: Callable[[TrustedGolden], DumpView] | None = None
    free: Callable[[], Generation] | None = None
    others: Callable[[], Iterator[tuple[TrustedGolden, DumpView, int]]] = lambda: iter(())
    clock: SearchClock = field(default_factory=SearchClock)
    hidden: HiddenLayers | None = None
    parts: dict[tuple[object, ...], tuple[Component, ...]] = field(default_factory=dict)
    _own: Generation | None = None
    _slices: dict[int, tuple[TrustedGolden, DumpView]] = field(default_factory=dict)
    _contents: dict[int, Recorded] = field(default_factory=dict)
    _baselines: dict[tuple[object, ...], tuple[Recorded, dict[str, Residual]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = self.run.manifest.case
        self.counterfactuals = CounterfactualRuns(
            self.reference, case.mode, case.max_new_tokens, self.run, clock=self.clock
        )

    @property
    def mode(self) -> Mode:
        """Local or chained, as the run is."""
        return self.counterfactuals.mode

    @property
    def contained(self) -> bool:
        """Whether an error stays in its stage and its row."""
        return self.mode == "local"

    @property
    def count(self) -> int:
        """Counterfactual references run so far."""
        return self.counterfactuals.count

    @property
    def rounds(self) -> int:
        """Verify rounds the golden has of this prompt."""
        return len(self.golden.manifest.case.prompts[self.prompt].generated.acceptance_length)

    def cut(self, rounds: int) -> tuple[TrustedGolden, DumpView]:
        """Golden and run of the prompt up to this round, with what is deduced."""
        if rounds not in self._slices:
            golden, run = self._shown(rounds)
            self._slices[rounds] = (golden, run) if self._deduced is None else self._deduced.beside(golden, run)
        return self._slices[rounds]

    def _shown(self, rounds: int) -> tuple[GoldenSlice, PromptSlice]:
        """Golden and run of the prompt up to this round, as the run shows it."""
        golden = GoldenSlice(self.golden, self.prompt, rounds)
        return golden, PromptSlice(self.run, self.prompt, rounds, budget=golden.manifest.case.max_new_tokens)

    def with_hidden(self, hidden: HiddenLayers | None) -> PromptTrials:
        """The same with other layers that are deduced."""
        made = replace(self, hidden=hidden, _slices={}, _contents={}, _baselines={})
        made.counterfactuals.references = self.counterfactuals.references
        made.counterfactuals.count = self.count
        return made

    def sure_rows(self, stage: str) -> np.ndarray | None:
        """Which rows of a deduced stage are sure, bool [R] of all rounds; None where it is shown."""
        return None if self._deduced is None else self._deduced.sure.get(stage)

    def _tensors(
        self,
        golden: TrustedGolden,
        assumed: Sequence[Assumption],
        stages: Sequence[str] = (),
        last: str | None = None,
        precision: str = "float32",
    ) -> CounterfactualTensors:
        """What the stages hold under assumptions; in rows of deduced stages that are not sure, what was deduced."""
        made = self.counterfactuals.tensors(golden, assumed, stages, last, precision)
        if self._deduced is None:
            return made
        tensors = dict(made.tensors)
        for place, sure in self._deduced.sure_by_place.items():
            own = self._deduced.tensors[self.run.manifest.case.precision, 0, *place]
            if place in tensors and tensors[place].shape == own.shape:
                tensors[place] = np.where(sure[:, None], tensors[place], own.astype(tensors[place].dtype))
        return replace(made, tensors=tensors)

    @cached_property
    def _deduced(self) -> DeducedTensors | None:
        """What is deduced of the hidden layers, over all rounds."""
        if self.hidden is None:
            return None
        golden, run = self._shown(self.rounds)
        ways = self.counterfactuals.layers_back(golden, self.hidden.behind)
        return DeducedTensors.of(golden, run, ways, self.hidden)

    def segment(self, first: Residual) -> list[str]:
        """The stages whose error would show first in a failing one, as far as the run shows any in that pass."""
        stage, names = first.stage, self.golden.declared
        if stage not in names:
            return [stage]
        _, run = self.cut(self.rounds)
        shown = {
            name
            for name in run.manifest.stages
            if first.place is None or name not in names or run.view.rows(name, first.place.round)
        }
        return segment(stage, names, shown)

    def failing_passes(self, first: Residual) -> str:
        """The passes that alone show a failing stage of both: `prefill`, `verify`, or '' where that is not known."""
        if first.place is None or first.error == inf:
            return ""
        if not self.prefilled(first.stage):
            return "verify" if self._prefill_is_right(first) else ""
        wrong = red_rows(*self.cut(self.rounds), first.stage)
        later = [round_ > 0 for (round_, _, _), red in wrong.items() if red]
        if not later:  # the place is that of the worst row, and all are off a little
            return ""
        return "verify" if first.place.round > 0 else "" if any(later) else "prefill"

    def prefilled(self, stage: str) -> bool:
        """Whether a stage has rows in the prefill."""
        return ("float32", self.prompt, 0, stage) in self.golden.rows

    def _prefill_is_right(self, first: Residual) -> bool:
        """Whether all that is hidden behind a stage of rounds is shown in the prefill, and passes there."""
        hidden = [stage for stage in self.segment(first) if self.prefilled(stage)]
        _, run = self.cut(self.rounds)
        shown = hidden and all(run.view.rows(stage, 0) for stage in hidden)
        return bool(shown) and not any(left.red for left in self.residuals((), 0).values())

    def other_prompts(self) -> Iterator[PromptTrials]:
        """The same device over other prompts, run anew where it has to be."""
        return (self._on(golden, run, number) for golden, run, number in self.others())

    def same_comparison(self) -> Iterator[PromptTrials]:
        """The other prompts of the comparison that this prompt is of."""
        numbers = range(len(self.golden.manifest.case.prompts))
        return (self._on(self.golden, self.run, number) for number in numbers if number != self.prompt)

    def _on(self, golden: TrustedGolden, run: DumpView, prompt: int) -> PromptTrials:
        """Trials on another prompt, with the same references."""
        trials = PromptTrials(golden, run, prompt, self.policy, self.reference, clock=self.clock, hidden=self.hidden)
        trials.counterfactuals.references = self.counterfactuals.references
        return trials

    def residuals(self, assumed: Sequence[Assumption], rounds: int) -> dict[str, Residual]:
        """What is left of the device's error under these hypotheses, by stage in the order in which it shows.

        Args:
            rounds: how many of the prompt's rounds to look at.
        """
        if assumed:
            return self._residuals(rounds, self.counterfactual(assumed, rounds), ())
        return residuals(*self.cut(rounds), self.policy)

    def emits(self, assumed: Sequence[Assumption]) -> bool:
        """Whether the references freely emit what the device does under these hypotheses, in as many rounds.

        False where the device is not there to be asked.
        """
        if self.free is None:
            return False
        own = self._own = self._own or self.free()
        golden, _ = self.cut(self.rounds)
        told = self.counterfactuals.emitted(golden, assumed)
        return (*told.emitted,) == own.emitted and (*told.acceptance_length,) == own.acceptance_length

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
        moved = sampled_gap(true, made.tensors, stages[0]) if len(stages) == 1 else None
        if len(stages) == 1 and not (made.undetermined or own_floor):
            hopeless = self._left_as_it_was(before[stages[0]], true, made.tensors, rounds)
            if hopeless is not None:
                return ResidualChange(before, {stages[0]: hopeless}, moved)
        view = self._view(golden, made, (*known, *assumed), last, stages, rounds, own_floor)
        return ResidualChange(before, self._residuals(rounds, view, stages), moved)

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
        return sampled_gap(true, contents_of(run, run.manifest.case.precision), stage)

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

    def rerun(self, known: Sequence[Assumption]) -> PromptTrials:
        """The device run anew, compared with what the references say under the known causes.

        A device that feeds itself another prompt follows none of the golden's tensors; these it follows.

        Raises:
            ValueError: there is only a run, no device.
        """
        if self.drive is None:
            raise ValueError("there is no device to run anew")
        golden, _ = self.cut(self.rounds)
        truth = Trace(golden.declared)
        result = self.counterfactuals.run("float32", known, golden, truth, None)
        rough = ForcingTrace(
            golden.declared,
            lambda round_, stage: truth.tensors.get((round_, stage)) if self.run.follows(round_, stage) else None,
            self.run.followed,
        )
        self.counterfactuals.run("bfloat16", known, golden, rough, None)
        emitted = Generation(
            emitted=result.emitted,
            acceptance_length=result.acceptance_length,
            accepted_drafts=result.accepted_drafts,
            finish=result.finish,
        )
        view = CounterfactualGolden(golden, truth.tensors, self.mode, rough.tensors).emitting(emitted)
        run = self.drive(view)
        run = SettledRun(run) if self.run.settled else run
        again = PromptTrials(view, run, 0, self.policy, self.reference, self.drive, clock=self.clock)
        again.counterfactuals.references = self.counterfactuals.references
        again.counterfactuals.count = self.count
        return again

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
