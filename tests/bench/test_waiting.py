"""What a device was sent and has not run yet is waited for: it falls neither into its rounds nor into another's."""

from __future__ import annotations

from typing import ClassVar

import pytest

from parity.bench.measure import run_bench
from tests.bench.fakes import ROUND, FakePlain, PlainLoop, Ticks, cells, request

OWED = 3.0
"""Seconds of a drafter's prefill."""


class Owing(FakePlain):
    """Its drafter's prefill is sent and not waited for: whatever the machine does next comes behind it."""

    owed: ClassVar[float] = 0.0

    def spend(self, what, more=0.0):
        self.wait()
        super().spend(what, more)

    def prefill(self, prompt_ids, max_new_tokens, tap):
        first = super().prefill(prompt_ids, max_new_tokens, tap)
        Owing.owed = OWED
        return first

    def wait(self):
        due, Owing.owed = Owing.owed, 0.0
        self.ticks.take(due)


class Waited(Owing):
    synchronize = Owing.wait


class WaitedLoop(PlainLoop):
    def synchronize(self):
        self.inside.wait()


@pytest.fixture(autouse=True)
def nothing_owed():
    Owing.owed = 0.0


def measured(tiny, make, ticks):
    return cells(run_bench(request(tiny, make, ticks)))


@pytest.mark.parametrize("loop", [False, True])
def test_a_prefill_that_is_still_running_is_not_in_the_rounds(tiny, loop):
    ticks = Ticks()
    make = (lambda k: WaitedLoop(Owing(ticks, k))) if loop else lambda k: Waited(ticks, k)
    found = measured(tiny, make, ticks)
    assert found["speculative"].overall.over_plain.estimate == pytest.approx(28 / (8 * ROUND))
    prefills = {name: [turn.prefill for turn in found[name].turns] for name in ("speculative", "plain")}
    assert prefills["speculative"] == pytest.approx([0.5 + OWED] * 6)
    assert prefills["plain"] == pytest.approx([0.5] * 6), "it is in nobody else's"


@pytest.mark.parametrize("loop", [False, True])
def test_of_a_device_that_cannot_be_waited_for_it_is(tiny, loop):
    ticks = Ticks()
    make = (lambda k: PlainLoop(Owing(ticks, k))) if loop else lambda k: Owing(ticks, k)
    found = measured(tiny, make, ticks)
    assert found["speculative"].overall.over_plain.estimate < 0.9 * 28 / (8 * ROUND)
