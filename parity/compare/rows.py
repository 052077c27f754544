"""Golden, device and floor side by side: the rows of one stage, and what bfloat16 alone costs each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from weakref import WeakKeyDictionary

import numpy as np

from parity.errors import Inconclusive, UsageError
from parity.families import BLOCK, FAMILIES, DrafterFamily, family_of
from parity.golden.case import PromptCase
from parity.golden.fields import Variant
from parity.golden.manifest import Manifest
from parity.golden.views import DumpView
from parity.stages import DRAFTER_INPUT_IDS, Named, dataflow

FLOOR: Mapping[str, Variant] = {"chained": "bfloat16", "local": "bfloat16.local"}
"""The golden's variant that is the noise floor of a mode."""

COMPARED = ("float64", "float32", "bfloat16", "int64", "int32", "uint8")
"""Dtypes that a stage can have; another one is a finding of the structure, and its numbers mean nothing."""


@dataclass(frozen=True)
class StageRows:
    """Rows of one stage over all prompts and rounds, R in all.

    `golden`, `device` and `floor` are [R, ...]; `prompt`, `round` and `position` label each row ([R],
    int64; a position is the row's absolute place in its sequence). `floor` is None for exact stages. `source` is
    the golden that the rows are of. Of logits of which the best are kept `known` are the columns [R, k] that are, and
    `noise` the RMS error of the floor over each whole row [R]; what is not kept is at the least of what is.
    Of what is `sketched` there are places and shapes alone.
    """

    named: Named
    golden: np.ndarray
    device: np.ndarray
    floor: np.ndarray | None
    prompt: np.ndarray
    round: np.ndarray
    position: np.ndarray
    source: DumpView | None = None
    noise: np.ndarray | None = None
    known: np.ndarray | None = None
    sketched: bool = False

    @property
    def noise_floor(self) -> np.ndarray:
        """`floor`, where the stage must have one.

        Raises:
            ValueError: the stage is exact.
        """
        if self.floor is None:
            raise ValueError(f"{self.named.name} is exact: it has no noise floor")
        return self.floor

    def take(self, which: np.ndarray) -> StageRows:
        """Some of the rows, by number."""
        arrays = {name: value[which] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **arrays)

    @property
    def prompts(self) -> list[int]:
        """Numbers of the prompts that the rows are of, ascending; `np.unique` loads masked arrays for it."""
        return [int(number) for number in np.flatnonzero(np.bincount(self.prompt))]

    @property
    def labels(self) -> np.ndarray:
        """Prompt, round and position of each row, int64 [R, 3]."""
        return np.stack([self.prompt, self.round, self.position], axis=1)


@dataclass(frozen=True)
class Clock:
    """Where the rows of each round sit in the sequence, from what the golden emitted.

    `length[r]` is the target's cache length after round r, `emitted[r]` the tokens of round r; `drafted[r]` are the
    rows of the drafter's cache after it.
    """

    prompt: int
    emitted: tuple[int, ...]
    drafted: tuple[int, ...] = ()
    family: DrafterFamily = FAMILIES["p-eagle"]

    @classmethod
    def of(cls, case: PromptCase, golden: Manifest | None = None) -> Clock:
        """The clock of a golden prompt's generation.

        Args:
            golden: whose prompt it is, which says how its drafter's rows run; None for the target's alone.

        Raises:
            UsageError: the golden does not say what the prompt emitted.
        """
        if case.generation is None:
            raise UsageError(f"the golden's prompt {case.id} has no generation: nothing says where its rows sit")
        prompt, told = len(case.ids), case.generation
        if golden is None:
            return cls(prompt, (1, *told.acceptance_length))
        family = family_of(golden.model.family)
        drafted = family.cached(prompt, told.acceptance_length, told.accepted_drafts, map(golden.case.drafts, count(1)))
        return cls(prompt, (1, *told.acceptance_length), drafted, family)

    @classmethod
    def all_of(cls, golden: DumpView) -> Sequence[Clock]:
        """Those of a golden's prompts, made once for all stages.

        Raises:
            UsageError: as `of`.
        """
        manifest, clocks = _clocks.get(golden, (None, ()))
        if manifest is not golden.manifest:
            clocks = [cls.of(case, golden.manifest) for case in golden.manifest.case.prompts]
            _clocks[golden] = golden.manifest, clocks
        return clocks

    @property
    def rounds(self) -> int:
        """Rounds in all, prefill included."""
        return len(self.emitted)

    def length(self, round_: int) -> int:
        """Target rows in the cache after this round."""
        return self.prompt + sum(self.emitted[1 : round_ + 1])

    def committed(self, round_: int) -> int:
        """C of a round's drafter pass: the known tokens that it runs over."""
        if round_ == 0:
            return self.drafted[0]
        return self.family.committed(self.length(round_ - 1), self.drafted[round_ - 1])

    def first(self, stage: str, round_: int, start: int) -> int:
        """Absolute position of a stage's first row; `start` is the first stored row of a cache stage."""
        side = stage.split(".", 1)[0]
        if side == "kv":
            return start
        if round_ == 0:
            return 0
        if side != "drafter":
            return self.length(round_ - 1)
        if stage in ("drafter.pre_head_hidden", "drafter.logits", "drafter.draft_tokens"):
            return self.length(round_ - 1) + self.family.first_draft
        if BLOCK in self.family.has and (stage == DRAFTER_INPUT_IDS or stage.startswith("drafter.layers.")):
            return self.length(round_ - 1)
        return self.drafted[round_ - 1]


_clocks: WeakKeyDictionary[DumpView, tuple[Manifest, Sequence[Clock]]] = WeakKeyDictionary()
"""By golden, with the manifest that they are of."""


def stage_rows(
    golden: DumpView, run: DumpView, named: Named, *, device: Variant | None = None, mode: str | None = None
) -> StageRows | None:
    """Collect the rounds of one stage whose shapes agree; None where there is none.

    Cache stages contribute the rows that changed since the round before on any of the sides.
    `device` names another variant of `run` than its own precision, `mode` another floor than its own.

    Raises:
        UsageError: either keeps this stage as a sketch.
    """
    if golden.keeps or run.keeps:
        from parity.compare.records import whole_rows

        return whole_rows(golden, run, named, device=device, mode=mode)
    case = run.manifest.case
    sides: list[tuple[DumpView, Variant]] = [(golden, "float32"), (run, device or case.precision)]
    sides += [] if named.stage.exact else [(golden, FLOOR[mode or case.mode])]
    parts: list[list[np.ndarray]] = [[] for _ in sides]
    places: list[tuple[int, int, int]] = []
    for prompt, clock in enumerate(Clock.all_of(golden)):
        for round_ in range(clock.rounds):
            aligned = _aligned(sides, named, prompt, round_)
            if aligned is not None:
                first, tensors = aligned
                for part, tensor in zip(parts, tensors, strict=True):
                    part.append(tensor)
                start = first if named.stage.cache else 0
                places.append((prompt, round_, clock.first(named.name, round_, start) + first - start))
    if not places:
        return None
    joined = [np.concatenate(part) for part in parts]
    floor = None if named.stage.exact else joined[2]
    prompts, rounds, positions = _labels(places, [len(part) for part in parts[0]])
    return StageRows(named, joined[0], joined[1], floor, prompts, rounds, positions, golden)


def _labels(places: Sequence[tuple[int, int, int]], lengths: Sequence[int]) -> np.ndarray:
    """Prompt, round and position of every row, int64 [3, R], from those of each tensor's first row and its length."""
    labels = np.repeat(np.array(places, np.int64).T, lengths, axis=1)
    before = np.cumsum(lengths) - lengths
    labels[2] += np.arange(labels.shape[1]) - np.repeat(before, lengths)
    return labels


def _aligned(
    sides: Sequence[tuple[DumpView, Variant]], named: Named, prompt: int, round_: int
) -> tuple[int, list[np.ndarray]] | None:
    """The same rows of every side, and the first one's number; None unless all are there with one shape.

    Where a side shows the last row only, it is compared with the last one of the others.
    """
    places = [(dump, (variant, prompt, round_, named.name)) for dump, variant in sides]
    starts = []
    for dump, place in places:
        row = dump.rows.get(place)
        if row is None:
            return None
        starts.append(row.start)
    start = min(starts)
    if max(starts) == start:
        stored = [dump.stored(*place) for dump, place in places]
    else:
        stored = [whole if (whole := dump.contents(*place)) is None else whole[start:] for dump, place in places]
    tensors = [tensor for tensor in stored if tensor is not None]
    if len(tensors) < len(stored):
        raise Inconclusive(f"prompt {prompt}, round {round_}: {named.name} is listed and cannot be read")
    kinds = "iuf" if named.stage.exact else "f"
    if not all(_compares(tensor.dtype, kinds) for tensor in tensors):
        return None
    if any(dump.view.rows(named.name, round_) == "last" for dump, _ in sides):
        start = max(map(len, tensors)) - 1
        tensors = [tensor[-1:] for tensor in tensors]
    return (start, tensors) if len({tensor.shape for tensor in tensors}) == 1 else None


@lru_cache
def _compares(dtype: np.dtype, kinds: str) -> bool:
    """Whether a tensor of this dtype is compared, as one of these kinds; bfloat16 is a float, unknown to NumPy."""
    return dtype.name in COMPARED and ("f" if dtype.name == "bfloat16" else dtype.kind) in kinds


def order(golden: DumpView) -> dict[tuple[bool, str], int]:
    """(is it a verify round, stage) to its place in that kind of round's dataflow."""
    places = {}
    for verify in (False, True):
        for place, named in enumerate(dataflow(golden.declared.values(), int(verify))):
            places[verify, named.name] = place
    return places


HALF_ULP = 2.0**-9 / np.sqrt(3.0)
"""Relative RMS error of one rounding to bfloat16 (8 significant bits): uniform over half a ULP, at the
lower end of a binade. A floor below it is one lucky rounding (an embedding is exact), not a bound."""

NOISY = 0.9
"""A single row is compared with this quantile of its stage's floors where its own is lower. Rows of one
stage are not equally noisy (6 router logits, a chained row behind a steep SwiGLU), and one rounding
tells little about one row: against the median, clean chained rows reach 4.1x, against this 2.4x."""

ALLOWED = 0.25
"""A bound that lets a quarter of the golden be wrong says nothing: another row's tensor, a lost expert or a lost
head is within it. What a bound allows is its multiple times the floor."""

WIDEST = ALLOWED / 3
"""A floor of which three times, where the default policy draws its line, is that quarter. bfloat16 through 36 layers
of five roundings each random-walks to 2^-9 * sqrt(180) = 2.6 %; the tiny pair's widest stage has 1.9 %."""


def row_floors(floor: np.ndarray, excluded: np.ndarray, share: float = 0.5) -> np.ndarray:
    """Robust relative floors per row [R] from the bfloat16 reference's relative row errors [R].

    A row's floor is its own, the typical (`share`) row's, or half a ULP, whichever is largest: rows of
    one stage round alike, so a row below it was lucky. Rows set apart do not enter it.
    """
    typical = quantile(floor[~excluded], share) if (~excluded).any() else 0.0
    return np.asarray(np.maximum(np.maximum(floor, typical), HALF_ULP))


def quantile(values: np.ndarray, share: float = 0.5) -> float:
    """Linear between neighbours. `np.quantile` does the same after loading masked arrays: 60 ms a comparison."""
    ordered = np.sort(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    step = ordered[high] - ordered[low] if np.isfinite(ordered[high]) else ordered[high] if place > low else 0.0
    return float(ordered[low] + (place - low) * step)


def pooled_ratio(error: np.ndarray, floor: np.ndarray, weight: np.ndarray) -> float:
    """Pooled error over pooled floor: relative row errors [R] weighted by the rows' squared norms.

    An infinitely wrong row (an error where the golden is zero) makes the ratio infinite, never NaN.
    """
    total = float((floor**2 * weight).sum())
    if not np.isfinite(error).all():
        return float("inf")
    return float(np.sqrt((error**2 * weight).sum() / total)) if total > 0 else 0.0


def same_rows(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which rows [R] of two arrays [R, ...] have equal values in every element, bool."""
    return np.asarray((one == other).all(axis=tuple(range(1, one.ndim))))
