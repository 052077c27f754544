"""Choices beside the scores that they were made from, by hand: which contradict them, and of which they say nothing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import scores as module
from parity.compare.rows import StageRows
from parity.compare.scores import NOISE_SIGMAS, _drafted, _scored, contradicting, row_noise, unchecked
from parity.golden.ranks import SUM
from parity.stages import declared

NAMES = declared(2, 1)
TOKENS, LOGITS = "verify.tokens", "verify.logits"
EXPERTS, ROUTER = "target.layers.0.experts", "target.layers.0.router_logits"
DRAFTS, DRAFT_LOGITS = "drafter.draft_tokens", "drafter.logits"
SCORES = np.float32([[4, 4, 3, 0], [4, 3.9, 3, 0], [0, 1, 2, 4]])


def rows_of(name: str, golden, device=None, floor=None, first: int = 5, **more) -> StageRows:
    golden = np.array(golden)
    number = np.arange(len(golden))
    device, floor = (side if side is None else np.array(side) for side in (device, floor))
    device = golden if device is None else device
    return StageRows(NAMES[name], golden, device, floor, number * 0, number * 0 + 1, number + first, **more)


class Side:
    """One device: the rows that it has of a stage of choices and of their scores, where it has any."""

    def __init__(self, chosen=None, scores=None, stages=None, mode="chained", forced=(), ranks: int = 1):
        self.held = {side.named.name: side for side in (chosen, scores) if side is not None}
        case = SimpleNamespace(mode=mode, forced=forced)
        self.manifest = SimpleNamespace(stages=self.held if stages is None else stages, case=case)
        self.parts = {("bfloat16", 0, 1, name): [SimpleNamespace(sharding=SUM)] * ranks for name in (LOGITS, ROUTER)}


@pytest.fixture
def told(monkeypatch):
    """Which rows of the first side's choices contradict their scores (or are not checked by them)."""
    monkeypatch.setattr(module, "stage_rows", lambda golden, side, named: side.held.get(named.name))

    def ask(*sides: Side, rows=None, imagined=False, lacks=(), of=contradicting) -> list[bool]:
        stages = {*NAMES} - {*lacks}
        golden = SimpleNamespace(declared=NAMES, imagined=imagined, manifest=SimpleNamespace(stages=stages))
        rows = next(iter(sides[-1].held.values())) if rows is None else rows
        found = of(golden, SimpleNamespace(sides=sides), rows)
        assert found.dtype == bool
        return found.tolist()

    return ask


def tokens(*device, **more) -> StageRows:
    return rows_of(TOKENS, [0, 0, 3], device, **more)


LOGIT_ROWS = rows_of(LOGITS, SCORES)
WRONG = Side(tokens(2, 0, 1), LOGIT_ROWS)


def test_a_choice_contradicts_scores_of_which_another_is_better(told):
    assert told(Side(tokens(0, 0, 3), LOGIT_ROWS)) == told(Side(tokens(1, 0, 3), LOGIT_ROWS)) == [False] * 3
    assert told(WRONG) == [True, False, True]
    assert told(Side(tokens(-1, 4, 0), LOGIT_ROWS)) == [False, False, True]  # an id that is none has no score


def test_experts_contradict_by_the_least_that_is_taken(told):
    def side(*device) -> Side:
        return Side(rows_of(EXPERTS, [[0, 1], [0, 1], [3, 2]], device), rows_of(ROUTER, SCORES))

    assert told(side([1, 0], [0, 2], [2, 3])) == [False, True, False]
    assert told(side([0, 3], [0, 1], [3, 1])) == [True, False, True]


def test_the_scores_are_the_devices_own(told):
    """By the golden's the third is the best, by the device's the second: nothing of the golden says which it stands
    for."""
    seen = rows_of(LOGITS, SCORES, SCORES[:, [0, 2, 1, 3]])
    assert told(Side(tokens(2, 0, 3), seen)) == [False, False, False]
    assert told(Side(tokens(1, 1, 2), seen)) == [True, True, True]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_say_nothing_of_their_row(told, bad):
    seen = SCORES.copy()
    seen[0, 3] = bad
    assert told(Side(tokens(2, 2, 3), rows_of(LOGITS, SCORES, seen))) == [False, True, False]


@pytest.mark.parametrize(
    "silent",
    [
        Side(tokens(2, 2, 2), LOGIT_ROWS, stages=(TOKENS,)),
        Side(tokens(2, 2, 2), None, stages=(TOKENS, LOGITS)),
        Side(None, LOGIT_ROWS, stages=(TOKENS, LOGITS)),
        Side(tokens(2.0, 2.0, 2.0), LOGIT_ROWS),
    ],
)
def test_of_two_devices_each_is_asked_and_one_that_shows_too_little_says_nothing(told, silent):
    assert told(silent, WRONG) == told(WRONG, silent, rows=tokens(2, 0, 1)) == [True, False, True]
    assert told(silent, rows=tokens(2, 2, 2)) == [False] * 3


def test_what_the_golden_does_not_have_says_nothing(told):
    assert told(WRONG, lacks=(LOGITS,)) == [False] * 3


def test_two_devices_contradict_where_either_does(told):
    assert told(Side(tokens(0, 1, 3), LOGIT_ROWS), WRONG) == [True, True, True]


def test_rows_are_found_by_their_labels(told):
    later = Side(tokens(2, 0, 1, first=6), replace(LOGIT_ROWS, position=LOGIT_ROWS.position + 2))
    assert told(later, rows=tokens(0, 0, 3)) == [False, False, False]  # 1 at position 8 is judged by the second row
    assert told(later, rows=tokens(0, 0, 3, first=7)) == [False, True, False]
    assert told(WRONG, rows=tokens(0, 0, 3, first=4)) == [False, True, False]


@pytest.mark.parametrize(
    ("mode", "forced", "due"),
    [("local", (LOGITS,), True), ("chained", (LOGITS,), False), ("local", (TOKENS,), False), ("local", (), False)],
)
def test_a_local_run_chooses_from_the_goldens_scores_where_it_was_forced(told, mode, forced, due):
    seen = rows_of(LOGITS, SCORES, np.float32([[0, 0, 9, 0]] * 3))
    assert told(Side(tokens(2, 2, 2), seen, mode=mode, forced=forced)) == [due] * 3


def test_sums_of_ranks_excuse_what_they_round_but_not_where_scores_were_forced(told):
    """Two ranks' sums of 4 part by 2 x 2 x 4 x 2^-24."""
    step = 2 * 2 * 4 * 2.0**-24
    near = np.float32([[4, 4 - step, 0, 0], [4, 4 - 2 * step, 0, 0], [4, 4, 0, 0]])
    chosen, seen = tokens(1, 1, 1), rows_of(LOGITS, near)
    assert told(Side(chosen, seen, ranks=2)) == [False, True, False]
    assert told(Side(chosen, seen)) == [True, True, False]
    assert told(Side(chosen, seen, ranks=2, mode="local", forced=(LOGITS,))) == [True, True, False]


def test_a_counterfactuals_choice_against_its_own_scores_is_no_contradiction(told):
    """Token 2 is chosen against the scores by both in the first row, by the device alone in the second."""
    chosen = rows_of(TOKENS, [2, 0, 3], [2, 2, 3])
    assert told(Side(chosen, LOGIT_ROWS)) == [True, True, False]
    assert told(Side(chosen, LOGIT_ROWS), imagined=True) == [False, True, False]
    own = rows_of(LOGITS, np.float32([[0, 0, 9, 0]] * 3), SCORES)  # the golden's choice is the best of its scores
    assert told(Side(chosen, own), imagined=True) == [True, True, False]


def test_a_draft_is_of_the_best_column_that_may_stand_for_it(told):
    """The golden's rows tell columns 0 and 1 of two drafts; nobody knows the third."""
    scores = rows_of(DRAFT_LOGITS, np.float32([[9, 0, 1], [0, 9, 1]]))
    chosen = rows_of(DRAFTS, [7, 5], [5, 8])
    assert _drafted(np.array([[5], [8]]), chosen, scores).tolist() == [[False, True, False], [False, False, True]]
    assert _drafted(np.array([[7], [1]]), chosen, scores).tolist() == [[True, False, False], [False, False, True]]
    assert told(Side(chosen, scores)) == [True, True]
    best = replace(scores, device=np.float32([[0, 9, 1], [0, 1, 9]]))
    assert told(Side(chosen, best)) == [False, False]
    two = replace(scores, golden=np.float32([[9, 0, 1, 0], [9, 0, 1, 0]]), device=np.float32([[0, 1, 0, 9]] * 2))
    assert told(Side(chosen, two)) == [True, False]  # of several that nobody knows, the best one


@pytest.mark.parametrize(
    ("ranks", "noise", "hidden"),
    [
        (1, 0.0, False),
        (2, 2 * 2 * 4 * 2.0**-24 / NOISE_SIGMAS * 0.999, True),
        (2, 2 * 2 * 4 * 2.0**-24 / NOISE_SIGMAS * 1.001, False),
        (4, 4 * 2 * 4 * 2.0**-24 / NOISE_SIGMAS * 0.999, True),
    ],
)
def test_scores_say_nothing_where_adding_them_may_move_them_by_all_noise(told, ranks, noise, hidden):
    seen = rows_of(LOGITS, SCORES, noise=np.array([noise, noise, 9.0]))
    side = Side(tokens(0, 0, 3), seen, ranks=ranks)
    assert told(side, of=unchecked) == [hidden, hidden, False]
    assert told(side, of=unchecked, rows=tokens(0, 0, 3, first=6)) == [hidden, False, False]
    for silent in (
        Side(tokens(0, 0, 3), seen, (TOKENS,), ranks=ranks),
        Side(tokens(0, 0, 3), None, (LOGITS,), ranks=2),
    ):
        assert told(silent, of=unchecked) == told(side, of=unchecked, lacks=(LOGITS,)) == [False] * 3
        assert told(silent, side, of=unchecked) == [hidden, hidden, False]


def test_a_rows_noise_is_its_floors_share_of_its_own_size():
    """Rows of RMS 4, whose floors are off by 0.1, 0.2 and 0.4 of them: nine tenths of the way lie at 0.36."""
    golden = np.full((3, 4), 4.0)
    floor = golden.copy()
    floor[:, 0] += (0.8, 1.6, 3.2)
    rows = rows_of(LOGITS, golden, floor=floor)
    assert row_noise(rows) == pytest.approx([1.44, 1.44, 1.6])
    assert row_noise(replace(rows, noise=np.arange(3.0))).tolist() == [0, 1, 2]


def test_what_is_no_choice_has_no_scores():
    golden = SimpleNamespace(declared=NAMES)
    assert _scored(golden, TOKENS).name == LOGITS and _scored(golden, EXPERTS).name == ROUTER
    with pytest.raises(ValueError, match=r"accept\.emitted is no choice: nothing scores it"):
        _scored(golden, "accept.emitted")
