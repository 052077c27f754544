"""Trying hypotheses: counterfactual references over one prompt, held against what the device did there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from parity.diagnose.counterfactual import CounterfactualGolden
from parity.diagnose.explain import Residual, red_rows, residuals
from parity.errors import ParityError
from parity.golden.manifest import Generation, Variant
from parity.golden.views import DumpView, GoldenSlice, PromptSlice, TrustedGolden
from parity.policy import Policy
from parity.stages import matches
from parity.trace import ForcingTrace, Tensors, Trace

Assumption = tuple[Any, Any]
"""A hypothesis and the value of its parameter."""


class Reference(Protocol):
    """The references under any set of hypotheses; `parity.references.counterfactual` is the one that ships."""

    def run(
        self, assumed: Sequence[Assumption], ids: Sequence[int], budget: int, recorder: Any, rounds: int | None
    ) -> Any:
        """So many rounds of a prompt; raises an error with `skip = True` where a hypothesis cannot apply."""
        ...


class _Overflow(Exception):
    """A counterfactual that is no number: it explains nothing that is one."""

    skip = True


class Untold(_Overflow):
    """Nothing that a hypothesis changes is told by it so far: later rounds may."""


class Unchanged(_Overflow):
    """A hypothesis that changes no bit of what is judged: it explains nothing, whatever else it is."""


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


@dataclass(frozen=True)
class Weighed:
    """Residuals by stage without some assumptions and with them: over the same rounds and rows of one prompt."""

    before: dict[str, Residual]
    after: dict[str, Residual]


@dataclass(frozen=True)
class Told:
    """The tensors of a counterfactual, and the rows of them [S] that it tells nothing of."""

    tensors: Tensors
    untold: dict[tuple[int, str], np.ndarray]


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

    golden: TrustedGolden
    run: DumpView
    prompt: int
    policy: Policy
    reference: Callable[[str], Reference]
    drive: Callable[[TrustedGolden], DumpView] | None = None
    others: Callable[[], Iterator[tuple[TrustedGolden, DumpView, int]]] = lambda: iter(())
    count: int = 0
    _references: dict[str, Reference] = field(default_factory=dict)
    _cuts: dict[int, tuple[GoldenSlice, PromptSlice]] = field(default_factory=dict)
    _without: dict[tuple, tuple[Tensors, dict[str, Residual]]] = field(default_factory=dict)

    def cut(self, rounds: int) -> tuple[GoldenSlice, PromptSlice]:
        """Golden and run of the prompt up to this round."""
        if rounds not in self._cuts:
            golden = GoldenSlice(self.golden, self.prompt, rounds)
            run = PromptSlice(self.run, self.prompt, rounds, budget=golden.manifest.case.max_new_tokens)
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

    def beside(self) -> Iterator[Trials]:
        """The other prompts of the comparison that this prompt is of."""
        for number in range(len(self.golden.manifest.case.prompts)):
            if number != self.prompt:
                trials = Trials(self.golden, self.run, number, self.policy, self.reference)
                trials._references = self._references
                yield trials

    def residuals(self, assumed: Sequence[Assumption], rounds: int) -> dict[str, Residual]:
        """What is left of the device's error under these hypotheses, by stage in the order in which it shows.

        Args:
            rounds: how many of the prompt's rounds to look at.
        """
        golden, run = self.cut(rounds)
        return (
            self._left(rounds, self.imagined(assumed, rounds), ()) if assumed else residuals(golden, run, self.policy)
        )

    def before(self, known: Sequence[Assumption], rounds: int, stage: str) -> Residual:
        """What is left at one stage under what is known: what a further assumption starts from."""
        return self._baseline(known, rounds, (stage,), stage)[1][stage]

    def weigh(
        self,
        known: Sequence[Assumption],
        assumed: Sequence[Assumption],
        rounds: int,
        stages: Sequence[str] = (),
        last: str | None = None,
        own_floor: bool = False,
    ) -> Weighed:
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
            Unchanged: they change no bit of these stages.
        """
        golden, run = self.cut(rounds)
        true, before = self._baseline(known, rounds, stages, last)
        told = self._tensors(golden, (*known, *assumed), stages, last)
        places = [place for place in true.keys() | told.tensors.keys() if not stages or place[1] in stages]
        if not any(_differ(true.get(place), told.tensors.get(place)) for place in places):
            raise Unchanged
        silent = {place for place in told.untold if place in true and true[place].shape == told.tensors[place].shape}
        if told.untold:  # what it says nothing of explains nothing: out of the error on both sides
            same = true | {place: self._with_theirs(place, true[place], told.untold[place], rounds) for place in silent}
            before = self._left(rounds, CounterfactualGolden(golden, same, self.mode), stages)
        view = self._view(golden, told, (*known, *assumed), last, stages, rounds, own_floor)
        return Weighed(before, self._left(rounds, view, stages))

    def spares(self, known: Sequence[Assumption], assumed: Sequence[Assumption], rounds: int, stage: str) -> bool:
        """Whether every row that is within its bound without an assumption still is with it."""
        _, run = self.cut(rounds)
        before, after = (red_rows(self.imagined(one, rounds), run, stage) for one in (known, (*known, *assumed)))
        return all(before.get(place, False) for place, red in after.items() if red)

    @property
    def mode(self) -> str:
        """Local or chained, as the run is."""
        return self.run.manifest.case.mode

    def imagined(self, assumed: Sequence[Assumption], rounds: int) -> CounterfactualGolden:
        """The golden of this prompt under assumptions, with a floor of its own; where there are none, the golden's tensors."""
        golden, _ = self.cut(rounds)
        told = self._tensors(golden, assumed, (), None)
        return self._view(golden, told, assumed, None, (), rounds, own_floor=bool(assumed))

    def _baseline(self, known: Sequence[Assumption], rounds: int, stages: Sequence[str], last: str | None):
        """The tensors under what is known, and what they leave; made once."""
        key = tuple((hypothesis.id, value) for hypothesis, value in known), rounds, tuple(stages), last
        if key not in self._without:
            golden, _ = self.cut(rounds)
            told = self._tensors(golden, known, stages, last)
            view = self._view(golden, told, known, last, stages, rounds, own_floor=False)
            self._without[key] = told.tensors, self._left(rounds, view, stages)
        return self._without[key]

    def _left(self, rounds: int, view: CounterfactualGolden, stages: Sequence[str]) -> dict[str, Residual]:
        """The device's residuals against a counterfactual; choices that it leaves as they are go by the golden's own scores."""
        golden, run = self.cut(rounds)
        found = residuals(view, run, self.policy, stages)
        same = [name for name in found if golden.declared[name].stage.forced and self._same(golden, view, name)]
        return found | (residuals(golden, run, self.policy, same) if same else {})

    def _same(self, golden: TrustedGolden, view: CounterfactualGolden, name: str) -> bool:
        """Whether a hypothesis leaves a local choice as it was: then the golden's own scores were behind it."""
        if self.mode != "local":
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
        view = CounterfactualGolden(golden, truth.tensors, mode, rough.tensors).emitting(emitted)
        again = Trials(view, self.drive(view), 0, self.policy, self.reference, self.drive, count=self.count)
        again._references = self._references
        return again

    def infer(self, hypothesis: Any, known: Sequence[Assumption], rounds: int) -> Any:
        """The value of a hypothesis' parameter that the device's own tensors tell; None where they do not."""
        cut, run = self.cut(rounds)
        golden: TrustedGolden = cut
        if known:
            told = self._tensors(cut, known, (), None)
            golden = self._view(cut, told, known, None, (), rounds, own_floor=False)
        return hypothesis.infer(
            *(_contents(dump, variant) for dump, variant in ((run, run.manifest.case.precision), (golden, "float32")))
        )

    def _view(
        self, golden: TrustedGolden, told: Told, assumed, last, stages, rounds: int, own_floor: bool
    ) -> CounterfactualGolden:
        """Tensors as a golden, untold rows being the device's own."""
        tensors = self._filled(told, rounds)
        own = {place for place in tensors if not golden.declared[place[1]].stage.exact}
        rough = self._filled(self._tensors(golden, assumed, stages, last, "bfloat16"), rounds) if own_floor else {}
        same = all(place in rough and rough[place].shape == tensors[place].shape for place in own)
        return CounterfactualGolden(golden, tensors, self.mode, rough if own_floor and same else None)

    def _tensors(
        self,
        golden: TrustedGolden,
        assumed: Sequence[Assumption],
        stages: Sequence[str],
        last: str | None,
        precision: str = "float32",
    ) -> Told:
        rounds = len(golden.manifest.case.prompts[0].generation.acceptance_length)
        keep = set(golden.manifest.stages) if not stages else set(stages) | set(_choices(golden))
        recorder = _Until(
            golden.declared,
            lambda round_, stage: golden.contents("float32", 0, round_, stage),
            self.mode,
            keep=keep.__contains__,
            last=(rounds, last) if last else None,
        )
        try:
            self._run(precision, assumed, golden, recorder, rounds)
        except _Enough:
            pass
        return self._told(golden, {place: value for place, value in recorder.tensors.items() if place[0] <= rounds})

    def _told(self, golden: TrustedGolden, tensors: Tensors) -> Told:
        """Which rows a counterfactual tells nothing of: rows of NaN.

        A device that reads beyond a pass finds there what no equation says. Such rows are left out only beside
        others of the stage that the hypothesis changes and does tell; in a chained run they would reach everything.
        """
        silent, changed = {}, set()
        for place, value in tensors.items():
            rows = value.astype(np.float32).reshape(len(value), int(np.prod(value.shape[1:])))
            untold = np.isnan(rows).all(axis=1) & (rows.shape[1] > 0)
            if not np.isfinite(rows[~untold]).all():
                raise _Overflow
            true = golden.contents("float32", 0, *place)
            if true is None or true.shape != value.shape or (true != value)[~untold].any():
                changed.add(place[1])
            if untold.any():
                silent[place] = untold
        if silent and self.mode != "local":
            raise _Overflow
        if not {stage for _, stage in silent} <= changed:
            raise Untold
        return Told(tensors, silent)

    def _filled(self, told: Told, rounds: int) -> Tensors:
        return told.tensors | {
            place: self._with_theirs(place, told.tensors[place], rows, rounds) for place, rows in told.untold.items()
        }

    def _with_theirs(self, place: tuple[int, str], value: np.ndarray, rows: np.ndarray, rounds: int) -> np.ndarray:
        """A tensor with these rows [S] as the device has them."""
        _, run = self.cut(rounds)
        theirs = run.contents(run.manifest.case.precision, 0, *place)
        if theirs is None or theirs.shape != value.shape:
            raise _Overflow
        return np.where(rows[(..., *(None,) * (value.ndim - 1))], theirs.astype(value.dtype), value)

    def _run(self, precision: str, assumed, golden: TrustedGolden, recorder: Trace, rounds: int | None) -> Any:
        self.count += 1
        if precision not in self._references:
            self._references[precision] = self.reference(precision)
        ids, budget = golden.manifest.case.prompts[0].ids, self.run.manifest.case.max_new_tokens
        return self._references[precision].run(assumed, ids, budget, recorder, rounds=rounds)


def _differ(true: np.ndarray | None, value: np.ndarray | None) -> bool:
    """Whether a tensor is another than the baseline's, or only one of the two is there; NaN is NaN."""
    return true is None or value is None or not np.array_equal(true, value, equal_nan=value.dtype.kind == "f")


def _contents(dump: DumpView, variant: Variant) -> Tensors:
    places = [(round_, stage) for one, _, round_, stage in dump.rows if one == variant]
    return {place: dump.contents(variant, 0, *place) for place in places}


def _choices(golden: TrustedGolden) -> Iterator[str]:
    """Stages that choices are judged by."""
    return (name for name in golden.declared if matches("logits", name) or matches("router_logits", name))


T = TypeVar("T")


def attempt(trial: Callable[[], T], later: Callable[[], T | None] = lambda: None) -> T | None:
    """What a trial gives; None where the hypothesis changes nothing, or cannot apply to these checkpoints or this prompt.

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
