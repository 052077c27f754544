"""Lifecycles by hand: which cases are played, and what they come to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.errors import DeviceFailed, NotOffered, UsageError
from parity.gates import lifecycle, lifecycle_cases
from parity.gates.difference import Difference, DifferingRow
from parity.gates.gate import Check
from parity.gates.lifecycle_cases import Lives
from tests.gates.results import OUT, WITHIN


def test_rows_that_are_cached_are_none_one_a_round_a_chunk_and_the_window():
    def context(window):
        target = SimpleNamespace(constants={"sliding_window": window} if window is not None else {})
        manifest = SimpleNamespace(model=SimpleNamespace(target=target), case=SimpleNamespace(k=4))
        return SimpleNamespace(golden=SimpleNamespace(manifest=manifest))

    plain = {"none": 0, "one": 1, "K + 1": 5, "a chunk": 16}
    assert lifecycle._cuts(context(32)) == plain | {"the window": 32}
    assert [lifecycle._cuts(context(window)) for window in (None, 0, "32")] == [plain] * 3
    assert lifecycle._played([0, 1, 5, 16, 32], [7] * 17) == [0, 1, 5, 16]
    assert lifecycle._played([0, 1, 5, 16], [7] * 16) == [0, 1, 5, 15] and lifecycle._played([5], [7]) == [0]


@pytest.mark.parametrize(
    ("beside", "verdict", "asked", "said"),
    [
        (2, "pass", "pass", "a line; 2 of 3 continuations beside sequences in mid-generation"),
        (0, "pass", "not judged", "not exercised: the texts of all neighbours had ended before"),
        (0, "fail", "fail", "a line; 0 of 3 continuations beside sequences in mid-generation"),
    ],
)
def test_a_lane_has_to_have_continued_beside_somebody(beside, verdict, asked, said):
    device = SimpleNamespace(continued=9, beside=9)

    def check(name, *of):
        assert (device.continued, device.beside) == (0, 0)
        device.continued, device.beside = 3, beside
        return Check(name, verdict, "a line")

    found = lifecycle._beside(SimpleNamespace(device=device, check=check), "prefix hit", None)
    assert (found.name, found.verdict, found.evidence) == ("prefix hit, in lanes", asked, said)


ROWS = np.ones((3, 4), np.float32)
LENGTH = (lifecycle_cases.END, "accept.length")


def lived(cases: dict, values=(), eos=()):
    """`cases`: by value and whether to an end token, the two runs or what is raised."""
    device = SimpleNamespace(describe=lambda: SimpleNamespace(eos=eos, k=2))
    asked: list = []

    def run(life, *given):
        asked.append((*given, life.by_token))
        told = cases.get((*given, life.by_token), ({(1, OUT): ROWS, LENGTH: np.array([3])},) * 2)
        if isinstance(told, Exception):
            raise told
        return told

    return Lives(device, WITHIN, [1, 2], [3]).check("a name", run, values, "{} rows" if values else ""), asked


def test_every_case_is_played_and_the_last_one_to_an_end_token_too():
    check, asked = lived({}, (1, 2), (9,))
    assert asked == [(1, False), (2, False), (2, True)]
    assert (check.verdict, check.evidence) == ("pass", "the same bits in all 6 tensors in 2 cases (1 rows, 2 rows)")
    assert check.figures == {"tensors": 6, "moved": 0, "worst": 0.0, "cases": ["1 rows", "2 rows"]}
    check, asked = lived({})
    assert asked == [(False,)] and check.evidence == "the same bits in all 2 tensors"


SHORT = {(1, OUT): ROWS}


def test_texts_that_never_end_and_nothing_that_is_shown_are_said():
    check, _ = lived({(1, False): (SHORT, SHORT)}, (1,))
    assert check.evidence == "the same bits in all 1 tensors; where texts end is not exercised: each ends before"
    check, _ = lived({(1, False): (SHORT, SHORT)}, (1,), (9,))
    assert check.evidence == "the same bits in all 3 tensors"  # to the end token it does
    check, _ = lived({(False,): ({}, {})})
    assert (check.verdict, check.evidence) == ("inconclusive", "no tensor is shown")


def off(by: float, stage_: str = OUT, round_: int = 1):
    other = ROWS.copy()
    other[1, 0] += np.float32(by)
    return {(round_, stage_): ROWS, LENGTH: np.array([3])}, {(round_, stage_): other, LENGTH: np.array([3])}


def test_what_differs_within_its_bound_is_told_and_beyond_it_fails_by_the_case():
    check, _ = lived({(1, False): off(1e-5)}, (1, 2))
    assert check.verdict == "pass" and check.figures["moved"] == 1
    assert check.evidence.startswith("1 of 4 tensors have other bits in 2 cases (1 rows, 2 rows), at most ")
    assert check.evidence.endswith(f" ULP (bound 256) in {OUT}")
    check, asked = lived({(2, False): off(0.5)}, (1, 2, 3), (9,))
    assert asked == [(1, False), (2, False)] and check.place == Place(OUT, None, 0, 1)
    assert check.verdict == "fail" and check.evidence.startswith(f"2 rows: {OUT} is not what it is fresh: ")
    assert check.evidence.endswith(" ULP (bound 256)") and check.figures == {"case": "2 rows"}
    check, _ = lived({(False,): off(0.5)})
    assert check.evidence.startswith(f"{OUT} differs: ")
    check, _ = lived({(1, True): off(np.inf)}, (1,), (9,))
    assert check.evidence == f"1 rows, to an end token: {OUT} is not what it is fresh: another value"
    check, _ = lived({(True,): off(np.inf)}, (), (9,))
    assert check.evidence == f"to an end token: {OUT} is not what it is fresh: another value"
    ended = {LENGTH: np.array([3])}, {LENGTH: np.array([4])}
    check, _ = lived({(2, False): ended}, (1, 2))
    assert check.evidence == "2 rows: where the text ends, accept.length is not what it is fresh"
    assert lived({(False,): ended})[0].evidence == "where the text ends, accept.length is not what it is fresh"


def test_a_choice_that_a_tie_explains_is_told_as_that():
    found = Difference[str](WITHIN, 4, 1, 0.0, None, DifferingRow("", 1, "verify.tokens", 0, 0.0))
    check = lifecycle_cases._passed("a name", found, ["one"], True)
    assert check.evidence == "1 of 4 tensors have other bits, as ties and noise explain"


def test_what_is_not_exercised_or_raises_is_told():
    check, _ = lived({(1, False): lifecycle_cases._NotExercised("no round")}, (1, 2))
    assert (check.verdict, check.evidence) == ("not judged", "no round")
    for error in (UsageError("no"), DeviceFailed("toy", "draft", "no")):
        check, asked = lived({(2, False): error}, (1, 2, 3))
        assert check.verdict == "inconclusive" and check.evidence.startswith("2 rows: the device raises: ")
        assert check.figures == {"case": "2 rows"} and len(asked) == 2


def test_a_fresh_prefill_is_cut_to_the_rows_that_the_continued_one_runs_over():
    fresh = {(0, OUT): np.arange(10), (0, "kv.target.0.k"): np.arange(10), (1, OUT): np.arange(10)}
    for rows, first in ((4, 6), (3, 7), (2, 0), (10, 0)):
        continued = {(0, OUT): np.arange(rows), (1, OUT): np.arange(4)}
        cut, other = lifecycle_cases._behind(fresh, continued, 7)
        assert cut[0, OUT].tolist() == list(range(first, 10)) and other is continued
        assert len(cut[0, "kv.target.0.k"]) == len(cut[1, OUT]) == 10
    assert len(fresh[0, OUT]) == 10


def test_a_budget_has_room_for_every_round_and_two_that_end_the_text():
    device = SimpleNamespace(describe=lambda: SimpleNamespace(k=4))
    assert Lives(device, WITHIN, [1], [2]).budget == 3 * 5 + 3


class Told(Lives):
    """Records which runs are made; a run is its own description."""

    asked: list

    def fresh(self, device=None, ids=None):
        self.asked.append(("fresh", device, list(ids or self.ids)))
        return {(0, OUT): np.arange(len(ids or self.ids))}

    def continued(self, cached, ids=None):
        self.asked.append(("continued", cached, list(ids or self.ids)))
        return {(0, OUT): np.arange(cached, len(ids or self.ids))}


class Called:
    """A device that records its verbs; its drafts and what it emits are told."""

    def __init__(self, emits=(8, 9), drafts=(7, 7, 7)):
        self.emits, self.drafts, self.calls = list(emits), np.array(drafts), []

    def describe(self):
        return SimpleNamespace(k=3, eos=(99, 98))

    def prefill(self, ids, budget, tap):
        self.calls.append(("prefill", list(ids), budget))

    def draft(self, tap):
        self.calls.append(("draft",))
        return self.drafts

    def verify(self, drafts, tap):
        self.calls.append(("verify", drafts.tolist()))
        return drafts

    def commit(self, drafts, tokens, tap):
        self.calls.append(("commit", drafts.tolist()))
        return self.emits

    def save(self, name):
        self.calls.append(("save", name))

    def restore(self, name):
        self.calls.append(("restore", name))


OTHER = list(range(50, 80))


@pytest.fixture
def told(monkeypatch):
    """A life of ids 1, 2, 3 beside another prompt; texts that are generated are told by their prompt."""
    monkeypatch.setattr(lifecycle_cases, "free_rounds", lambda device, ids, budget: (list(ids), budget))

    def make(emitted=(5, 6), device=None):
        found = Told(device or Called(), WITHIN, [1, 2, 3], OTHER)
        found.asked = []

        def perform(device_, script):
            ids, budget = script
            found.asked.append(("free", ids, budget))
            told_ = emitted[tuple(ids)] if isinstance(emitted, dict) else emitted
            return SimpleNamespace(emitted=list(told_))

        monkeypatch.setattr(lifecycle_cases, "perform", perform)
        return found

    return make


BUDGET = 3 * 4 + 3


def test_another_prompt_is_decoded_to_its_end_between_two_fresh_runs(told):
    life = told()
    assert [len(one[0, OUT]) for one in life.after_another()] == [3, 3]
    assert life.asked == [("fresh", None, [1, 2, 3]), ("free", OTHER, BUDGET), ("fresh", None, [1, 2, 3])]


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_prefix_is_hit_behind_a_prompt_that_begins_alike(cut, told):
    life = told()
    before, now = life.hit(cut)
    assert life.asked == [
        ("fresh", None, [1, 2, 3]), ("fresh", None, [*[1, 2, 3][:cut], *OTHER]), ("continued", cut, [1, 2, 3]),
    ]  # fmt: skip
    assert before[0, OUT].tolist() == now[0, OUT].tolist() == list(range(cut, 3))


def test_a_turn_behind_a_text_continues_from_all_but_its_last_token(told):
    life = told()
    turn = [1, 2, 3, 5, 6, *OTHER[:16]]
    before, now = life.resumed()
    assert life.asked == [("free", [1, 2, 3], BUDGET), ("continued", 4, turn), ("fresh", None, turn)]
    assert before[0, OUT].tolist() == now[0, OUT].tolist() == list(range(4, len(turn)))


def test_a_turn_behind_several_tokens_takes_the_first_prompt_with_such_a_round(told):
    life = told({(1,): (4, 5), (2,): (4, 5, 6, 7, 8), (3,): (4, 5, 6, 7)})
    life.device.emits = [9]
    with pytest.raises(lifecycle_cases._NotExercised, match=r"^not exercised: behind none of 2 prompts is a round of"):
        life.resumed_behind_several([[1], [2]])
    assert life.device.calls == [
        ("prefill", [2], 5), ("draft",), ("verify", [5, 6, 7]), ("commit", [5, 6, 7]),
    ]  # fmt: skip
    life.device.emits, life.asked[:] = [5, 6], []
    life.resumed_behind_several([[1], [3], [2]])
    turn = [3, 4, 5, 6, *OTHER[:16]]
    assert life.asked[-2:] == [("continued", 3, turn), ("fresh", None, turn)] and len(life.asked) == 4


@pytest.mark.parametrize(("verb", "calls"), [
    ("draft", [("prefill", [1, 2, 3], BUDGET), ("draft",)]),
    ("verify", [("prefill", [1, 2, 3], BUDGET), ("draft",), ("verify", [7, 7, 7])]),
])  # fmt: skip
def test_a_request_goes_away_behind_a_verb_and_its_prompt_comes_again(verb, calls, told):
    life = told()
    before, now = life.aborted(verb)
    turn = [1, 2, 3, *OTHER[:16]]
    assert life.device.calls == calls
    assert life.asked == [("fresh", None, turn), ("continued", 3, turn)]
    assert before[0, OUT].tolist() == now[0, OUT].tolist() == list(range(3, len(turn)))


def test_a_sequence_is_saved_another_runs_in_its_place_and_it_is_restored(monkeypatch):
    made = []
    for name in ("own_prefill", "own_rounds", "free_rounds"):
        monkeypatch.setattr(lifecycle_cases, name, lambda *of, name=name: made.append((name, *of[1:3])))
    monkeypatch.setattr(lifecycle_cases, "perform", lambda device, script: None)
    monkeypatch.setattr(Lives, "_to_the_end", lambda self, device, trace: made.append("end") or {})
    device = Called()
    Lives(device, WITHIN, [1, 2, 3], OTHER).restored(1)
    once = [("own_prefill", [1, 2, 3], BUDGET), ("own_rounds", 1, (99, 98))]
    beside = [("own_prefill", OTHER, BUDGET), ("free_rounds", OTHER, BUDGET)]
    assert made == [*once, "end", *once, *beside, "end"]
    assert device.calls == [("save", "parity"), ("save", "parity, another"), ("restore", "parity")]
    made.clear(), device.calls.clear()
    Lives(device, WITHIN, [1, 2, 3], OTHER).restored_second(1)
    assert made == [*once, "end", beside[0], *once, beside[1], "end"]
    first, second = ("save", "parity, another"), ("save", "parity")
    assert device.calls == [first, second, ("restore", "parity, another"), ("restore", "parity")]
    with pytest.raises(NotOffered, match=r"^no save and restore$"):
        Lives(SimpleNamespace(describe=device.describe), WITHIN, [1], [2]).restored(1)


def test_a_text_goes_on_to_its_end_unless_it_has_ended(monkeypatch):
    made = []
    monkeypatch.setattr(lifecycle_cases, "perform", lambda device, script: None)
    for name in ("own_prefill", "own_rounds", "own_end"):
        monkeypatch.setattr(lifecycle_cases, name, lambda *of, name=name: made.append((name, *of[1:])))
    monkeypatch.setattr(lifecycle_cases, "ended", lambda trace, eos: False)
    life = Lives(Called(), WITHIN, [1, 99, 3], OTHER)
    life.fresh()
    plain = [1, 3, 0, 1, 2, 3]
    assert made == [
        ("own_prefill", [1, 99, 3], BUDGET, None), ("own_rounds", 2, (99, 98)), ("own_end", 4, 3, plain, BUDGET, None),
    ]  # fmt: skip
    made.clear()
    Lives(Called(), WITHIN, [1, 99, 3], OTHER, by_token=True).continued(2, [7, 8])
    assert made[0] == ("own_prefill", [7, 8], BUDGET, 2) and made[2][-1] == 99
    made.clear()
    monkeypatch.setattr(lifecycle_cases, "ended", lambda trace, eos: True)
    other = Called()
    life.on_another(other)
    assert [one[0] for one in made] == ["own_prefill", "own_rounds"] * 2
