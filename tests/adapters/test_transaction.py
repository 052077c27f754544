"""Verbs made whole: one that raises is undone, a second draft starts from what the first one found."""

from __future__ import annotations

import numpy as np
import pytest

from parity.adapters import transactional
from parity.errors import UsageError


class Counter:
    """Each verb adds to `rows`, then hands them over."""

    def __init__(self):
        self.rows = [0]

    def describe(self):
        raise NotImplementedError

    def draft(self, tap):
        self.rows.append(1)
        tap("drafter.draft_tokens", np.array(self.rows))
        return np.array(self.rows)


@pytest.mark.parametrize("own", [False, True])
def test_a_verb_that_raises_is_undone_and_a_second_draft_starts_from_the_same(own):
    inside = Counter()
    if own:
        device = transactional(
            inside, snapshot=lambda: list(inside.rows), restore=lambda kept: setattr(inside, "rows", list(kept))
        )
    else:
        device = transactional(inside, ["rows"])

    def broken(stage, value):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        device.draft(broken)
    assert inside.rows == [0]
    assert [device.draft(lambda stage, value: value).tolist() for _ in range(2)] == [[0, 1], [0, 1]]
    with pytest.raises(RuntimeError):
        device.draft(broken)
    assert inside.rows == [0, 1] and device.draft(lambda stage, value: value).tolist() == [0, 1]


def test_state_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match=r"state 'cache\.keys' of the device"):
        transactional(Counter(), ["cache.keys"])
    with pytest.raises(UsageError, match="needs the attributes"):
        transactional(Counter())
