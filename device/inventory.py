"""What a run multiplies and compiles, from two config.json alone: the pipeline itself on `ShapeEngine`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from device.assembly import assemble
from device.checkpoint import INTEGERS, Described
from device.engines.shape_engine import Shape, ShapeEngine
from device.engines.shape_rules import BFLOAT16
from parity.errors import UsageError
from parity.seam import Gemm

ATTENTION = "attention"
"""In place of a weight's name: scores and their weighted sum, which multiply with the cache."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.|^(midlayer)\.")


@dataclass(frozen=True)
class Run:
    """One sequence.

    Args:
        k: K, drafts per round.
        prompt: S, prompt tokens.
        tokens: the token budget.
        emitted: tokens each round emits, the bonus included: the acceptance length, held constant.
        precision: of weights and activations.
    """

    k: int
    prompt: int
    tokens: int
    emitted: int = 1
    precision: str = "bfloat16"


@dataclass(frozen=True)
class Place:
    """Where a multiplication is met.

    Args:
        phase: `prefill`, `draft`, `verify` or `commit`.
        side: `target` or `drafter`.
        weight: its name in the checkpoint without layer number, or `attention`.
        kind: of the layer: `sliding`, `full`, `midlayer`, `plain`; empty outside the layers.
    """

    phase: str
    side: str
    weight: str
    kind: str


@dataclass
class Inventory:
    """What one run asks of an engine.

    Args:
        rounds: draft and verify rounds after prefill.
        gemms: calls of each shape, by place.
    """

    run: Run
    rounds: int = 0
    gemms: dict[Gemm, Counter[Place]] = field(default_factory=dict)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row for each shape, in the order in which a run meets them."""
        for gemm, places in self.gemms.items():
            listed = [vars(place) | {"calls": calls} for place, calls in places.items()]
            yield vars(gemm) | {"calls": sum(places.values()), "places": listed}


def take_inventory(target: Path, drafter: Path, run: Run) -> Inventory:
    """Every multiplication of one run; reads no tensor.

    Raises:
        UsageError: a config that does not fit, or a run that does not fit the context.
    """
    if not 1 <= run.emitted <= run.k + 1:
        raise UsageError(f"a round emits 1 to K + 1 = {run.k + 1} tokens, not {run.emitted}.")
    found = Inventory(run)
    notes = _Notes(found.gemms)
    engine = ShapeEngine(notes.note)
    pipeline = assemble(target, drafter, run.k, run.precision, engine, None, Blueprint)
    notes.windows, config = pipeline.target.windows, pipeline.target.config
    engine.answer = token = next(number for number in range(config.vocab) if number not in config.eos)
    notes.phase, left = "prefill", run.tokens - 1
    pipeline.prefill(np.full(run.prompt, token), run.tokens)
    while not pipeline.finished:
        notes.phase = "draft"
        drafts = pipeline.draft()
        notes.phase = "verify"
        verified = pipeline.verify(drafts)
        engine.answer, notes.phase = min(run.emitted, left), "commit"
        left -= len(pipeline.commit(drafts, verified))
        engine.answer, found.rounds = token, found.rounds + 1
    return found


class Blueprint(Described):
    """A checkpoint of which only config.json is read: every tensor has the shape that the device asks for."""

    names = frozenset({"d2t"})  # asked for by name; packed experts are not there, a device holds them unpacked

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> Shape | np.ndarray:
        """This tensor's shape; the integer ones are zeros, which a check may look at."""
        side = "target" if self.config.get("model_type") == "gpt_oss" else "drafter"
        return np.zeros(shape, np.int64) if dtypes == INTEGERS else Shape(shape, BFLOAT16, None, name=f"{side}:{name}")

    def refuse_surplus(self, expected: object) -> None:
        """There is none."""


class _Notes:
    """Sorts the multiplications of a run by place; a nameless one belongs to the layer of the weight before it."""

    windows: tuple[int | None, ...] = ()

    def __init__(self, gemms: dict[Gemm, Counter[Place]]) -> None:
        self._gemms, self.phase = gemms, "load"
        self._side, self._kind = "", ""

    def note(self, gemm: Gemm, name: str) -> None:
        """Count one multiplication by the weight of this name."""
        weight = ATTENTION
        if name:
            self._side, _, weight = name.partition(":")
            self._kind = self._kind_of(_LAYER.search(weight))
            weight = _LAYER.sub("", weight.removeprefix("model.")).removesuffix(".weight")
        self._gemms.setdefault(gemm, Counter())[Place(self.phase, self._side, weight, self._kind)] += 1

    def _kind_of(self, layer: re.Match[str] | None) -> str:
        if layer is None:
            return ""
        if self._side == "drafter":
            return layer[2] or "plain"
        return "full" if self.windows[int(layer[1])] is None else "sliding"
