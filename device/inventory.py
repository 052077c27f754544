"""What a run multiplies and compiles, from two config.json alone: the pipeline itself on `ShapeEngine`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.device.assembly import assemble
from parity.device.checkpoint import INTEGERS, Tensors
from parity.device.config import MOE
from parity.device.engines.shape_engine import Shape, ShapeEngine
from parity.device.engines.shape_rules import BFLOAT16
from parity.device.tally import Place, Tally
from parity.errors import UsageError
from parity.seam import Gemm, Operation, Tap


@dataclass(frozen=True)
class Run:
    """One sequence.

    Args:
        k: K, drafts per round.
        prompt: S, prompt tokens.
        tokens: the token budget.
        emitted: tokens each round emits, the bonus included: the acceptance length, held constant.
        precision: of weights and activations.
        tp: TP; the inventory is one rank's.
        moe: formulation of the experts, as for `parity.device.load`.
        watched: every stage is shown, as `parity diff` does: whole passes fall into smaller programs.
    """

    k: int
    prompt: int
    tokens: int
    emitted: int = 1
    precision: str = "bfloat16"
    tp: int = 1
    moe: str = MOE[0]
    watched: bool = False


@dataclass
class Inventory:
    """What one run asks of an engine.

    Args:
        rounds: draft and verify rounds after prefill.
    """

    run: Run
    tally: Tally
    rounds: int = 0

    def gemms(self, phases: Collection[str] = ()) -> tuple[Gemm, ...]:
        """Every shape that these phases meet (all phases where none is named), in the order of the run."""
        return tuple(gemm for gemm, places in self.tally.gemms.items() if _chosen(places, phases))

    def operations(self, phases: Collection[str] = ()) -> dict[Operation, dict[str, int]]:
        """Every operation that these phases meet but the multiplications, in the order of the run, with its calls."""
        counted = {
            operation: {phase: count for phase, count in calls.items() if not phases or phase in phases}
            for operation, calls in self.tally.operations.items()
        }
        return {operation: calls for operation, calls in counted.items() if calls}

    def to_dict(self, phases: Collection[str] = ()) -> dict[str, Any]:
        """All of it, or what these phases meet, as plain data in the order of the run."""
        gemms, programs = [], []
        for gemm, places in self.tally.gemms.items():
            if found := _chosen(places, phases):
                listed = [asdict(place) | {"calls": calls} for place, calls in found.items()]
                gemms.append(asdict(gemm) | {"calls": sum(found.values()), "places": listed})
        for program, calls in self.tally.programs.items():
            if counts := {phase: count for phase, count in calls.items() if not phases or phase in phases}:
                programs.append(asdict(program) | {"calls": counts})
        return {"run": asdict(self.run), "rounds": self.rounds, "gemms": gemms, "programs": programs}


def take_inventory(target: Path, drafter: Path, run: Run) -> Inventory:
    """Every multiplication of one run; reads no tensor.

    Raises:
        UsageError: a config that does not fit, or a run that does not fit the context.
    """
    if not 1 <= run.emitted <= run.k + 1:
        raise UsageError(f"a round emits 1 to K + 1 = {run.k + 1} tokens, not {run.emitted}.")
    tally = Tally()
    found, engine = Inventory(run, tally), ShapeEngine(tally.multiplied, tally.called, tally.operated)
    tap: Tap | None = _show if run.watched else None
    pipeline = assemble(target, drafter, run.k, run.precision, engine, None, run.tp, run.moe, Blueprint)
    tally.windows, config = pipeline.target.windows, pipeline.target.config
    engine.answer = token = next(number for number in range(config.vocab) if number not in config.eos)
    tally.phase, left = "prefill", run.tokens - 1
    pipeline.prefill([token] * run.prompt, run.tokens, tap)
    while not pipeline.finished:
        tally.phase = "draft"
        drafts = pipeline.draft(tap)
        tally.phase = "verify"
        verified = pipeline.verify(drafts, tap)
        engine.answer, tally.phase = min(run.emitted, left), "commit"
        left -= len(pipeline.commit(drafts, verified, tap))
        engine.answer, found.rounds = token, found.rounds + 1
    return found


class Blueprint(Tensors):
    """A checkpoint of which only config.json is read: every tensor has the shape that the device asks for."""

    names = frozenset({"d2t"})  # asked for by name; packed experts are not there, a device holds them unpacked

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> Shape | np.ndarray:
        """This tensor's shape; the integer ones are zeros, which a check may look at."""
        # Every drafter config that copies its target's says beside it how wide the taps are.
        copied = "draft_vocab_size" in self.config or "target_hidden_size" in self.config
        side = "target" if self.config.get("model_type") == "gpt_oss" and not copied else "drafter"
        return np.zeros(shape, np.int64) if dtypes == INTEGERS else Shape(shape, BFLOAT16, None, name=f"{side}:{name}")

    def refuse_surplus(self, expected: Collection[str]) -> None:
        """There is none."""


def _show(stage: str, value: np.ndarray) -> np.ndarray:
    return value


def _chosen(places: Mapping[Place, int], phases: Collection[str]) -> dict[Place, int]:
    return {place: calls for place, calls in places.items() if not phases or place.phase in phases}
