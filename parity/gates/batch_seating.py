"""Prompts seated in the lanes of a batch, and whose tensors each lane shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.batching import WAIT, Script, VerbCall, perform, perform_together
from parity.gates.own_rounds import free_trace, own_prefill, own_rounds
from parity.golden.views import TrustedGolden
from parity.rounds import forced_rounds
from parity.run_request import forced_of, ties_of, truth_of
from parity.seam import Batched, Device
from parity.shown import View, with_returned
from parity.trace import ForcingTrace, Recorded

LIKE = 0.99
"""Correlation of a tensor with the golden of its prompt; bfloat16's noise, a few percent, leaves 0.999."""


@dataclass(frozen=True)
class Stay:
    """What one sequence does in a seating.

    Attributes:
        prompt: its number in the golden.
        rounds: how many it stays.
        budget: its tokens; the golden's where None.
        waits: calls that its lane is left out of behind its first round.
        drafts: those of a round that are verified, and the device goes on with its own choices; all where None, and
            with the golden's.
        ends: of its own choices, the target's tokens in its last round are end tokens.
    """

    prompt: int
    rounds: int
    budget: int | None = None
    waits: int = 0
    drafts: int | None = None
    ends: bool = False


@dataclass(frozen=True)
class Seated:
    """One sequence of a seating: a golden's prompt by number, its lane, and its tensors by round and stage."""

    prompt: int
    lane: int
    tensors: Recorded


@dataclass(frozen=True)
class Prompts:
    """The golden's prompts on a device, with the golden's choices forced, so that every seating goes the same way.

    Attributes:
        golden: where they are from.
        device: with lanes, or without.
    """

    golden: TrustedGolden
    device: Device

    def alone(self, stay: Stay) -> Seated:
        """A sequence on a device of one, or in the first lane of several."""
        if isinstance(self.device, Batched):
            return self.seat([stay], [0])[0]
        trace, script = self._script(stay)
        perform(self.device, script)
        return Seated(stay.prompt, 0, trace.tensors)

    def seat(self, stays: Sequence[Stay], lanes: Sequence[int] | None = None) -> list[Seated]:
        """Sequences in lanes, in this order: the first ones at once, the others as lanes become free.

        Args:
            lanes: those that are used, in the order in which they are filled; all where None.
        """
        device: Any = self.device
        made = [self._script(stay) for stay in stays]
        where: dict[int, int] = {}
        for _ in perform_together(_Watched(device, where), enumerate(script for _, script in made), lanes):
            pass
        return [Seated(stay.prompt, where[number], made[number][0].tensors) for number, stay in enumerate(stays)]

    def spent(self, prompt: int, rounds: int) -> Stay:
        """A stay whose budget is spent in this round, in the midst of what it accepts where that is several."""
        lengths = self.golden.manifest.case.prompts[prompt].generated.acceptance_length[:rounds]
        return Stay(prompt, len(lengths), 1 + sum(lengths) - (lengths[-1] > 1))

    def _script(self, stay: Stay) -> tuple[ForcingTrace, Script[None]]:
        names, says, case = self.golden.declared, self.device.describe(), self.golden.manifest.case
        prompt = case.prompts[stay.prompt]
        ids, tokens = prompt.ids, stay.budget or case.max_new_tokens
        if stay.drafts is not None:
            free = free_trace(names)
            return free, _own(free, ids, tokens, stay, says.eos)
        view = View(with_returned(says.shown, names, False), names)
        trace = ForcingTrace(names, truth_of(self.golden, stay.prompt), forced_of("chained", says, view))
        trace.grids = ties_of(self.golden, says, view)
        rounds = min(stay.rounds, len(prompt.generated.acceptance_length))
        drafts = case.drafts if case.schedule else None
        script = forced_rounds(self.device, ids, tokens, trace, rounds, drafts)
        return trace, _pausing(script, stay.waits)


def _own(trace: ForcingTrace, ids: Sequence[int], budget: int, stay: Stay, eos: Sequence[int]) -> Script[None]:
    """A stay of the device's own choices."""
    yield from own_prefill(trace, ids, budget)
    yield from own_rounds(trace, stay.rounds, eos, stay.drafts, stay.ends)


def _pausing(script: Script[None], waits: int) -> Script[None]:
    """The same calls, with a pause behind the first round."""
    call, round_ = next(script), 0
    while True:
        round_ += call.verb == "draft"
        if call.verb == "draft" and round_ == 2:
            for _ in range(waits):
                yield VerbCall(WAIT, (), call.tap)
        try:
            call = script.send((yield call))
        except StopIteration:
            return


class _Watched:
    """A device that notes the lane of every sequence, in the order in which they begin."""

    def __init__(self, device: Batched, where: dict[int, int]) -> None:
        self._device, self._where = device, where

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def prefill_batch(self, lanes: Sequence[int], *rest: Any) -> Sequence[int]:
        for lane in lanes:
            self._where[len(self._where)] = lane
        return self._device.prefill_batch(lanes, *rest)


@dataclass(frozen=True)
class Likeness:
    """Which prompt a lane's tensor is like.

    Attributes:
        other: the prompt of another lane whose golden it is most like, more than its own; None where it is its own.
        own, best: correlations with the own golden and with the most like one.
    """

    seat: Seated
    round: int
    stage: str
    other: int | None
    own: float
    best: float


def likenesses(seats: Sequence[Seated], golden: TrustedGolden) -> Iterator[Likeness]:
    """Every float tensor of the prefill and the first round: behind them prompts may be in each other's state."""
    for seat in seats:
        for (round_, stage), value in seat.tensors.items():
            if golden.declared[stage].stage.exact or round_ > 1:
                continue
            like = {one.prompt: _correlation(value, golden.contents("float32", one.prompt, round_, stage))
                    for one in seats}  # fmt: skip
            best, own = max(like, key=lambda prompt: like[prompt]), like[seat.prompt]
            other = best if best != seat.prompt and like[best] > max(own, LIKE) else None
            yield Likeness(seat, round_, stage, other, own, like[best])


def _correlation(value: np.ndarray, golden: np.ndarray | None) -> float:
    """Of the rows that both have; 0 where there are none."""
    if golden is None or value.shape[1:] != golden.shape[1:]:
        return 0.0
    rows = min(len(value), len(golden))
    mine, theirs = (np.nan_to_num(one[:rows].astype(np.float64).ravel()) for one in (value, golden))
    size = np.linalg.norm(mine) * np.linalg.norm(theirs)
    return float(mine @ theirs / size) if size else 0.0
