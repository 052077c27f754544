"""Batches by hand: what seatings are asked for, whose tensors a lane shows, and what a difference is said to mean."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.batching import WAIT, VerbCall
from parity.compare.report import WARN, Place
from parity.errors import NotOffered
from parity.gates import batch
from parity.gates.batch import BatchChecks, _captured, _check, _difference
from parity.gates.batch_errors import error_check
from parity.gates.batch_seating import Prompts, Seated, Stay, _correlation, _pausing, likenesses
from parity.gates.difference import Difference, DifferingRow
from parity.gates.rollback.sameness import WithinNoise
from parity.stages import declared

OUT, LATER, TOKENS = "target.layers.0.out", "target.layers.1.out", "verify.tokens"
NAMES = declared(2, 1)
WITHIN = WithinNoise(
    NAMES, "float32", SimpleNamespace(noisy=lambda stage: 1e-3, flips=False, flip_bound=lambda stage: 0.0)
)


def found(first=None, furthest=None, tensors: int = 5, moved: int = 2, worst: float = 0.5) -> Difference:
    return Difference(WITHIN, tensors, moved, worst, first, furthest)


def at(apart: float, stage: str = OUT, lanes=(1, 1), round_: int = 1, row: int = 4) -> DifferingRow:
    seats = tuple(Seated(7, lane, {}) for lane in lanes)
    return DifferingRow(seats, round_, stage, row, apart)


SEEN = "at most 1.3e+02 ULP (bound 256) in target.layers.0.out"


@pytest.mark.parametrize(
    ("name", "difference", "moved", "verdict", "said", "place"),
    [
        ("beside nobody", found(tensors=0), "pass", "inconclusive", "no tensor is shown", None),
        ("beside nobody", found(), "pass", "pass", "the same bits in all 5 tensors", None),
        ("beside nobody", found(furthest=at(0.5)), "pass", "pass", f"2 of 5 tensors have other bits, {SEEN}", None),
        ("the same again", found(furthest=at(0.5)), WARN, WARN, f"2 of 5 tensors have other bits, {SEEN}; as many rows "
         "in every pass: the device does not repeat itself", None),
        ("beside nobody", found(at(np.inf), at(0.5)), WARN, "fail", "prompt 7 in lane 1, target.layers.0.out row 4: "
         "another value; a sequence depends on who sits beside it", Place(OUT, None, 7, 1)),
        ("in other lanes", found(at(1.5, lanes=(0, 2), round_=3)), "pass", "fail", "prompt 7 in lane 2 (first in lane "
         "0), target.layers.0.out row 4: 3.8e+02 ULP (bound 256); a lane computes something else than its neighbours",
         Place(OUT, None, 7, 3)),
        ("the same again, bfloat16", found(at(np.inf)), "pass", "fail", "prompt 7 in lane 1, target.layers.0.out row 4:"
         " another value; a race, or state that an earlier batch left", Place(OUT, None, 7, 1)),
        ("budgets of their own", found(at(np.inf, "accept.emitted")), "pass", "fail", "prompt 7 in lane 1, "
         "accept.emitted row 4: another value; a lane ends with another's budget",
         Place("accept.emitted", None, 7, 1)),
        ("budgets of their own", found(at(np.inf)), "pass", "fail", "prompt 7 in lane 1, target.layers.0.out row 4: "
         "another value; a sequence depends on who sits beside it", Place(OUT, None, 7, 1)),
        ("an end token of one", found(at(np.inf, "accept.emitted")), "pass", "fail", "prompt 7 in lane 1, "
         "accept.emitted row 4: another value; an end token ends, or cuts, another sequence",
         Place("accept.emitted", None, 7, 1)),
    ],
)  # fmt: skip
def test_what_a_difference_means_is_said(name, difference, moved, verdict, said, place):
    check = _check(name, difference, moved)
    assert (check.verdict, check.evidence, check.place) == (verdict, said, place)
    assert check.figures == {"tensors": difference.tensors, "moved": 2, "worst": 0.5}


def test_an_infinite_distance_is_a_number_in_json():
    assert _check("beside nobody", found(at(np.inf), worst=np.inf)).figures["worst"] == 1e30


def test_each_seat_is_compared_with_the_one_at_its_place():
    rows = np.ones((2, 4), np.float32)
    before = [Seated(0, 0, {(1, OUT): rows}), Seated(1, 1, {(1, OUT): rows * 2})]
    now = [Seated(0, 1, {(1, OUT): rows}), Seated(1, 0, {(1, OUT): rows})]
    difference = _difference(before, now, WITHIN)
    assert (difference.tensors, difference.moved, Difference(WITHIN).worst) == (2, 1, 0) and difference.first.where == (
        before[1],
        now[1],
    )


def test_the_furthest_row_and_the_first_beyond_its_bound_are_kept():
    """Of rows of four ones an element that is off by a bound is half a bound away."""
    bound, difference = 256 * 2.0**-23, Difference(WITHIN)
    ones = np.ones((3, 4), np.float32)

    def changed(*by: float) -> np.ndarray:
        rows = ones.copy()
        rows[:, 0] += np.float32(np.array(by) * bound * 2)
        return rows

    for number, by in enumerate([(0.2, 0.6, 0.1), (0.9, 0.2, 0.1), (0.5, 0, 0)]):
        difference.add({(1, OUT): ones}, {(1, OUT): changed(*by)}, number)
    assert (difference.furthest.where, difference.furthest.row) == (1, 0) and difference.first is None
    assert difference.furthest.apart == difference.worst == pytest.approx(0.9, rel=1e-2)
    difference.add({(2, OUT): ones}, {(2, OUT): changed(0.5, 1.2, 9)}, "late")
    assert (difference.first.where, difference.first.row) == ("late", 1)
    difference.add({(2, OUT): ones}, {(2, OUT): changed(9, 1.2, 9)}, "as late")
    assert difference.first.where == "late"
    difference.add({(1, OUT): ones, (0, OUT): ones}, {(1, OUT): changed(0, 0, 5), (0, OUT): changed(0, 0.95, 0)}, "one")
    assert (difference.first.where, difference.first.round, difference.first.row) == ("one", 1, 2)
    assert difference.first.apart == pytest.approx(5, rel=1e-2) and difference.worst == pytest.approx(9, rel=1e-2)
    assert (difference.tensors, difference.moved, difference.furthest.where) == (7, 7, "one")


RANDOM = np.random.default_rng(0)
TRUTH = {(prompt, round_): RANDOM.normal(size=(3, 8)) for prompt in range(3) for round_ in range(3)}


def golden() -> SimpleNamespace:
    """Three prompts; every float stage of a prompt and round is the same random tensor, but one that it lacks."""
    prompts = [
        SimpleNamespace(id=f"p{n}", ids=(1, 2, 3), generated=SimpleNamespace(acceptance_length=lengths))
        for n, lengths in enumerate([(1, 1, 2), (2, 1), (3, 3, 1)])
    ]
    return SimpleNamespace(
        declared=NAMES,
        manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts, max_new_tokens=9, schedule=None)),
        contents=lambda variant, prompt, round_, stage: TRUTH[prompt, round_] if stage != LATER else None,
    )


def seats(*shown: int, rounds=(0, 1)) -> list[Seated]:
    """Lanes 0 and on, of prompts 0 and on, that show these prompts' tensors."""
    return [
        Seated(
            n, n, {(round_, OUT): np.float32(TRUTH[other, round_]) for round_ in rounds} | {(0, TOKENS): TRUTH[0, 0]}
        )
        for n, other in enumerate(shown)
    ]


def test_a_lane_is_like_the_prompt_whose_golden_it_shows():
    like = list(likenesses(seats(0, 2, 2), golden()))
    assert [(one.seat.lane, one.round, one.stage) for one in like] == [(n, r, OUT) for n in range(3) for r in range(2)]
    assert [one.other for one in like] == [None, None, 2, 2, None, None]
    assert all(one.best == pytest.approx(1) for one in like) and like[0].own == like[0].best > 0.99 > abs(like[2].own)
    assert list(likenesses(seats(0, 2, 2, rounds=(2,)), golden())) == []


def test_what_is_like_no_prompt_enough_is_nobody_elses():
    near = TRUTH[1, 1] + 0.4 * RANDOM.normal(size=(3, 8))
    (one,) = (each for each in likenesses([Seated(0, 0, {(1, OUT): near}), *seats(0, 1)[1:]], golden())
              if each.seat.lane == 0)  # fmt: skip
    assert one.other is None and 0.8 < one.best < 0.99 and one.own < one.best


VIEW = SimpleNamespace(declared=NAMES, shows=lambda stage: True)


def test_crossed_tensors_are_named_with_both_prompts():
    context = SimpleNamespace(golden=golden())
    check = _captured(seats(0, 1, 2), context, VIEW)
    assert (check.name, check.verdict, check.figures) == ("each lane's own tensors", "pass", {"tensors": 6})
    assert check.evidence == "none of 6 tensors in 3 lanes is like another lane's prompt"
    check = _captured(seats(0, 2, 0), context, VIEW)
    own = float(np.corrcoef(TRUTH[1, 0].ravel(), TRUTH[2, 0].ravel())[0, 1])
    assert check.verdict == "fail" and check.figures == {"tensors": 6, "wrong": 4}
    assert check.place == Place(OUT, None, 1, 0)
    assert check.evidence.startswith(
        "lane 1 runs prompt p1 and shows target.layers.0.out of p2: correlation 1.000 with "
    )
    assert check.evidence.endswith(" with its own; 4 tensors in all") and abs(own) < 0.99


def test_without_a_float_stage_nothing_tells_lanes_apart():
    context, nothing = SimpleNamespace(golden=golden()), [Seated(0, 0, {(0, TOKENS): np.arange(3)})]
    said = "no float stage is shown: nothing tells the lanes' tensors apart"
    tokens = SimpleNamespace(declared=NAMES, shows=lambda stage: NAMES[stage].stage.exact)
    for view, verdict in ((VIEW, "inconclusive"), (tokens, "not judged")):
        check = _captured(nothing, context, view)
        assert (check.verdict, check.evidence) == (verdict, said)


def test_a_correlation_is_of_the_rows_that_both_have():
    one = np.float32([[1, 2], [3, 4]])
    assert _correlation(one, one * 3) == pytest.approx(1) and _correlation(one, -one) == pytest.approx(-1)
    assert _correlation(one, one[:1]) == _correlation(one[:1], one) == pytest.approx(1)
    assert _correlation(one, np.float32([[2, -1], [4, -3]])) == pytest.approx(0)
    assert _correlation(one, None) == _correlation(one, one[:, :1]) == _correlation(one, one[:0]) == 0
    assert _correlation(one, one * 0) == 0
    assert _correlation(np.float32([[1, np.nan]]), np.float32([[1, 0]])) == pytest.approx(1)


def calls(*verbs: str):
    """A script of these verbs; it is sent how many calls were made, and returns what it was sent."""

    def script():
        seen = []
        for verb in verbs:
            seen.append((yield VerbCall(verb, (verb,), f"tap of {verb}")))
        sent.extend(seen)

    sent: list[int] = []
    return script(), sent


def played(script) -> list[VerbCall]:
    made, answer = [], None
    while True:
        try:
            made.append(script.send(answer))
        except StopIteration:
            return made
        answer = len(made)


ROUND = ("draft", "verify", "commit")


def test_a_pause_is_behind_the_first_round_and_as_long_as_it_is_told():
    script, sent = calls("prefill", *ROUND, *ROUND, *ROUND)
    made = played(_pausing(script, 3))
    assert [one.verb for one in made] == ["prefill", *ROUND, WAIT, WAIT, WAIT, *ROUND, *ROUND]
    assert made[4] == VerbCall(WAIT, (), "tap of draft") and sent == [1, 2, 3, 4, 8, 9, 10, 11, 12, 13]
    assert [one.verb for one in played(_pausing(calls("prefill", *ROUND)[0], 3))] == ["prefill", *ROUND]
    assert [one.verb for one in played(_pausing(calls("prefill", *ROUND, *ROUND)[0], 0))] == ["prefill", *ROUND, *ROUND]


@pytest.mark.parametrize(
    ("prompt", "rounds", "stay"),
    [
        (0, 1, Stay(0, 1, 2)),
        (0, 3, Stay(0, 3, 4)),  # 1 + 1 + 1 + 2, cut in the midst of the last
        (1, 3, Stay(1, 2, 4)),  # it has two rounds
        (2, 1, Stay(2, 1, 3)),
        (2, 2, Stay(2, 2, 6)),
    ],
)
def test_a_budget_is_spent_in_the_midst_of_its_last_round(prompt, rounds, stay):
    assert Prompts(golden(), None).spent(prompt, rounds) == stay


def test_a_stay_is_of_the_goldens_budget_and_waits_for_nobody():
    assert Stay(2, 3) == Stay(2, 3, budget=None, waits=0, drafts=None, ends=False)


class Recording:
    """Seats that record what they were asked for; every tensor says who it is of."""

    def __init__(self, asked: list):
        self.asked = asked

    def seat(self, stays, lanes=None):
        self.asked.append((list(stays), lanes))
        lanes = lanes or range(len(stays))
        return [Seated(stay.prompt, lane, {(0, OUT): of(stay)}) for stay, lane in zip(stays, lanes, strict=False)]

    def alone(self, stay):
        return Seated(stay.prompt, 0, {(0, OUT): of(stay)})

    spent = Prompts(golden(), None).spent


def of(stay: Stay) -> np.ndarray:
    return np.full((2, 2), 1 + stay.prompt + 10 * stay.rounds, np.float32)


@pytest.fixture
def asked(monkeypatch):
    """The checks of three prompts in three lanes, K = 4, and what was seated."""
    made: list = []
    monkeypatch.setattr(batch, "Prompts", lambda golden, device: Recording(made))
    monkeypatch.setattr(batch, "NoiseFloors", lambda golden: WITHIN.noise)
    monkeypatch.setattr(batch, "_captured", lambda seats, context, view: "captured")
    monkeypatch.setattr(batch, "error_check", lambda device, ids, budget: ("error", ids, budget))

    def make(prompts=(0, 1, 2), lanes: int = 3, eos=(2,), k: int = 4):
        says = SimpleNamespace(lanes=lanes, k=k, eos=eos, precision="float32", shown=())
        context = SimpleNamespace(golden=golden(), precision="bfloat16")
        return BatchChecks(context, SimpleNamespace(describe=lambda: says), None, list(prompts)), made

    return make


def test_every_event_of_a_batch_is_asked_for_and_compared(asked):
    checks, seated = asked()
    found = list(checks.all())
    names = [
        "joining and leaving", "the same again", "in other lanes", "in reverse order", "beside nobody",
        "a lane that waits", "budgets of their own", "an end token of one", "other numbers of drafts",
        "one prompt in all lanes",
    ]  # fmt: skip
    assert [one.name for one in found if hasattr(one, "name")] == names and found[1] == "captured"
    assert found[10] == ("error", [(1, 2, 3)] * 3, 9)
    assert {one.verdict for one in found if hasattr(one, "name")} == {"pass"}
    many = {one.name: one.figures["tensors"] for one in found if hasattr(one, "name")}
    assert many == dict.fromkeys(names, 3) | {
        "joining and leaving": 7, "a lane that waits": 6, "budgets of their own": 9,
    }  # fmt: skip
    plain = [Stay(0, 3), Stay(1, 3), Stay(2, 3)]
    assert seated[:5] == [
        ([Stay(0, 1), Stay(1, 3), Stay(0, 2), Stay(2, 3), Stay(0, 2), Stay(1, 3), Stay(2, 2)], None),
        (plain, None), (plain, None), (plain, [2, 1, 0]), (plain[::-1], None),
    ]  # fmt: skip
    waits = [Stay(0, 3, waits=3), *plain[1:]]
    assert seated[5:7] == [(waits, [0, 1, 2]), (waits, [2, 1, 0])]
    spent = [Stay(0, 1, 2), Stay(1, 2, 4), Stay(2, 3, 8)]
    assert seated[7:10] == [(spent, [0, 1, 2]), (spent, [1, 2, 0]), (spent, [2, 0, 1])]
    ending = [Stay(0, 1, drafts=4, ends=True), Stay(1, 3, drafts=4), Stay(2, 3, drafts=4)]
    assert seated[10] == (ending, None)
    assert seated[11] == ([Stay(0, 3, drafts=4), Stay(1, 3, drafts=3), Stay(2, 3, drafts=2)], None)
    assert seated[12:] == [([Stay(2, 3)] * 3, None)]


def test_a_device_without_an_end_token_is_not_asked_for_one_and_no_lane_drafts_fewer_than_none(asked):
    checks, seated = asked(eos=(), k=1)
    assert "an end token of one" not in [one.name for one in checks.all() if hasattr(one, "name")]
    assert [stay.drafts for stay in seated[10][0]] == [1, 0, 0]


def test_fewer_prompts_than_lanes_sit_in_several_and_the_first_sequence_ends_beside_one_that_emits_several(asked):
    checks, _ = asked(prompts=(1, 0))
    assert checks.prompts == [1, 0, 1] and checks.longest == 0
    assert checks._joining()[:4] == [Stay(1, 1), Stay(1, 3), Stay(1, 2), Stay(0, 3)]
    assert [asked(prompts=order)[0]._ending()[0].rounds for order in ([1, 0, 0], [0, 1, 2], [2, 0, 1])] == [3, 1, 1]
    lone = asked(prompts=[0, 1], lanes=2)[0]
    lone.prompts = [0, 1]
    lone.context.golden.manifest.case.prompts[1].generated.acceptance_length = (1, 1)
    assert lone._ending()[0].rounds == 3


class Boxed:
    """A context whose devices have so many lanes, with the option or always; of some it says no."""

    def __init__(self, lanes=3, prompts=3, precision="bfloat16", refuses=None, computes="float32"):
        case = SimpleNamespace(prompts=[SimpleNamespace(ids=(1,) * length) for length in (5, 2, 9)[:prompts]])
        self.golden, self.precision, self.sharpest = SimpleNamespace(manifest=SimpleNamespace(case=case)), precision, (
            "float32"
        )  # fmt: skip
        self.says, self.refuses = SimpleNamespace(lanes=lanes, precision=computes), refuses
        self.made: list = []

    def device(self, precision):
        return SimpleNamespace(describe=lambda: SimpleNamespace(lanes=1))

    def fresh(self, precision, **options):
        self.made.append((precision, options))
        if self.refuses:
            raise self.refuses
        return SimpleNamespace(describe=lambda: self.says)


@pytest.fixture
def asked_for(monkeypatch):
    """What the gate goes on with."""
    going: list = []

    class Going:
        def __init__(self, context, device, single, prompts):
            going.append(prompts)

        def all(self):
            yield "a check"

    monkeypatch.setattr(batch, "BatchChecks", Going)
    monkeypatch.setattr(batch, "repeated", lambda context, device, prompts: ("repeated", prompts))
    return going


@pytest.mark.parametrize(
    ("context", "verdict", "said"),
    [
        (Boxed(lanes=1), "not judged", "the device has one lane"),
        (Boxed(prompts=1), "inconclusive", "the golden has one prompt: neighbours would be copies of it"),
        (Boxed(refuses=NotOffered("no lanes")), "not judged", "the device runs one sequence at a time: "),
    ],
)
def test_a_device_that_has_no_neighbours_is_not_asked(context, verdict, said, asked_for):
    (check,) = batch.checks(context)
    assert check.verdict == verdict and check.evidence.startswith(said) and asked_for == []


def test_a_device_that_breaks_when_it_is_asked_for_lanes_is_told(asked_for):
    with pytest.raises(ZeroDivisionError):
        list(batch.checks(Boxed(refuses=ZeroDivisionError())))


@pytest.mark.parametrize(
    ("context", "again"),
    [
        (Boxed(), True), (Boxed(lanes=2, prompts=2), True), (Boxed(precision="float32"), False),
        (Boxed(computes="bfloat16"), False),
    ],
)  # fmt: skip
def test_the_runs_own_precision_is_asked_once_more_where_the_rest_was_in_float32(context, again, asked_for):
    order = [1, 0, 2][: 3 if len(context.golden.manifest.case.prompts) > 2 else 2]
    assert list(batch.checks(context)) == ["a check", *([("repeated", order)] if again else [])]
    assert asked_for == [order]
    assert context.made == [("float32", {"lanes": 3})] + [("bfloat16", {"lanes": 3})] * again


class Lanes:
    """Verbs of several lanes; what an error in one leaves behind is told."""

    def __init__(self, transactional: bool = True, wrong=None, fails=None, silent=()):
        self.transactional, self.wrong, self.fails, self.silent = transactional, wrong, fails, silent
        self.broken: set[str] = set()

    def describe(self):
        return SimpleNamespace(transactional=self.transactional)

    def _verb(self, verb, lanes, taps, value):
        assert len(taps) == len(lanes)
        if verb not in self.silent:
            for tap in taps[:-1]:
                tap("stage", np.zeros(1))
            before, self.broken = verb in self.broken, self.broken | {verb}
            taps[-1]("stage", np.zeros(1))
            self.broken = self.broken if before else self.broken - {verb}
        if self.fails == verb and verb in self.broken:
            raise ValueError("lost")
        wrong = self.wrong == verb and verb in self.broken
        return [value + lane + 10 * (wrong and lane > 0) for lane in lanes]

    def prefill_batch(self, lanes, prompts, budgets, taps):
        assert budgets == [9] * len(lanes) and prompts == [(1,), (2,)]
        return self._verb("prefill", lanes, taps, 1)

    def draft_batch(self, lanes, taps):
        return self._verb("draft", lanes, taps, np.array([2, 3]))

    def verify_batch(self, lanes, drafts, taps):
        return self._verb("verify", lanes, taps, np.array([3, 4, 5]))

    def commit_batch(self, lanes, drafts, tokens, taps):
        return self._verb("commit", lanes, taps, np.array([6]))


@pytest.mark.parametrize(
    ("device", "verdict", "said"),
    [
        (Lanes(), "pass", "prefill, draft, verify, commit: called again, each gives what it gives undisturbed"),
        (Lanes(silent=("draft",)), "pass",
         "prefill, verify, commit: called again, each gives what it gives undisturbed"),
        (Lanes(silent=("prefill", "draft", "verify", "commit")), "not judged",
         "no verb hands anything to the tap of its last lane"),
        (Lanes(transactional=False), "not judged",
         "a verb that raises does not leave the state it found, the device says"),
        (Lanes(wrong="verify"), "fail",
         "verify, called again behind an error in its last lane, gives other tokens in lane 1"),
        (Lanes(fails="commit"), "fail",
         "commit, called again behind an error in its last lane, "),
    ],
)  # fmt: skip
def test_a_verb_behind_an_error_in_its_last_lane_gives_the_same(device, verdict, said):
    check = error_check(device, [(1,), (2,)], 9)
    assert check.verdict == verdict and check.evidence.startswith(said), check.evidence
    assert check.evidence == said or "ValueError" in check.evidence or "lost" in check.evidence


def test_a_device_that_breaks_before_its_tap_does_is_no_matter_of_recovery():
    device = Lanes()
    device.draft_batch = lambda lanes, taps: [][0] if taps[-1] is not taps[0] else device._verb("draft", lanes, taps, 1)
    with pytest.raises(IndexError):
        error_check(device, [(1,), (2,)], 9)
