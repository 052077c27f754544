"""One timed run: prompts to tokens, with the clock at every verb and every round. The clock is given, for tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from time import perf_counter
from typing import Any, Protocol, cast

from parity.batching import VERBS, Script, VerbCall, perform, perform_together
from parity.bench.controller import DraftLengthController
from parity.decode import NO_DRAFTS, ended
from parity.errors import DeviceFailed, NotOffered
from parity.seam import UNWATCHED, Batched, Looping, PlainDecoding, Synchronizes, Tap

Clock = Callable[[], float]
Prompts = Mapping[str, Sequence[int]]
"""Ids of a group's prompts by their names."""


@dataclass
class Sequenced:
    """What one prompt gave: its tokens, when the first was there, and its rounds."""

    tokens: list[int] = field(default_factory=list)
    first: float = 0.0
    emitted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)

    def took(self, drafts: Iterable[Any], fresh: Sequence[int]) -> int:
        """Note a round; the drafts that were accepted."""
        made = [index(draft) for draft in drafts]
        agreed = [draft == token for draft, token in zip(made, fresh, strict=False)]
        count = agreed.index(False) if False in agreed else len(agreed)
        self.tokens += fresh
        self.emitted.append(len(fresh))
        self.accepted.append(count)
        self.drafted.append(len(made))
        return count


@dataclass
class Timed:
    """A run: what each prompt gave, seconds in prefills and in all else, and in each verb, with its calls."""

    sequences: dict[str, Sequenced]
    prefill: float
    decode: float
    stages: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


class Contestant(Protocol):
    """Who decodes in a bench, in one way."""

    def __call__(self, prompts: Prompts, budget: int) -> Timed:
        """Decode the prompts of a group, each to EOS or the budget."""


def finish(device: Any) -> None:
    """Wait for what a device has been sent: the drafter's prefill, behind which the first token is long with the host,
    is not to run in the seconds of rounds, nor the end of a run in those of the next."""
    if isinstance(device, Synchronizes):
        device.synchronize()


class StageClock:
    """A device whose verbs are timed, a prefill until all of it has run; everything else is the device's own."""

    def __init__(self, device: Any, clock: Clock):
        self._device, self._clock = device, clock
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)

    def __getattr__(self, name: str) -> Any:
        attribute, verb = getattr(self._device, name), name.removesuffix("_batch")
        return self._timed(verb, attribute) if verb in VERBS else attribute

    def _timed(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = self._clock()
            try:
                result = call(*arguments)
                if verb.startswith("prefill"):
                    finish(self._device)
                return result
            finally:
                self.seconds[verb] += self._clock() - began
                self.calls[verb] += 1

        return timed


@dataclass
class ByVerbs:
    """Driven verb by verb, in lanes where the device has them.

    Args:
        drafts: whether it speculates.
        controller: chooses k of every round, of a device that says `varies_k`; K is fixed where None. What it learns
            goes on from one prompt to the next.
    """

    device: Any
    drafts: bool
    clock: Clock = perf_counter
    controller: DraftLengthController | None = None
    tap: Tap = UNWATCHED

    def __call__(self, prompts: Prompts, budget: int) -> Timed:
        """See `Contestant`."""
        timed: Any = StageClock(self.device, self.clock)
        found, began = {name: Sequenced() for name in prompts}, self.clock()
        scripts = [self._sequence(ids, budget, found[name], began) for name, ids in prompts.items()]
        if isinstance(self.device, Batched):
            for _ in perform_together(timed, enumerate(scripts)):
                pass
        else:
            for script in scripts:
                perform(timed, script)
        finish(self.device)
        seconds, prefill = self.clock() - began, timed.seconds["prefill"]
        return Timed(found, prefill, seconds - prefill, dict(timed.seconds), dict(timed.calls))

    def _sequence(self, ids: Sequence[int], budget: int, found: Sequenced, began: float) -> Script[None]:
        says, controller = self.device.describe(), self.controller
        found.tokens.append(index((yield VerbCall("prefill", (ids, budget), self.tap))))
        found.first = self.clock() - began
        while not ended(found.tokens, says.eos, budget):
            started = self.clock()
            behind = (controller.choose(),) if controller else ()
            drafts = (yield VerbCall("draft", (), self.tap, behind)) if self.drafts else NO_DRAFTS
            chosen = yield VerbCall("verify", (drafts,), self.tap)
            fresh = [index(token) for token in (yield VerbCall("commit", (drafts, chosen), self.tap))]
            if not fresh:
                raise DeviceFailed(says.name, "commit", "a round emitted nothing")
            accepted = found.took(drafts, fresh)
            if controller:
                controller.took(len(drafts), accepted, self.clock() - started, cut=len(fresh) <= accepted)


@dataclass
class ByLoop:
    """A device's own loop, whole.

    Its prefill is timed by a run that ends with the first token: what a loop tells of its rounds may come late.
    """

    device: Looping
    clock: Clock = perf_counter
    tap: Tap = UNWATCHED

    def __call__(self, prompts: Prompts, budget: int) -> Timed:
        """See `Contestant`."""
        found: dict[str, Sequenced] = {}
        prefill = decode = 0.0
        for name, ids in prompts.items():
            before = self._run(ids, 1, Sequenced())
            whole = self._run(ids, budget, found.setdefault(name, Sequenced()))
            prefill, decode = prefill + before, decode + whole - before
        return Timed(found, prefill, decode)

    def _run(self, ids: Sequence[int], budget: int, found: Sequenced) -> float:
        began = self.clock()

        def on_round(drafts: Sequence[int], emitted: Sequence[int], tokens: Sequence[int] | None = None) -> None:
            if found.tokens:
                found.took(drafts, [index(token) for token in emitted])
            else:
                found.tokens, found.first = [index(token) for token in emitted], self.clock() - began

        said = [index(token) for token in self.device.speculate(ids, budget, self.tap, on_round)]
        finish(self.device)
        seconds = self.clock() - began
        if said != found.tokens:
            name = self.device.describe().name
            raise DeviceFailed(name, "speculate", "its rounds are not of the tokens that it emitted")
        return seconds


@dataclass
class PlainInOneCall:
    """Plain decoding in one call; its prefill is timed by a run that ends with the first token."""

    device: PlainDecoding
    clock: Clock = perf_counter

    def __call__(self, prompts: Prompts, budget: int) -> Timed:
        """See `Contestant`."""
        found: dict[str, Sequenced] = {}
        prefill = decode = 0.0
        for name, ids in prompts.items():
            before, _ = self._run(ids, 1)
            whole, tokens = self._run(ids, budget)
            found[name] = Sequenced(tokens, before)
            prefill, decode = prefill + before, decode + whole - before
        return Timed(found, prefill, decode)

    def _run(self, ids: Sequence[int], budget: int) -> tuple[float, list[int]]:
        began = self.clock()
        said = self.device.decode_plain(ids, budget)
        finish(self.device)
        seconds, name = self.clock() - began, cast(Any, self.device).describe().name
        try:
            tokens = [index(token) for token in said]
        except TypeError as error:
            raise DeviceFailed(name, "decode_plain", f"it returned no list of token ids: {error}") from None
        if not tokens:
            raise DeviceFailed(name, "decode_plain", "it emitted nothing")
        return seconds, tokens


def plain(device: Any, clock: Clock = perf_counter) -> Contestant:
    """The device without drafts, in one call where it offers that.

    Raises:
        NotOffered: its loop is one piece, and it has no plain one.
    """
    if isinstance(device, PlainDecoding):
        return PlainInOneCall(device, clock)
    if isinstance(device, Looping):
        name = device.describe().name
        raise NotOffered(f"device {name} runs a loop of its own and offers no plain one (`parity.seam.PlainDecoding`)")
    return plain_by_verbs(device, clock)


def plain_by_verbs(device: Any, clock: Clock = perf_counter) -> Contestant:
    """The device without drafts, `verify` and `commit` token by token."""
    return ByVerbs(device, drafts=False, clock=clock)


def two_ways(device: Any) -> bool:
    """Whether a device decodes plainly both in one call and by verbs: speculation has to beat the faster one."""
    return isinstance(device, PlainDecoding) and not isinstance(device, Looping)


def speculative(device: Any, clock: Clock = perf_counter) -> Contestant:
    """The device with K drafts in every round."""
    return ByLoop(device, clock) if isinstance(device, Looping) else ByVerbs(device, drafts=True, clock=clock)


def controlled(device: Any, clock: Clock = perf_counter) -> Contestant:
    """The device with the controller's choice of drafts.

    Raises:
        NotOffered: the device drafts K tokens in every round.
    """
    says = device.describe()
    if isinstance(device, Looping) or not says.varies_k:
        raise NotOffered(f"device {says.name} drafts K = {says.k} tokens in every round (`Description.varies_k`)")
    return ByVerbs(device, drafts=True, clock=clock, controller=DraftLengthController(says.k))
