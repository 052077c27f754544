"""The model of a round against what is measured of devices of known cost."""

from __future__ import annotations

import numpy as np
import pytest

from parity.bench.measure import run_bench
from parity.reports.bench_page import bench_page
from tests.bench.fakes import COSTS, ROUND, Fake, FakePlain, PlainLoop, Ticks, request


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
