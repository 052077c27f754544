"""A rule of choosing that contradicts the scores is the cause where a counterfactual chooses so too, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.diagnose.test_honest import red
from tests.diagnose.toys import Toy, explained
from tests.meta import plants as p

STEP = 3
ROWS = {"one": slice(0, 1), "every": slice(None)}


def moved(name: str) -> Toy:
    """Tokens of these rows are others, far below the best."""

    def change(value, round_, tokens):
        other = np.array(tokens)
        other[ROWS[name]] = np.where(other[ROWS[name]] >= STEP, other[ROWS[name]] - STEP, other[ROWS[name]] + STEP)
        return other

    return Toy(name, p.TOKENS, change, (None,))


@pytest.mark.parametrize("true", ROWS)
def test_a_choice_against_its_scores_is_named_where_a_counterfactual_makes_it_and_no_other(true, tmp_path):
    """A token that scores better than a counterfactual's is not the counterfactual's."""

    def plant(pair) -> None:
        for tensors, place in p.each(pair.run, p.TOKENS):
            tensors[place] = moved(true).change(None, 0, tensors[place])

    found = explained(red(plant, tmp_path), [moved("one"), moved("every")])
    assert [(cause.hypothesis, cause.alike) for cause in found.causes] == [(true, ())], found
    assert found.unexplained is None
