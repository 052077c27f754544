"""One lane among others, a sequence of the device's own choices, and sampled rounds, call by call."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.batching import VerbCall, perform
from parity.errors import Inconclusive, NotOffered, NotShown, UsageError
from parity.gates.beside import Beside, Neighbour
from parity.gates.own_rounds import ended, free_trace, own_end, own_prefill, own_rounds
from parity.gates.sampling import rounds as sampled_rounds
from parity.gates.sampling.rounds import Play, refuse_own_numbers, sampled, sampled_together, table
from parity.seam import Sampling
from parity.shown import Shown
from parity.stages import declared
from tests.gates.scripted import WIDTH, Scripted

NAMES = declared(2, 1)
OWN = "the own tap"


class Recorded:
    """Lanes that record their calls; lane n answers n more than asked, and its first token is 10 n."""

    def __init__(self, lanes: int = 3, eos=(99,)):
        self.says, self.calls = SimpleNamespace(lanes=lanes, eos=eos), []

    def describe(self):
        return self.says

    def _called(self, verb, lanes, columns, taps):
        assert all(len(column) == len(lanes) == len(taps) for column in columns)
        own = [lane for lane, tap in zip(lanes, taps, strict=True) if tap is OWN]
        self.calls.append((verb, dict(zip(lanes, zip(*columns, strict=True), strict=True)) if columns else lanes, own))

    def prefill_batch(self, lanes, prompts, budgets, taps):
        self._called("prefill", lanes, (prompts, budgets), taps)
        return [10 * lane for lane in lanes]

    def prefill_from_batch(self, lanes, cached, prompts, budgets, taps):
        self._called("prefill_from", lanes, (cached, prompts, budgets), taps)
        return [10 * lane + 1 for lane in lanes]

    def draft_batch(self, lanes, taps):
        self._called("draft", lanes, (), taps)
        return [np.array([lane, lane]) for lane in lanes]

    def verify_batch(self, lanes, drafts, taps):
        self._called("verify", lanes, ([one.tolist() for one in drafts],), taps)
        return [np.array([lane, lane, 7]) for lane in lanes]

    def commit_batch(self, lanes, drafts, tokens, taps):
        self._called("commit", lanes, ([one.tolist() for one in drafts], [one.tolist() for one in tokens]), taps)
        return [[lane, 99 if lane == 2 else 7] for lane in lanes]

    def save_batch(self, lanes, names):
        self.calls.append(("save", lanes, names))

    def restore_batch(self, lanes, names):
        self.calls.append(("restore", lanes, names))


def test_every_verb_is_called_for_all_lanes_and_the_own_lane_is_told_apart():
    device = Recorded()
    beside = Beside(device, 1, [[5, 5], [6]], 9)
    assert beside.describe() is device.says and beside.prefill([8, 8, 8], 4, OWN) == 10
    assert device.calls[-1] == ("prefill", {0: ([5, 5], 9), 1: ([8, 8, 8], 4), 2: ([6], 9)}, [1])
    drafts = beside.draft(OWN)
    assert drafts.tolist() == [1, 1] and device.calls[-1] == ("draft", [0, 1, 2], [1])
    tokens = beside.verify(np.array([4, 4]), OWN)
    assert device.calls[-1] == ("verify", {0: ([0, 0],), 1: ([4, 4],), 2: ([2, 2],)}, [1])
    assert tokens.tolist() == [1, 1, 7]
    assert beside.commit(np.array([4, 4]), np.array([3, 3, 3]), OWN) == [1, 7]
    assert device.calls[-1] == (
        "commit", {0: ([0, 0], [0, 0, 7]), 1: ([4, 4], [3, 3, 3]), 2: ([2, 2], [2, 2, 7])}, [1],
    )  # fmt: skip
    assert beside._others[0].emitted == [0, 0, 7] and beside._others[2].emitted == [20, 2, 99]
    beside.draft(OWN)  # lane 2 has ended
    assert device.calls[-1] == ("draft", [0, 1], [1])


def test_what_continues_does_so_beside_those_that_live():
    device = Recorded()
    beside = Beside(device, 1, [[5, 5], [6]], 4)
    assert beside.prefill_from(2, [8, 8, 8], 4, OWN) == 11
    assert device.calls[-1] == ("prefill_from", {1: (2, [8, 8, 8], 4)}, [1])
    assert (beside.continued, beside.beside) == (1, 0)
    beside.prefill([8, 8, 8], 4, OWN)
    beside.draft(OWN)
    beside.verify(np.array([4, 4]), OWN)
    beside.commit(np.array([4, 4]), np.array([3, 3, 3]), OWN)
    assert beside.prefill_from(2, [8, 8], 4, OWN) == 11 and (beside.continued, beside.beside) == (2, 1)
    assert device.calls[-1] == ("prefill_from", {0: (2, [5, 5, 0, 0, 7], 4), 1: (2, [8, 8], 4)}, [1])
    assert beside._others[0] == Neighbour([5, 5, 0, 0, 7], 4, [1], *(getattr(beside._others[0], n) for n in (
        "drafts", "tokens")))  # fmt: skip
    beside.save("a")
    beside.restore("a")
    assert device.calls[-2:] == [("save", [1], ["a"]), ("restore", [1], ["a"])]
    assert (beside.continued, beside.beside) == (3, 2)


def test_prompts_go_around_and_a_neighbour_lives_until_its_budget_or_an_end():
    beside = Beside(Recorded(5), 2, [[5], [6]], 9)
    assert {lane: other.prompt for lane, other in beside._others.items()} == {0: [5], 1: [6], 3: [5], 4: [6]}
    lives = [Neighbour([5], 3, emitted).lives((9,)) for emitted in ([], [1], [1, 2], [1, 2, 3], [9], [9, 1])]
    assert lives == [False, True, True, False, False, True]


def test_a_sequences_own_choices_are_recorded_round_by_round():
    text, drafts = (5, 7, 8, 9, 3, 2), [[7, 1], [9, 3]]
    trace, device = free_trace(NAMES), Scripted(text, drafts)
    perform(device, own_prefill(trace, (1, 2), 6))
    assert trace.tensors[0, "target.tokens"].tolist()[-1] == 5 and not ended(trace, (9,)) and ended(trace, (5,))
    perform(device, own_rounds(trace, 2, ()))
    told = {place: value.tolist() for place, value in trace.tensors.items() if place[1].startswith("accept")}
    assert told == {(1, "accept.length"): [2], (1, "accept.emitted"): [7, 8], (2, "accept.length"): [3],
                    (2, "accept.emitted"): [9, 3, 2]}  # fmt: skip
    assert ended(trace, (2,)) and ended(trace, (3,)) and not ended(trace, (8,))


def calls_of(script, answers) -> list[VerbCall]:
    made = [next(script)]
    for answer in answers:
        try:
            made.append(script.send(answer))
        except StopIteration:
            break
    return made


def test_fewer_drafts_and_an_end_token_in_the_last_round_are_as_told():
    trace = free_trace(NAMES)
    trace.begin(0)
    trace.returned("target.tokens", [5])
    script = own_rounds(trace, 2, (99, 98), drafts=1, ends=True)
    answers = [
        np.array([7, 8, 9]),
        np.array([7, 1]),
        np.array([7]),
        np.array([4, 4, 4]),
        np.array([4, 4]),
        np.array([99]),
    ]
    made = calls_of(script, answers)
    assert [one.verb for one in made] == ["draft", "verify", "commit"] * 2
    given = [[one.tolist() for one in call.arguments] for call in made if call.verb != "draft"]
    assert given == [[[7]], [[7], [7, 1]], [[4]], [[4], [99, 99]]]
    trace = free_trace(NAMES)
    trace.begin(0)
    trace.returned("target.tokens", [99])
    assert list(own_rounds(trace, 2, (99,))) == []


def test_a_prefill_goes_on_from_what_is_cached():
    trace = free_trace(NAMES)
    (call,) = calls_of(own_prefill(trace, (1, 2, 3), 6, 2), [5])
    assert (call.verb, call.arguments) == ("prefill_from", (2, (1, 2, 3), 6)) and call.tap is trace
    (call,) = calls_of(own_prefill(trace, (1, 2, 3), 6), [5])
    assert (call.verb, call.arguments) == ("prefill", ((1, 2, 3), 6))


def ending(came: int, budget: int, eos=None, k: int = 2, emitted=None):
    """Behind so many tokens: drafts and tokens of each round to the end, and what is recorded of it."""
    trace = free_trace(NAMES)
    trace.begin(0)
    trace.returned("target.tokens", [5])
    if came > 1:
        trace.begin(1)
        trace.returned("accept.emitted", [6] * (came - 1))
    script, made, answer = own_end(trace, 9, k, [1, 1, 2], budget, eos), [], None
    while True:
        try:
            call = script.send(answer)
        except StopIteration:
            break
        answer = None
        if call.verb == "commit":
            drafts, tokens = (one.tolist() for one in call.arguments)
            made.append((drafts, tokens))
            length = next((n for n, (a, b) in enumerate(zip(drafts, tokens, strict=False)) if a != b), len(drafts)) + 1
            answer = tokens[: min(length, budget - came)] if emitted is None else emitted
            if eos in answer:
                answer = answer[: answer.index(eos) + 1]
            came += len(answer)
    told = {place: value.tolist() for place, value in trace.tensors.items() if place[0] == 9}
    return made, told


def test_a_text_is_led_to_a_last_round_of_one_token_whose_drafts_are_all_right():
    made, told = ending(3, 9)
    assert made == [([1, 1], [1, 1, 2]), ([1, 1], [1, 2, 1]), ([1, 1], [1, 1, 1])]
    assert told == {(9, "accept.length"): [9], (9, "accept.emitted"): [1]}
    made, told = ending(1, 4)
    assert made == [([1, 1], [1, 2, 1]), ([1, 1], [1, 1, 1])] and told[9, "accept.length"] == [4]
    made, told = ending(3, 4)
    assert made == [([1, 1], [1, 1, 1])] and told == {(9, "accept.length"): [4], (9, "accept.emitted"): [1]}
    assert ending(4, 4) == ([], {})


def test_a_text_is_led_to_an_end_token_behind_its_first_draft():
    assert ending(2, 9, eos=99) == (
        [([1, 99], [1, 99, 1])], {(9, "accept.length"): [4], (9, "accept.emitted"): [1, 99]},
    )  # fmt: skip
    assert ending(2, 9, eos=99, k=1)[0] == [([99], [99, 1])]
    assert ending(2, 9, eos=99, k=3)[0] == [([1, 99, 1], [1, 99, 1, 1])]
    with pytest.raises(UsageError, match=r"^commit emitted nothing, 2 of 9 tokens had come out$"):
        ending(2, 9, emitted=[])


class Sampled(Scripted):
    """A scripted device that shows its drafts' logits and notes how it is told to sample."""

    def __init__(self, *of, shown=(), own: bool = False, rows=None, **more):
        super().__init__(*of, **more)
        self.told, self.shown, self.own, self.rows = [], shown, own, rows or {}

    def describe(self):
        return SimpleNamespace(eos=self.eos, family="p-eagle", shown=self.shown, own_numbers=self.own)

    def sample(self, settings, uniforms):
        self.told.append(settings)

    def draft(self, tap):
        drafts = super().draft(tap)
        self._tap(tap, "drafter.logits", np.ones((self.rows.get("draft", len(drafts)), WIDTH), np.float32))
        return drafts

    def commit(self, drafts, tokens, tap):
        return super().commit(drafts, tokens, tap)[: self.rows.get("commit")]


@pytest.fixture(autouse=True)
def two_layers(monkeypatch):
    monkeypatch.setattr(sampled_rounds, "stages_of", lambda says: NAMES)


TEXT = (5, 7, 8, 9, 3, 2)
SETTINGS = Sampling(temperature=0.5)


def played(device, budget: int = 6):
    return sampled(device, Play(SETTINGS, 4, (1, 2), budget, table((1,), budget, 2)))


def test_sampled_rounds_hold_their_logits_drafts_numbers_and_what_came():
    device, numbers = Sampled(TEXT, [[7, 1], [9, 3]]), table((1,), 6, 2)
    assert numbers.shape == (7, 4, 3) and numbers.dtype == np.float32
    rounds = played(device)
    assert device.told == [SETTINGS, None] and [(one.prompt, one.round) for one in rounds] == [(4, 0), (4, 1), (4, 2)]
    assert rounds[0].drafts.tolist() == [] and rounds[0].tokens.tolist() == [5] and rounds[0].logits.shape == (1, WIDTH)
    assert rounds[0].logits[0].argmax() == 5 and rounds[0].draft_logits is None
    assert rounds[1].drafts.tolist() == [7, 1] and rounds[1].emitted == ([7, 8], [7, 8])
    assert rounds[1].tokens.tolist() == [7, 8, 10] and rounds[1].logits.shape == (3, WIDTH)
    assert rounds[1].draft_logits.shape == (2, WIDTH) and rounds[2].emitted == ([9, 3, 2], [9, 3, 2])
    assert all((one.uniforms == numbers[one.round]).all() for one in rounds)


def test_a_device_is_greedy_again_whatever_it_breaks_down_under():
    device = Sampled(TEXT, [[7, 1]], hides=("verify.logits",))
    with pytest.raises(Inconclusive, match=r"^the device hands over none of verify.logits, 3 are due$"):
        played(device)
    assert device.told == [SETTINGS, None]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (Sampled(TEXT, [[7, 1]], hides=("target.logits",)), "the device hands over none of target.logits"),
        (Sampled(TEXT, [[7, 1]], rows={"draft": 1}), "the device hands over 1 rows of drafter.logits, 2 are due"),
        (Sampled(TEXT, [[7, 1]], rows={"commit": 0}), "round 1: 2 drafts, 3 tokens, 0 emitted"),
    ],
)
def test_rows_that_are_not_those_that_are_due_are_no_evidence(device, said):
    with pytest.raises(Inconclusive, match=f"^{said}$"):
        played(device)


@pytest.mark.parametrize(
    ("shown", "hidden"),
    [
        ((Shown("verify.logits"), Shown("drafter.logits")), "target.logits"),
        ((Shown("target.logits", rows="last"), Shown("verify.logits", rows="last"), Shown("drafter.logits")),
         "verify.logits"),
        ((Shown("target.logits"), Shown("verify.logits")), "drafter.logits"),
    ],
)  # fmt: skip
def test_a_device_that_hides_logits_is_not_asked(shown, hidden):
    with pytest.raises(NotShown, match=f"^the device does not show every row of {hidden}: nothing says what is drawn"):
        played(Sampled(TEXT, [[7, 1]], shown=shown))
    last = (Shown("target.logits", rows="last"), Shown("verify.logits"), Shown("drafter.logits"))
    assert len(played(Sampled(TEXT, [[7, 1], [9, 3]], shown=last))) == 3


def test_numbers_of_its_own_are_refused():
    refuse_own_numbers(Sampled(TEXT))
    with pytest.raises(NotOffered, match="random numbers of its own"):
        refuse_own_numbers(Sampled(TEXT, own=True))


def test_sequences_are_sampled_together_each_in_its_lane_and_greedy_behind_it(monkeypatch):
    told: list = []
    device = SimpleNamespace(
        describe=lambda: SimpleNamespace(shown=(), family="p-eagle", eos=()),
        sample_batch=lambda lanes, settings, tables: told.append(
            (list(lanes), settings, [one[0, 0, 0] for one in tables])
        ),
    )
    plays = [Play(Sampling(temperature=n), 4, (1,), 6, np.full((1, 1, 1), n)) for n in (1.0, 2.0)]
    monkeypatch.setattr(sampled_rounds, "perform_together", lambda device, scripts, lanes: [(1, "b"), (0, "a")])
    assert sampled_together(device, plays, [3, 0]) == ["a", "b"]
    assert told == [([3, 0], [play.settings for play in plays], [1, 2]), ([3, 0], [None, None], [1, 2])]
