"""What is measured of devices of known cost."""

from __future__ import annotations

import pytest

from parity.bench import session
from parity.bench.decoding import ByLoop, ByVerbs, plain
from parity.bench.measure import run_bench
from parity.bench.records import read_bench
from parity.errors import NotOffered
from tests.bench.fakes import COSTS, ROUND, Fake, FakeLoop, FakePlain, Ticks, cells, request, token, workload


def test_the_clock_is_read_around_every_verb():
    ticks = Ticks()
    timed = ByVerbs(Fake(ticks), drafts=True, clock=ticks)({"one": [1, 2, 3]}, 29)
    assert timed.stages == pytest.approx({"prefill": 0.5, "draft": 1.6, "verify": 8.0, "commit": 0.8})
    assert timed.calls == {"prefill": 1, "draft": 8, "verify": 8, "commit": 8}
    assert (timed.prefill, timed.decode) == pytest.approx((0.5, 8 * ROUND))
    found = timed.sequences["one"]
    assert found.tokens == [token(place, [1, 2, 3]) for place in range(29)]
    assert found.emitted == [5, 2] * 4 and found.accepted == [4, 1] * 4 and found.first == pytest.approx(0.5)


def test_a_loop_of_its_own_is_timed_whole_and_its_prefill_by_a_run_of_one_token():
    """It tells of its first token when all are over: taken from that, its rounds would have cost nothing."""
    ticks = Ticks()
    timed = ByLoop(FakeLoop(Fake(ticks)), clock=ticks)({"one": [1, 2, 3]}, 29)
    assert (timed.prefill, timed.decode) == pytest.approx((0.5, 8 * ROUND))
    assert timed.sequences["one"].first == pytest.approx(0.5 + 8 * ROUND) and timed.stages == {}


def test_plain_decoding_is_one_call_where_it_is_offered_and_verbs_where_not():
    for made in (FakePlain, Fake):
        ticks = Ticks()
        timed = plain(made(ticks), ticks)({"one": [1, 2, 3]}, 29)
        assert (timed.prefill, timed.decode) == pytest.approx((0.5, 28.0)), made
        assert bool(timed.stages) == (made is Fake)
    with pytest.raises(NotOffered, match="offers no plain one"):
        plain(FakeLoop(Fake(Ticks())))


def test_figures_are_what_the_costs_say(tiny):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: FakePlain(ticks, k), ticks))
    measured = cells(report)["speculative"].overall
    assert measured.tokens_per_second.median == pytest.approx(28 / (8 * ROUND))
    assert measured.over_plain.estimate == pytest.approx(28 / (8 * ROUND)) and measured.over_plain.low > 2.6
    assert measured.first_token_ms.median == pytest.approx(500)
    assert {verb: one.median for verb, one in measured.stage_ms.items()} == pytest.approx(
        {"prefill": 500, "draft": 200, "verify": 1000, "commit": 100}
    )
    said = measured.speculation
    assert (said.mean_acceptance_length, said.mean_acceptance_rate) == (3.5, 2.5 / 4)
    assert said.per_position == (1.0, 0.5, 0.5, 0.5) and said.conditional == (1.0, 0.5, 1.0, 1.0)
    assert said.total_accepted_tokens == 2 * 3 * 20 and said.two_or_more == 1.0 and said.ks == {4: 48}
    assert set(cells(report)["speculative"].prompts) == {"prompt 0", "prompt 1"}
    assert (report.verdict, report.exit_code) == ("pass", 0)


@pytest.mark.parametrize("order", ["in turn", "always the same"])
def test_drift_falls_on_all_alike(tiny, monkeypatch, order):
    """The machine gets twice as slow over the bench: in turn, the ratio stays within 1.5 % of the true one."""
    if order != "in turn":
        monkeypatch.setattr(session, "_in_turn", lambda cells, number: cells)
    ticks = Ticks(drift=0.002)
    report = run_bench(request(tiny, lambda k: FakePlain(ticks, k), ticks, repeats=6, warm_ups=0))
    speeds = [turn.decoded / turn.decode for turn in cells(report)["plain"].turns]
    assert max(speeds) / min(speeds) > 2
    off = cells(report)["speculative"].overall.over_plain.estimate / (28 / (8 * ROUND)) - 1
    assert abs(off) < 0.015 if order == "in turn" else off < -0.03, off


def test_every_cell_is_first_and_last_as_often():
    """Of any number of cells, over as many pairs of turns."""
    for count in (2, 3, 5, 7, 14):
        orders = [session._in_turn(list(range(count)), number) for number in range(2 * count)]
        assert sorted(order.index(0) for order in orders) == sorted([*range(count)] * 2)
        assert orders[0] != orders[1]


def test_one_slow_prefill_does_not_count_twice(tiny):
    """Plain decoding in one call is a whole run less a run of one token: one of those is ten times as slow."""
    ticks, calls = Ticks(), []

    class Stumbles(FakePlain):
        def decode_plain(self, prompt_ids, max_new_tokens):
            calls.append(max_new_tokens)
            if len(calls) == 9:
                assert max_new_tokens == 1
                ticks.take(40.0)
            return super().decode_plain(prompt_ids, max_new_tokens)

    report = run_bench(request(tiny, lambda k: Stumbles(ticks, k), ticks, repeats=5))
    assert report.exit_code == 0, report.findings
    assert cells(report)["speculative"].overall.over_plain.estimate == pytest.approx(28 / (8 * ROUND))


def test_what_is_too_short_for_the_clock_is_missing_evidence(tiny):
    ticks = Ticks()
    make = lambda k: FakePlain(ticks, k, costs=COSTS | {"plain": 0.0})  # noqa: E731
    report = run_bench(request(tiny, make, ticks))
    assert report.exit_code == 3 and "too short for the clock" in report.findings[0]


def test_what_is_computed_elsewhere_counts_on_the_processors_clock(tiny):
    class Elsewhere(FakePlain):
        computed = 0.0

        def processor_time(self):
            return self.computed

    device, request_ = Elsewhere(Ticks()), request(tiny, None, None, clock="processor")
    clock = request_.clock_of(device)
    before = clock()
    device.computed = 7.0
    assert 7.0 <= clock() - before < 7.5 and request_.clock_of(Fake(Ticks())) is request_.now


def test_lanes_share_the_time_and_join_in_mid_generation(tiny):
    ticks = Ticks()
    make = lambda k: Fake(ticks, k)  # noqa: E731
    asked = dict(scenarios=("stress",), lanes=2, workloads=(workload(3),), repeats=2)
    report = run_bench(request(tiny, make, ticks, takes=("lanes",), **asked))
    found = cells(report)["speculative"]
    assert found.axes.lanes == 2 and len(found.turns[0].prompts) == 6 and not found.prompts
    assert found.turns[0].decode == pytest.approx(3 * 8 * ROUND)  # three times two lanes
    assert report.exit_code == 0


def test_a_device_without_lanes_is_missing_evidence(tiny):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: Fake(ticks, k), ticks, scenarios=("batch",)))
    assert report.exit_code == 3 and "takes no lanes" in report.findings[0]


def test_the_baseline_asks_nothing_of_speculation(tiny):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: Fake(ticks, k), ticks, scenarios=("baseline",)))
    assert list(cells(report)) == ["plain"] and report.verdict == "pass"


def test_the_controller_is_timed_and_its_choices_are_kept(tiny, tmp_path):
    ticks = Ticks()
    make = lambda k: Fake(ticks, k, accepts=(1,), per_draft=0.3)  # noqa: E731
    report = run_bench(request(tiny, make, ticks, ks=(1, 4), controller=True, repeats=4, max_new_tokens=60))
    found = cells(report)["controlled"]
    chosen = [k for turn in found.turns for one in turn.rounds for k in one.drafted]
    assert chosen.count(1) > 0.8 * len(chosen) and found.overall.speculation.ks[1] == chosen.count(1)
    by_k = {
        cell.axes.k: cell.overall.over_plain.estimate for cell in report.cells if cell.axes.decoding == "speculative"
    }
    assert found.overall.over_plain.estimate > 0.9 * by_k[1] > by_k[4]
    (tmp_path / "kept.json").write_text(report.model_dump_json())
    assert read_bench(tmp_path / "kept.json") == report


def test_k_cannot_be_chosen_of_a_device_that_has_one(tiny):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: Fake(ticks, k, varies=False), ticks, controller=True))
    assert report.exit_code == 3 and "drafts K = 4 tokens in every round" in report.findings[0]
