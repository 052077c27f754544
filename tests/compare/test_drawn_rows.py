"""Decisions of sampled rounds by hand: cells and edges, what rounding may decide, and numbers moved to an edge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.compare.sampling.replay import (
    MARGIN,
    RATIO,
    ULP,
    Decision,
    _by_residual,
    _cell,
    _draw,
    _ratio,
    _variants,
    _within,
    rounding,
    tightened,
)
from parity.compare.sampling.round import SampledRound
from parity.seam import DRAWS

WEIGHTS = np.array([0.25, 0.0, 0.5, 0.25])


def seen(uniform: float = 0.5, drafts=(2, 3), tokens=(2, 3, 0), round_: int = 1) -> SampledRound:
    """Every number of the round is this one."""
    width = len(tokens)
    return SampledRound(
        7, round_, np.array(drafts), np.array(tokens), None, np.zeros((width, 4)), np.full((len(DRAWS), width), uniform)
    )


def decision(low: float = 0.25, high: float = 0.75, uniform: float = 0.5, slack: float = 1e-3) -> Decision:
    return Decision(seen(uniform), "target", 1, low, high, True, False, "so", slack)


@pytest.mark.parametrize(
    ("low", "high", "uniform", "edge"),
    [
        (0.25, 0.75, 0.5, 0.25),
        (0.25, 0.75, 0.7, 0.05),
        (0.0, 0.75, 0.1, 0.65),
        (0.25, 1.0, 0.9, 0.65),
        (0, 1, 0.5, 1.0),
    ],
)
def test_a_number_is_so_far_from_the_nearest_edge_that_decides(low, high, uniform, edge):
    assert decision(low, high, uniform).edge == pytest.approx(edge)


@pytest.mark.parametrize(
    ("low", "high", "upper", "nearer"),
    [
        (0.25, 0.75, False, 0.254),
        (0.25, 0.75, True, 0.746),
        (0.0, 0.75, False, 0.746),
        (0.0, 0.75, True, 0.746),
        (0.25, 1.0, True, 0.254),
        (0.25, 1.0, False, 0.254),
        (0.0, 1.0, True, 0.5),
        (0.25, 0.258, True, 0.254),
        (0.25, 0.2579, False, 0.25395),
        (0.25, 0.2581, True, 0.2541),
    ],
)
def test_a_number_is_moved_to_a_margin_from_an_edge(low, high, upper, nearer):
    """Four thousandths; a cell of twice that has its middle there."""
    assert MARGIN == 4 and decision(low, high).nearer(upper) == pytest.approx(nearer)


def test_numbers_are_moved_to_either_edge_in_turn():
    table = np.full((3, len(DRAWS), 3), 0.5, np.float32)
    made = [decision(), replace(decision(), what="accept", row=0), replace(decision(), row=2, round=seen(round_=2))]
    moved = tightened(made, table)
    where = [(1, DRAWS.index("target"), 1), (1, DRAWS.index("accept"), 0), (2, DRAWS.index("target"), 2)]
    assert [float(moved[place]) for place in where] == pytest.approx([0.254, 0.746, 0.254])
    assert (moved != table).sum() == 3 and (table == 0.5).all()


def test_a_decision_is_told_by_its_place_and_number():
    assert str(decision()) == "prompt 7, round 1, row 1, target by 0.5000000: so"


@pytest.mark.parametrize(
    ("uniform", "cell"),
    [(0.0, (0, 0, 0.25)), (0.2499, (0, 0, 0.25)), (0.25, (2, 0.25, 0.75)), (0.7499, (2, 0.25, 0.75)),
     (0.75, (3, 0.75, 1.0)), (0.999, (3, 0.75, 1.0)), (1.0, (3, 0.75, 1.0))],
)  # fmt: skip
def test_a_number_stands_for_the_token_in_whose_cell_it_lies(uniform, cell):
    assert _cell(WEIGHTS, uniform) == cell
    token, low, high = _cell(np.array([0.5, 0.5, 0.0, 0.0]), 1.0)
    assert (token, low, high) == (1, 0.5, 1.0)  # never one that cannot come
    assert _cell(WEIGHTS * 2, 0.5) == (2, 0.5, 1.5)


@pytest.mark.parametrize(
    ("token", "uniform", "within"),
    [(2, 0.25, True), (2, 0.241, True), (2, 0.239, False), (2, 0.759, True), (2, 0.761, False), (0, 0.0, True),
     (1, 0.25, False), (-1, 0.5, False), (4, 0.99, False), (3, 0.741, True), (3, 0.99, True)],
)  # fmt: skip
def test_a_token_is_possible_in_its_cell_or_so_much_beside_it(token, uniform, within):
    assert _within(WEIGHTS, token, uniform, 0.01) is within


def test_rounding_grows_with_the_root_of_the_width():
    assert rounding(4) == 8 * 2 * ULP and rounding(100) == 80 * ULP and ULP == 2**-24


@pytest.mark.parametrize(("p", "q", "ratio"), [(0.5, 0.25, 2), (0.5, 0.0, np.inf), (0.0, 0.0, 0), (0.0, 0.5, 0)])
def test_a_draft_without_a_chance_of_its_own_is_accepted_wherever_the_target_has_one(p, q, ratio):
    assert _ratio(p, q) == ratio


def test_a_draw_is_right_by_any_of_the_distributions_and_close_where_another_is_due():
    other = np.array([0.0, 0.0, 0.75, 0.25])
    made = _draw(seen(0.1), "target", 1, 2, [WEIGHTS, other])
    assert (made.right, made.close, made.low, made.high) == (True, True, 0, 0.25)
    assert made.said == "token 2 comes out, 0 is due (0.0000000 to 0.2500000)" and made.slack == rounding(4)
    assert (
        not _draw(seen(0.1), "target", 1, 2, [WEIGHTS]).right and not _draw(seen(0.1), "target", 1, 2, [WEIGHTS]).close
    )
    due = _draw(seen(0.1), "target", 1, 0, [WEIGHTS], 3.0)
    assert (due.right, due.close, due.slack) == (True, False, 3 * rounding(4))


P, Q = np.array([0.2, 0.3, 0.5, 0.0]), np.array([0.0, 0.0, 1.0, 0.0])
"""Draft 2 is accepted below a half; in its place come 0 and 1, of weights 0.2 and 0.3."""


def residuals(uniform: float, token: int) -> list[Decision]:
    return [*_by_residual(seen(uniform, (2,), (token, 0)), 0, [(P, Q)])]


@pytest.mark.parametrize(
    ("uniform", "token", "right", "close", "low", "high"),
    [
        (0.4, 2, True, False, 0.0, 0.5),
        (0.6, 2, False, False, 0.5, 1.0),
        (0.5 + 0.9 * 0.5 * RATIO, 2, True, True, 0.5, 1.0),
        (0.5 + 1.1 * 0.5 * RATIO, 2, False, False, 0.5, 1.0),
        (0.6, 1, True, False, 0.5, 1.0),
        (0.4, 1, False, False, 0.0, 0.5),
        (0.5 - 0.9 * 0.5 * RATIO, 1, True, True, 0.0, 0.5),
        (0.5 - 1.1 * 0.5 * RATIO, 1, False, False, 0.0, 0.5),
    ],
)
def test_a_draft_is_accepted_below_p_over_q(uniform, token, right, close, low, high):
    first, *more = residuals(uniform, token)
    assert (first.what, first.right, first.close, first.low, first.high) == ("accept", right, close, low, high)
    assert first.said == f"draft 2 is {'' if token == 2 else 'not '}accepted, p / q is 0.5000000"
    assert first.slack == RATIO * 0.5 + ULP and len(more) == (token != 2)


def test_what_takes_a_drafts_place_is_drawn_from_what_is_left():
    """Of a half that is left rounding is twice as much."""
    _, replaced = residuals(0.6, 1)
    assert (replaced.what, replaced.right, replaced.low, replaced.high) == ("replace", True, 0.4, 1.0)
    assert replaced.slack == 2 * rounding(4) and not residuals(0.6, 0)[1].right


def test_distributions_behind_moved_edges_count_where_other_tokens_are_possible():
    def of(slack: float) -> np.ndarray:
        return np.array([0.5, 0.5, 0.0]) if slack <= 0 else np.array([0.4, 0.4, 0.2])

    assert [one.tolist() for one in _variants(of)] == [[0.5, 0.5, 0.0], [0.4, 0.4, 0.2]]
    assert len(_variants(lambda slack: np.array([0.5 + slack, 0.5 - slack]))) == 1
