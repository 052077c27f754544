"""Made-up rounds and ties, by hand: what a device is given, what it goes on with, and in how many columns it ties."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import Inconclusive
from parity.gates.made_up import AcceptRuleResult, MadeUpRound, TieTap, agreements, cuts, try_accept_rule

IDS, EOS = (3, 5, 3, 9, 5), (9,)


class Accepting:
    """A device whose verify returns and whose commit emits what it is told; `taps` whether it shows its tokens."""

    def __init__(self, first: int = 5, returns=None, emits=None, taps: bool = True):
        self.first, self.returns, self.emits, self.taps, self.calls = first, returns, emits, taps, []

    def describe(self):
        return SimpleNamespace(eos=EOS)

    def prefill(self, ids, budget, tap):
        self.calls.append((tuple(ids), budget))
        return self.first

    def draft(self, tap):
        return np.zeros(2, np.int64)

    def verify(self, drafts, tap):
        own = np.full(len(drafts) + 1, 7)
        shown = tap("verify.tokens", own) if self.taps else own
        return shown if self.returns is None else np.array(self.returns)

    def commit(self, drafts, tokens, tap):
        return list(tokens[: self.emits]) if isinstance(self.emits, int) else self.emits


ROUND = MadeUpRound((3, 5), (3, 5, 3), 9)


def tried(*rounds: MadeUpRound, **how) -> AcceptRuleResult:
    return try_accept_rule(Accepting(**how), IDS, rounds or (ROUND,))


def test_what_comes_out_is_judged_by_the_rule_and_told():
    assert tried(emits=3) == AcceptRuleResult(1, ())
    found = tried(ROUND, MadeUpRound((3, 5), (5, 5, 3), 9), emits=3)
    said = "drafts [3, 5], chosen [5, 5, 3], 9 left: [5, 5, 3], not [5]"
    assert (found.rounds, found.wrong) == (2, (said,))
    assert tried(MadeUpRound((3, 5), (3, 5, 3), 2), emits=2).wrong == ()


def test_the_sequence_has_one_token_more_than_the_round_leaves():
    device = Accepting(emits=3)
    try_accept_rule(device, IDS, (ROUND,))
    assert device.calls == [(IDS, 10)]


def test_a_device_that_goes_on_with_its_own_tokens_shows_nothing():
    with pytest.raises(Inconclusive, match=r"^the short prompt ends at its first token$"):
        tried(first=9, emits=3)
    with pytest.raises(Inconclusive, match=r"^the device does not continue with the tokens that the tap returns$"):
        tried(returns=[3, 5, 4], emits=3)
    unseen = "^the device does not commit the tokens that it is given, and hands none to the tap$"
    with pytest.raises(Inconclusive, match=unseen):
        tried(taps=False, emits=[7, 7, 7])
    assert tried(taps=False, emits=3).wrong == ()  # it commits what it is given, whatever verify returned
    assert len(tried(emits=[7, 7, 7]).wrong) == 1  # its verify went on with them: commit is wrong


def test_rounds_of_every_agreement_and_every_cut():
    rounds = [*agreements(IDS, 2, EOS)]
    assert rounds[0] == MadeUpRound((), (3,), 6) and {one.tokens for one in rounds[1:]} == {(3, 5, 3)}
    assert [one.drafts for one in rounds[1:]] == [(3, 5), (3, 3), (5, 5), (5, 3)] and {one.left for one in rounds} == {
        6
    }
    ends = [((9, 5), (9, 5, 3)), ((3, 9), (3, 9, 3)), ((3, 5), (3, 5, 9))]
    due = [MadeUpRound((3, 5), (3, 5, 3), left) for left in (1, 2, 3)] + [MadeUpRound(*one, 6) for one in ends]
    assert [*cuts(IDS, 2, EOS)] == due and [*cuts((3, 5), 2, ())] == due[:3]
    with pytest.raises(Inconclusive, match=r"^the prompt has no two tokens to make rounds of$"):
        [*cuts((3, 9, 3), 2, EOS)]


def test_two_or_three_columns_of_every_row_hold_the_same_largest_value():
    tap = TieTap("verify", np.random.default_rng(3))
    given = -np.arange(40, dtype=np.float32).reshape(20, 2).repeat(4, axis=1)
    before = given.copy()
    tied = tap("verify.logits", given)
    assert (given == before).all() and len(tap.columns) == 20
    for row, columns in enumerate(tap.columns):
        largest = float(np.abs(given[row]).max() + 1)
        assert set(np.flatnonzero(tied[row] == largest)) == columns and tied[row].max() == largest
        others = [column for column in range(8) if column not in columns]
        assert (tied[row][others] == given[row][others]).all()
    assert {len(columns) for columns in tap.columns} == {2, 3}


def test_other_stages_are_left_as_they_are_and_the_tokens_kept():
    tap = TieTap("verify", np.random.default_rng(3))
    rows, tokens = np.ones((2, 4), np.float32), np.array([1, 2])
    assert tap("target.logits", rows) is rows and not tap.columns
    assert tap("verify.tokens", tokens).tolist() == [1, 2] and tap.seen["verify.tokens"].tolist() == [1, 2]
