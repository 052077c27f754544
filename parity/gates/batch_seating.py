"""Prompts seated in the lanes of a batch, what each lane shows of its own, and how two seatings of a prompt differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.batching import WAIT, Script, VerbCall, perform, perform_together
from parity.drive import forced_of, forced_rounds, truth_of
from parity.gates.rollback.sameness import WithinNoise, changed_row
from parity.golden.views import TrustedGolden
from parity.seam import Batched, Device
from parity.shown import View, with_returned
from parity.stages import ACCEPT_EMITTED
from parity.trace import ForcingTrace, Tensors, Trace

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
    tensors: Tensors


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

    def ending(self, prompt: int, budget: int) -> int:
        """The round in which a smaller budget is spent."""
        lengths = self.golden.manifest.case.prompts[prompt].generated.acceptance_length
        return int(np.searchsorted(1 + np.cumsum(lengths), budget)) + 1

    def _script(self, stay: Stay) -> tuple[Trace, Script[None]]:
        names, says, case = self.golden.declared, self.device.describe(), self.golden.manifest.case
        prompt = case.prompts[stay.prompt]
        ids, tokens = prompt.ids, stay.budget or case.max_new_tokens
        if stay.drafts is not None:
            free = Trace(names)
            return free, own_rounds(ids, tokens, free, stay, says.eos)
        view = View(with_returned(says.shown, names, False), names)
        trace = ForcingTrace(names, truth_of(self.golden, stay.prompt), forced_of("chained", says, view))
        rounds = min(stay.rounds, len(prompt.generated.acceptance_length))
        drafts = case.drafts if case.schedule else None
        script = forced_rounds(self.device, ids, tokens, trace, rounds, drafts)
        return trace, _pausing(script, stay.waits)


def own_rounds(ids: Sequence[int], budget: int, trace: Trace, stay: Stay, eos: Sequence[int]) -> Script[None]:
    """Rounds of the device's own choices, of which so many drafts are verified."""
    trace.begin(0)
    yield VerbCall("prefill", (ids, budget), trace)
    for round_ in range(1, stay.rounds + 1):
        trace.begin(round_)
        drafts = np.asarray((yield VerbCall("draft", (), trace)))[: stay.drafts]
        tokens = np.asarray((yield VerbCall("verify", (drafts,), trace)))
        tokens = np.full_like(tokens, eos[0]) if stay.ends and round_ == stay.rounds else tokens
        emitted = yield VerbCall("commit", (drafts, tokens), trace)
        trace.tensors[round_, ACCEPT_EMITTED] = np.array(emitted, np.int64)  # what is returned counts


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
class SeatedRow:
    """A row of a stage: its prompt's lane in the first seating, and in the other."""

    round: int
    prompt: int
    stage: str
    row: int
    lane: int
    other: int


@dataclass
class Difference:
    """How sequences differ from themselves elsewhere.

    Attributes:
        tensors: how many were compared.
        moved: how many have other bits.
        worst: the largest distance of a row, as a multiple of its bound; infinite for what may not differ or lacks.
        place: of the first row beyond its bound, or of the worst where none is.
        apart: that row's distance.
    """

    tensors: int = 0
    moved: int = 0
    worst: float = 0.0
    place: SeatedRow | None = None
    apart: float = 0.0

    def add(self, first: Seated, other: Seated, within: WithinNoise) -> None:
        """Compare a prompt in two seats, as far as it went in both."""
        last = min(max(round_ for round_, _ in one.tensors) for one in (first, other))
        for round_ in range(last + 1):
            before, now = _of_round(first, round_), _of_round(other, round_)
            for stage in dict.fromkeys((*before, *now)):
                self.tensors += 1
                if stage in before and changed_row(before[stage], now.get(stage, np.empty(0))) is None:
                    continue
                self.moved += 1
                self._count(first, other, round_, stage, _apart(stage, before, now, within))

    def _count(self, first: Seated, other: Seated, round_: int, stage: str, apart: np.ndarray) -> None:
        beyond = np.flatnonzero(apart > 1.0)
        row = 0 if not apart.size else int(beyond[0]) if beyond.size else int(np.argmax(apart))
        here = float(apart[row]) if apart.size else np.inf
        self.worst = max(self.worst, here, *apart)
        at = SeatedRow(round_, first.prompt, stage, row, first.lane, other.lane)
        new = self.place is None or (here > self.apart if max(self.apart, here) <= 1.0 else here > 1.0 >= self.apart)
        earlier = self.place is not None and min(here, self.apart) > 1.0 and at.round < self.place.round
        if new or earlier:
            self.place, self.apart = at, here


def _of_round(seated: Seated, round_: int) -> dict[str, np.ndarray]:
    return {stage: value for (number, stage), value in seated.tensors.items() if number == round_}


def _apart(stage: str, before: dict[str, np.ndarray], now: dict[str, np.ndarray], within: WithinNoise) -> np.ndarray:
    """How far each row is from its bound [S]; nothing where one of both has no such rows."""
    if stage not in before or stage not in now or before[stage].shape != now[stage].shape:
        return np.zeros(0)
    return within.apart(stage, before, now)


def owners(seats: Sequence[Seated], golden: TrustedGolden) -> Iterator[tuple[Seated, int, int, str, float, float]]:
    """Stages of a lane that are like another lane's prompt, and more so than like its own.

    Yields:
        seat, that prompt, round, stage, and the correlations with the own golden and with that one's.
    """
    for seat in seats:
        for (round_, stage), value in seat.tensors.items():
            if golden.declared[stage].stage.exact or round_ > 1:
                continue
            like = {one.prompt: _correlation(value, golden.contents("float32", one.prompt, round_, stage))
                    for one in seats}  # fmt: skip
            best = max(like, key=lambda prompt: like[prompt])
            if best != seat.prompt and like[best] > max(like[seat.prompt], LIKE):
                yield seat, best, round_, stage, like[seat.prompt], like[best]


def _correlation(value: np.ndarray, golden: np.ndarray | None) -> float:
    """Of the rows that both have; 0 where there are none."""
    if golden is None or value.shape[1:] != golden.shape[1:]:
        return 0.0
    rows = min(len(value), len(golden))
    mine, theirs = (np.nan_to_num(one[:rows].astype(np.float64).ravel()) for one in (value, golden))
    size = np.linalg.norm(mine) * np.linalg.norm(theirs)
    return float(mine @ theirs / size) if size else 0.0
