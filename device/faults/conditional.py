"""A planted fault that holds under a condition only: `only(fault, "cached > 128")`.

Two copies of the pipeline run every verb in step, one with the fault and one without it. They meet at each stage: rows
under the condition are the faulty copy's, the others the right one's, and both continue with that. So whatever a fault
changes, a weight, a kernel or the host loop, it is right where the condition does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from typing import Any

import numpy as np

from parity.device.engines.lockstep import Lockstep
from parity.device.faults.conditions import Condition, Pass
from parity.device.faults.planting import VERBS, Fault, planted_absent
from parity.device.model import Model
from parity.device.pipeline import Pipeline
from parity.errors import UsageError

JOINT = " where "
"""Between a fault and its condition in a name: `attn-sinks-missing where cached > 128`."""
SEQUENCE = ("_text", "_emitted", "_left", "_drafted")
"""What the host loop keeps of a sequence, beside the caches and the taps."""
WRITES = {"draft": "drafter", "verify": "target"}
"""Whose cache a verb writes and does not show; what prefill and commit show is loaded into the caches."""
HEAD = re.compile(r"drafter\.(pre_head_hidden|logits|draft_tokens)")


def only(fault: Fault, where: str) -> Fault:
    """The same fault, right wherever the condition does not hold.

    Raises:
        UsageError: the condition cannot be read, or the fault sits in several ranks, lanes, pages or rounds in flight.
    """
    condition = Condition.of(where)
    if fault.lanes > 1 or fault.tp > 1 or fault.partial_kv or fault.kv_cache or fault.loop:
        raise UsageError(
            f"{fault.id}: a fault of ranks, lanes, pages, fp8 caches or one loop cannot be held to a condition."
        )

    def plant(pipeline: Any) -> None:
        if not isinstance(pipeline, Pipeline):
            raise UsageError(f"{fault.id}: a fault is held to a condition in a device of one lane.")
        if pipeline.prefill_rows:  # a stage is shown behind the last part: the copies would not meet before it
            raise UsageError(f"{fault.id}: a fault is held to a condition in a device that prefills at once.")
        faulty = pipeline.lane(pipeline.engine)
        fault.plant(faulty)
        _Halves(fault.id, condition, pipeline, faulty).join()

    return replace(
        fault,
        id=f"{fault.id}{JOINT}{where}",
        what=f"{fault.what}; only where {where}",
        stage=_first(fault, fault.stage, condition),
        chained=_first(fault, fault.chained, condition),
        round=None,
        chained_round=None,
        plant=plant,
    )


def _first(fault: Fault, stage: str, condition: Condition) -> str:
    """The stage of the first layer that the condition lets through, where it asks for layers."""
    asked = replace(condition, clauses=tuple(clause for clause in condition.clauses if clause.name == "layer"))
    anywhere, layer = Pass("verify", 0, 0, 0, None), _layer(stage)
    if layer is None or not asked.clauses:
        return stage
    for number in range(layer, 64):
        named = re.sub(r"\.\d+\.", f".{number}.", stage, count=1)
        if asked.rows(anywhere, number, None) and any(fnmatchcase(named, site) for site in fault.sites):
            return named
    raise UsageError(f"{fault.id} is in no layer where {condition.text}.")


def _layer(stage: str) -> int | None:
    found = re.search(r"\.(\d+)\.", stage)
    return int(found[1]) if found else None


@dataclass
class _Facts:
    """Where the sequence is."""

    prompt: int = 0
    round: int = 0
    accepted: int | None = None
    committed: int = 1
    """Rows before the first masked one of a draft pass, which its head begins at the last of."""


class _Halves:
    """A right and a faulty copy of one pipeline; the right one's verbs become those of both."""

    def __init__(self, name: str, condition: Condition, right: Pipeline, faulty: Pipeline) -> None:
        self.name, self.condition, self.copies = name, condition, (right, faulty)
        self.facts = _Facts()
        self.verbs = {verb: [getattr(copy, verb) for copy in self.copies] for verb in (*VERBS, "prefill_from")}

    def join(self) -> None:
        """Plain decoding, which shows no stage, stays right."""
        right, faulty = self.copies
        for verb, kind in (("prefill", "prefill"), ("draft", "draft"), ("verify", "verify"), ("commit", "verify")):
            setattr(right, verb, self._in_step(verb, kind, VERBS[verb]))
        right.prefill_from = self._in_step("prefill_from", "prefill", 3)  # type: ignore[method-assign]
        for name in ("poison", "sample", "save", "restore"):
            setattr(right, name, _both(getattr(right, name), getattr(faulty, name)))

    def _in_step(self, verb: str, kind: str, count: int) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            values, tap = arguments[:count], arguments[count] if len(arguments) > count else options.pop("tap", None)
            rest = arguments[count + 1 :]
            begun = replace(self.facts)
            if kind == "prefill":
                begun = _Facts(self.facts.prompt + 1, committed=self.facts.committed)
            elif kind == "draft":
                begun.round, begun.committed = begun.round + 1, len(self.copies[0]._emitted)
            cached = max(values[0] - 1, 0) if verb == "prefill_from" else None
            meeting = _Meeting(self, begun, kind, tap, cached)
            given = meeting.lockstep.run(
                [
                    _planted_or_not(faulty, copy_verb, values, meeting.tap(faulty), rest, options)
                    for faulty, copy_verb in enumerate(self.verbs[verb])
                ]
            )
            taken = int(meeting.decided)
            self._agree(taken, meeting, verb)
            if verb == "commit":
                begun.accepted = len(given[taken]) - 1
            self.facts = begun
            return given[taken]

        return run

    def _agree(self, taken: int, meeting: _Meeting, verb: str) -> None:
        """Both copies go on with the same sequence and the same caches; the taps stay each copy's own."""
        source, other = self.copies[taken], self.copies[1 - taken]
        for name in SEQUENCE:
            setattr(other, name, getattr(source, name))
        for side in ("target", "drafter"):
            models = [getattr(copy, side) for copy in self.copies]
            if WRITES.get(verb) == side and isinstance(models[0], Model):
                _share(models, partial(_cached, meeting, side))
            models[1 - taken].length = models[taken].length


class _Meeting:
    """One verb of both copies: what each stage continues with."""

    def __init__(self, halves: _Halves, facts: _Facts, kind: str, tap: Any, cached: int | None) -> None:
        right = halves.copies[0]
        self.lockstep, self.name, self.condition, self.outer = Lockstep(), halves.name, halves.condition, tap
        self.facts, self.kind = facts, kind
        models = {"target": right.target, "drafter": right.drafter}
        self.cached = {side: cached or 0 if kind == "prefill" else model.length for side, model in models.items()}

    @property
    def decided(self) -> bool:
        """Whether the condition holds for the whole of this pass."""
        return bool(self.condition.rows(self._pass("target"), None, None).all())

    def tap(self, faulty: int) -> Callable[[str, np.ndarray], np.ndarray]:
        """What one copy hands its stages to."""

        def tap(stage: str, value: np.ndarray) -> np.ndarray:
            def together(brought: list[Any]) -> list[Any]:
                return self._together(stage, dict(brought))

            taken: np.ndarray = self.lockstep.meet((stage, value.shape), (faulty, value), together)
            return taken

        return tap

    def held(self, stage: str, count: int) -> np.ndarray:
        """Where the condition holds among a stage's rows; [] for one without rows."""
        side = "drafter" if "drafter" in stage else "target"
        known, layer, start = self._pass(side), _layer(stage), self.cached[side]
        if stage.startswith("accept.") or stage.endswith(".length"):
            return self.condition.rows(known, layer, None)
        if stage.startswith("kv."):
            return self.condition.rows(known, layer, np.arange(count), -start)
        first = self.facts.committed - 1 if HEAD.fullmatch(stage) and self.kind == "draft" else 0
        return self.condition.rows(known, layer, start + first + np.arange(count), first)

    def _pass(self, side: str) -> Pass:
        facts = self.facts
        return Pass(self.kind, facts.round, facts.prompt, self.cached[side], facts.accepted)

    def _together(self, stage: str, values: dict[int, np.ndarray]) -> list[np.ndarray]:
        """The joined stage to both; to one copy alone, which shows another stage there, its own where it decides."""
        shape = next(iter(values.values())).shape
        held = self.held(stage, shape[0])
        if len(values) == 2:
            shown = self._shown(stage, _mixed(held, values))
            return [shown.copy() for _ in values]
        if not (held.all() or not held.any()):
            raise UsageError(
                f"{self.name}: {stage} has other rows with the fault than without it, so that it cannot be held to "
                f"some rows of a pass: {self.condition.text}."
            )
        ((faulty, value),) = values.items()
        return [self._shown(stage, value) if _everywhere(held) == bool(faulty) else value]

    def _shown(self, stage: str, value: np.ndarray) -> np.ndarray:
        return value if self.outer is None else np.asarray(self.outer(stage, value))


def _mixed(held: np.ndarray, values: dict[int, np.ndarray]) -> np.ndarray:
    """The faulty copy's rows where the condition holds; one copy's array as it is where that is all of them, so that a
    fault of another dtype leaves no trace in passes that it does not touch."""
    if held.all() or not held.any():
        return values[int(_everywhere(held))]
    return np.where(held.reshape(-1, *[1] * (values[0].ndim - 1)), values[1], values[0])


def _everywhere(held: np.ndarray) -> bool:
    """Whether a condition holds for all rows, and there are some."""
    return bool(held.size and held.all())


def _planted_or_not(
    faulty: int, verb: Callable[..., Any], values: Sequence[Any], tap: Any, rest: Sequence[Any], options: Any
) -> Callable[[], Any]:
    def run() -> Any:
        with planted_absent(not faulty):
            return verb(*values, tap, *rest, **options)

    return run


def _both(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        second(*arguments)
        return first(*arguments)

    return run


def _cached(meeting: _Meeting, side: str, layer: int, rows: int) -> np.ndarray:
    return meeting.held(f"kv.{side}.{layer}.k", rows)


def _share(models: Sequence[Any], held: Callable[[int, int], np.ndarray]) -> None:
    """Cache rows under the condition are the faulty copy's, the others the right one's, in both of them."""
    (right, faulty), joined = (model.off_load()[0] for model in models), []
    for layer, pairs in enumerate(zip(right, faulty, strict=True)):
        mask = held(layer, pairs[0][0][0].shape[1])[None, :, None, None]
        joined.append(tuple([np.where(mask, wrong[0], true[0])] for true, wrong in zip(*pairs, strict=True)))
    for model in models:
        model.load((joined, model.length))


WHERES = (
    "pass = prefill",
    "pass = verify",
    "pass = draft",
    "round >= 2",
    "prompt > 1",
    "position >= 96",
    "position < 64",
    "position % 16 = 0",
    "cached > 128",
    "accepted = 0",
    "row > 0",
    "layer % 2 = 1",
    "layer = 3",
)
"""Conditions that real defects were met under: one pass, a later prompt, a tile, a length, a rejection, a layer."""


def fits(fault: Fault, where: str) -> bool:
    """Whether a fault that a comparison shows can be held to this condition, and is another one then."""
    condition = Condition.of(where)
    whole = not fault.partial_kv and not fault.kv_cache and not fault.loop
    alone = fault.lanes == fault.tp == 1 and whole and "p-eagle" in fault.drafters
    if not alone or fault.gate != "stages" or not fault.stage.startswith(("target.", "drafter.")):
        return False
    later = "verify" if fault.stage.startswith("target.") else "draft"
    passes = [(Pass(later, 9, 9, 130, 0), np.arange(130, 135))]
    passes += [(Pass("prefill", 0, 9, 0, None), np.arange(128))] if fault.round == 0 else []
    if not any(condition.rows(seen, 3, positions).any() for seen, positions in passes):
        return False
    layers = {name for site in fault.sites for name in LAYERED if fnmatchcase(name.format(3), site)}
    return "layer" not in condition.names or bool(layers and _layer(fault.stage) == 0)


LAYERED = tuple(
    f"{side}.layers.{{}}.{part}"
    for side in ("target", "drafter")
    for part in ("attn_in", "q", "k", "v", "attn_out", "router_logits", "experts", "ffn_out", "out")
)
"""Stages that every layer has."""


def drawn(faults: Sequence[Fault], count: int | None, seed: int) -> list[Fault]:
    """So many faults under a condition, or all: conditions in turn, each with a fault that was not drawn before."""
    chance, left, made = Random(seed), {fault.id: fault for fault in faults}, list[Fault]()
    wheres = list(WHERES)
    while wheres and (count is None or len(made) < count):
        where = wheres.pop(0)
        fitting = [fault for fault in left.values() if fits(fault, where)]
        if fitting:
            chosen = chance.choice(fitting)
            del left[chosen.id]
            made.append(only(chosen, where))
            wheres.append(where)
    return made
