"""Ids that went through d2t where they should not, or the wrong way."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.vocabulary import DraftVocabulary
from parity.diagnose.components.vocabularies import _said, through_offsets

TOKENS = np.array([0, 1, 5, 6, 9, 12, 13, 20])
RIGHT = np.array([1, 5, 6])


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (TOKENS[RIGHT], "taken for draft ids, and their offsets (d2t) added"),
        ([1, 2, 3], "draft ids, not the ids that they stand for (d2t)"),
        ([1, 8, 9], "the offsets (d2t) of their draft ids added once more"),
        ([1, 5, 7], ""),
    ],
)
def test_what_was_done_to_ids(found, says):
    assert _said(DraftVocabulary(TOKENS, "a test"), RIGHT, np.array(found)) == says


def test_a_table_that_changes_nothing_says_nothing():
    assert _said(DraftVocabulary(np.arange(8), "a test"), RIGHT, RIGHT) == ""


def test_a_goldens_own_table_is_read(shallow_golden):
    tokens = np.array(shallow_golden.manifest.model.draft_vocabulary)
    right = np.arange(300, 310)
    assert through_offsets(shallow_golden, right, tokens[right]).startswith("taken for draft ids")
    assert (
        through_offsets(shallow_golden, right, right + 1)
        == through_offsets(shallow_golden, right[:2], tokens[:2])
        == ""
    )
