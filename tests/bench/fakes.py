"""Devices of known cost on a clock that only they move: what a bench must find is known to the digit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.bench.records import BenchCell, BenchReport
from parity.bench.request import BenchRequest
from parity.bench.workload import Workload
from parity.errors import NotOffered
from parity.seam import Description, Looping

COSTS = {"prefill": 0.5, "draft": 0.2, "verify": 1.0, "commit": 0.1, "plain": 1.0}
WRONG = 1_000


@dataclass
class Ticks:
    """A clock; `drift` lengthens every second by so much of the time that is over."""

    now: float = 100.0
    drift: float = 0.0

    def __call__(self) -> float:
        return self.now

    def take(self, seconds: float) -> None:
        self.now += seconds * (1 + self.drift * (self.now - 100.0))


def token(place: int, ids: Sequence[int]) -> int:
    """What the target chooses at a place behind this prompt."""
    return (7 * place + sum(ids)) % 97 + 1


@dataclass
class Fake:
    """One sequence; drafts of round r are right up to `accepts[r % len]`."""

    ticks: Ticks
    k: int = 4
    accepts: tuple[int, ...] = (4, 1)
    costs: dict[str, float] = field(default_factory=lambda: dict(COSTS))
    varies: bool = True
    eos: tuple[int, ...] = ()
    per_draft: float = 0.0
    noise: Callable[[], float] = lambda: 1.0

    def describe(self) -> Description:
        return Description("fake", "bfloat16", 1, 1, self.k, 10_000, eos=self.eos, varies_k=self.varies)

    def spend(self, what: str, more: float = 0.0) -> None:
        self.ticks.take((self.costs[what] + more) * self.noise())

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Any) -> int:
        self.ids, self.left, self.place, self.round = list(prompt_ids), max_new_tokens - 1, 1, 0
        self.spend("prefill")
        return token(0, self.ids)

    def draft(self, tap: Any, k: int | None = None) -> np.ndarray:
        k = self.k if k is None else k
        self.spend("draft", self.per_draft * k)
        right = self.accepts[self.round % len(self.accepts)]
        return np.array([token(self.place + n, self.ids) + WRONG * (n >= right) for n in range(k)], np.int64)

    def verify(self, draft_tokens: np.ndarray, tap: Any) -> np.ndarray:
        self.spend("verify" if len(draft_tokens) else "plain")
        return np.array([token(self.place + n, self.ids) for n in range(len(draft_tokens) + 1)], np.int64)

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Any) -> np.ndarray:
        if len(draft_tokens):
            self.spend("commit")
        agreed = np.append(draft_tokens == verify_tokens[:-1], False)
        fresh = verify_tokens[: min(int(np.argmin(agreed)) + 1, self.left)]
        ends = [place for place, one in enumerate(fresh) if one in self.eos]
        fresh = fresh[: ends[0] + 1] if ends else fresh
        self.place, self.left, self.round = self.place + len(fresh), self.left - len(fresh), self.round + 1
        return fresh


class FakePlain(Fake):
    """It decodes plainly in one call, too."""

    def decode_plain(self, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        self.spend("prefill")
        for _ in range(max_new_tokens - 1):
            self.spend("plain")
        return [token(place, prompt_ids) for place in range(max_new_tokens)]


@dataclass
class FakeLoop:
    """The same as a loop in one piece, which tells of its rounds when all are over, as an asynchronous one may."""

    inside: Fake

    def describe(self) -> Description:
        return replace(self.inside.describe(), name="fake loop", varies_k=False)

    def speculate(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Any, on_round: Any) -> list[int]:
        emitted, rounds = [self.inside.prefill(prompt_ids, max_new_tokens, tap)], []
        while len(emitted) < max_new_tokens:
            drafts = self.inside.draft(tap)
            fresh = self.inside.commit(drafts, self.inside.verify(drafts, tap), tap).tolist()
            rounds.append((drafts.tolist(), fresh))
            emitted += fresh
        on_round([], emitted[:1])
        for drafts, fresh in rounds:
            on_round(drafts, fresh)
        return emitted


class PlainLoop(FakeLoop):
    """It decodes plainly, too; of its verbs, which are cheaper than those of an engine driven from outside, it tells
    nothing."""

    def decode_plain(self, prompt_ids, max_new_tokens):
        decode = getattr(self.inside, "decode_plain", partial(FakePlain.decode_plain, self.inside))
        return decode(prompt_ids, max_new_tokens)


class FakeLanes:
    """Several sequences; a verb of all lanes costs what it costs of one."""

    def __init__(self, make: Callable[[], Fake], lanes: int):
        self.lanes, self.ticks = [make() for _ in range(lanes)], make().ticks

    def describe(self) -> Description:
        return replace(self.lanes[0].describe(), name="fake lanes", lanes=len(self.lanes))

    def together(self, verb: str, lanes: Sequence[int], *columns: Sequence[Any]) -> list[Any]:
        began, ended, values = self.ticks.now, self.ticks.now, []
        for lane, *given in zip(lanes, *columns, strict=True):
            self.ticks.now = began
            values.append(getattr(self.lanes[lane], verb)(*given))
            ended = max(ended, self.ticks.now)
        self.ticks.now = ended
        return values

    def prefill_batch(self, lanes, prompts, budgets, taps):
        return self.together("prefill", lanes, prompts, budgets, taps)

    def draft_batch(self, lanes, taps, ks=None):
        return self.together("draft", lanes, taps, *(() if ks is None else (ks,)))

    def verify_batch(self, lanes, drafts, taps):
        return self.together("verify", lanes, drafts, taps)

    def commit_batch(self, lanes, drafts, verified, taps):
        return self.together("commit", lanes, drafts, verified, taps)


@dataclass
class FakeFactory:
    """`make(k)` behind a name; it takes no option but k, and lanes where `lanes` says so."""

    make: Callable[[int], Any]
    takes: tuple[str, ...] = ()

    def given(self, **options: Any) -> dict[str, Any]:
        for option in options:
            if option not in ("k", *self.takes):
                raise NotOffered(f"--device fake: its factory takes no {option}")
        return options

    def __call__(self, precision: str, k: int, **options: Any) -> Any:
        self.given(**options)
        made = self.make(k)
        return FakeLanes(lambda: self.make(k), options["lanes"]) if "lanes" in options else made


def workload(count: int = 2) -> Workload:
    return Workload("made-up", {f"prompt {n}": [n + 1, 2, 3] for n in range(count)})


def request(
    tiny: Path, make: Callable[[int], Any], ticks: Ticks, takes: tuple[str, ...] = (), **asked: Any
) -> BenchRequest:
    """A bench of one made-up device."""
    settings: dict[str, Any] = {"ks": (4,), "repeats": 3, "max_new_tokens": 29, "workloads": (workload(),)} | asked
    workloads = settings.pop("workloads")
    return BenchRequest(
        workloads,
        tiny / "target",
        tiny / "drafter",
        devices=("fake",),
        ticks=ticks,
        build=lambda name, target, drafter, k: FakeFactory(make, takes),
        **settings,
    )


def cells(report: BenchReport) -> dict[str, BenchCell]:
    """Its cells by how they decode."""
    return {cell.axes.decoding: cell for cell in report.cells}


ROUND = 0.2 + 1.0 + 0.1
"""Seconds of a round; it emits 5 and 2 tokens in turn: 28 behind the first are 8 rounds."""


assert isinstance(FakeLoop(Fake(Ticks())), Looping)


def swallowing(target, drafter, k, precision="bfloat16"):
    """A device that is interrupted by a timer in a verb of its warm-up, and swallows that."""
    device = Fake(Ticks(), k)
    clean, calls = device.draft, []

    def draft(tap, k=None):
        calls.append(k)
        if len(calls) == 3:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                os.kill(os.getpid(), signal.SIGINT)
                signal.pause()
            except BaseException:  # what this is about
                pass
        return clean(tap)

    device.draft = draft
    return device
