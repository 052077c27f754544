"""Hypotheses about draft models, DFlash and prompt lookup: each changes first what it claims; what stands there then."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.faults import PROMPTS
from parity.references.hypotheses import NotApplicable, block, block_context, lookup, offered, unfed
from parity.references.ngram import NGram, NGramConfig
from parity.references.prompts import read_prompts
from parity.stages import matches
from tests.references.test_hypotheses import BY_ID, FIRST_VALUES, Case, differ, state
from tests.sample import sample

K = 4
BUDGETS = {"draft-model": 14, "dflash": 14, "n-gram": 24}
UNSHOWN = {
    *("input-raw-prompt", "verify-tie-rule", "load-square-transpose", "accept-eos-ignored", "accept-eos-dropped"),
    *("rope-position-rounded", "rope-position-rounded-drafter", "rope-position-rounded-chain-rows"),
    *("rope-position-rounded-context-rows", "rope-position-rounded-block-rows", "accept-budget-ignored"),
    *("accept-past-mismatch", "accept-last-match", "report-truncated-step", "attn-sinks-added-drafter"),
}
"""What these prompts do not show in every family; shown with the P-EAGLE drafter."""


@pytest.fixture(scope="module")
def cases(tiny):
    """A family's case: a draft model's rounds accept 4, 3, 0 and 3 drafts, DFlash's 4, 3, 0, 0 and 1."""
    made = {}

    def of(family):
        if family not in made:
            ids = dict(read_prompts(tiny / "prompts/chat.jsonl", tiny / "target", 1280))[PROMPTS[family][0]]
            made[family] = Case(tiny, ids=list(ids), budget=BUDGETS[family], drafter=family)
        return made[family]

    return of


def first_shown(case, hypothesis):
    """The first stage that it changes with the first value that this pair of checkpoints gives something to change."""
    given = FIRST_VALUES.get(hypothesis.id)
    before = state(case.counterfactuals.loop)
    for value in [given] if given is not None else hypothesis.values or [0.5]:
        try:
            first = case.first(case.run([(hypothesis, value)], stop=True))
        except NotApplicable as error:
            assert "no run comes of it" not in str(error)
            first = None
        assert state(case.counterfactuals.loop) == before
        if first:
            return first
    return None


OFFERED = [(family, one) for family in BUDGETS for one in offered(family) if one.id not in UNSHOWN]
IDLE = {
    "draft-model": {
        *("rope-factor", "rope-original-context", "rope-low-freq-factor", "rope-high-freq-factor", "rope-table-overflow"),
        *("rope-concentration", "rope-silent-fallback"),
    },
}


@pytest.mark.parametrize(
    ("family", "hypothesis"),
    sample(OFFERED, name=lambda one: f"{one[0]} {one[1].id}", kind=lambda one: (one[0], one[1].stages[0])),
    ids=lambda one: getattr(one, "id", one),
)
def test_it_changes_first_what_it_claims_in_these_families_too(family, hypothesis, cases):
    first = first_shown(cases(family), hypothesis)
    assert first and any(matches(stage, first) for stage in hypothesis.stages), first
