"""Logits of which the best are kept alone, by hand: their divergence, a logit that is not kept, and unknown choices."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import best_logits
from parity.compare.best_logits import divergence, unknown_choices


def kept(*shares: float) -> list[float]:
    """Logits of these shares, and their log-sum-exp: that of all columns is 2."""
    return [*(np.log(share) + 2 for share in shares), 2.0]


def test_equal_rows_diverge_by_nothing_and_no_row_by_none():
    same = np.array([kept(0.5, 0.25), kept(0.75, 0.125)])
    assert divergence(same, same) == 0 and divergence(np.zeros((0, 3)), np.zeros((0, 3))) == 0


def test_the_rest_counts_as_one_token_and_the_worst_row_is_told():
    golden = np.array([kept(0.5, 0.25), kept(0.75, 0.125)])
    device = np.array([kept(0.25, 0.25), kept(0.75, 0.125)])
    due = 0.5 * np.log(2) + 0.25 * np.log(0.25 / 0.5)
    assert divergence(golden, device) == pytest.approx(due) == divergence(golden[::-1], device[::-1])
    assert divergence(device, golden) == pytest.approx(0.25 * np.log(0.5) + 0.5 * np.log(2))


def test_a_rest_of_nothing_is_a_trillionth():
    """The golden's two tokens are all there is; of the device's the first has half, the second as good as nothing."""
    golden, device = np.array([kept(0.5, 0.5)]), np.array([kept(0.5, 0.25)])
    assert divergence(golden, device) == pytest.approx(0.5 * np.log(2), abs=1e-9)
    assert divergence(device, golden) == pytest.approx(0.25 * np.log(0.5) + 0.25 * np.log(0.25e12))


def test_a_share_above_one_is_one_and_what_is_no_number_diverges_without_end():
    beyond = np.array([[5.0, -900.0, 2.0]])  # a logit above its own log-sum-exp
    assert divergence(np.array([kept(0.5, 0.25)]), beyond) == pytest.approx(
        0.5 * np.log(0.5) + 0.25 * np.log(0.25e300) + 0.25 * np.log(0.25e12)
    )
    assert divergence(np.array([kept(0.5, 0.25)]), np.array([[np.nan, 1.0, 2.0]])) == np.inf
    nothing = np.array([[-np.inf, np.log(1.0) + 2, 2.0]])
    assert divergence(nothing, nothing) == pytest.approx(0, abs=1e-9)


@pytest.fixture
def unknown(monkeypatch):
    """How many rows of these choices are unknown, where columns 4 and 2 are kept of six, their logits `gap` apart."""
    monkeypatch.setattr(best_logits, "row_noise", lambda scores: np.full(len(scores.golden), 0.1))
    monkeypatch.setattr(best_logits, "NOISE_SIGMAS", 5.0)
    monkeypatch.setattr(best_logits, "ulp", lambda best: np.full(len(best), ulps[0]))
    ulps = [0.0]

    def count(device, gap: float = 0.5, golden=4, tie: float = 0.0, side: str = "target", **changes) -> int:
        ulps[0] = tie
        device, scores = np.atleast_1d(device), np.zeros((np.size(device), 6))
        scores[:, 4], scores[:, 2] = 8.0, 8.0 - gap
        rows = SimpleNamespace(
            golden=np.full(len(device), golden), device=device, source=None,
            named=SimpleNamespace(stage=SimpleNamespace(side=side)),
        )  # fmt: skip
        of = SimpleNamespace(golden=scores, known=np.tile([4, 2], (len(device), 1)))
        vars(rows).update({name: value for name, value in changes.items() if name == "rows"})
        vars(of).update({name: value for name, value in changes.items() if name != "rows"})
        return unknown_choices(rows, of)

    return count


def test_a_choice_that_is_not_kept_is_unknown_within_noise_or_a_tie(unknown):
    assert unknown([1, 3, 0, 4, 2]) == 3
    assert (unknown(1, gap=0.5), unknown(1, gap=0.5625), unknown(1, gap=0.5625, tie=0.5625)) == (1, 0, 1)
    assert unknown(1, golden=1) == 0  # it is the golden's choice
    assert unknown(1, known=None) == 0


def test_ids_of_a_drafter_are_asked_by_their_columns(unknown, monkeypatch):
    vocabulary = SimpleNamespace(columns=lambda ids: ids - 100)
    monkeypatch.setattr(best_logits, "draft_vocabulary", lambda source, scores, rows: vocabulary)
    assert (unknown(np.array([104, 102, 101]), side="drafter"), unknown(np.array([104, 102, 101]))) == (1, 3)
    assert unknown(np.array([4, 1]), golden=4, side="verify") == 1
