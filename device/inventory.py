"""What a run multiplies and compiles, from two config.json alone: the pipeline itself on `ShapeEngine`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from device.assembly import assemble
from device.checkpoint import INTEGERS, Described
from device.engines.shape_engine import Shape, ShapeEngine
from device.engines.shape_rules import BFLOAT16
from device.kernels.step import Step
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
        watched: every stage is shown, as `parity diff` does: whole passes fall into smaller programs.
    """

    k: int
    prompt: int
    tokens: int
    emitted: int = 1
    precision: str = "bfloat16"
    watched: bool = False


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


@dataclass(frozen=True)
class Program:
    """What an engine compiles once.

    Args:
        kernel: module and function.
        arrays: dtype and shape of every array argument.
        static: the other arguments; a config by the name of its class.
    """

    kernel: str
    arrays: tuple[str, ...]
    static: tuple[str, ...]


@dataclass
class Inventory:
    """What one run asks of an engine.

    Args:
        rounds: draft and verify rounds after prefill.
        gemms: calls of each shape, by place.
        programs: calls of each program, by phase.
    """

    run: Run
    rounds: int = 0
    gemms: dict[Gemm, Counter[Place]] = field(default_factory=dict)
    programs: dict[Program, Counter[str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, in the order in which a run meets it."""
        gemms = [
            asdict(gemm) | {"calls": places.total(), "places": [asdict(one) | {"calls": places[one]} for one in places]}
            for gemm, places in self.gemms.items()
        ]
        programs = [asdict(one) | {"calls": dict(phases)} for one, phases in self.programs.items()]
        return {"run": asdict(self.run), "rounds": self.rounds, "gemms": gemms, "programs": programs}


def take_inventory(target: Path, drafter: Path, run: Run) -> Inventory:
    """Every multiplication of one run; reads no tensor.

    Raises:
        UsageError: a config that does not fit, or a run that does not fit the context.
    """
    if not 1 <= run.emitted <= run.k + 1:
        raise UsageError(f"a round emits 1 to K + 1 = {run.k + 1} tokens, not {run.emitted}.")
    found = Inventory(run)
    notes = _Notes(found)
    engine = ShapeEngine(notes.multiplied, notes.called)
    tap = _show if run.watched else None
    pipeline = assemble(target, drafter, run.k, run.precision, engine, None, Blueprint)
    notes.windows, config = pipeline.target.windows, pipeline.target.config
    engine.answer = token = next(number for number in range(config.vocab) if number not in config.eos)
    notes.phase, left = "prefill", run.tokens - 1
    pipeline.prefill(np.full(run.prompt, token), run.tokens, tap)
    while not pipeline.finished:
        notes.phase = "draft"
        drafts = pipeline.draft(tap)
        notes.phase = "verify"
        verified = pipeline.verify(drafts, tap)
        engine.answer, notes.phase = min(run.emitted, left), "commit"
        left -= len(pipeline.commit(drafts, verified, tap))
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


def _show(_stage: str, value: np.ndarray) -> np.ndarray:
    return value


class _Notes:
    """Sorts the multiplications of a run by place; a nameless one belongs to the layer of the weight before it."""

    windows: tuple[int | None, ...] = ()

    def __init__(self, found: Inventory) -> None:
        self._found, self.phase = found, "load"
        self._side, self._kind = "", ""

    def called(self, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Count one call of a program."""
        leaves = list(_leaves(arguments))
        arrays = tuple(f"{one.dtype.name}{list(one.shape)}" for one in leaves if hasattr(one, "shape"))
        static = tuple(_plain(one) for one in leaves if not hasattr(one, "shape"))
        program = Program(f"{kernel.__module__}.{kernel.__qualname__}", arrays, static)
        self._found.programs.setdefault(program, Counter())[self.phase] += 1

    def multiplied(self, gemm: Gemm, name: str) -> None:
        """Count one multiplication by the weight of this name."""
        weight = ATTENTION
        if name:
            self._side, _, weight = name.partition(":")
            self._kind = self._kind_of(_LAYER.search(weight))
            weight = _LAYER.sub("", weight.removeprefix("model.")).removesuffix(".weight")
        self._found.gemms.setdefault(gemm, Counter())[Place(self.phase, self._side, weight, self._kind)] += 1

    def _kind_of(self, layer: re.Match[str] | None) -> str:
        if layer is None:
            return ""
        if self._side == "drafter":
            return layer[2] or "plain"
        return "full" if self.windows[int(layer[1])] is None else "sliding"


def _leaves(value: Any) -> Iterator[Any]:
    """Arrays and static values among the arguments of a program."""
    if isinstance(value, Step):
        value = vars(value)
    if isinstance(value, dict):
        value = [one for _name, one in sorted(value.items(), key=lambda item: str(item[0]))]
    if isinstance(value, tuple | list):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _plain(value: Any) -> str:
    """A static argument in a word: a config is the same throughout a run."""
    return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__.strip("_")
