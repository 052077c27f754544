"""A parameter that is a little off in some of the rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.diagnose.search import parameters
from parity.diagnose.search.parameters import near_clean
from parity.references.hypotheses.catalogue import Fit

SLOPES = np.random.default_rng(3).standard_normal((40, 8))
ROWS = np.arange(40) >= 34
"""The rows that are wrong."""


def moved(value):
    return SLOPES * (np.log(value) - np.log(100.0)) + 0.01 * (np.log(value) - np.log(100.0)) ** 2


def found(monkeypatch, gap, fit=None, clean=100.0):
    monkeypatch.setattr(parameters, "clean_value", lambda fit, model: clean)
    stage = SimpleNamespace(
        gap=gap, trials=SimpleNamespace(golden=SimpleNamespace(manifest=SimpleNamespace(model=None)))
    )
    hypothesis = SimpleNamespace(fit=fit or Fit(1.0, 10_000.0, clean=100.0, log=True))
    made = near_clean(
        stage, hypothesis, lambda assumed: SimpleNamespace(value=assumed[0][1], moved=moved(assumed[0][1]))
    )
    return [one.value for one in made]


@pytest.mark.parametrize("value", [100.2, 99.5, 103.0])
def test_the_elements_that_are_most_wrong_say_how_far_a_parameter_is_off(value, monkeypatch):
    gap = np.where(ROWS[:, None], moved(value), 0.0)
    assert found(monkeypatch, gap) == [pytest.approx(value, rel=1e-5)]


def test_nothing_is_asked_of_whole_numbers_or_where_the_clean_value_is_not_known(monkeypatch):
    gap = np.where(ROWS[:, None], moved(101.0), 0.0)
    assert found(monkeypatch, gap, clean=None) == []
    assert found(monkeypatch, gap, fit=Fit(1, 200, clean=100, whole=True)) == []


def test_a_step_out_of_the_range_ends_it(monkeypatch):
    assert found(monkeypatch, np.where(ROWS[:, None], 100 * SLOPES, 0.0)) == []
