"""Counterfactual references: what the stages would hold under hypotheses, as far as an equation says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from parity.diagnose.clock import SearchClock
from parity.diagnose.components.products import StageProduct
from parity.diagnose.conditional import Conditional, RowFacts, chosen_rows
from parity.diagnose.hypothesis import Assumption, NotComparable
from parity.golden.case import Generation
from parity.golden.fields import Mode
from parity.golden.views import DumpView, TrustedGolden
from parity.seam import Tap
from parity.stages import matches
from parity.trace import ForcingTrace, Recorded, Trace

Watched = TypeVar("Watched")


class CounterfactualReference(Protocol):
    """The references under any set of hypotheses; `parity.references.counterfactual` is the one that ships."""

    def run(
        self, assumed: Sequence[Assumption], ids: Sequence[int], budget: int, recorder: Tap, rounds: int | None
    ) -> Generation:
        """So many rounds of a prompt; raises an error with `skip = True` where a hypothesis cannot apply."""
        ...

    def products(
        self,
        stage: str,
        ids: Sequence[int],
        budget: int,
        recorder: Tap,
        rounds: int | None,
        hidden: Sequence[str] = (),
    ) -> Sequence[StageProduct]:
        """What a stage's rows are a product of in the same rounds, behind layers that are hidden; nothing where they
        are none."""
        ...

    def layers_back(
        self, stages: Sequence[str], ids: Sequence[int], budget: int, recorder: Tap, rounds: int | None
    ) -> Mapping[str, LayerBack]:
        """The way back through the layers that give these stages, in the same rounds, as far as there is one."""
        ...


Caches = Sequence[tuple[np.ndarray, np.ndarray]]
"""Keys and values [n, G, D] that a layer wrote for the first n rows of each pass."""


class LayerBack(Protocol):
    """The way back through one layer, over all passes that it ran; `parity.references.products.LayerBack` ships."""

    @property
    def starts(self) -> Sequence[int]:
        """The slot of each pass's first row."""
        ...

    def entering(self, rows: np.ndarray, caches: Caches = (), apart: float = 0.0, carried: bool = False) -> np.ndarray:
        """What must have entered for rows [R, H] of all passes in order to leave; NaN where it is not found.

        Rows whose keys and values are further `apart` from these, relative, are not found either. `carried` says that
        each pass reads what earlier ones wrote, and not the golden's.
        """
        ...

    def cached(self, stream: np.ndarray) -> Caches:
        """The keys and values [S, G, D] of each pass for a stream [R, H] that enters."""
        ...


class Undetermined(NotComparable):
    """The rounds run so far do not determine anything that the hypothesis changes; later rounds may."""


class NothingChanged(NotComparable):
    """A hypothesis that changes no bit of what is judged explains nothing."""


class _Complete(Exception):
    """The stages asked for are all recorded."""


class _StoppingTrace(ForcingTrace):
    """Records until one stage of one round has come; the rest of the run is not needed."""

    last: tuple[int, str] | None = None

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        forced = super().__call__(stage, value)
        self._stop_behind(stage)
        return forced

    def rows(self, stage: str, value: np.ndarray, first: int, total: int) -> np.ndarray:
        """As `ForcingTrace.rows`; the last rows of a stage complete it."""
        forced = super().rows(stage, value, first, total)
        if first + len(value) == total:
            self._stop_behind(stage)
        return forced

    def _stop_behind(self, stage: str) -> None:
        if (self.round, stage) == self.last:
            raise _Complete


@dataclass(frozen=True)
class CounterfactualTensors:
    """The tensors of a counterfactual, and the rows of them, bool [S], that no equation determines."""

    tensors: Recorded
    undetermined: dict[tuple[int, str], np.ndarray]


@dataclass
class CounterfactualRuns:
    """Runs references under assumptions over one prompt, and counts the runs.

    Args:
        make: makes the reference of a precision.
        mode: local or chained, as the device's run is.
        budget: tokens to emit at most.
        device: the device's run; what it continued with of the golden, a counterfactual does as well.
        count: runs so far.
        references: those made so far, by precision; runs over other prompts share them.
        clock: the time that they may take.
    """

    make: Callable[[str], CounterfactualReference]
    mode: Mode
    budget: int
    device: DumpView
    count: int = 0
    references: dict[str, CounterfactualReference] = field(default_factory=dict)
    clock: SearchClock = field(default_factory=SearchClock)
    _facts: RowFacts | None = None

    def run(
        self, precision: str, assumed: Sequence[Assumption], golden: TrustedGolden, recorder: Tap, rounds: int | None
    ) -> Generation:
        """One run over a golden of one prompt.

        Raises:
            TimeIsUp: the limit is reached.
        """
        self.clock.check()
        self.count += 1
        ids = golden.manifest.case.prompts[0].ids
        return self._reference(precision).run(assumed, ids, self.budget, recorder, rounds=rounds)

    def products(self, golden: TrustedGolden, stage: str, hidden: Sequence[str] = ()) -> Sequence[StageProduct]:
        """What a stage's rows are a product of, over a golden of one prompt; nothing where they are none.

        Args:
            hidden: what leaves the layers in front of it that are not shown, the nearest first.

        Raises:
            TimeIsUp: the limit is reached.
        """
        self.clock.check()
        return self._watched(golden, partial(self._reference("float32").products, stage, hidden=hidden))

    def layers_back(self, golden: TrustedGolden, stages: Sequence[str]) -> Mapping[str, LayerBack]:
        """The way back through the layers that give these stages, over a golden of one prompt: one run, whatever the
        limit, since all that is asked of the prompt comes behind it."""
        return self._watched(golden, partial(self._reference("float32").layers_back, stages))

    def _watched(self, golden: TrustedGolden, asked: Callable[..., Watched]) -> Watched:
        """What a reference says of a run without any assumption."""
        case = golden.manifest.case.prompts[0]
        recorder = ForcingTrace(
            golden.declared,
            partial(self._continued, golden),
            self.device.followed,
            keep=lambda name: False,
        )
        return asked(case.ids, self.budget, recorder, len(case.generated.acceptance_length))

    def _reference(self, precision: str) -> CounterfactualReference:
        if precision not in self.references:
            self.references[precision] = self.make(precision)
        return self.references[precision]

    def emitted(self, golden: TrustedGolden, assumed: Sequence[Assumption]) -> Generation:
        """What the prompt of a golden of one prompt emits freely under assumptions.

        Raises:
            NotComparable: an assumption holds for some rows only, which a free run does not know.
        """
        if any(isinstance(hypothesis, Conditional) for hypothesis, _ in assumed):
            raise NotComparable
        return self.run("float32", assumed, golden, Trace(golden.declared, keep=lambda name: False), None)

    def tensors(
        self,
        golden: TrustedGolden,
        assumed: Sequence[Assumption],
        stages: Sequence[str] = (),
        last: str | None = None,
        precision: str = "float32",
    ) -> CounterfactualTensors:
        """What the stages of a golden of one prompt hold under assumptions.

        Args:
            stages: record these, and the scores behind choices; all where empty.
            last: stop once the last round has handed this stage over.

        Raises:
            NotComparable: something is NaN or Inf that has to be a number.
            Undetermined: no row that the hypothesis changes is determined.
        """
        plain = [(hypothesis, value) for hypothesis, value in assumed if not isinstance(hypothesis, Conditional)]
        recorded = self._recorded(golden, plain, stages, last, precision)
        for hypothesis, value in assumed:
            if isinstance(hypothesis, Conditional):
                other = self._recorded(golden, [*plain, (hypothesis.of, value)], stages, last, precision)
                recorded = chosen_rows(self._facts_of(golden), hypothesis.where, recorded, other)
        return CounterfactualTensors(recorded, _undetermined_rows(golden, recorded, self.mode))

    def _continued(self, golden: TrustedGolden, round_: int, stage: str) -> np.ndarray | None:
        """What a run continues with of a golden of one prompt; None where that is its own value."""
        return golden.contents("float32", 0, round_, stage) if self.device.follows(round_, stage) else None

    def _facts_of(self, golden: TrustedGolden) -> RowFacts:
        """What conditions ask of a golden's rows, looked up once."""
        if self._facts is None or self._facts.golden is not golden:
            self._facts = RowFacts(golden)
        return self._facts

    def _recorded(
        self,
        golden: TrustedGolden,
        assumed: Sequence[Assumption],
        stages: Sequence[str],
        last: str | None,
        precision: str,
    ) -> Recorded:
        """The tensors of one run."""
        rounds = len(golden.manifest.case.prompts[0].generated.acceptance_length)
        keep = set(golden.manifest.stages) if not stages else set(stages) | set(_score_stages(golden))
        recorder = _StoppingTrace(
            golden.declared,
            partial(self._continued, golden),
            self.device.followed,
            keep=keep.__contains__,
        )
        recorder.last = (rounds, last) if last else None
        with suppress(_Complete):
            self.run(precision, assumed, golden, recorder, rounds)
        return {place: value for place, value in recorder.tensors.items() if place[0] <= rounds}


def _undetermined_rows(golden: TrustedGolden, tensors: Recorded, mode: Mode) -> dict[tuple[int, str], np.ndarray]:
    """Which rows a counterfactual does not determine: rows of NaN.

    A device that reads beyond a pass finds there what no equation says. Such rows are left out only beside
    others of the stage that the hypothesis changes and determines; in a chained run they would reach everything.
    """
    undetermined, changed = {}, set()
    for place, value in tensors.items():
        rows = value.astype(np.float32).reshape(len(value), int(np.prod(value.shape[1:])))
        missing = np.asarray(np.isnan(rows).all(axis=1) & (rows.shape[1] > 0))
        if not np.isfinite(rows[~missing]).all():
            raise NotComparable
        true = golden.contents("float32", 0, *place)
        if true is None or true.shape != value.shape or (true != value)[~missing].any():
            changed.add(place[1])
        if missing.any():
            undetermined[place] = missing
    if undetermined and mode != "local":
        raise NotComparable
    if not {stage for _, stage in undetermined} <= changed:
        raise Undetermined
    return undetermined


def _score_stages(golden: TrustedGolden) -> Iterator[str]:
    """Stages that choices are judged by."""
    return (name for name in golden.declared if matches("logits", name) or matches("router_logits", name))
