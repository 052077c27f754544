"""Ids that went through the table between draft and target ids where they should not, or the wrong way."""

from __future__ import annotations

import numpy as np

from parity.compare.rows import stage_rows
from parity.compare.vocabulary import DraftVocabulary, draft_vocabulary
from parity.errors import Inconclusive
from parity.golden.views import DumpView
from parity.stages import DRAFT_TOKENS, DRAFTER_LOGITS

LEAST = 3
"""Wrong ids that have to be made, different ones."""


def through_offsets(golden: DumpView, right: np.ndarray, found: np.ndarray) -> str:
    """What was done to ids `right` [R] that became `found`; '' where nothing was, or the golden has no draft ids."""
    if right.ndim != 1 or len(np.unique(right)) < LEAST or not {DRAFTER_LOGITS, DRAFT_TOKENS} <= {*golden.declared}:
        return ""
    sides = [
        stage_rows(golden, golden, golden.declared[name], device="float32", mode="local")
        for name in (DRAFTER_LOGITS, DRAFT_TOKENS)
    ]
    if sides[0] is None or sides[1] is None:
        return ""
    try:
        return _said(draft_vocabulary(golden, sides[0], sides[1]), right, found)
    except Inconclusive:
        return ""


def _said(vocabulary: DraftVocabulary, right: np.ndarray, found: np.ndarray) -> str:
    tokens = vocabulary.tokens
    if (tokens == np.arange(len(tokens))).all():
        return ""
    if (right < len(tokens)).all() and (found == tokens[right]).all():
        return "taken for draft ids, and their offsets (d2t) added"
    columns = vocabulary.columns(right)
    if (columns >= 0).all() and (found == columns).all():
        return "draft ids, not the ids that they stand for (d2t)"
    known = columns >= 0
    if known.all() and (found == right + tokens[columns] - columns).all():
        return "the offsets (d2t) of their draft ids added once more"
    return ""
