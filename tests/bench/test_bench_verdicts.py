"""What does not pass: other tokens, ratios that are not shown, and a plain decoding that nobody would use."""

from __future__ import annotations

import numpy as np
import pytest

from parity.bench.decoding import plain
from parity.bench.judge import gates
from parity.bench.measure import run_bench
from parity.errors import DeviceFailed, UsageError
from parity.reports.bench_page import bench_page
from tests.bench.fakes import COSTS, ROUND, Fake, FakeLoop, FakePlain, Ticks, cells, request, workload


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
