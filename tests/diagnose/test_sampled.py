"""Choices that a softmax draws, told from those of another rule by how many and how unlikely they are."""

from __future__ import annotations

import numpy as np
import pytest

from parity.diagnose.components.sampled import LEAST, drawn

ROWS, WIDTH = 200, 50
SCORES = 2 * np.random.default_rng(0).standard_normal((ROWS, WIDTH))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_drawn_choices_are_told_with_their_temperature(temperature):
    theirs = (SCORES / temperature + np.random.default_rng(1).gumbel(size=SCORES.shape)).argmax(axis=1)
    found = drawn(SCORES, theirs)
    assert found.startswith("drawn by the softmax of the scores, at a temperature of about ")
    said = float(found.split("about ")[1].split()[0])
    assert temperature / 1.3 < said < temperature * 1.3
    assert f"({(theirs != SCORES.argmax(axis=1)).sum()} of {ROWS} are not the best one" in found


def test_other_rules_are_not_drawn():
    order = SCORES.argsort(axis=1)
    best, second, any_ = order[:, -1], order[:, -2], np.random.default_rng(2).integers(0, WIDTH, ROWS)
    some = np.random.default_rng(3).random(ROWS) < 0.3
    for theirs in (second, np.where(some, second, best), any_, np.where(some, order[:, 0], best)):
        assert drawn(SCORES, theirs) == ""
    few = np.where(np.arange(ROWS) < LEAST - 1, second, best)
    assert drawn(SCORES, few) == drawn(SCORES, best) == ""
