"""Layers that a run does not show, deduced: what must have left each for a shown layer behind it to end as it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.compare.rebased import WithTensors
from parity.compare.rows import FLOOR
from parity.diagnose.counterfactual_runs import Caches, LayerBack
from parity.golden.fields import Variant
from parity.golden.views import DumpView, TensorPlace, TrustedGolden

Rows = NDArray[np.float64]
Tensors = Mapping[TensorPlace, NDArray[np.generic]]

SAME, OTHER = 1e-4, 0.5
"""Of the square of what a deduced stream changes in the caches behind it, the device's caches lack less than the first,
and what rounding costs, where it is the device's stream, and more than the second where it is not."""

ROUNDING: Mapping[str, float] = {"float32": 3e-6}
ROUGH = 0.01
"""How far, relative, caches are from what led-back rows give by rounding alone, where it is not bfloat16's: clean ones
are off by 4e-7, and by 0.0034 to 0.0050 in bfloat16."""

ROWS_APART = 10
"""Multiple of that by which a single row may be off."""

FOUND = 0.9
"""The share of a layer's rows that have to be led back; the others are taken as right, which explains nothing."""


@dataclass(frozen=True)
class HiddenLayers:
    """Layers that are hidden in front of a shown one.

    Attributes:
        source: the shown layer's stage, as `target.layers.3.out`.
        stages: those of the hidden layers, the nearest first.
    """

    source: str
    stages: tuple[str, ...]

    @property
    def behind(self) -> tuple[str, ...]:
        """The stage behind each of them."""
        return (self.source, *self.stages[:-1])


def hidden_before(stage: str, golden: DumpView, run: DumpView) -> list[str]:
    """What leaves the layers in front of a stage that leaves one, as far as the run hides them, the nearest first."""
    named = golden.declared.get(stage)
    if named is None or named.layer is None or not stage.endswith(".out"):
        return []
    layers = (f"{named.stage.side}.layers.{layer}.out" for layer in range(named.layer - 1, -1, -1))
    return [*takewhile(lambda one: not run.view.shows(one), layers)]


class DeducedRun(WithTensors):
    """A run with layers that it does not show, as if it showed them and continued with its own."""

    def __init__(self, run: DumpView, golden: TrustedGolden, tensors: Tensors):
        super().__init__(run, golden, tensors)
        self.__dict__["view"] = run.view.with_whole({place[3] for place in tensors})

    @property
    def forced(self) -> frozenset[str]:
        """As the run: what is deduced was forced nowhere."""
        return self.run.forced

    def follows(self, round_: int, stage: str) -> bool:
        """As the run."""
        return self.run.follows(round_, stage)

    @property
    def settled(self) -> bool:
        """As the run."""
        return self.run.settled


class DeducedGolden(TrustedGolden):
    """A golden whose floor at deduced layers is led back as the device's rows are."""

    def __init__(self, golden: TrustedGolden, floors: Tensors):
        self.golden, self.floors = golden, floors
        super().__init__(golden.folder, golden.manifest, golden.declared, golden.rows, golden.parts)

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> NDArray[np.generic] | None:
        """The floor that was led back, or what the golden has."""
        place = variant, prompt, round_, stage
        return self.floors[place] if place in self.floors else self.golden.stored(*place)

    @property
    def settled(self) -> bool:
        """As the golden."""
        return self.golden.settled


@dataclass(frozen=True)
class LedLayer:
    """What must have left a hidden layer.

    Attributes:
        stage: the hidden layer's.
        rows: float64 [R, H], of all rounds in order; the golden's where it is not found.
        sure: bool [R], the rows that are found, and that the caches of the layer behind confirm where they are shown.
        agrees: whether the caches of the layer behind are what these rows give; None where they do not tell.
    """

    stage: str
    rows: Rows
    sure: NDArray[np.bool_]
    agrees: bool | None


@dataclass(frozen=True)
class DeducedTensors:
    """What is deduced of one prompt, by place: the run's tensors and the golden's floors.

    `sure` are the rows of each stage that are, bool [R] of all rounds; `sure_by_place` the same of each round.
    """

    tensors: Tensors
    floors: Tensors
    sure: Mapping[str, NDArray[np.bool_]]
    sure_by_place: Mapping[tuple[int, str], NDArray[np.bool_]]

    @classmethod
    def of(
        cls, golden: TrustedGolden, run: DumpView, ways: Mapping[str, LayerBack], hidden: HiddenLayers
    ) -> DeducedTensors:
        """Those of the hidden layers of one prompt, as far as both sides are led back.

        Args:
            ways: the way back through each layer, by the stage that it gives.
        """
        precision, floor = run.manifest.case.precision, FLOOR[run.manifest.case.mode]
        own, rough = (
            {led.stage: led for led in led_back(golden, dump, variant, ways, hidden)}
            for dump, variant in ((run, precision), (golden, floor))
        )
        both = own.keys() & rough.keys()
        tensors, floors = (
            {place: rows for stage in both for place, rows in _places(golden, variant, stage, side[stage].rows)}
            for side, variant in ((own, precision), (rough, floor))
        )
        sure = {stage: own[stage].sure for stage in both}
        by_place = {(round_, stage): rows for stage in both for round_, rows in _by_round(golden, stage, sure[stage])}
        return cls(tensors, floors, sure, by_place)

    def beside(self, golden: TrustedGolden, run: DumpView) -> tuple[TrustedGolden, DumpView]:
        """Both with them, in the rounds that they have."""
        tensors = {place: rows for place, rows in self.tensors.items() if ("float32", *place[1:]) in golden.rows}
        return (DeducedGolden(golden, self.floors), DeducedRun(run, golden, tensors)) if tensors else (golden, run)


def led_back(
    golden: TrustedGolden, dump: DumpView, variant: Variant, ways: Mapping[str, LayerBack], hidden: HiddenLayers
) -> Iterator[LedLayer]:
    """The hidden layers of a dump of one prompt, the nearest first, as far as they are found."""
    rows = rows_of(golden, dump, variant, hidden.source)
    for stage, behind in zip(hidden.stages, hidden.behind, strict=True):
        true = rows_of(golden, golden, "float32", stage)
        if rows is None or true is None or behind not in ways:
            return
        way, caches = ways[behind], _caches(golden, dump, variant, behind, ways[behind].starts)
        carried = dump is not golden and not dump.follows(1, _cache_of(behind))
        led = way.entering(rows, caches, ROWS_APART * ROUNDING.get(variant, ROUGH), carried)
        found = np.isfinite(led).all(axis=1)
        if found.mean() < FOUND:
            return
        rows = np.where(found[:, None], led, true)
        sure = found & _confirmed(golden, stage, caches) if caches else found
        yield LedLayer(stage, rows, sure, _agree(way, led, true, caches, variant) if caches else None)


def _cache_of(stage: str, part: str = "k") -> str:
    """The keys, or values, that the layer of a stage keeps."""
    side, _, number, _ = stage.split(".")
    return f"kv.{side}.{number}.{part}"


def _caches(golden: TrustedGolden, dump: DumpView, variant: Variant, stage: str, starts: Sequence[int]) -> Caches:
    """What a layer wrote to its caches, round by round; nothing where it is hidden, or a round has several passes."""
    if len(starts) != _rounds(golden):
        return ()
    sides = []
    for name in (_cache_of(stage), _cache_of(stage, "v")):
        own, true = (
            [view.contents(one, 0, round_, name) for round_ in range(len(starts))]
            for view, one in ((dump, variant), (golden, "float32"))
        )
        rows = [
            mine[first:].astype(np.float64)
            for first, mine, its in zip(starts, own, true, strict=True)
            if mine is not None and its is not None and mine.shape == its.shape
        ]
        if len(rows) < len(starts):
            return ()
        sides.append(rows)
    return list(zip(*sides, strict=True))


def _confirmed(golden: TrustedGolden, stage: str, caches: Caches) -> NDArray[np.bool_]:
    """The rows of all rounds that caches hold, bool [R]: the first ones of each pass."""
    counts = [shape[0] for _, shape in _shapes(golden, stage)]
    return np.concatenate([np.arange(count) < len(keys) for count, (keys, _) in zip(counts, caches, strict=True)])


def _agree(way: LayerBack, rows: Rows, true: Rows, caches: Caches, variant: Variant) -> bool | None:
    """Whether caches are what a stream gives, beside what the golden's gives; None where that says too little.

    Rows of NaN say nothing.
    """
    sides = np.stack([_flat(written, caches) for written in (way.cached(rows), way.cached(true), caches)])
    own, golden, device = sides[:, np.isfinite(sides[0])]
    changed, lacking = (float(((side - own) ** 2).sum()) for side in (golden, device))
    rounding = float((golden**2).sum()) * ROUNDING.get(variant, ROUGH) ** 2
    if changed <= rounding:
        return None
    return True if lacking < SAME * changed + rounding else False if lacking > OTHER * changed else None


def _flat(written: Caches, like: Caches) -> Rows:
    """All numbers of the rows that a layer's caches have."""
    pairs = zip(written, like, strict=True)
    return np.concatenate(
        [side[: len(held)].ravel() for made, kept in pairs for side, held in zip(made, kept, strict=True)]
    )


def rows_of(golden: TrustedGolden, dump: DumpView, variant: Variant, stage: str) -> Rows | None:
    """A stage's rows of all rounds of one prompt [R, H]; None where some are missing, or of another shape than the
    golden's."""
    parts = []
    for round_, shape in _shapes(golden, stage):
        own = dump.contents(variant, 0, round_, stage)
        if own is None or own.shape != shape:
            return None
        parts.append(own.astype(np.float64))
    return np.concatenate(parts) if parts else None


def _places(
    golden: TrustedGolden, variant: Variant, stage: str, rows: Rows
) -> Iterator[tuple[TensorPlace, NDArray[np.generic]]]:
    """A stage's rows by round, as tensors of float32."""
    yield from (
        ((variant, 0, round_, stage), part) for round_, part in _by_round(golden, stage, rows.astype(np.float32))
    )


def _by_round(golden: TrustedGolden, stage: str, rows: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """What is held of a stage's rows of all rounds, round by round."""
    first = 0
    for round_, (count, *_) in _shapes(golden, stage):
        yield round_, rows[first : first + count]
        first += count


def _rounds(golden: TrustedGolden) -> int:
    """Rounds of a golden of one prompt, the prefill among them."""
    return 1 + len(golden.manifest.case.prompts[0].generated.acceptance_length)


def _shapes(golden: TrustedGolden, stage: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The rounds that have a stage, and the golden's shapes there."""
    for round_ in range(_rounds(golden)):
        row = golden.rows.get(("float32", 0, round_, stage))
        if row is not None:
            yield round_, tuple(row.full_shape)
