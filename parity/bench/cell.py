"""A cell while it is measured: its contestant run, its tokens kept, its times written down."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from parity.bench.decoding import Contestant, Prompts, Sequenced, Timed
from parity.bench.records import BenchAxes, BenchRounds, BenchTurn
from parity.bench.watched import Watched
from parity.decode import ended
from parity.errors import DeviceFailed, Inconclusive, UsageError


@dataclass
class MeasuredCell:
    """A cell while it is measured.

    Attributes:
        emitted: every different list of tokens that a prompt gave, the first one first.
        watching: decodes a group with somebody watching; None where another cell of the device does.
        watched: tokens and rounds of each prompt then.
        unseen: why there are none.
    """

    axes: BenchAxes
    contestant: Contestant | None = None
    eos: tuple[int, ...] = ()
    turns: list[BenchTurn] = field(default_factory=list)
    emitted: dict[str, list[list[int]]] = field(default_factory=dict)
    error: str = ""
    watching: Watched | None = None
    watched: dict[str, Sequenced] = field(default_factory=dict)
    unseen: str = ""

    def watch(self, prompts: Prompts, budget: int) -> None:
        """Decode a group once, untimed, with somebody watching."""
        if self.error or self.unseen or self.watching is None:
            return
        try:
            self.watched |= self.watching(prompts, budget)
        except (Inconclusive, UsageError) as error:
            self.unseen = f"with somebody watching: {error}"

    def run(self, prompts: Prompts, budget: int, repeat: int | None) -> None:
        """Decode a group; a warm-up where `repeat` is None. A device that breaks down says why, and is out."""
        if self.error or self.contestant is None:
            return
        try:
            with _undisturbed():
                timed = self.contestant(prompts, budget)
            self._checked(timed, budget)
        except (Inconclusive, UsageError) as error:
            self.error = str(error)
            return
        if repeat is not None:
            self.turns.append(_turn(timed, repeat, self.axes.plain))

    def _checked(self, timed: Timed, budget: int) -> None:
        """Keep its tokens.

        Raises:
            DeviceFailed: a prompt ended early.
        """
        for name, sequence in timed.sequences.items():
            seen = self.emitted.setdefault(name, [])
            if sequence.tokens not in seen:
                seen.append(sequence.tokens)
            if not ended(sequence.tokens, self.eos, budget) or len(sequence.tokens) > budget:
                count = len(sequence.tokens)
                early = f"prompt {name} ends after {count} tokens of {budget}, and not by an end token"
                raise DeviceFailed(self.axes.device, "decoding", early)

    def settle(self) -> None:
        """Once all is timed: of a cell whose prefill was a run of its own, the prefill is the median of its repeats.

        One slow run of the two that are subtracted would count twice, or leave nothing.
        """
        groups: dict[tuple[str, ...], list[BenchTurn]] = {}
        for turn in self.turns:
            groups.setdefault(turn.prompts, []).append(turn)
        settled = [one for some in groups.values() for one in (some if some[0].stages else _with_median(some))]
        if any(turn.decode <= 0 for turn in settled):
            self.error = f"{self.axes.device} decodes too short for the clock: raise --max-new-tokens or --repeats"
        self.turns = sorted(settled, key=lambda turn: turn.repeat)


def _with_median(turns: list[BenchTurn]) -> list[BenchTurn]:
    """A group's repeats with the median of their prefills in the place of each one's own."""
    prefill = median(turn.prefill for turn in turns)
    return [
        turn.model_copy(update={"prefill": prefill, "decode": turn.prefill + turn.decode - prefill}) for turn in turns
    ]


def _turn(timed: Timed, repeat: int, plain: bool) -> BenchTurn:
    rounds = [
        BenchRounds(emitted=tuple(one.emitted), accepted=tuple(one.accepted), drafted=tuple(one.drafted))
        for one in timed.sequences.values()
        if not plain
    ]
    return BenchTurn(
        repeat=repeat,
        prompts=tuple(timed.sequences),
        tokens=tuple(len(one.tokens) for one in timed.sequences.values()),
        first=tuple(one.first for one in timed.sequences.values()),
        prefill=timed.prefill,
        decode=timed.decode,
        stages=timed.stages,
        calls=timed.calls,
        rounds=tuple(rounds),
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No collection of garbage in a timed run: it takes tens of milliseconds once torch is loaded."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
