"""Hypotheses about partial KV: each changes first what it claims, and is not offered without pages."""

from __future__ import annotations

import pytest

from parity.references.hypotheses import PAGES, NotApplicable, offered
from parity.stages import matches
from tests.references.hypothesis_case import Case, state
from tests.sample import sample

VALUES = [(one, value) for family in PAGES for one in family.hypotheses for value in one.values]
UNSHOWN = {"of equal scores the last page"}
"""No two scores are equal here."""


@pytest.fixture(scope="module")
def case(tiny):
    return Case(tiny, partial_kv="1+2+1x8")


@pytest.mark.parametrize(
    ("hypothesis", "value"),
    sample(
        (one for one in VALUES if one[1] not in UNSHOWN),
        name=lambda one: f"{one[0].id} {one[1]}",
        kind=lambda one: one[0].id,
    ),
    ids=lambda one: getattr(one, "id", one),
)
def test_it_changes_first_what_it_claims_and_undoes_itself(hypothesis, value, case):
    before = state(case.counterfactuals.loop)
    first = case.first(case.run([(hypothesis, value)], stop=True))
    assert first and any(matches(stage, first) for stage in hypothesis.stages), first
    assert state(case.counterfactuals.loop) == before


def test_they_are_offered_with_pages_alone(tiny):
    names = {one.id for family in PAGES for one in family.hypotheses}
    assert names <= {one.id for one in offered("p-eagle", partial_kv=True)}
    assert not names & {one.id for one in offered("p-eagle")} and not names & {
        one.id for one in offered("n-gram", True)
    }
    with pytest.raises(NotApplicable, match="all of its cache"):
        Case(tiny, budget=2).run([(VALUES[0])])
