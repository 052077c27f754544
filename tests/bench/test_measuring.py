"""What is measured of devices of known cost, and what does not pass."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from parity.bench import session
from parity.bench.decoding import ByLoop, ByVerbs, plain
from parity.bench.judge import gates
from parity.bench.measure import run_bench
from parity.bench.records import read_bench
from parity.errors import DeviceFailed, NotOffered, UsageError
from parity.reports.bench_page import bench_page
from tests.bench.fakes import COSTS, Fake, FakeLoop, FakePlain, Ticks, request, token, workload

ROUND = 0.2 + 1.0 + 0.1
"""Seconds of a round; it emits 5 and 2 tokens in turn: 28 behind the first are 8 rounds."""


def cells(report):
    return {cell.axes.decoding: cell for cell in report.cells}


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


def test_the_model_predicts_what_is_measured_where_nothing_else_costs(tiny):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: FakePlain(ticks, k), ticks, ks=(1, 4)))
    for one in report.predictions:
        assert one.constant == pytest.approx(5 / ROUND if one.k == 4 else one.predicted)  # the first draft always fits
        assert one.predicted == pytest.approx(one.measured.estimate, rel=1e-6)
        assert one.predicted * one.tokens * one.costs * one.rest == pytest.approx(one.measured.estimate)


def test_time_outside_the_verbs_is_the_rest(tiny):
    """The clock moves whenever it is read: something else takes time between the verbs."""

    class Between(Ticks):
        def __call__(self):
            self.take(0.05)
            return self.now

    ticks = Between()
    (one,) = run_bench(request(tiny, lambda k: Fake(ticks, k), ticks)).predictions
    assert one.rest < 0.97
    assert one.predicted * one.tokens * one.costs * one.rest == pytest.approx(one.measured.estimate)


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


class Lossy(Fake):
    """Its second round emits another token than plain decoding does."""

    def verify(self, draft_tokens, tap):
        tokens = super().verify(draft_tokens, tap)
        if len(draft_tokens) and self.round == 1:
            tokens[0] += 1
        return tokens


class Restless(Fake):
    """Plain decoding gives something else every time."""

    runs = 0

    def prefill(self, prompt_ids, max_new_tokens, tap):
        type(self).runs += 1
        return super().prefill([*prompt_ids, type(self).runs], max_new_tokens, tap)


class Broken(Fake):
    """It breaks down in its third round."""

    def draft(self, tap, k=None):
        if self.round == 2:
            raise UsageError("the cache is full")
        return super().draft(tap, k)


class Early(Fake):
    """It stops in the middle, not by an end token."""

    def commit(self, draft_tokens, verify_tokens, tap):
        fresh = super().commit(draft_tokens, verify_tokens, tap)
        return fresh[:0] if self.round > 3 else fresh


@pytest.mark.parametrize(
    ("made", "code", "said"),
    [
        (Lossy, 1, "parts from plain decoding at token 6: "),
        (Restless, 1, "different generations in its runs"),
        (Broken, 3, "the cache is full"),
        (Early, 3, "a round emitted nothing"),
        (lambda ticks, k: FakeLoop(Fake(ticks, k)), 3, "no plain decoding to compare its tokens with"),
    ],
)
def test_what_is_no_pass(tiny, made, code, said):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: made(ticks, k), ticks))
    assert report.exit_code == code and any(said in one for one in report.findings), report.findings


def test_one_run_says_so_and_shows_nothing(tiny):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: FakePlain(ticks, k), ticks, repeats=1))
    assert report.exit_code == 3 and "one run, no spread" in report.findings[0]
    assert "one run, no spread" in str(cells(report)["speculative"].overall.tokens_per_second)


@pytest.mark.parametrize(
    ("at_least", "noise", "verdict"), [(1.0, 0.0, "pass"), (3.0, 0.0, "fail"), (2.7, 0.2, "inconclusive"), (0, 0.0, "")]
)
def test_the_gate_is_judged_by_the_lower_end(tiny, at_least, noise, verdict):
    ticks, drawn = Ticks(), np.random.default_rng(0)
    make = lambda k: FakePlain(ticks, k, noise=lambda: drawn.lognormal(0, noise))  # noqa: E731
    report = run_bench(request(tiny, make, ticks, at_least=at_least, repeats=4))
    assert [one.verdict for one in report.gates] == ([verdict] if verdict else [])
    assert report.verdict == (verdict or "pass")


def test_one_prompt_shows_nothing_of_another(tiny):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: FakePlain(ticks, k), ticks, workloads=(workload(1),), repeats=4))
    assert report.exit_code == 3 and "one prompt: its repeats say nothing" in report.findings[0]


@pytest.mark.parametrize(
    ("made", "said"), [([], "it emitted nothing"), ([1.5], "no list of token ids"), (3, "no list")]
)
def test_plain_decoding_that_returns_no_tokens_has_failed(made, said):
    device = FakePlain(Ticks())
    device.decode_plain = lambda prompt_ids, max_new_tokens: made
    with pytest.raises(DeviceFailed, match=said):
        plain(device, Ticks())({"one": [1, 2, 3]}, 5)


def test_the_best_of_many_has_wider_limits(tiny):
    ticks, drawn = Ticks(), np.random.default_rng(0)
    make = lambda k: FakePlain(ticks, k, noise=lambda: drawn.lognormal(0, 0.1))  # noqa: E731
    report = run_bench(request(tiny, make, ticks, ks=(1, 2, 3, 4), repeats=4))
    (best,) = gates(report.cells, 1.0, ["fake"])
    alone = next(cell for cell in report.cells if cell.axes.name == best.cell).overall.over_plain
    assert best.ratio.confidence == 1 - 0.05 / 4 and best.ratio.low < alone.low


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


@pytest.mark.parametrize(("in_one_call", "faster"), [(3.0, "plain-by-verbs"), (0.5, "plain")])
def test_speculation_has_to_beat_the_faster_plain_decoding(tiny, in_one_call, faster):
    """A `decode_plain` three times as slow as the verbs would flatter the ratio by that; both stand in the report."""
    ticks = Ticks()

    class TwoWays(FakePlain):
        def decode_plain(self, prompt_ids, max_new_tokens):
            self.ticks.take((in_one_call - 1.0) * (max_new_tokens - 1))
            return super().decode_plain(prompt_ids, max_new_tokens)

    report = run_bench(request(tiny, lambda k: TwoWays(ticks, k), ticks))
    found = cells(report)
    assert found["plain"].overall.token_ms.median == pytest.approx(1000 * in_one_call)
    assert found["plain-by-verbs"].overall.token_ms.median == pytest.approx(1000)
    step = min(in_one_call, 1.0)
    assert found["speculative"].overall.over_plain.estimate == pytest.approx(step * 28 / (8 * ROUND))
    assert found["speculative"].baseline == found[faster].axes.name and not found["plain"].baseline
    (gate,) = report.gates
    assert gate.ratio.estimate == pytest.approx(step * 28 / (8 * ROUND))
    (model,) = report.predictions
    assert model.predicted == pytest.approx(step * 28 / (8 * ROUND))
    assert f"over {faster}, the faster one" in bench_page(report)


def test_two_ways_of_plain_decoding_that_part_fail(tiny):
    ticks = Ticks()

    class Other(FakePlain):
        def verify(self, draft_tokens, tap):
            return super().verify(draft_tokens, tap) + (not len(draft_tokens))

    report = run_bench(request(tiny, lambda k: Other(ticks, k), ticks))
    assert report.exit_code == 1
    assert any("plain-by-verbs/k0: prompt prompt 0 parts from plain decoding" in said for said in report.findings)


class PlainLoop(FakeLoop):
    """It decodes plainly, too; of its verbs, which are cheaper than those of an engine driven from outside, it tells
    nothing."""

    def decode_plain(self, prompt_ids, max_new_tokens):
        decode = getattr(self.inside, "decode_plain", partial(FakePlain.decode_plain, self.inside))
        return decode(prompt_ids, max_new_tokens)


def loops_report(tiny, ks, noise=0.0, **costs):
    ticks, drawn = Ticks(), np.random.default_rng(0)
    cheap = COSTS | {"draft": 0.1, "verify": 0.7, "plain": 0.8} | costs
    make = lambda k: PlainLoop(  # noqa: E731
        Fake(ticks, k, (1,), costs=cheap, per_draft=0.05, noise=lambda: float(drawn.lognormal(0, noise)))
    )
    return run_bench(request(tiny, make, ticks, ks=ks))


def test_a_loop_is_predicted_by_its_rounds_of_other_k(tiny):
    """A round costs 0.9 + 0.05 K, a plain step 0.8; one draft of each is accepted."""
    report = loops_report(tiny, (1, 2, 3, 4))
    assert [one.model for one in report.predictions] == ["rounds"] * 4
    for one in report.predictions:
        assert one.predicted == pytest.approx(one.measured.estimate, rel=1e-6)
        assert (one.tokens, one.costs, one.rest) == pytest.approx((1, 1, 1))
    assert report.predictions[3].predicted == pytest.approx(2 * 0.8 / 1.1)
    assert "1.45, rounds |" in bench_page(report)


def test_what_is_predicted_goes_into_no_prediction(tiny):
    """K = 2 takes twice as long as the line says: its prediction stays where the others put it."""
    ticks = Ticks()

    class Bumpy(Fake):
        def verify(self, draft_tokens, tap):
            self.ticks.take(float(len(draft_tokens) == 2))
            return super().verify(draft_tokens, tap)

    report = run_bench(request(tiny, lambda k: PlainLoop(Bumpy(ticks, k, (1,))), ticks, ks=(1, 2, 3, 4)))
    one = next(one for one in report.predictions if one.k == 2)
    assert one.costs == pytest.approx(1.3 / 2.3) and one.measured.estimate == pytest.approx(one.predicted * 1.3 / 2.3)


def test_of_noisy_rounds_the_factors_still_explain_all(tiny):
    for one in loops_report(tiny, (1, 2, 3, 4), noise=0.1).predictions:
        assert one.rest != 1 and abs(one.predicted / one.measured.estimate - 1) < 0.2
        assert one.predicted * one.tokens * one.costs * one.rest == pytest.approx(one.measured.estimate)


def test_too_few_other_k_are_no_line(tiny):
    """Two other K: nothing to predict a loop from, where the same engine is not driven from here."""
    assert loops_report(tiny, (1, 2, 4)).predictions == ()


class TwoFaced(FakePlain):
    """Where nobody watches it answers another prompt, with and without drafts alike."""

    def prefill(self, prompt_ids, max_new_tokens, tap):
        return super().prefill([*prompt_ids, getattr(tap, "unwatched", False)], max_new_tokens, tap)

    def decode_plain(self, prompt_ids, max_new_tokens):
        return super().decode_plain([*prompt_ids, 1], max_new_tokens)


@pytest.mark.parametrize("made", [TwoFaced, lambda *given: PlainLoop(TwoFaced(*given))])
def test_a_device_that_answers_otherwise_where_nobody_watches_fails(tiny, made):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: made(ticks, k), ticks))
    assert report.exit_code == 1
    assert "speculative/k4: prompt prompt 0: where nobody watches token 0 is 8, watched it is 7" in report.findings[0]
    assert len(report.findings) == 2  # of each prompt


class Remembering(FakePlain):
    """It drafts what it answered to the same prompt before, as a cache over requests does."""

    answered: ClassVar[set[tuple[int, ...]]] = set()

    def prefill(self, prompt_ids, max_new_tokens, tap):
        self.accepts = (4,) if tuple(prompt_ids) in self.answered else (1, 0)
        self.answered.add(tuple(prompt_ids))
        return super().prefill(prompt_ids, max_new_tokens, tap)


def test_a_device_that_drafts_by_what_it_answered_before_fails(tiny, monkeypatch):
    """Every repeat is of the same prompts: its acceptance is that of no user."""
    ticks = Ticks()
    monkeypatch.setattr(Remembering, "answered", set())
    report = run_bench(request(tiny, lambda k: Remembering(ticks, k), ticks))
    assert report.exit_code == 1
    assert "speculative/k4: 12 rounds where nobody watches, 38 in the first run" in report.findings[0]


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ({"plain": 3.0}, "takes 3e+03 ms, a round without its draft 1.1e+03 ms, and that verifies more rows"),
        ({"draft": 0.0, "verify": 0.0}, "takes 1e+03 ms, a round without its draft 100 ms"),
    ],
)
def test_speculation_beside_a_plain_decoding_that_dawdles_or_without_a_verification_shows_nothing(tiny, costs, said):
    ticks = Ticks()
    report = run_bench(request(tiny, lambda k: FakePlain(ticks, k, costs=COSTS | costs), ticks))
    assert report.exit_code == 3 and said in report.findings[0]


def test_an_honest_device_is_watched_once_for_each_prompt_and_no_time_of_it_counts(tiny):
    ticks, watched = Ticks(), []

    class Seen(Fake):
        def prefill(self, prompt_ids, max_new_tokens, tap):
            if not getattr(tap, "unwatched", False):
                watched.append(list(prompt_ids))
                self.ticks.take(1000.0)
            return super().prefill(prompt_ids, max_new_tokens, tap)

    report = run_bench(request(tiny, lambda k: Seen(ticks, k), ticks))
    assert report.exit_code == 0 and watched == [[1, 2, 3], [2, 2, 3]]
    assert [cell.watched for cell in report.cells] == [0, 2]
    assert cells(report)["plain"].overall.first_token_ms.median == pytest.approx(500)


def test_a_device_that_breaks_down_where_somebody_watches_is_missing_evidence(tiny):
    ticks = Ticks()

    class Shy(Fake):
        def verify(self, draft_tokens, tap):
            if not getattr(tap, "unwatched", False):
                raise UsageError("no stage can be shown")
            return super().verify(draft_tokens, tap)

    report = run_bench(request(tiny, lambda k: Shy(ticks, k), ticks))
    assert report.exit_code == 3 and "with somebody watching: no stage can be shown" in report.findings[0]
    assert cells(report)["speculative"].overall
