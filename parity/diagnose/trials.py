"""Trying hypotheses: counterfactual references over one prompt, held against what the device did there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from parity.diagnose.explain import Residual, residuals
from parity.diagnose.imagined import Imagined
from parity.errors import ParityError
from parity.golden.manifest import Generation, Variant
from parity.golden.slices import OnePrompt
from parity.golden.store import Dump
from parity.policy import Policy
from parity.stages import matches
from parity.trace import ForcingTrace, Tensors, Trace

Assumption = tuple[Any, Any]
"""A hypothesis and the value of its parameter."""


class Reference(Protocol):
    """The references under any set of hypotheses; `references.counterfactual` is the one that ships."""

    def run(self, assumed: Sequence[Assumption], ids: Sequence[int], budget: int, recorder: Any, rounds: int | None) -> Any:
        """So many rounds of a prompt; raises an error with `skip = True` where a hypothesis cannot apply."""
        ...


class _Overflow(Exception):
    """A counterfactual that is no number: it explains nothing that is one."""

    skip = True


class Untold(_Overflow):
    """Nothing that a hypothesis changes is told by it so far: later rounds may."""


class _Enough(Exception):
    """The stages asked for are all recorded."""


class _Until(ForcingTrace):
    """Records until this stage of this round has come; the rest of the run is not needed."""

    def __init__(self, *args: Any, last: tuple[int, str] | None, **options: Any):
        super().__init__(*args, **options)
        self.last = last

    def __call__(self, stage, value):
        value = super().__call__(stage, value)
        if (self.round, stage) == self.last:
            raise _Enough
        return value


@dataclass
class Trials:
    """One prompt of a golden and of a device's run over it, and the references to try hypotheses on.

    Args:
        golden: the whole golden.
        run: the device's run over it, local or chained.
        prompt: which prompt to look at.
        policy: the bounds that say when a residual is noise.
        reference: makes what runs the counterfactuals, in a precision; made once for each.
        drive: runs the device over another golden of this prompt; None where there is only its run.
        others: the same for the other prompts, made as they are asked for.
    """

    golden: Dump
    run: Dump
    prompt: int
    policy: Policy
    reference: Callable[[str], Reference]
    drive: Callable[[Dump], Dump] | None = None
    others: Callable[[], Iterator[tuple[Dump, Dump, int]]] = lambda: iter(())
    count: int = 0
    _references: dict[str, Reference] = field(default_factory=dict)
    _cuts: dict[int, tuple[OnePrompt, OnePrompt]] = field(default_factory=dict)

    def cut(self, rounds: int) -> tuple[OnePrompt, OnePrompt]:
        """Golden and run of the prompt up to this round."""
        if rounds not in self._cuts:
            golden = OnePrompt(self.golden, self.prompt, rounds)
            run = OnePrompt(self.run, self.prompt, rounds, budget=golden.manifest.case.max_new_tokens)
            self._cuts[rounds] = golden, run
        return self._cuts[rounds]

    @property
    def rounds(self) -> int:
        """Verify rounds the golden has of this prompt."""
        return len(self.golden.manifest.case.prompts[self.prompt].generation.acceptance_length)

    def elsewhere(self) -> Iterator[Trials]:
        """The same device over other prompts."""
        for golden, run, prompt in self.others():
            trials = Trials(golden, run, prompt, self.policy, self.reference)
            trials._references = self._references
            yield trials

    def residuals(
        self,
        assumed: Sequence[Assumption],
        rounds: int,
        stages: Sequence[str] = (),
        last: str | None = None,
        own_floor: bool = False,
    ) -> dict[str, Residual]:
        """What is left of the device's error under these hypotheses, by stage in the order in which it shows.

        Args:
            rounds: how many of the prompt's rounds to look at.
            stages: judge these only.
            last: stop each counterfactual once the last round has handed this stage over.
            own_floor: run the counterfactual in bfloat16 as well, for what rounding costs under it.
        """
        golden, run = self.cut(rounds)
        if not assumed:
            return residuals(golden, run, self.policy, stages)
        view = self._imagined(golden, assumed, last, stages, own_floor)
        found = residuals(view, run, self.policy, stages)
        same = [name for name in found if golden.declared[name].stage.forced and self._same(golden, view, name)]
        return found | (residuals(golden, run, self.policy, same) if same else {})

    def _same(self, golden: Dump, view: Imagined, name: str) -> bool:
        """Whether a hypothesis leaves a local choice as it was: then the golden's own scores were behind it."""
        if self.run.manifest.case.mode != "local":
            return False
        places = [place for place in view.tensors if place[1] == name]
        return all(np.array_equal(view.tensors[place], golden.contents("float32", 0, *place)) for place in places)

    def rebased(self, known: Sequence[Assumption]) -> Trials:
        """The device run anew, held to what the references say under the known causes.

        A device that feeds itself another prompt follows none of the golden's tensors; these it follows.
        """
        golden, _ = self.cut(self.rounds)
        truth = Trace(golden.declared)
        result = self._run("float32", known, golden, truth, None)
        mode = self.run.manifest.case.mode
        rough = ForcingTrace(golden.declared, lambda round_, stage: truth.tensors.get((round_, stage)), mode)
        self._run("bfloat16", known, golden, rough, None)
        emitted = Generation(
            emitted=result.emitted,
            acceptance_length=result.acceptance_length,
            accepted_drafts=result.accepted_drafts,
            finish=result.finish,
        )
        view = Imagined(golden, truth.tensors, mode, rough.tensors).emitting(emitted)
        again = Trials(view, self.drive(view), 0, self.policy, self.reference, self.drive, count=self.count)
        again._references = self._references
        return again

    def infer(self, hypothesis: Any, known: Sequence[Assumption], rounds: int) -> Any:
        """The value of a hypothesis' parameter that the device's own tensors tell; None where they do not."""
        golden, run = self.cut(rounds)
        if known:
            golden = self._imagined(golden, known)
        return hypothesis.infer(*(_contents(dump, variant) for dump, variant in ((run, run.manifest.case.precision), (golden, "float32"))))

    def _imagined(self, golden: Dump, assumed, last=None, stages=(), own_floor: bool = False) -> Imagined:
        mode = self.run.manifest.case.mode
        tensors = self._tensors(golden, assumed, mode, last, stages)
        own = {place for place in tensors if not golden.declared[place[1]].stage.exact}
        rough = self._tensors(golden, assumed, mode, last, stages, "bfloat16") if own_floor else {}
        same = all(place in rough and rough[place].shape == tensors[place].shape for place in own)
        return Imagined(golden, tensors, mode, rough if own_floor and same else None)

    def _tensors(
        self, golden: Dump, assumed: Sequence[Assumption], mode: str, last: str | None, stages, precision: str = "float32"
    ) -> Tensors:
        rounds = len(golden.manifest.case.prompts[0].generation.acceptance_length)
        keep = set(golden.manifest.stages) if not stages else set(stages) | set(_choices(golden))
        recorder = _Until(
            golden.declared,
            lambda round_, stage: golden.contents("float32", 0, round_, stage),
            mode,
            keep=keep.__contains__,
            last=(rounds, last) if last else None,
        )
        try:
            self._run(precision, assumed, golden, recorder, rounds)
        except _Enough:
            pass
        found = {place: value for place, value in recorder.tensors.items() if place[0] <= rounds}
        return self._told(golden, found, mode)

    def _told(self, golden: Dump, tensors: Tensors, mode: str) -> Tensors:
        """The counterfactual with the device's own rows where it tells nothing: rows of NaN.

        A device that reads beyond a pass finds there what no equation says. Such rows count as explained only beside
        others of the stage that the hypothesis changes and does tell; in a chained run they would reach everything.
        """
        _, run = self.cut(len(golden.manifest.case.prompts[0].generation.acceptance_length))
        silent, changed, filled = set(), set(), dict(tensors)
        for place, value in tensors.items():
            rows = value.astype(np.float32).reshape(len(value), int(np.prod(value.shape[1:])))
            untold = np.isnan(rows).all(axis=1) & (rows.shape[1] > 0)
            if not np.isfinite(rows[~untold]).all():
                raise _Overflow
            true = golden.contents("float32", 0, *place)
            if true is None or true.shape != value.shape or (true != value)[~untold].any():
                changed.add(place[1])
            if untold.any():
                silent.add(place[1])
                theirs = run.contents(run.manifest.case.precision, 0, *place)
                if theirs is None or theirs.shape != value.shape:
                    raise _Overflow
                filled[place] = np.where(untold[(..., *(None,) * (value.ndim - 1))], theirs.astype(value.dtype), value)
        if silent and mode != "local":
            raise _Overflow
        if not silent <= changed:
            raise Untold
        return filled

    def _run(self, precision: str, assumed, golden: Dump, recorder: Trace, rounds: int | None) -> Any:
        self.count += 1
        if precision not in self._references:
            self._references[precision] = self.reference(precision)
        ids, budget = golden.manifest.case.prompts[0].ids, self.run.manifest.case.max_new_tokens
        return self._references[precision].run(assumed, ids, budget, recorder, rounds=rounds)


def _contents(dump: Dump, variant: Variant) -> Tensors:
    places = [(round_, stage) for one, _, round_, stage in dump.rows if one == variant]
    return {place: dump.contents(variant, 0, *place) for place in places}


def _choices(golden: Dump) -> Iterator[str]:
    """Stages that choices are judged by."""
    return (name for name in golden.declared if matches("logits", name) or matches("router_logits", name))


def attempt(
    trial: Callable[[], dict[str, Residual]], later: Callable[[], dict[str, Residual] | None] = lambda: None
) -> dict[str, Residual] | None:
    """A trial's residuals; None where the hypothesis cannot apply to these checkpoints or this prompt.

    `later` is the same trial over more rounds, for a hypothesis that these tell nothing of.
    """
    try:
        return trial()
    except Untold:
        return later()
    except ParityError:
        raise
    except Exception as error:
        if getattr(error, "skip", False):
            return None
        raise
