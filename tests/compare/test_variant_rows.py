"""What a sampled row may come to where noise moves its logits, by hand: distributions, tokens of a number, outcomes."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.sampling.possible import LEAST, RowOutcomes, _drawn, _variants
from parity.compare.sampling.round import SampledRound
from parity.compare.vocabulary import DraftVocabulary
from parity.seam import DRAWS, Sampling


def asked(noise: float = 0.01, **settings) -> list[tuple[int, float]]:
    """(top-k, slack) of each distribution that is asked for."""
    found: list[tuple[int, float]] = []

    def of(some: Sampling, slack: float) -> np.ndarray:
        found.append((some.top_k, round(slack, 4)))
        return np.zeros(1)

    return list(_variants(of, Sampling(temperature=1.0, **settings), noise)) and found


def test_without_an_edge_there_is_one():
    assert asked() == [(0, 0.0)]


@pytest.mark.parametrize("edge", [{"top_p": 0.9}, {"min_p": 0.05}])
def test_an_edge_of_a_share_moves_both_ways_by_what_noise_does(edge):
    assert asked(**edge) == [(0, 0.0), (0, 0.0101), (0, -0.0101)]


def test_an_edge_moves_by_a_half_at_the_most():
    assert asked(2.0, top_p=0.9) == [(0, 0.0), (0, 0.5), (0, -0.5)] and asked(0.4, min_p=0.1)[1] == (0, 0.4918)


def test_a_number_of_tokens_is_one_more_or_less():
    assert asked(top_k=5) == [(5, 0.0), (6, 0.0), (4, 0.0)] and asked(top_k=1) == [(1, 0.0)]


@pytest.mark.parametrize(
    ("uniform", "tokens"),
    [
        (0.0, [0]), (0.2265, [0]), (0.2267, [0, 2]), (0.25, [0, 2]), (0.2733, [0, 2]), (0.2735, [2]), (0.7265, [2]),
        (0.7267, [2, 3]), (0.7733, [2, 3]), (0.7735, [3]), (1.0, [3]),
    ],
)  # fmt: skip
def test_a_number_stands_for_the_tokens_whose_edges_noise_moves_to_it(uniform, tokens):
    """A quarter, a half and a quarter: noise of 0.1 moves either edge by 0.023385, and neither end."""
    weights = np.array([0.25, 0.0, 0.5, 0.25])
    assert _drawn([weights], uniform, 0.1) == tokens
    assert _drawn([weights, np.array([0.0, 1.0, 0.0, 0.0])], uniform, 0.1) == sorted([*tokens, 1])


def test_without_noise_a_number_stands_for_two_tokens_at_an_edge_alone():
    weights = np.array([0.5, 0.0, 0.5])
    found = [_drawn([weights], 0.5 + by, 0.0) for by in (-2 * LEAST, -LEAST, 0, LEAST, 2 * LEAST)]
    assert found == [[0], [0, 2], [0, 2], [0, 2], [2]] and LEAST == 2**-24


P = [0.1, 0.2, 0.3, 0.4]


def outcomes(
    row: int = 0, p=P, drafts=(2, 1), q=None, tokens=(2, 0), target=0.0, drafter=0.0, rule="residual", temperature=1.0,
    accept=0.0, draft=0.0, replace=0.0, drawn=0.0,
) -> set[tuple[int, bool]]:  # fmt: skip
    """What a row may come to by these probabilities (of drafts: of `tokens`), noise of logits and numbers."""
    width = len(drafts) + 1
    uniforms = np.full((len(DRAWS), width), 0.99)
    for what, uniform in (("accept", accept), ("draft", draft), ("replace", replace), ("target", drawn)):
        uniforms[DRAWS.index(what), row] = uniform
    logits = np.log(np.full((width, 4), 0.25))
    logits[row] = np.log(p)
    scored = None if q is None else np.log(np.tile(q, (len(drafts), 1))) * temperature
    seen = SampledRound(7, 1, np.array(drafts), np.array([0] * width), scored, logits * temperature, uniforms)
    vocabulary = DraftVocabulary(np.array(tokens), "as a test has it")
    settings = Sampling(temperature=temperature, rule=rule)
    made = RowOutcomes(seen, row, settings, vocabulary, target, drafter)
    found = {*made.all()}
    assert all(((token, flag) in made) is ((token, flag) in found) for token in range(4) for flag in (True, False))
    return found


@pytest.mark.parametrize(
    ("uniform", "tokens"), [(0.05, {0}), (0.25, {1}), (0.45, {2}), (0.9, {3}), (0.31, {1, 2}), (0.29, {1, 2})]
)
def test_a_row_that_draws_from_the_target_alone_may_come_to_what_its_number_stands_for(uniform, tokens):
    """With drafts that have to match, or behind the last draft: whether it is one of them nobody asks."""
    due = {(token, accepted) for token in tokens for accepted in (True, False)}
    assert outcomes(0, rule="match", drawn=uniform, target=0.01) == due
    assert outcomes(1, rule="match", drawn=uniform, target=0.01) == due
    assert outcomes(2, drawn=uniform, target=0.01) == due
    assert outcomes(2, drawn=uniform, target=0.02, temperature=2.0) == due


@pytest.mark.parametrize(
    ("accept", "due"),
    [
        (0.0, {(2, True)}),
        (0.2796, {(2, True)}),
        (0.2798, {(2, True), (1, False)}),
        (0.3, {(2, True), (1, False)}),
        (0.3217, {(2, True), (1, False)}),
        (0.3218, {(1, False)}),
        (0.99, {(1, False)}),
    ],
)
def test_a_draft_of_a_drafter_without_scores_is_accepted_by_its_share_give_or_take_noise(accept, due):
    """Draft 2 has a chance of 0.3, which seven times 0.01 move by e^0.07; what is left are 1, 2 and 4 sevenths."""
    assert outcomes(accept=accept, replace=0.3, target=0.01) == due
    assert outcomes(accept=accept, replace=0.3, target=0.01, drafter=9.0) == due
    assert outcomes(accept=accept, replace=0.3, target=0.02, temperature=2.0) == due


@pytest.mark.parametrize(
    ("replace", "tokens"),
    [(0.1, {0}), (0.1275, {0}), (0.1277, {0, 1}), (0.158, {0, 1}), (0.1582, {1}), (0.5, {3}), (0.99, {3})],
)
def test_noise_grows_by_what_is_left_for_a_drafts_place(replace, tokens):
    """Of 0.7 that are left: the first edge, at a seventh, moves by 0.07 / 0.7 times 0.1527."""
    assert outcomes(accept=0.9, replace=replace, target=0.01) == {(token, False) for token in tokens}


def test_a_draft_that_the_target_likes_better_is_replaced_within_noise_of_one_alone():
    """p / q is two; the draft's number says token 3."""
    given = dict(q=[0.2, 0.8], tokens=(3, 0), draft=0.1, replace=0.99, target=0.01)
    assert outcomes(accept=0.9323, **given) == {(3, True)}
    assert outcomes(accept=0.9325, **given) == {(3, True), (3, False)}


@pytest.mark.parametrize(
    ("accept", "due"),
    [(0.5215, {(2, True)}), (0.5217, {(2, True), (3, False)}), (0.69, {(2, True), (3, False)}),
     (0.6903, {(3, False)})],
)  # fmt: skip
def test_noise_of_target_and_drafter_is_added(accept, due):
    """Draft 2 has 0.3 of the target's and 0.5 of the drafter's: a ratio of 0.6, which e^0.14 moves."""
    given = dict(q=[0.5, 0.5], draft=0.2, replace=0.9)
    assert outcomes(accept=accept, target=0.01, drafter=0.01, **given) == due
    assert outcomes(accept=accept, target=0.02, drafter=0.02, temperature=2.0, **given) == due


@pytest.mark.parametrize(
    ("draft", "tokens"), [(0.2, {2}), (0.47, {2, 0}), (0.53, {2, 0}), (0.8, {0}), (0.46, {2}), (0.54, {0})]
)
def test_drafts_are_those_that_their_own_number_may_stand_for(draft, tokens):
    """Halves, whose edge noise of 0.1 moves by 0.0354."""
    found = outcomes(q=[0.5, 0.5], draft=draft, accept=0.0, drafter=0.1 / 7)
    assert found == {(token, True) for token in tokens}


def test_a_draft_of_which_the_drafter_has_no_share_is_accepted_wherever_the_target_has_one():
    """Of the best three draft tokens the number says 3, of the best two 1: each has nothing among fewer."""
    numbers = np.full((len(DRAWS), 2), 0.95)
    drafts = np.log([[0.5, 0.3, 0.2]])
    seen = SampledRound(7, 1, np.array([3]), np.array([0, 0]), drafts, np.log([P, P]), numbers)
    made = RowOutcomes(seen, 0, Sampling(top_k=2), DraftVocabulary(np.array([0, 1, 3]), ""), 0.0, 0.0)
    assert {*made.all()} == {(3, True), (3, False), (1, True)}
