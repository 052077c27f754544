"""Hypotheses about quantised caches: each changes first what it claims, and is not offered without such caches."""

from __future__ import annotations

import pytest

from parity.fixtures.scaled import with_scales
from parity.references.hypotheses import QUANTISED, NotApplicable, offered
from parity.stages import matches
from tests.references.hypothesis_case import Case, state
from tests.sample import sample

VALUES = [(one, value) for family in QUANTISED for one in family.hypotheses for value in (one.values or (1.25,))]
UNSHOWN = {"kept in fp8_e4m3", "at most 448 times their scale", "zero where they are subnormal"}
"""What the caches do, or, with these scales, too little for float32 to tell."""


@pytest.fixture(scope="module")
def case(tiny, tmp_path_factory):
    pair = tmp_path_factory.mktemp("scaled")
    with_scales(tiny / "target", pair / "target", "target")
    with_scales(tiny / "drafter", pair / "drafter", "drafter")
    (pair / "prompts").symlink_to(tiny / "prompts")
    return Case(pair, kv_cache="fp8_e4m3")


@pytest.mark.parametrize(
    ("hypothesis", "value"),
    sample(
        (one for one in VALUES if one[1] not in UNSHOWN),
        name=lambda one: f"{one[0].id} {one[1]}",
        kind=lambda one: one[0].id.partition("-")[0] + one[0].id[-8:],
    ),
    ids=lambda one: getattr(one, "id", one),
)
def test_it_changes_first_what_it_claims_and_undoes_itself(hypothesis, value, case):
    before = state(case.counterfactuals.loop)
    first = case.first(case.run([(hypothesis, value)], stop=True))
    assert first and any(matches(stage, first) for stage in hypothesis.stages), first
    assert state(case.counterfactuals.loop) == before


def test_they_are_offered_with_quantised_caches_alone(tiny):
    names = {one.id for family in QUANTISED for one in family.hypotheses}
    assert names <= {one.id for one in offered("p-eagle", kv_cache=True)}
    assert not names & {one.id for one in offered("p-eagle")}
    with pytest.raises(NotApplicable, match="dtype of the pass"):
        Case(tiny, budget=2).run([VALUES[0]])
