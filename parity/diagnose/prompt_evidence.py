"""One prompt of a golden and of a device's run over it: what is shown or deduced of it, and the references of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from math import inf
from typing import Self

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
)
from parity.diagnose.deduced import DeducedTensors, HiddenLayers
from parity.diagnose.hypothesis import Assumption
from parity.diagnose.residuals import Residual, red_rows, residuals
from parity.golden.case import Generation
from parity.golden.fields import Mode
from parity.golden.views import DumpView, GoldenSlice, PromptSlice, TrustedGolden
from parity.policy import Policy
from parity.stages import OF_PREFILL
from parity.trace import ForcingTrace, Trace


@dataclass
class PromptEvidence:
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
    _slices: dict[int, tuple[TrustedGolden, DumpView]] = field(default_factory=dict, init=False)
    _beside: list[Self] = field(default_factory=list, init=False)

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

    def with_hidden(self, hidden: HiddenLayers | None) -> Self:
        """The same with other layers that are deduced."""
        made = replace(self, hidden=hidden)
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
            return "verify" if self._prefill_is_right(first) or self._same_head_is_right(first.stage) else ""
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
        return bool(shown) and not any(left.red for left in residuals(*self.cut(0), self.policy).values())

    def _same_head_is_right(self, stage: str) -> bool:
        """Whether a stage of verify rows is shown under another name in the prefill, and passes there."""
        _, run = self.cut(self.rounds)
        same = OF_PREFILL.get(stage)
        if same is None or not self.prefilled(same) or not run.view.rows(same, 0):
            return False
        left = residuals(*self.cut(0), self.policy).get(same)
        return left is not None and not left.red

    def other_prompts(self) -> Iterator[Self]:
        """The same device over other prompts, run anew where it has to be, each once."""
        for number in count():
            if number == len(self._beside):
                self._beside += [self._on(*other) for other in islice(self._coming, 1)]
            if number == len(self._beside):
                return
            yield self._beside[number]

    @cached_property
    def _coming(self) -> Iterator[tuple[TrustedGolden, DumpView, int]]:
        return self.others()

    def same_comparison(self) -> Iterator[Self]:
        """The other prompts of the comparison that this prompt is of."""
        numbers = range(len(self.golden.manifest.case.prompts))
        return (self._on(self.golden, self.run, number) for number in numbers if number != self.prompt)

    def _on(self, golden: TrustedGolden, run: DumpView, prompt: int) -> Self:
        """The same of another prompt, with the same references."""
        trials = type(self)(golden, run, prompt, self.policy, self.reference, clock=self.clock, hidden=self.hidden)
        trials.counterfactuals.references = self.counterfactuals.references
        return trials

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

    def rerun(self, known: Sequence[Assumption]) -> Self:
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
        again = type(self)(view, run, 0, self.policy, self.reference, self.drive, clock=self.clock)
        again.counterfactuals.references = self.counterfactuals.references
        again.counterfactuals.count = self.count
        return again
