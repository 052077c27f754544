"""What "the same again" means: of values that are no numbers, of places, and of a play that an end token cut short."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.gates.rollback.invariants import position_of
from parity.gates.rollback.repeat import RepeatResult, repeat_check
from parity.gates.rollback.sameness import WithinNoise
from parity.stages import declared

LOGITS, TOKENS = "verify.logits", "verify.tokens"
NOISE = SimpleNamespace(noisy=lambda stage: 1e-3, flips=False, flip_bound=lambda stage: 0.0)


def within(precision: str) -> WithinNoise:
    return WithinNoise(declared(2, 1), precision, NOISE)


def logits(lost: float, at: int = 5) -> np.ndarray:
    """Three rows, one column of which is no number, as that of a padded vocabulary."""
    rows = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    rows[:, at] = lost
    return rows


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("lost", [-np.inf, np.inf, np.nan])
def test_the_same_value_that_is_no_number_is_the_same_and_another_is_not(lost, precision):
    same, before = within(precision), {LOGITS: logits(lost)}
    assert same.changed(LOGITS, before, {LOGITS: logits(lost) * np.float32(1 + 1e-7)}) is None
    assert same.changed(LOGITS, before, {LOGITS: logits(lost) * np.float32(1.1)}) == 0
    for other in (logits(lost, at=4), logits(-lost if lost < 0 else -np.inf), logits(0.0)):
        assert same.changed(LOGITS, before, {LOGITS: other}) == 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_masked_column_explains_no_other_token(precision):
    scores = logits(-np.inf)
    best = scores.argmax(axis=1)
    before = {LOGITS: scores, TOKENS: best}
    assert within(precision).changed(TOKENS, before, {LOGITS: scores, TOKENS: (best + 1) % 4}) == 0


@pytest.mark.parametrize("first", [2, 5])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_another_token_within_noise_is_explained_whichever_of_the_ids_is_larger(first, precision):
    """Columns 2 and 5 are alike but for a part in ten million; what lies further off explains nothing."""
    scores = np.tile(np.float32([0, 1, 3, 0, 1, 3, 2, 1]), (3, 1))
    scores[:, first] += np.float32(3e-7)
    tokens = np.full(3, first)
    before = {LOGITS: scores, TOKENS: tokens}
    assert within(precision).changed(TOKENS, before, {LOGITS: scores, TOKENS: 7 - tokens}) is None
    assert within(precision).changed(TOKENS, before, {LOGITS: scores, TOKENS: np.full(3, 6)}) == 0


def test_a_row_of_a_pass_is_told_by_its_position():
    """Behind a prompt of 9 a round verifies from 9 on and drafts from the last committed row; caches hold every row."""
    assert [position_of("prefill", "target.layers.0.q", 3, 9, 8), position_of("verify", LOGITS, 3, 9, 8)] == [3, 12]
    assert [position_of("draft", "drafter.input_ids", 3, 9, 8), position_of("commit", "kv.target.0.k", 3, 9, 8)] == [
        11,
        3,
    ]
    assert position_of("commit", "accept.emitted", 1, 9, 8) is None


@pytest.mark.parametrize(("rounds", "said"), [(1, "prefill and a round"), (0, "prefill, which ends the sequence")])
def test_only_what_was_played_is_said_to_repeat(rounds, said):
    line = repeat_check(RepeatResult(2, 40, 0, "", (0.0, ""), None, rounds), within("float32"))
    assert line.verdict == "pass" and line.evidence.endswith(f"40 tensors of {said}"), line
