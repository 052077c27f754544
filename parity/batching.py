"""Sequences over the lanes of a batch: who sits where, and which verb comes next.

What one sequence does is a *script*: a generator that yields the calls of verbs and is sent what they return. The same
script runs on a device of one sequence (`perform`) and on one of many (`perform_together`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from parity.errors import DeviceFailed
from parity.seam import Batched, Description, Device, SamplesInLanes, Sampling, Tap

T = TypeVar("T")

SAMPLE = "sample"
"""`parity.seam.Samples.sample`, of which no tap sees anything: before any verb."""
VERBS = ("prefill", "draft", "verify", "commit")
"""In the order of a round: of lanes that wait for different verbs those come first that are behind."""
PREFILLS = ("prefill", "prefill_from")
"""The verbs that begin a sequence: what they return is its first token."""

WAIT = "wait"
"""In place of a verb: the sequence's lane is left out of the next call."""


@dataclass(frozen=True)
class VerbCall:
    """A verb of `parity.seam.Device`: what stands before the tap, the tap, what stands behind it."""

    verb: str
    arguments: tuple[Any, ...]
    tap: Tap
    behind: tuple[Any, ...] = ()


Script = Generator[VerbCall, Any, T]
"""A sequence's calls, one after the other; its end has a value."""


def perform(device: Device, script: Script[T]) -> T:
    """Run a script alone; its value."""
    try:
        call = next(script)
        while True:
            call = script.send(None if call.verb == WAIT else _alone(device, call))
    except StopIteration as end:
        value: T = end.value
        return value


def _alone(device: Device, call: VerbCall) -> Any:
    taps = () if call.verb == SAMPLE else (call.tap,)
    return getattr(device, call.verb)(*call.arguments, *taps, *call.behind)


def performed(device: Device | Batched, scripts: Iterable[tuple[int, Script[T]]]) -> Iterator[tuple[int, T]]:
    """Run scripts, together where the device has lanes; their numbers and values, as they end."""
    if isinstance(device, Batched):
        return perform_together(device, scripts)
    return ((number, perform(device, script)) for number, script in scripts)


def perform_together(
    device: Batched, scripts: Iterable[tuple[int, Script[T]]], lanes: Sequence[int] | None = None
) -> Iterator[tuple[int, T]]:
    """Run scripts over the lanes of a device, a new one wherever one has ended; their numbers and values, as they end.

    Args:
        scripts: each with its number.
        lanes: the lanes to use, in the order in which they are filled; all where None.

    Raises:
        ValueError: a verb returns another number of results than it was given lanes.
        DeviceFailed: as the device raises it, its place the lanes of the verb and the numbers of their scripts.
    """
    free = list(range(device.describe().lanes) if lanes is None else lanes)
    coming = iter(scripts)
    seats: dict[int, _Seat] = {}
    while True:
        for lane, (number, script) in zip(tuple(free), coming, strict=False):
            free.remove(lane)
            seats[lane] = _Seat(number, script, next(script))
        if not seats:
            return
        waiting = [lane for lane, seat in seats.items() if seat.call.verb == WAIT]
        verbs = {seat.call.verb for seat in seats.values()} - {WAIT}
        verb = min(verbs, key=(SAMPLE, *VERBS).index) if verbs else ""
        called = [lane for lane, seat in seats.items() if seat.call.verb == verb]
        values = _call(device, verb, {lane: seats[lane] for lane in called}) if verb else []
        for lane, value in (*zip(called, values, strict=True), *((lane, None) for lane in waiting)):
            try:
                seats[lane].call = seats[lane].script.send(value)
            except StopIteration as end:
                yield seats.pop(lane).number, end.value
                free.append(lane)


@dataclass
class _Seat:
    """Who sits in a lane, and the call that it waits for."""

    number: int
    script: Script[Any]
    call: VerbCall


def _call(device: Batched, verb: str, seats: Mapping[int, _Seat]) -> Sequence[Any]:
    """One verb for these lanes."""
    calls = [seat.call for seat in seats.values()]
    before, behind = (
        [list(column) for column in zip(*rows, strict=True)]
        for rows in ([call.arguments for call in calls], [call.behind for call in calls])
    )
    try:
        if verb == SAMPLE:
            cast(SamplesInLanes, device).sample_batch(list(seats), *before)
            return [None] * len(seats)
        return BatchCall(verb, list(seats), before, [call.tap for call in calls], behind).on(device)
    except DeviceFailed as error:
        error.place = ", ".join(f"lane {lane} (prompt {seat.number})" for lane, seat in seats.items())
        raise


@dataclass(frozen=True)
class BatchCall:
    """A verb of `Device` for some lanes: `before` and `behind` the taps the lanes' values of each argument."""

    verb: str
    lanes: Sequence[int]
    before: Sequence[Sequence[Any]]
    taps: Sequence[Tap]
    behind: Sequence[Sequence[Any]] = ()

    def on(self, device: Any) -> Sequence[Any]:
        """Call it."""
        verb = getattr(device, self.name)
        given: Sequence[Any] = verb(self.lanes, *self.before, self.taps, *self.behind)
        return given

    @property
    def name(self) -> str:
        """The method of `parity.seam.Batched`."""
        return f"{self.verb}_batch"


class LanesContinue:
    """Beside `BatchVerbs`: prefills that continue from the caches of their lanes."""

    if TYPE_CHECKING:

        def batch(self, call: BatchCall) -> Sequence[Any]:
            """See `BatchVerbs.batch`."""

    def prefill_from_batch(
        self,
        lanes: Sequence[int],
        cached: Sequence[int],
        prompts: Sequence[Sequence[int]],
        budgets: Sequence[int],
        taps: Sequence[Tap],
    ) -> Sequence[int]:
        """See `parity.seam.ContinuingInLanes`."""
        return self.batch(BatchCall("prefill_from", lanes, [cached, prompts, budgets], taps))


class BatchVerbs(ABC):
    """What stands before a device of several lanes: its verbs as one method, and those of `Device` for its last lane.

    What asks for single verbs, as gates do, so meets a lane that is not the first.
    """

    @abstractmethod
    def batch(self, call: BatchCall) -> Sequence[Any]:
        """What the verb gives, in the order of its lanes."""

    @abstractmethod
    def sample_batch(
        self, lanes: Sequence[int], settings: Sequence[Sampling | None], uniforms: Sequence[np.ndarray]
    ) -> None:
        """See `parity.seam.SamplesInLanes`."""

    if TYPE_CHECKING:

        def describe(self) -> Description:
            """Say what this device is."""

    def prefill_batch(
        self, lanes: Sequence[int], prompts: Sequence[Sequence[int]], budgets: Sequence[int], taps: Sequence[Tap]
    ) -> Sequence[int]:
        """See `parity.seam.Batched`."""
        return self.batch(BatchCall("prefill", lanes, [prompts, budgets], taps))

    def draft_batch(
        self, lanes: Sequence[int], taps: Sequence[Tap], ks: Sequence[int] | None = None
    ) -> Sequence[np.ndarray]:
        """See `parity.seam.Batched`."""
        return self.batch(BatchCall("draft", lanes, [], taps, [] if ks is None else [ks]))

    def verify_batch(
        self, lanes: Sequence[int], drafts: Sequence[np.ndarray], taps: Sequence[Tap]
    ) -> Sequence[np.ndarray]:
        """See `parity.seam.Batched`."""
        return self.batch(BatchCall("verify", lanes, [drafts], taps))

    def commit_batch(
        self, lanes: Sequence[int], drafts: Sequence[np.ndarray], verified: Sequence[np.ndarray], taps: Sequence[Tap]
    ) -> Sequence[np.ndarray]:
        """See `parity.seam.Batched`."""
        return self.batch(BatchCall("commit", lanes, [drafts, verified], taps))

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Device.prefill`."""
        first: int = self._last("prefill", (prompt_ids, max_new_tokens), tap)
        return first

    def draft(self, tap: Tap, *k: int) -> np.ndarray:
        """See `Device.draft` and `VaryingK.draft`."""
        drafts: np.ndarray = self._last("draft", (), tap, k)
        return drafts

    def verify(self, draft_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """See `Device.verify`."""
        tokens: np.ndarray = self._last("verify", (draft_tokens,), tap)
        return tokens

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """See `Device.commit`."""
        emitted: np.ndarray = self._last("commit", (draft_tokens, verify_tokens), tap)
        return emitted

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """See `parity.seam.Samples`."""
        self.sample_batch([self.describe().lanes - 1], [settings], [uniforms])

    def _last(self, verb: str, before: Sequence[Any], tap: Tap, behind: Sequence[Any] = ()) -> Any:
        lane = self.describe().lanes - 1
        return self.batch(BatchCall(verb, [lane], [[one] for one in before], [tap], [[one] for one in behind]))[0]
