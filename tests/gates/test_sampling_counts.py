"""Sampling by hand: ranks, shares and their bounds, what decisions come to, and rules wrong by a known share."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.compare.sampling.oracle import processed, residual, round_outcomes
from parity.compare.sampling.replay import MARGIN, rounding
from parity.compare.sampling.round import SampledRound
from parity.compare.vocabulary import DraftVocabulary
from parity.gates.sampling import rule as rules
from parity.gates.sampling import steered
from parity.gates.sampling.counts import CountLine, Counts, _bound, _distance, rank
from parity.gates.sampling.verdict import judged
from parity.seam import DRAWS, Sampling

HALF = SimpleNamespace(random=lambda: 0.5)
P = np.array([[0.5, 0.2, 0.2, 0.1], [0.4, 0.4, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]])
Q = np.array([[0.25, 0.25, 0.25, 0.25], [0.1, 0.1, 0.4, 0.4]])


@pytest.mark.parametrize(("token", "due"), [(0, 0.25), (1, 0.6), (2, 0.8), (3, 0.95)])
def test_a_rank_counts_likelier_tokens_and_equal_ones_of_lower_ids(token, due):
    assert rank(P[0], token, HALF) == pytest.approx(due)


def round_of(kept: int, emitted=None, number: int = 1) -> SimpleNamespace:
    """Two drafts, of which so many were accepted; what came behind them is token 0."""
    tokens = np.zeros(3, np.int64)
    return SimpleNamespace(
        round=number, kept=kept, tokens=tokens, drafts=np.zeros(2, np.int64), p=lambda settings: P,
        q=lambda settings, vocabulary: Q, emitted=[range(kept + 1 if emitted is None else emitted)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "due"), [("residual", [0.25 + 0.2 + 0.2 + 0.1, 0.1 + 0.1 + 0.1 + 0.1]), ("match", [0.25, 0.16])]
)
def test_drafts_count_up_to_the_first_rejected_one_with_what_is_due_of_each(rule, due):
    for kept, accepted in ((0, [False]), (1, [True, False]), (2, [True, True])):
        count = Counts()
        count.add(round_of(kept), Sampling(rule=rule), None, HALF)
        assert {place: [came for came, _ in pairs] for place, pairs in count.accepted.items()} == dict(
            enumerate([one] for one in accepted)
        )
        assert [pairs[0][1] for pairs in count.accepted.values()] == pytest.approx(due[: len(accepted)])
        assert count.ranks == {row: [pytest.approx(P[row, 0] / 2)] for row in range(kept + 1)}


def test_tokens_that_were_not_emitted_do_not_count_and_a_prefill_has_one():
    count = Counts()
    count.add(round_of(2, emitted=1), Sampling(), None, HALF)
    assert list(count.ranks) == [0] and list(count.accepted) == [0, 1]
    prefill = round_of(0, emitted=0, number=0)
    prefill.drafts = prefill.drafts[:0]
    count.add(prefill, Sampling(), None, HALF)
    assert len(count.ranks[0]) == 2 and len(count.accepted[0]) == 1


@pytest.mark.parametrize(
    ("ranks", "distance"), [([0.5], 0.5), ([0.9], 0.9), ([0.1], 0.9), ([0.2, 0.1], 0.8), ([0.25, 0.75], 0.25)]
)
def test_the_distance_is_the_largest_on_either_side_of_a_step(ranks, distance):
    assert _distance(ranks) == pytest.approx(distance)


def test_each_position_has_a_line_and_the_last_one_stands_for_what_is_behind():
    count = Counts()
    for place, ranks in ((2, [0.5, 0.5]), (0, [0.5])):
        count.ranks[place] = ranks
    count.accepted[1] = [(True, 0.5), (True, 0.25), (False, 0.75), (False, 0.1)]
    assert [str(line) for line in count.lines()] == [
        "tokens, position 0, 1 samples: off by 0.500, bound 2.693",
        "tokens, position 2 and on, 2 samples: off by 0.500, bound 1.905",
        "drafts accepted, position 1: 0.500, due 0.400, 4 samples: off by 0.100, bound 1.347",
    ]
    assert next(count.lines()) == CountLine("tokens, position 0", 1, 0.5, pytest.approx(np.sqrt(np.log(2e6) / 2)))
    assert _bound(400) == pytest.approx(0.13466, rel=1e-4)


def decision(right=True, close=False, what="target", edge=1.0, slack=1e-6, round_=1) -> SimpleNamespace:
    class Told(SimpleNamespace):
        def __str__(self):
            return f"{what} of round {round_}"

    return Told(
        right=right, close=close, what=what, edge=edge, slack=slack, round=SimpleNamespace(round=round_, prompt=3)
    )


def seen(tokens=(5, 6, 7), drafts=(5, 9), emitted=((5, 6), (5, 6)), width=100, number=1) -> SimpleNamespace:
    return SimpleNamespace(
        logits=np.zeros((len(tokens), width)), tokens=np.array(tokens), drafts=np.array(drafts), emitted=emitted,
        round=number,
    )  # fmt: skip


MADE = [decision(), decision(what="accept"), decision()]


def test_decisions_that_are_all_right_are_counted():
    edge = 2 * MARGIN * 1e-6
    again = [decision(edge=edge), decision(edge=1.01 * edge), decision(edge=0.0), decision(close=True)]
    found = judged("a name", [seen(), seen(tokens=(5, 9, 7), width=400)], MADE, again, 17)
    assert (found.name, found.verdict, found.place) == ("a name", "pass", None)
    assert found.figures == {
        "decisions": {"target": 2, "accept": 1}, "again": 4, "near": 2, "close": 1, "wrong": 0,
    }  # fmt: skip
    margin = MARGIN * rounding(400)
    assert found.evidence == (
        "2 rounds, 3 decisions (target 2, accept 1; 3 accepted) and 4 again, 2 of them at an edge: "
        f"a shift of {margin:.1g} shows; 1 within rounding; seed 17"
    )


@pytest.mark.parametrize(
    ("what", "round_", "stage"),
    [("draft", 1, "drafter.draft_tokens"), ("accept", 2, "verify.tokens"), ("target", 0, "target.tokens")],
)
def test_the_first_wrong_decision_is_told_and_placed_and_each_kind_counted(what, round_, stage):
    made = [decision(), decision(False, what=what, round_=round_), decision(False, what="replace")]
    found = judged("a name", [seen(emitted=((5,), (5, 6)))], made, [decision(False, what="replace")], 17)
    assert found.verdict == "fail" and found.place == Place(stage, None, 3, round_) and found.figures["wrong"] == 3
    assert found.evidence.startswith(f"{what} of round {round_}; wrong are 1 of {what}, 2 of replace; 1 rounds, ")


def test_what_is_emitted_is_compared_with_what_is_due_in_the_first_round_that_parts():
    rounds = [seen(), seen(emitted=((5,), (5, 6)), number=2), seen(emitted=((6,), (5, 7)), number=3)]
    found = judged("a name", rounds, MADE, [], 17)
    assert found.verdict == "fail" and found.evidence.startswith("round 2 emits [5], [5, 6] is due; 3 rounds, ")


def test_rounds_without_a_draft_or_with_too_many_close_numbers_say_nothing():
    none = seen(tokens=(5,), drafts=(), emitted=((5,), (5,)))
    found = judged("a name", [none], MADE, [], 17)
    assert found.verdict == "inconclusive" and found.evidence.startswith("no round has a draft; 1 rounds, ")
    assert judged("a name", [none, seen()], MADE, [], 17).verdict == "pass"
    close = [decision(close=True)] * 5
    for far, verdict in ((95, "pass"), (94, "inconclusive")):
        found = judged("a name", [seen()], close[:2], close[2:] + [decision()] * far, 17)
        assert found.verdict == verdict and found.figures["close"] == 5
    assert found.evidence.startswith("too many decisions within rounding; 1 rounds, ")


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        ([{"bonus": [decision()]}, {"bonus": [decision()], "replacement": [decision()]}], "pass",
         "bonus tokens 2, in place of a draft 1, none of them the likeliest, each what its number calls for; seed 5"),
        ([{"bonus": [decision()]}], "not judged",
         "not exercised: no round leaves a choice of replacement; "
         "bonus tokens 1, in place of a draft 0, none of them the likeliest; seed 5"),
        ([{}], "not judged",
         "not exercised: no round leaves a choice of bonus or replacement; "
         "bonus tokens 0, in place of a draft 0, none of them the likeliest; seed 5"),
        ([{"bonus": [decision(), decision(False)]}, {"bonus": [decision(False, round_=2)]}], "fail",
         "target of round 1; 2 wrong; bonus tokens 2, in place of a draft 0, none of them the likeliest; seed 5"),
    ],
)  # fmt: skip
def test_steered_decisions_come_to_one_check(found, verdict, said):
    check = steered.check_of("steered", found, 5)
    assert (check.verdict, check.evidence) == (verdict, said)


WHOLE = DraftVocabulary(np.arange(4), "")


def sampled(p, q, drafts, number=1) -> SampledRound:
    logits = [np.log(np.array(rows, np.float32)) for rows in (p, q)]
    return SampledRound(0, number, np.array(drafts), np.zeros(3, np.int64), logits[1], logits[0], np.zeros((4, 3)))


TABLE = np.full((3, 4, 3), 0.125, np.float32)
ACCEPT, REPLACE, TARGET = (DRAWS.index(what) for what in ("accept", "replace", "target"))


@pytest.mark.parametrize("rule", ["residual", "match"])
def test_a_round_is_steered_to_the_second_likeliest_bonus_token(rule):
    seen_ = sampled([[0.5, 0.2, 0.2, 0.1], [0.4, 0.4, 0.1, 0.1], [0.1, 0.5, 0.3, 0.1]], Q, [1, 0])
    table = steered.steered(seen_, Sampling(rule=rule), WHOLE, TABLE, 2)
    due = TABLE.copy()
    due[1, TARGET, 2] = 0.1 + 0.5 + 0.15
    if rule == "match":
        due[1, TARGET, :2] = 0.5 + 0.1, 0.2
    else:
        due[1, ACCEPT, :2] = 0
    assert table == pytest.approx(due) and (TABLE == 0.125).all()


def test_a_rejected_draft_gives_way_to_the_second_likeliest_token_that_is_left():
    seen_ = sampled([[0.45, 0.35, 0.1, 0.1], P[1], P[2]], [[0.2, 0.2, 0.5, 0.1], Q[1]], [2, 0])
    table = steered.steered(seen_, Sampling(), WHOLE, TABLE, 0)
    due = TABLE.copy()
    due[1, ACCEPT, 0], due[1, REPLACE, 0] = 1 - 2.0**-24, (0.25 + 0.15 / 2) / 0.4
    assert table == pytest.approx(due, rel=1e-6) and table[1, ACCEPT, 0] < 1
    table = steered.steered(seen_, Sampling(rule="match"), WHOLE, TABLE, 0)
    due = TABLE.copy()
    due[1, TARGET, 0] = 0.45 + 0.35 / 2
    assert table == pytest.approx(due, rel=1e-6)


@pytest.mark.parametrize(
    ("p", "q", "drafts", "kept", "rule"),
    [
        ([[1, 0, 0, 0], P[1], P[2]], Q, [1, 0], 2, "residual"),  # the target never accepts this draft
        ([P[0], [1, 0, 0, 0], P[2]], Q, [1, 1], 2, "match"),
        ([P[0], P[1], [0, 0, 1, 0]], Q, [1, 0], 2, "residual"),  # no other bonus token
        ([[0.25, 0.25, 0.25, 0.25], P[1], P[2]], [[0.25, 0.25, 0.25, 0.25], Q[1]], [1, 0], 0, "residual"),
        ([[0.9, 0.1, 0, 0], P[1], P[2]], [[0, 1, 0, 0], Q[1]], [1, 0], 0, "residual"),  # one token is left
        ([[0.9, 0.1, 0, 0], P[1], P[2]], [[0, 0, 1, 0], Q[1]], [1, 0], 0, "residual"),  # a draft that q never draws
        ([[0.9, 0.1, 0, 0], P[1], P[2]], Q, [1, 0], 0, "match"),  # the other one is the draft
    ],
)
def test_a_round_that_leaves_no_such_choice_is_not_steered(p, q, drafts, kept, rule):
    with np.errstate(divide="ignore"):
        assert steered.steered(sampled(p, q, drafts), Sampling(rule=rule), WHOLE, TABLE, kept) is None


def round_at(number: int, drafts: int, emitted: int) -> SimpleNamespace:
    return SimpleNamespace(
        round=number, drafts=np.zeros(drafts, int), emitted=(list(range(emitted)), [0] * 9), draft_logits=None
    )


ROUNDS = [round_at(0, 0, 0), round_at(1, 2, 2), round_at(2, 3, 1), round_at(3, 2, 3)]


def test_the_first_round_that_can_be_steered_is_played_to_its_end(monkeypatch):
    """Of bonus tokens the third round, of replacements the second one."""
    asked, played = [], []

    def steer(seen, settings, vocabulary, table, kept):
        asked.append((seen.round, kept))
        return f"numbers of {seen.round}" if (seen.round, kept) in ((2, 3), (1, 0)) else None

    monkeypatch.setattr(steered, "steered", steer)
    monkeypatch.setattr(steered, "decisions", lambda last, settings, vocabulary: [last, last])
    found = steered.made(ROUNDS, None, None, None, lambda *of: played.append(of) or list("abcde"))
    assert asked == [(1, 2), (2, 3), (1, 0)]
    # Behind prefill's token and two more three drafts and a bonus token have room; behind prefill's two and one.
    assert played == [("numbers of 2", 3 + 3 + 1), ("numbers of 1", 1 + 2 + 1)]
    assert found == {"bonus": [*"ccddee"], "replacement": [*"bbccddee"]}
    monkeypatch.setattr(steered, "steered", lambda *of: None)
    assert steered.made(ROUNDS, None, None, None, None) == {}


def test_for_a_bonus_token_a_round_with_likely_drafts_is_tried_last():
    p = np.array([[0.5, 0.2, 0.2, 0.1], [0.1, 0.1, 0.1, 0.7], [0.25] * 4])
    q = np.array([[0.1, 0.6, 0.2, 0.1], [0.4, 0.1, 0.4, 0.1]])
    first, played = sampled(p, q, [0, 0]), []

    def play(table, budget):
        played.append((table.copy(), budget))
        return [None, first]

    rounds = [round_at(0, 0, 0), first]
    found = list(steered._candidates("bonus", rounds, Sampling(), WHOLE, TABLE, play))
    assert found[0][0] is first and found[0][1] is TABLE and len(found) == 2 and found[1][0] is first
    due = TABLE.copy()
    due[1, DRAWS.index("draft"), :2] = 0.1 + 0.6 / 2, 0.9 + 0.1 / 2  # p q is largest for 1, then for 3
    assert found[1][1] == pytest.approx(due) and [budget for _, budget in played] == [4, 4, 4]
    assert [len(list(steered._candidates(*of, Sampling(), WHOLE, TABLE, play))) for of in (
        ("replacement", rounds), ("bonus", rounds[:1]), ("bonus", ROUNDS),
    )] == [1, 0, 3]  # fmt: skip


class Deciding:
    """The rule in float64, by its equations; `wrong` changes what comes out."""

    def __init__(self, wrong=lambda ids, drafts: ids):
        self.wrong = wrong

    def decide(self, settings, target, draft, drafts, uniforms):
        p, q, count = processed(target, settings), processed(draft, settings), drafts.shape[1]
        ids, every = np.zeros((len(drafts), count + 1), np.int64), np.arange(len(drafts))
        for row in range(count + 1):
            drawn = _drawn(p[:, row], uniforms[:, TARGET, row])
            if row < count and settings.rule == "residual":
                mine, theirs = (side[every, row, drafts[:, row]] for side in (p, q))
                kept = uniforms[:, ACCEPT, row] * theirs < mine
                other = _drawn(residual(p[:, row], q[:, row]), uniforms[:, REPLACE, row])
                drawn = np.where(kept, drafts[:, row], other)
            ids[:, row] = drawn
        return self.wrong(ids, drafts)


def _drawn(weights, uniforms):
    return np.minimum((np.cumsum(weights, axis=1) <= uniforms[:, None]).sum(axis=1), weights.shape[1] - 1)


@pytest.mark.parametrize(("rule", "points"), [("residual", 4**4 * 8), ("match", 8**3)])
def test_a_rule_by_its_equations_is_right_on_every_point_of_the_grid(rule, points):
    count, worst = rules.whole_rounds(Deciding(), Sampling(rule=rule))
    assert count == points * 16 and worst.by < rules.EXACT


@pytest.mark.parametrize("rule", ["residual", "match"])
def test_a_rule_that_never_accepts_is_off_by_the_likeliest_outcome(rule):
    """Token 3 whatever was drawn: where that is not the draft, alone."""
    _, worst = rules.whole_rounds(Deciding(lambda ids, drafts: ids * 0 + 3), Sampling(rule=rule))
    due = round_outcomes(rules.P, rules.Q, rule)
    came = {(3,): 7 / 8, (3, 3): 1 / 8 * 3 / 4, (3, 3, 3): 1 / 8 * 1 / 4}
    off = {one: abs(came.get(one, 0) - due.get(one, 0)) for one in {**came, **due}}
    assert worst.by == pytest.approx(max(off.values())) and worst.by == off[3,] and worst.due == due[3,]
    assert str(worst) == (
        f"0 accepted ([]), then token 3 in position 0: 0.875000 of the outcomes instead of {due[3,]:.6f}"
    )
    assert rules._emitted((1, 2, 3)) == "2 accepted ([1, 2]), then token 3 in position 2"


@pytest.mark.parametrize(("rule", "shares"), [("match", 3 * 8), ("residual", 8)])
def test_shares_on_a_fine_grid_are_right_by_the_equations(rule, shares, monkeypatch):
    monkeypatch.setattr(rules, "FINE", 256)
    count, worst = rules.fine_shares(Deciding(), Sampling(rule=rule), 3)
    assert worst.by < 1 / 256 + 1e-5 and (count == shares if rule == "match" else count > shares + 16)


@pytest.mark.parametrize("rule", ["residual", "match"])
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 0.7, "top_k": 3}])
def test_shares_are_right_where_most_tokens_are_out_of_the_question(rule, settings, monkeypatch):
    monkeypatch.setattr(rules, "FINE", 256)
    settings = Sampling(rule=rule, **settings)
    count, worst = rules.fine_shares(Deciding(), settings, 3)
    assert worst.by < 1 / 256 + 1e-5
    p, q = (processed(rows, settings) for rows in rules.made_up(3))
    leads = rules._leads(p, q)
    assert all(p[row, lead] == np.where(q[row] > 0, p[row], 0).max() > 0 for row, lead in enumerate(leads))
    assert len(leads) == 2 or not np.where(q[len(leads)] > 0, p[len(leads)], 0).any()
    reached = len(leads) + 1
    rejected = [1 + 8 * (p[row, token] < q[row, token]) for row in range(min(reached, 2))
                for token in np.flatnonzero(q[row])]  # fmt: skip
    assert count == (8 * reached if rule == "match" else 8 * (reached == 3) + sum(rejected))


@pytest.mark.parametrize(
    ("rule", "wrong", "rows"),
    [
        ("match", lambda ids, drafts: ids[:, [0, 0, 2]], {"row 1, drawn"}),
        ("residual", lambda ids, drafts: np.where(ids[:, :1] == drafts[:, :1], ids, 5), {"row 0, draft", "row 0, in"}),
        ("residual", lambda ids, drafts: np.c_[drafts[:, 0], ids[:, 1:]], {"row 0, draft", "row 0, in"}),
        ("residual", lambda ids, drafts: np.c_[ids[:, :2], ids[:, 2] * 0], {"row 2, drawn"}),
    ],
)
def test_a_share_that_is_wrong_is_named_by_its_row_and_what_was_decided(rule, wrong, rows, monkeypatch):
    monkeypatch.setattr(rules, "FINE", 256)
    every = list(rules._fine(Deciding(wrong), Sampling(rule=rule), *rules.made_up(3)))
    off = [one for one in every if one.by > 1 / 256 + 1e-5]
    assert {" ".join(one.what.split()[:3]) for one in off} == rows
    count, worst = rules.fine_shares(Deciding(wrong), Sampling(rule=rule), 3)
    assert count == len(every) and worst.by == max(one.by for one in off)
