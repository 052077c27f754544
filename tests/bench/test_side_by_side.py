"""Loops of one engine compared, the model's farthest miss, and a best K that one half chooses and the other judges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parity.bench.measure import run_bench
from parity.reports.bench import beside, print_bench
from parity.reports.bench_page import bench_page
from tests.bench.fakes import COSTS, ROUND, Fake, FakeFactory, FakePlain, PlainLoop, Ticks, request

LOOPS = ("fake", "fake,loop=asynchronous")


def two_loops(tiny, second="fake,loop=asynchronous", **asked):
    """An engine driven by verbs, and its own loop at half the cost of a round."""
    ticks = Ticks()
    half = {name: seconds / 2 for name, seconds in COSTS.items()} | {"plain": 0.8}
    making = {
        "fake": lambda k: FakePlain(ticks, k),
        second: lambda k: PlainLoop(FakePlain(ticks, k, costs=half)),
    }
    asking = request(tiny, making["fake"], ticks, **asked)
    build = lambda name, target, drafter, k: FakeFactory(making[name], ())  # noqa: E731
    return run_bench(replace(asking, devices=("fake", second), build=build))


def test_a_loop_is_compared_with_the_one_driven_by_verbs(tiny, capsys):
    report = two_loops(tiny, ks=(1, 4))
    found = {(one.cell, one.over): one.ratio.estimate for one in report.loops}
    block = "single/made-up/short/b1"
    cells = {
        f"{block}/fake,loop=asynchronous/asynchronous/{how}": f"{block}/fake/verbs/{how}"
        for how in ("plain/k0", "speculative/k1", "speculative/k4")
    }
    assert found == {pair: pytest.approx(1 / 0.8 if "plain" in pair[0] else 2) for pair in cells.items()}
    said = f"speculative/k4: 2.00x [2.00, 2.00] over {block}/fake/verbs/speculative/k4"
    print_bench(report)
    assert said in capsys.readouterr().out and said in bench_page(report)


def test_another_engine_or_other_options_are_no_pair(tiny):
    assert two_loops(tiny, "other,loop=asynchronous").loops == ()
    assert two_loops(tiny, "fake,loop=asynchronous,batch=2").loops == ()


def test_the_farthest_prediction_is_named(tiny):
    """K = 2 takes a second longer: a line through K = 2, 3 and 4 puts 2.63 s on K = 1, which takes 1.3."""
    ticks = Ticks()

    class Bumpy(Fake):
        def verify(self, draft_tokens, tap):
            self.ticks.take(float(len(draft_tokens) == 2))
            return super().verify(draft_tokens, tap)

    report = run_bench(request(tiny, lambda k: PlainLoop(Bumpy(ticks, k, (1,))), ticks, ks=(1, 2, 3, 4)))
    off = (ROUND + 4 / 3) / ROUND - 1
    name = "single/made-up/short/b1/fake/own/speculative/k1"
    assert next(beside(report)) == f"measured lies within {off:.0%} of 4 predictions, farthest {name} (+{off:.0%})"


def test_luck_in_choosing_k_is_not_in_its_ratio(tiny):
    """K = 4 is fast in the odd repeats alone: they choose it, the even ones say what it is worth."""
    ticks = Ticks()

    class Moody(FakePlain):
        runs = 0

        def prefill(self, prompt_ids, max_new_tokens, tap):
            self.runs += self.k == 4
            return super().prefill(prompt_ids, max_new_tokens, tap)

        def spend(self, what, more=0.0):
            fast = (self.runs - 1) // 2 % 2 == 1  # two prompts: watched, a warm-up, then the repeats
            super().spend(what, more if what == "plain" or not fast or self.k != 4 else -0.9 * self.costs[what])

    report = run_bench(request(tiny, lambda k: Moody(ticks, k), ticks, ks=(1, 4), repeats=4))
    (gate,) = report.gates
    assert gate.chosen.endswith("/k4") and gate.held_out.repeats == 2
    assert gate.held_out.estimate == pytest.approx(28 / (8 * ROUND)) and gate.ratio.estimate > 4
    assert f"{gate.chosen}, the best K of the odd repeats: {gate.held_out} over plain" in bench_page(report)


def test_of_one_repeat_there_is_no_half(tiny):
    ticks = Ticks()
    (gate,) = run_bench(request(tiny, lambda k: FakePlain(ticks, k), ticks, repeats=1)).gates
    assert (gate.chosen, gate.held_out) == ("", None)
