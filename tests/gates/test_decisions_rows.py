"""Decisions by hand: rows of every verdict, what a group of them comes to, own logits, and ties that are planted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.report import Place
from parity.compare.rows import StageRows
from parity.compare.vocabulary import DraftVocabulary
from parity.errors import Inconclusive
from parity.gates import decisions, decisions_rows
from parity.gates.decisions import PlantedTies, WrongChoice, _above, _group, _tie_check
from parity.gates.decisions_rows import JudgedRows, _lack, _moved, judge_rows, own_choices
from parity.stages import declared

NAMES = declared(2, 1)
NAMED = DraftVocabulary(np.array([10, 20, 30, 40]), "a file")


def judged(*verdicts: str, lack: str = "", **changes) -> JudgedRows:
    """Rows of prompt 0 and round 1 at positions from 5 on."""
    count = len(verdicts)
    zeros, ones = np.zeros(count), np.ones(count, bool)
    numbers = np.zeros(count, np.int64)
    made = dict(
        stage="verify.tokens", verdict=np.array(verdicts, object), regret=zeros, near=~ones, kl=zeros,
        overlap=np.ones((count, 3)), relative=zeros, finite=ones, prompt=numbers, round=numbers + 1,
        position=np.arange(5, 5 + count), slot=numbers,
    )  # fmt: skip
    return JudgedRows(**made | {name: np.array(value) for name, value in changes.items()}, lack=lack)


def test_a_group_is_counted_with_its_means_and_maxima():
    rows = judged(
        "same", "tie", "noise", "same", "same", near=[False, True, False, False, False], regret=[0, 0.25, 0.75, 0, 0],
        kl=[0.001, 0.003, 0, 0, 0.001], overlap=[[1, 1, 1], [0, 1, 0.5], [0, 0.5, 1], [1, 1, 1], [1, 1, 1]],
        relative=[0, 0.02, 0.01, 0, 0],
    )  # fmt: skip
    found = _group("verify", rows, "bfloat16", [], False)
    assert (found.name, found.verdict, found.place) == ("verify, 5 rows", "pass", None)
    assert found.evidence == (
        "3 same, 1 tie (1 at two ULP), 1 noise, 0 bug; regret 0 in 3, mean 0.2, max 0.75; "
        "KL mean 0.001, max 0.003 nats; top-1/5/50 60.0/90.0/90.0 %; logits within 2 %"
    )
    assert found.figures["not_finite"] == 0 and found.figures["largest_relative"] == 0.02
    assert found.figures["overlap"] == pytest.approx({"top1": 0.6, "top5": 0.9, "top50": 0.9})


SHUFFLED = dict(prompt=[0, 1, 1, 0], round=[2, 1, 1, 1], position=[9, 7, 6, 8])


@pytest.mark.parametrize(
    ("verdicts", "precision", "verdict", "place"),
    [
        (("same", "tie", "noise", "same"), "bfloat16", "pass", None),
        (("same", "tie", "noise", "same"), "float32", "fail", (1, 1, 6)),
        (("bug", "bug", "same", "same"), "bfloat16", "fail", (1, 1, 7)),
        (("bug", "bug", "bug", "bug"), "bfloat16", "fail", (0, 1, 8)),
        (("bug", "same", "same", "same"), "bfloat16", "fail", (0, 2, 9)),
        (("same", "unknown", "same", "same"), "bfloat16", "pass", None),
        (("same", "unknown", "same", "same"), "float32", "fail", (1, 1, 7)),
    ],
)
def test_the_first_bad_row_by_round_prompt_and_position_is_named(verdicts, precision, verdict, place):
    found = _group("verify", judged(*verdicts, **SHUFFLED), precision, [], False)
    assert found.verdict == verdict
    assert found.place == (place and Place("verify.tokens", None, *place))


def test_a_row_that_is_not_finite_is_bad_whatever_its_choice():
    found = _group("verify", judged("same", "same", finite=[True, False]), "bfloat16", [], False)
    assert found.verdict == "fail" and found.place.position == 6 and found.figures["not_finite"] == 1


UNFORCED = "target.tokens was not forced: rows behind a difference have another context"
OWN = f"the device's loop is one piece and continues with its own choices: {UNFORCED}"


@pytest.mark.parametrize(
    ("verdicts", "lack", "free", "own", "verdict", "begins"),
    [
        (("same",), "rows lack", [], False, "inconclusive", "rows lack; 1 same, "),
        (("same",), "rows lack", ["target.tokens", "verify.tokens"], False, "inconclusive",
         f"rows lack; {UNFORCED}; 1 same, "),
        (("same",), "", ["target.tokens"], False, "inconclusive", f"{UNFORCED}; 1 same, "),
        (("same",), "", ["target.tokens"], True, "not judged", f"{OWN}; 1 same, "),
        (("same",), "rows lack", ["target.tokens"], True, "inconclusive", f"rows lack; {OWN}; 1 same, "),
        (("same",), "", [], True, "pass", "1 same, "),
        (("bug",), "rows lack", ["target.tokens"], True, "fail", f"rows lack; {OWN}; 0 same, "),
        ((), "rows lack", [], False, "inconclusive", "rows lack; no row to judge"),
    ],
)  # fmt: skip
def test_what_lacks_is_said_before_the_counts(verdicts, lack, free, own, verdict, begins):
    found = _group("verify", judged(*verdicts, lack=lack), "bfloat16", free, own)
    assert found.verdict == verdict and found.evidence.startswith(begins), found.evidence


def test_the_drafters_rows_are_counted_by_their_place_in_the_round():
    rows = judged("same", "tie", "bug", "same", slot=[0, 1, 2, 1])
    found = _group("drafter", rows, "bfloat16", [], False)
    assert found.name == "drafter, 4 rows (differing: NTP 0, MTP 1 1, MTP 2 1)"
    assert {name: one["rows"] for name, one in found.figures["slots"].items()} == {"NTP": 1, "MTP 1": 2, "MTP 2": 1}


def stage_rows_of(stage: str, golden, device=None, floor=None) -> StageRows:
    """Rows of one prompt, two rounds of which the second has the last row."""
    golden = np.array(golden)
    count = len(golden)
    number = np.arange(count)
    return StageRows(
        NAMES[stage], golden, golden if device is None else np.array(device), floor, number * 0,
        np.where(number < count - 1, 1, 2), number + 5,
    )  # fmt: skip


@pytest.fixture
def given(monkeypatch):
    """Make `stage_rows` and what is due of each stage what is told here."""

    def give(stages: dict[str, StageRows], due: int = 3) -> None:
        monkeypatch.setattr(decisions_rows, "stage_rows", lambda golden, run, named: stages.get(named.name))
        monkeypatch.setattr(decisions_rows, "_due", lambda golden, run, stage: due)

    return give


LOGITS = np.float32([[4, 4, 0, 0], [4, 3.97, 0, 0], [0, 1, 2, 4]])


def scored(device=None, floor: float = 1e-4) -> StageRows:
    return stage_rows_of("verify.logits", LOGITS, LOGITS if device is None else device, LOGITS * np.float32(1 + floor))


def basis(excluded=(False, False, False)) -> SimpleNamespace:
    golden = SimpleNamespace(declared=NAMES)
    return SimpleNamespace(golden=golden, excluded=lambda scores: np.array(excluded), own="through other experts")


@pytest.mark.parametrize(
    ("theirs", "verdicts", "near"),
    [
        ([0, 0, 3], ["same"] * 3, [0, 0, 0]),
        ([1, 1, 2], ["tie", "tie", "bug"], [1, 1, 0]),
        ([2, 0, 0], ["bug", "same", "bug"], [0, 0, 0]),
        ([-1, 4, 3], ["bug", "bug", "same"], [0, 0, 0]),
        ([0, 9, 3], ["same", "bug", "same"], [0, 0, 0]),
    ],
)
def test_each_row_is_judged_by_the_goldens_logits(theirs, verdicts, near, given):
    given({"verify.tokens": stage_rows_of("verify.tokens", [0, 0, 3], theirs), "verify.logits": scored()})
    found = judge_rows(basis(), None, "verify.tokens", NAMED)
    assert found.verdict.tolist() == verdicts and found.near.tolist() == [bool(one) for one in near]
    regret = [float(LOGITS[row, best] - LOGITS[row, one]) if 0 <= one < 4 else np.inf
              for row, (best, one) in enumerate(zip([0, 0, 3], theirs, strict=True))]  # fmt: skip
    assert found.regret.tolist() == regret and found.lack == ""
    assert (found.position.tolist(), found.round.tolist(), found.slot.tolist()) == ([5, 6, 7], [1, 1, 2], [0, 1, 0])


def test_drafts_are_judged_by_the_columns_that_stand_for_them(given):
    rows = stage_rows_of("drafter.draft_tokens", [10, 10, 40], [20, 99, 30])
    logits = stage_rows_of("drafter.logits", LOGITS, LOGITS, LOGITS * np.float32(1.0001))
    given({"drafter.draft_tokens": rows, "drafter.logits": logits})
    found = judge_rows(basis(), None, "drafter.draft_tokens", NAMED)
    assert found.verdict.tolist() == ["tie", "bug", "bug"] and found.regret.tolist() == [0, np.inf, 2]


def test_a_bug_behind_other_experts_is_unknown_and_said_to_be(given):
    given({"verify.tokens": stage_rows_of("verify.tokens", [0, 0, 3], [2, 1, 2]), "verify.logits": scored()})
    found = judge_rows(basis([True, True, False]), None, "verify.tokens", NAMED)
    assert found.verdict.tolist() == ["unknown", "tie", "bug"] and found.lack == "through other experts"


def test_rows_that_are_missing_are_counted(given):
    tokens = stage_rows_of("verify.tokens", [0, 0, 3])
    given({"verify.tokens": tokens, "verify.logits": scored()}, due=4)
    found = judge_rows(basis([True] * 3), None, "verify.tokens", NAMED)
    assert found.lack == "only 3 of 4 rows are there on both sides"
    given({"verify.tokens": tokens})
    found = judge_rows(basis(), None, "verify.tokens", NAMED)
    assert found.lack == "3 of 3 rows have tokens, and logits too" and found.figures()["rows"] == 0
    given({"verify.logits": scored()}, due=5)
    assert judge_rows(basis(), None, "verify.tokens", NAMED).lack == "0 of 5 rows have tokens, and logits too"


def test_a_floor_that_is_too_wide_explains_nothing_where_it_explained_something():
    assert _lack(3, 3, 0.09, 1) == "the noise floor is 9% of the golden: it explains nothing"
    assert [_lack(3, 3, 0.09, 0), _lack(3, 3, 0.08, 1), _lack(4, 3, 0, 0)] == [""] * 3


def test_how_far_a_row_moved_is_told_row_by_row_in_blocks(monkeypatch):
    golden = np.log([[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]]).astype(np.float32)
    device = golden.copy()
    device[0], device[1, 1] = np.log(0.5), np.nan
    for block in (2, 4, 2**22):
        monkeypatch.setattr(decisions_rows, "BLOCK", block)
        kl, relative, finite = _moved(golden, device)
        assert finite.tolist() == [True, False, True] and np.isinf([kl[1], relative[1]]).all()
        assert kl[[0, 2]] == pytest.approx([0.25 * np.log(0.5) + 0.75 * np.log(1.5), 0])
        assert relative[0] == pytest.approx(np.log(2) / np.log(4)) and relative[2] == 0


def test_a_row_of_infinities_overlaps_with_nothing_and_counts_as_not_finite(given):
    device = LOGITS.copy()
    device[2, 0] = np.inf
    given({"verify.tokens": stage_rows_of("verify.tokens", [0, 0, 3]), "verify.logits": scored(device)})
    found = judge_rows(basis(), None, "verify.tokens", NAMED)
    assert found.finite.tolist() == [True, True, False] and found.figures()["not_finite"] == 1


FROM_0 = DraftVocabulary(np.array([0, 20, 30, 40]), "a file")
TIED = np.float32([[4, 4, 0, 0], [3, 4, 4, 0], [0, 1, 2, 4]])


def own(given, lacks=(), due: int = 3, vocabulary=FROM_0, **tokens):
    """The check of three rows of logits each; every token its row's best but for those given."""
    right = {"target": [0, 1, 3], "verify": [0, 1, 3], "drafter": [0, 20, 40]}
    stages = {}
    for side, best in right.items():
        name = "drafter.draft_tokens" if side == "drafter" else f"{side}.tokens"
        stages[name] = stage_rows_of(name, best, tokens.get(side, best))
        stages[f"{side}.logits"] = stage_rows_of(f"{side}.logits", TIED)
    given({name: rows for name, rows in stages.items() if name not in lacks}, due)
    return own_choices(SimpleNamespace(declared=NAMES), None, vocabulary)


def test_every_token_is_the_lowest_id_of_its_rows_best(given):
    found = own(given)
    assert (found.name, found.verdict) == ("its own logits", "pass")
    assert found.evidence == "9 tokens are the lowest id among the exact maxima of the row recorded (6 rows tie)"
    one = {"rows": 3, "tied": 2, "wrong": 0}
    stages = dict.fromkeys(("target.tokens", "verify.tokens", "drafter.draft_tokens"), one)
    assert found.figures == {"stages": stages, "vocabulary": "a file", "lacking": []}


@pytest.mark.parametrize(
    ("tokens", "said", "place"),
    [
        ({"target": [1, 1, 3]}, "1 of 9 tokens are not the lowest id among their row's maxima: 1 for 0",
         Place("target.tokens", None, 0, 1, 5)),
        ({"verify": [0, 1, 2], "drafter": [0, 30, 40]},
         "2 of 9 tokens are not the lowest id among their row's maxima: 30 for 20",
         Place("drafter.draft_tokens", None, 0, 1, 6)),
        ({"verify": [0, 1, 2], "target": [0, 1, 1]},
         "2 of 9 tokens are not the lowest id among their row's maxima: 1 for 3",
         Place("target.tokens", None, 0, 2, 7)),
    ],
)  # fmt: skip
def test_the_earliest_token_that_contradicts_its_own_row_is_named(tokens, said, place, given):
    found = own(given, **tokens)
    assert (found.verdict, found.evidence, found.place) == ("fail", said, place)


@pytest.mark.parametrize(
    ("lacks", "due", "said"),
    [
        (("verify.tokens",), 3, "missing: verify.tokens; 6 tokens are "),
        (("target.logits", "verify.tokens"), 3, "missing: target.tokens, verify.tokens; 3 tokens are "),
        ((), 4, "missing: target.tokens, verify.tokens, drafter.draft_tokens; 0 tokens are "),
    ],
)
def test_stages_without_their_rows_are_missing(lacks, due, said, given):
    found = own(given, lacks, due)
    assert found.verdict == "inconclusive" and found.evidence.startswith(said)


def test_draft_columns_that_nobody_knows_are_missing_and_not_wrong(given):
    some = DraftVocabulary(np.array([-1, 20, 30, 40]), "rows")
    found = own(given, vocabulary=some, drafter=[77, 20, 40])
    assert found.verdict == "inconclusive"
    assert found.evidence.startswith("missing: 1 rows of drafter.draft_tokens (no column known); 9 tokens are ")


def drafted(vocabulary=NAMED, tokens=(10, 10, 40), stages=("drafter.logits", "drafter.draft_tokens"), draws=False,
            rows=True):  # fmt: skip
    """A golden of three drafts of the logits above, and the patches by which it is read."""
    case = SimpleNamespace(draws=draws)
    golden = SimpleNamespace(declared=NAMES, folder="golden", manifest=SimpleNamespace(stages=stages, case=case))
    made = {
        "drafter.logits": stage_rows_of("drafter.logits", LOGITS),
        "drafter.draft_tokens": stage_rows_of("drafter.draft_tokens", tokens),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decisions_rows, "stage_rows", lambda golden, run, named, **of: made[named.name] if rows else None)
        patch.setattr(decisions_rows, "draft_vocabulary", lambda golden, scores, chosen: vocabulary)
        return decisions_rows.read_draft_vocabulary(golden)


def test_the_drafts_of_a_golden_are_what_its_vocabulary_says_of_their_columns():
    assert drafted() is NAMED and drafted(stages=("a", "drafter.draft_tokens", "drafter.logits")) is NAMED
    said = r"^the golden drafts token 20 from column 0, a file says 10: which of them is right is not for this gate"
    with pytest.raises(Inconclusive, match=said):
        drafted(tokens=(10, 20, 30))
    for stages in (("drafter.logits",), ("drafter.draft_tokens",)):
        with pytest.raises(Inconclusive, match=r"^golden lacks drafter.logits or drafter.draft_tokens: nothing maps"):
            drafted(stages=stages)
    with pytest.raises(Inconclusive, match=r"^golden has no round: nothing maps draft columns to tokens$"):
        drafted(rows=False)


def test_drawn_drafts_need_the_token_of_every_column():
    assert drafted(draws=True, tokens=(10, 20, 30)) is NAMED
    some = DraftVocabulary(np.array([10, -1, 30, 40]), "rows")
    for vocabulary, tokens in ((some, (10, 10, 40)), (NAMED, (10, 50, 40))):
        with pytest.raises(Inconclusive, match=r"^golden samples its drafts, and .* does not name the token of every"):
            drafted(vocabulary, tokens, draws=True)


def test_rows_are_due_of_every_round_but_for_those_of_which_the_last_is_shown():
    row = lambda count: SimpleNamespace(shape=(count, 7))  # noqa: E731
    rows = {("float32", 0, 0, "target.tokens"): row(5), ("float32", 1, 0, "target.tokens"): row(4),
            ("float32", 0, 1, "verify.tokens"): row(3), ("bfloat16", 0, 0, "target.tokens"): row(9),
            ("float64", 0, 0, "target.tokens"): row(9), ("float32", 0, 0, "accept.length"): row(9)}  # fmt: skip
    golden = SimpleNamespace(rows=rows)
    for last, due in (((), 9), (("target.logits",), 2), (("target.tokens",), 2), (("verify.logits",), 9)):
        view = SimpleNamespace(rows=lambda stage, round_, last=last: "last" if stage in last else "all")
        assert decisions_rows._due(golden, SimpleNamespace(view=view), "target.tokens") == due


WIDTH = 32


def ties(ends=(), ascending: bool = True, tokens=None) -> PlantedTies:
    ids = np.arange(100, 100 + WIDTH) if tokens is None else tokens
    return PlantedTies(SimpleNamespace(ascending=ascending, tokens=ids), ends, np.random.default_rng(0))


def test_three_columns_of_each_row_tie_above_all_others_and_the_rest_is_as_it_was():
    planted, logits = ties(), np.arange(3 * WIDTH, dtype=np.float32).reshape(3, WIDTH)
    tied = planted("verify.logits", logits)
    for row, (now, before) in enumerate(zip(tied, logits, strict=True)):
        columns = np.flatnonzero(now == now.max())
        assert columns.tolist() == planted.tied["verify.tokens"][row].tolist() and len(columns) == 3
        rest = np.delete(np.arange(WIDTH), columns)
        assert (now[rest] == before[rest]).all() and now.max() > before.max()
    assert (logits == np.arange(3 * WIDTH).reshape(3, WIDTH)).all()


def test_end_tokens_and_unknown_columns_never_tie_and_too_few_columns_are_left_alone():
    ids = np.r_[np.full(20, -1), np.arange(12)]
    planted = ties(ends=(11, 0), tokens=ids)
    planted("drafter.logits", np.zeros((9, WIDTH), np.float32))
    told = planted.tied["drafter.draft_tokens"]
    assert set(told.ravel().tolist()) <= set(range(1, 11)) and told[1].tolist() == [1, 6, 10]
    for few in (ties(ends=range(25)), ties(ascending=False)):
        stage = "verify.logits" if few.vocabulary.ascending else "drafter.logits"
        logits = np.zeros((2, WIDTH), np.float32)
        assert few(stage, logits) is logits and few.tied == {}
    enough = ties(ends=range(24))
    assert (enough("verify.logits", np.zeros((1, WIDTH), np.float32)) != 0).sum() == 3
    assert (ties(ascending=False)("verify.logits", np.zeros((1, WIDTH), np.float32)) != 0).sum() == 3


def test_other_stages_pass_as_they_are():
    planted, value = ties(), np.zeros((2, WIDTH), np.float32)
    assert planted("target.layers.0.router_logits", value) is value and planted.counts == {}


def test_tokens_are_compared_with_the_lowest_of_their_rows_ties():
    planted = ties()
    planted.round, planted.tied["verify.tokens"] = 2, np.array([[3, 9, 5], [7, 8, 6], [1, 2, 4]])
    planted("verify.tokens", np.array([3, 7, 1]))
    assert planted.counts == {"verify.tokens": 3}
    assert planted.wrong == [WrongChoice("verify.tokens", 2, 1, 7, (7, 8, 6))]
    planted.look("verify.tokens", [6, 0])  # of the last two rows
    assert planted.counts == {"verify.tokens": 5} and planted.wrong[1].token == 0 and planted.wrong[1].tied == (1, 2, 4)
    planted.look("target.tokens", [5])
    assert planted.counts["target.tokens"] == 0 and len(planted.wrong) == 2


def test_a_chains_passes_are_tied_one_behind_the_other():
    planted, whole = ties(), ties()
    first = planted.rows("drafter.logits", np.zeros((1, WIDTH), np.float32), 0, 3)
    planted.rows("drafter.draft_tokens", first.argmax(axis=1) + 100, 0, 3)
    second = planted.rows("drafter.logits", np.zeros((2, WIDTH), np.float32), 1, 3)
    planted.rows("drafter.draft_tokens", second.argmax(axis=1) + 100, 1, 3)
    assert planted.wrong == [] and planted.counts == {"drafter.draft_tokens": 3}
    whole("drafter.logits", np.zeros((3, WIDTH), np.float32))
    assert planted.tied["drafter.draft_tokens"].tolist() == whole.tied["drafter.draft_tokens"].tolist()
    planted.rows("drafter.draft_tokens", np.array([5]), 1, 3)
    assert planted.wrong[0].tied == tuple(planted.tied["drafter.draft_tokens"][1])


def test_the_tied_value_is_a_power_of_two_above_every_logit():
    assert _above(np.float32([[1, -3], [0, 0], [7, 0], [8, 0]])).tolist() == [[8], [2], [16], [32]]


def checked(wrong=(), counts=None, due=("target.tokens", "verify.tokens")):
    planted = ties()
    planted.counts, planted.wrong = counts or {"target.tokens": 3, "verify.tokens": 9}, list(wrong)
    return _tie_check(planted, due)


def test_what_planted_ties_come_to_is_said():
    found = checked()
    assert found.verdict == "pass" and found.figures == {"rows": {"target.tokens": 3, "verify.tokens": 9}, "wrong": 0}
    assert found.evidence == "3 rows of target.tokens, 9 rows of verify.tokens tied in three columns: the lowest id won"
    found = checked(counts={"target.tokens": 3, "verify.tokens": 0}, due=("verify.tokens", "drafter.draft_tokens"))
    assert found.verdict == "inconclusive"
    assert found.evidence.startswith("not tied: verify.tokens, drafter.draft_tokens; 3 rows of target.tokens, 0 rows")
    assert checked(counts={"target.tokens": 3}, due=("target.tokens",)).verdict == "pass"


def test_the_earliest_wrong_choice_is_named_and_whether_it_was_tied_at_all():
    late, early = WrongChoice("verify.tokens", 2, 1, 9, (3, 9)), WrongChoice("drafter.draft_tokens", 1, 0, 5, (3, 9))
    found = checked([late, early])
    assert found.verdict == "fail" and found.place == Place("drafter.draft_tokens", None, 0, 1)
    deaf = "none of them: it does not continue with what the tap returns, or never chooses these"
    assert found.evidence == f"2 of 12 tied rows: (3, 9) tie and 5 is chosen, {deaf}"
    assert checked([late]).evidence == "1 of 12 tied rows: (3, 9) tie and 9 is chosen, one of them"


class Tied:
    """Chooses by what the tap returns; accepts every draft up to a number."""

    def __init__(self, room: int = 999, eos=(), takes: int = 2):
        self.room, self.eos, self.takes, self.calls, self.budget = room, eos, takes, [], None

    def describe(self):
        return SimpleNamespace(eos=self.eos, k=2, max_positions=self.room)

    def prefill(self, ids, budget, tap):
        self.ids, self.budget = ids, budget
        return tap("target.tokens", tap("target.logits", np.zeros((1, WIDTH), np.float32)).argmax(axis=1))[0]

    def draft(self, tap):
        self.calls.append("draft")
        return tap("drafter.draft_tokens", tap("drafter.logits", np.zeros((2, WIDTH), np.float32)).argmax(axis=1) + 100)

    def verify(self, drafts, tap):
        return tap("verify.tokens", tap("verify.logits", np.zeros((3, WIDTH), np.float32)).argmax(axis=1))

    def commit(self, drafts, tokens, tap):
        return [int(token) for token in tokens[: self.takes]]


@pytest.mark.parametrize(
    ("room", "takes", "rounds", "budget"), [(999, 2, 3, 10), (999, 3, 3, 10), (9, 3, 2, 5), (9, 1, 3, 5), (8, 2, 2, 4)]
)
def test_ties_are_planted_in_so_many_rounds_as_the_budget_leaves(room, takes, rounds, budget):
    device = Tied(room, takes=takes)
    prompts = [SimpleNamespace(ids=(1, 2, 3)), SimpleNamespace(ids=(1, 2)), SimpleNamespace(ids=(3, 4))]
    golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))
    context = SimpleNamespace(golden=golden, device=lambda: device, seed=0)
    planted = ties()
    due = ("target.tokens", "verify.tokens", "drafter.draft_tokens")
    found = decisions.planted_ties(context, planted.vocabulary, due)
    assert found.verdict == "pass" and (device.ids, device.budget) == ((1, 2), budget)
    # Each round is looked at twice: as the tap is handed its tokens, and as the verb returns them.
    assert found.figures["rows"] == {
        "target.tokens": 2, "drafter.draft_tokens": 2 * 2 * rounds, "verify.tokens": 2 * 3 * rounds,
    }  # fmt: skip
    assert len(device.calls) == rounds
