"""The runs behind a golden: every prompt in float32, then in bfloat16 on the same tokens, once for each floor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import torch

from parity.golden.case import Generation
from parity.golden.fields import Variant
from parity.golden.smaller import Smaller
from parity.golden.writer import DumpWriter
from parity.references.loop import SpeculativeLoop
from parity.references.request import GoldenRequest, Numbered
from parity.references.roundings import pooled
from parity.stages import Named
from parity.trace import ForcingTrace, Recorded, Trace, forced_names

AnyTrace = TypeVar("AnyTrace", bound=Trace)
FLOORS: dict[Variant, str] = {"bfloat16": "chained", "bfloat16.local": "local"}


@dataclass(frozen=True)
class Request(GoldenRequest):
    """`roundings` is the number of bfloat16 runs behind each floor, `partial_kv` what `parity.partial_kv` reads,
    `kv_cache` what `parity.kv_cache` does.

    `schedule` is K of each round in turn, from the first one again behind the last; nothing for `k` in all of them.
    `sample` is what `parity.sampling` reads, nothing for greedy tokens; `seed` is of the random numbers. `resume` keeps
    what is done beside `out` until the golden is whole, and goes on from there. `sketch`, `sketch_seed`, `logits` and
    `positions` say what is kept: see `parity.golden.smaller.Smaller`.
    """

    roundings: int = 1
    partial_kv: str = ""
    kv_cache: str = ""
    schedule: tuple[int, ...] = ()
    sample: str = ""
    seed: int = 0
    resume: bool = False
    sketch: int | None = None
    sketch_seed: int | None = None
    logits: str = ""
    positions: str = ""

    @property
    def smaller(self) -> Smaller:
        """What of the golden is kept."""
        return Smaller(self.sketch, self.sketch_seed, self.logits, self.positions)

    def decides(self) -> dict[str, str]:
        """What of this decides what the golden holds, checkpoints and prompts apart."""
        apart = {"target", "drafter", "prompts", "out", "progress", "max_bytes", "resume", "batch"}
        return {field.name: str(getattr(self, field.name)) for field in fields(self) if field.name not in apart}


def one_by_one(runs: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each run returns, one run after the other."""
    return [run() for run in runs]


@dataclass(frozen=True)
class Computed:
    """Who computes: a name, `load(target, drafter, dtype, k)` to a loop, and the modules of it.

    `target` are the modules that compute the target alone, out of ids and cached rows that the loop hands them;
    `drafting` those that draft, where they are others than those of the loop. `prompts` go together, each with loops of
    its own, and `company` carries out what they do: one after the other where nothing else is said. Stages are
    recorded on disk where it is `spooled`, in memory otherwise.
    """

    name: str
    load: Callable[..., SpeculativeLoop[Any, Any]]
    modules: Collection[str]
    drafting: Collection[str] = ()
    target: Collection[str] = ()
    spooled: bool = False
    prompts: int = 1
    company: Callable[[Sequence[Callable[[], Any]]], list[Any]] = one_by_one


@dataclass
class Rounded:
    """The loop in bfloat16, as often as its golden asks for, each time with its sums in another order."""

    loop: SpeculativeLoop[Any, Any]
    count: int

    def __post_init__(self) -> None:
        self.roundings = self.loop.target.roundings(self.loop.drafter)

    def passes(self, ids: Sequence[int], budget: int, trace: Callable[[], ForcingTrace]) -> Iterator[Recorded]:
        """What each pass over a prompt records, with what a fresh trace forces; the loop stays as it was."""
        try:
            for rounding in range(self.count):
                self.roundings.choose(rounding)
                floor = trace()
                self.loop.run(ids, budget, floor)
                yield floor.tensors
        finally:
            self.roundings.choose(0)


@dataclass
class Cast:
    """The loops of the prompts that go together: one each in float32, and in bfloat16 one for each floor.

    A prompt that goes alone has both floors from one loop.
    """

    request: Request
    by: Computed
    truths: dict[int, SpeculativeLoop[Any, Any]] = field(default_factory=dict)
    rough: dict[tuple[int, str], Rounded] = field(default_factory=dict)

    def truth(self, place: int = 0) -> SpeculativeLoop[Any, Any]:
        """The loop in float32 of the prompt in this place."""
        if place not in self.truths:
            self.truths[place] = self._load(torch.float32)
        return self.truths[place]

    def rounded(self, place: int, variant: str) -> Rounded:
        """The loop in bfloat16 of the prompt in this place, for a floor."""
        key = place, variant if self.by.prompts > 1 else ""
        if key not in self.rough:
            self.rough[key] = Rounded(self._load(torch.bfloat16), self.request.roundings)
        return self.rough[key]

    def _load(self, dtype: torch.dtype) -> SpeculativeLoop[Any, Any]:
        asked = self.request
        loop = self.by.load(asked.target, asked.drafter, dtype, asked.schedule or asked.k)
        loop.attend_to(asked.partial_kv)
        loop.quantise(asked.kv_cache, asked.target, asked.drafter)
        return loop


@dataclass
class PromptRun:
    """One prompt in float32, then in bfloat16 on the same tokens; `write` ends it.

    `hold` makes what a prompt's stages of a variant are recorded in.
    """

    request: Request
    names: dict[str, Named]
    stages: Sequence[Named]
    cast: Cast
    place: int
    number: int
    ids: Sequence[int]
    sampling: Numbered | None
    hold: Callable[[int, Variant], Recorded]
    floors: dict[Variant, Recorded] = field(default_factory=dict)

    @property
    def generation(self) -> Generation:
        """What was emitted."""
        return Generation(
            emitted=self.result.emitted,
            acceptance_length=self.result.acceptance_length,
            accepted_drafts=self.result.accepted_drafts,
            finish=self.result.finish,
        )

    def run(self) -> None:
        """The truth."""
        self.record, loop = self._held(Trace(self.names), "float32"), self.cast.truth(self.place)
        self._draw(loop)
        self.result = loop.run(self.ids, self.request.max_new_tokens, self.record)

    def follow(self, variant: Variant) -> None:
        """A floor."""
        forced, wanted = forced_names(FLOORS[variant], self.names), {named.name for named in self.stages}

        def forcing() -> ForcingTrace:
            made = ForcingTrace(self.names, true(self.record), forced, keep=wanted.__contains__)
            return self._held(made, variant)

        rounded = self.cast.rounded(self.place, variant)
        self._draw(rounded.loop)
        passes = rounded.passes(self.ids, self.request.max_new_tokens, forcing)
        self.floors[variant] = pooled(self.record.tensors, passes)

    def write(self, writer: DumpWriter) -> None:
        """Add what was recorded to the golden, and forget it."""
        wanted, tensors = {one.name for one in self.stages}, self.record.tensors
        for place in [place for place in tensors if place[1] not in wanted]:
            del tensors[place]
        writer.add(self.number, "float32", self.stages, tensors)
        for variant in FLOORS:
            floor = self.floors.pop(variant)
            writer.add(self.number, variant, self.stages, floor, truth=tensors if writer.keep else None)
        del self.record

    def _held(self, trace: AnyTrace, variant: Variant) -> AnyTrace:
        trace.tensors = self.hold(self.number, variant)
        trace.earlier = frozenset(trace.tensors)
        return trace

    def _draw(self, loop: SpeculativeLoop[Any, Any]) -> None:
        if self.sampling is not None:
            loop.sample(self.sampling.settings, self.sampling.uniforms[self.number])


def true(record: Trace) -> Callable[[int, str], np.ndarray | None]:
    """What a record holds of a round's stage, to be forced."""
    return lambda round_, stage: record.tensors.get((round_, stage))
