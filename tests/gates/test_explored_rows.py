"""Which histories are played and why it ends, by hand: the plain cases, disturbances, changes of K, and the blame."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.gates.rollback import explore
from parity.gates.rollback.explore import Exploration, _budget, _cases, _changes, _plain, judge_history
from parity.gates.rollback.history import NAN, SENTINEL, RoundPlan, SequencePlan, TapError
from parity.gates.rollback.invariants import InvariantBroken


def player(k: int = 2, varies: bool = False, asked=(17, 9), transactional: bool = True, breaks=lambda history: None):
    """A player of two prompts; `breaks` says what a history breaks."""
    baselines = [SimpleNamespace(ids=(0,) * 3, asked=count) for count in asked]
    device = SimpleNamespace(describe=lambda: SimpleNamespace(transactional=transactional))
    made = SimpleNamespace(k=k, varies=varies, baselines=baselines, device=device, histories=[])

    def play(history) -> None:
        made.histories.append(history)
        if (wrong := breaks(history)) is not None:
            raise wrong

    made.play = play
    return made


def test_a_round_of_each_count_from_the_shortest_prompt_and_two_from_the_longest():
    rounds = [RoundPlan(right, 2) for right in (0, 1, 2)]
    one, two = [(SequencePlan(0, 15, (r,)),) for r in rounds], [(SequencePlan(1, 15, (r, r)),) for r in rounds]
    assert _plain(player()) == one + two


@pytest.mark.parametrize(("asked", "k", "budget"), [((17, 9), 2, 15), ((9, 17), 4, 13), ((5,), 2, 3), ((3, 3), 4, 2)])
def test_the_longest_budget_leaves_a_whole_rounds_tokens_and_is_2_at_the_least(asked, k, budget):
    assert _budget(player(k=k, asked=asked)) == budget


def test_each_disturbance_is_played_once_between_an_accepted_and_a_rejected_draft():
    poisoned = [RoundPlan(1, 2, rehearsed=True, poison=value) for value in (NAN, SENTINEL)]
    verbs = ("prefill", "draft", "verify", "commit")
    failing = [RoundPlan(1, 2, error=TapError(verb, at)) for verb in verbs for at in (500, 999)]

    def middles(poisons: bool, errors: bool) -> list[RoundPlan]:
        cases = _cases(player(), poisons, errors)[6:]
        assert {(plan.start, plan.budget) for (plan,) in cases} <= {(1, 15)}
        assert all(one[0].rounds[0] == RoundPlan(1, 2) and one[0].rounds[2] == RoundPlan(0, 2) for one in cases)
        return [one[0].rounds[1] for one in cases]

    assert middles(False, False) == [] and middles(True, False) == poisoned and middles(False, True) == failing
    assert middles(True, True) == poisoned + failing


def test_k_drops_to_each_smaller_one_and_rises_again():
    most, none = RoundPlan(3, 3), RoundPlan(0, 0, asked=0)
    one, two = RoundPlan(1, 1, asked=1), RoundPlan(2, 2, asked=2)
    assert _changes(3) == [
        (most, none, most), (none, none, RoundPlan(1, 3)), (most, one, most), (most, two, most),
    ]  # fmt: skip
    assert _changes(1) == [(RoundPlan(1, 1), none, RoundPlan(1, 1)), (none, none, RoundPlan(1, 1))]
    varied = _cases(player(k=3, varies=True), False, False)[8:]
    assert [one[0].rounds for one in varied] == _changes(3) and {one[0].start for one in varied} == {1}
    assert len(_cases(player(k=3), False, False)) == 8


def broken(aspect: str) -> InvariantBroken:
    return InvariantBroken(aspect, f"{aspect} broke")


def disturbed(history) -> tuple[bool, bool, bool]:
    """Whether a history has errors, poison or rehearsals."""
    rounds = [round_ for sequence in history for round_ in sequence.rounds]
    return tuple(any(getattr(one, name) for one in rounds) for name in ("error", "poison", "rehearsed"))


ALL = (SequencePlan(0, 15, (RoundPlan(1, 2, rehearsed=True, poison=SENTINEL, error=TapError("draft", 500)),)),)


@pytest.mark.parametrize(
    ("breaks", "aspect", "plays"),
    [
        (lambda history: None, None, 1),
        (lambda history: broken(explore.STATE), explore.STATE, 2),
        (lambda history: broken(explore.ROWS) if disturbed(history)[2] else None, explore.ERRORS, 3),
        (lambda history: broken(explore.ROWS) if disturbed(history)[1] else None, explore.POISON, 4),
        (lambda history: broken(explore.ROWS) if disturbed(history)[0] else None, explore.ERRORS, 4),
    ],
)
def test_the_blame_falls_on_the_least_disturbance_that_breaks(breaks, aspect, plays):
    """Undisturbed it is the invariant's own aspect; poison and errors are blamed where a calmer history passes."""
    made = player(breaks=breaks)
    failure = judge_history(made, ALL)
    assert (failure and failure.aspect) == aspect and len(made.histories) == plays
    if failure:
        assert failure.message.endswith(" broke")


@pytest.fixture
def search(monkeypatch):
    """Explore with cases and random tries that fail as told; returns the exploration and how often was searched."""
    monkeypatch.setattr(explore, "Poisonable", SimpleNamespace)

    def run(first=(), found=(), count: int = 5, each: int = 1, transactional: bool = True):
        firsts, tries, told = iter(first), iter(found), []
        searched = []

        def drawn(exploration, wanted, random):
            searched.append(random.random())
            for extra in range(each):
                exploration.begin((len(searched), extra))
            return next(tries, None)

        monkeypatch.setattr(explore, "_first", lambda exploration: next(firsts, None))
        monkeypatch.setattr(explore, "_search", drawn)
        made = explore.explore(player(transactional=transactional), count, 3, lambda *said: told.append(said), "what")
        return made, searched, told

    return run


def failure(aspect: str) -> explore.Failure:
    return explore.Failure(aspect, "line", "message", None)


def test_it_is_searched_until_enough_were_played_or_eight_times(search):
    made, searched, told = search()
    assert len(searched) == 5 and not made.failures and told[0] == (0, 5, "what") and told[-1] == (5, 5, "")
    assert [said[0] for said in told] == [0, 1, 2, 3, 4, 5]
    assert len(search(each=2)[1]) == 3 and len(search(each=0)[1]) == 8 and len(search(count=0)[1]) == 0


def test_a_failure_without_a_disturbance_ends_it_and_others_begin_anew(search):
    wrong, searched, _ = search(first=[failure(explore.STATE)])
    assert [*wrong.failures] == [explore.STATE] and not searched and wrong.wrong is wrong.failures[explore.STATE]
    made, searched, _ = search(first=[failure(explore.ERRORS)], found=[None, failure(explore.POISON)])
    assert [*made.failures] == [explore.ERRORS, explore.POISON] and not (made.poisons or made.errors)
    assert len(searched) == 2 + 5 and searched[:2] == searched[2:4]  # the same histories once more
    assert made.wrong is None and made.failures[explore.POISON].number == 2


def test_what_cannot_be_called_again_is_not_disturbed(search):
    assert [(one.poisons, one.errors) for one in (search()[0], search(transactional=False)[0])] == [
        (True, True), (False, False),
    ]  # fmt: skip


def test_the_first_failure_of_an_aspect_is_kept():
    made = Exploration(None, poisons=True)
    made.played.update((1, 2, 3))
    for line in ("first", "second"):
        made.add(explore.Failure(explore.ERRORS, line, "message", None))
    assert made.failures[explore.ERRORS].history == "first" and made.failures[explore.ERRORS].number == 3
    assert made.poisons is False  # it failed twice: its way of disturbing is left out
