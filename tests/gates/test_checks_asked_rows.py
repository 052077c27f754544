"""Which checks gates yield of a run, by hand: acceptance, decisions, stages, positions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import DeviceFailed, Inconclusive, NotOffered, NotShown, UsageError
from parity.families import MODEL
from parity.gates import acceptance, decisions, lossless, positions, stages, verify
from parity.gates.decisions import FORCED, _same
from parity.gates.gate import Check
from parity.gates.golden_tokens import first_difference


def dump(*generations, forced=FORCED, precision="bfloat16", name="p-eagle") -> SimpleNamespace:
    prompts = [SimpleNamespace(generation=one) for one in generations]
    case = SimpleNamespace(prompts=prompts, forced=forced, precision=precision)
    pair = {side: SimpleNamespace(path=f"/{side}") for side in ("target", "drafter")}
    return SimpleNamespace(
        manifest=SimpleNamespace(case=case, producer="x", model=SimpleNamespace(family=name, **pair))
    )


@pytest.mark.parametrize(
    ("device", "reference", "whole"),
    [(("a", "b"), ("c", "d"), True), (("a", None), ("c", "d"), False), (("a", "b"), ("c", None), False),
     ((None, None), ("c", "d"), False)],
)  # fmt: skip
@pytest.mark.parametrize("verdict", ["pass", "fail"])
def test_free_texts_are_counted_where_every_prompt_has_one(monkeypatch, device, reference, whole, verdict):
    asked = []
    monkeypatch.setattr(acceptance, "comparable", lambda golden, run: asked.append("comparable"))
    monkeypatch.setattr(acceptance, "add_up", lambda context, *of: asked.append(of) or Check("counts", verdict, ""))
    monkeypatch.setattr(acceptance, "free", lambda context, *of, credible: iter([Check("free", "pass", str(credible))]))
    monkeypatch.setattr(acceptance, "teacher_forced", lambda context: Check("forced", "pass", ""))
    monkeypatch.setattr(acceptance, "emits_what_counts", lambda context: Check("cuts", "pass", ""))
    context = SimpleNamespace(golden=dump(*reference), run=lambda mode: dump(*device))
    found = {check.name: check for check in acceptance.checks(context)}
    if whole:
        assert asked == ["comparable", (["a", "b"], ["c", "d"])] and [*found] == ["counts", "free", "forced", "cuts"]
        assert found["free"].evidence == str(verdict == "pass")
    else:
        assert [*found] == [acceptance.COUNTS, "forced", "cuts"] and found[acceptance.COUNTS].verdict == "inconclusive"


def judged(*verdicts: str, lack: str = "") -> SimpleNamespace:
    return SimpleNamespace(verdict=np.array(verdicts), lack=lack)


def test_rows_are_the_same_where_there_are_some_and_nothing_lacks():
    assert _same(judged("same", "same"))
    assert not _same(judged("same", "tie")) and not _same(judged()) and not _same(judged("same", lack="rows"))


@pytest.fixture
def decided(monkeypatch):
    """What each group is judged by: its name, what was not forced, and whether the loop is one piece."""

    def ask(rows: dict, has=(MODEL,), forced=FORCED, own: bool = False, **more) -> tuple[list, list[str]]:
        given = []
        monkeypatch.setattr(decisions, "refuse_shared", lambda *of: None)
        monkeypatch.setattr(decisions, "family_of", lambda name: SimpleNamespace(has=has, name=name))
        monkeypatch.setattr(decisions, "read_draft_vocabulary", lambda golden: "vocabulary")
        monkeypatch.setattr(decisions, "judge_rows", lambda basis, run, stage, vocabulary: rows[stage])
        monkeypatch.setattr(
            decisions, "_group",
            lambda name, rows, precision, free, own: given.append((name, free, own)) or Check(name, "pass", ""),
        )  # fmt: skip
        monkeypatch.setattr(decisions, "own_choices", lambda golden, run, vocabulary: Check("own", "pass", ""))
        monkeypatch.setattr(
            decisions, "planted_ties", lambda context, vocabulary, stages: Check(f"ties of {len(stages)}", "pass", "")
        )
        verbs = dict.fromkeys(("describe", "speculate") if own else ("describe",), lambda self, *of: None)
        device = type("Toy", (), verbs)()
        context = SimpleNamespace(
            golden=dump(), run=lambda mode: dump(forced=forced), device=lambda: device, basis=lambda mode: mode
        )
        return given, [check.name for check in decisions.checks(context)]

    return ask


ALIKE = dict.fromkeys(("target.tokens", "verify.tokens", "drafter.draft_tokens"), judged("same"))


def test_groups_of_a_forced_run_are_judged_whatever_they_hold(decided):
    given, names = decided(ALIKE)
    assert given == [(name, [], False) for name in ("target", "verify", "drafter")]
    assert names == ["target", "verify", "drafter", "own", "ties of 3"]


def test_what_was_not_forced_matters_where_a_row_differs_or_the_loop_is_one_piece(decided):
    some = ("target.tokens", "verify.tokens", "accept.length")
    left = ["drafter.draft_tokens", "accept.emitted"]
    assert {tuple(free) for _, free, _ in decided(ALIKE, forced=some)[0]} == {()}
    other = ALIKE | {"verify.tokens": judged("same", "tie")}
    assert [free for _, free, _ in decided(other, forced=some)[0]] == [left] * 3
    assert decided(ALIKE, forced=some, own=True)[0] == [(name, left, True) for name in ("target", "verify", "drafter")]


def test_a_drafter_without_a_model_has_no_logits_to_judge(decided):
    given, names = decided(ALIKE, has=(), forced=())
    assert names == ["drafter", "target", "verify", "own", "ties of 2"]
    assert [free for _, free, _ in given] == [[*FORCED]] * 2


@pytest.mark.parametrize(
    ("compared", "findings", "set_aside", "unjudged", "silent", "verdict", "said"),
    [
        (3, (), (), (), "", "pass", "3 alike"),
        (3, (), (), ("one does not read x",), "", "pass", "one does not read x"),
        (3, (), (), ("nothing of it",), "drafter", "inconclusive", "nothing of it"),
        (0, (), (), ("nothing",), "", "not judged", "nothing"),
        (3, ("a", "b", "c", "d"), ("e",), (), "drafter", "fail", "a; b; c"),
        (3, (), ("e",), ("z",), "drafter", "disputed", "e"),
    ],
)
def test_constants_are_alike_wrong_disputed_or_not_said(
    monkeypatch, compared, findings, set_aside, unjudged, silent, verdict, said
):
    found, aside = ([SimpleNamespace(message=one) for one in each] for each in (findings, set_aside))
    told = SimpleNamespace(compared=compared, findings=found, set_aside=aside, unjudged=unjudged, silent=silent)
    monkeypatch.setattr(stages, "check_constants", lambda golden, run: told)
    check = stages.constants_check(SimpleNamespace(golden=None, run=lambda mode: mode))
    assert (check.verdict, check.evidence) == (verdict, said)
    assert check.figures == {"compared": compared, "unjudged": unjudged}


@pytest.mark.parametrize(("precision", "more"), [("float32", []), ("bfloat16", ["exact"])])
def test_stages_are_judged_in_both_modes_and_once_more_in_float32(monkeypatch, precision, more):
    monkeypatch.setattr(stages, "stage_check", lambda context, mode: mode)
    monkeypatch.setattr(stages, "constants_check", lambda context: "constants")
    monkeypatch.setattr(stages, "float32_checks", lambda context: iter(["exact"]))
    assert [*stages.checks(SimpleNamespace(precision=precision))] == ["local", "chained", "constants", *more]


@pytest.mark.parametrize(("has", "sides"), [((MODEL,), ("target", "drafter")), ((), ("target",))])
def test_each_side_that_rotates_is_looked_at_and_two_are_compared(monkeypatch, has, sides):
    family = SimpleNamespace(has=has, name="ngram")
    monkeypatch.setattr(positions, "family_of", lambda name: family)
    monkeypatch.setattr(positions, "_attempt", lambda name, judge: Check(name, "pass", ""))
    found = [(check.name, check.verdict) for check in positions.checks(SimpleNamespace(golden=dump()))]
    every = [(f"{side}, every position", "pass") for side in sides]
    both = [("the passes of the golden's pair", "pass"), ("wrong configs and positions refused", "pass")]
    if len(sides) == 2:
        assert found == [*every, *both, ("schedules of the golden's pair", "pass")]
    else:
        assert found == [("drafter", "not judged"), *every, *both]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [([1, 2, 3], [1, 2, 3], 3), ([1, 2, 3], [1, 2], 2), ([1000, 5], [1000, 6], 1), ([], [1], 0)],
)
def test_two_texts_agree_up_to_the_first_token_that_differs(one, other, alike):
    assert first_difference([int(str(token)) for token in one], other) == alike


def test_a_gate_without_a_run_refuses():
    context = SimpleNamespace(golden=dump(), run=lambda mode: (_ for _ in ()).throw(UsageError("no run")))
    with pytest.raises(UsageError, match="no run"):
        next(iter(acceptance.checks(context)))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("verbs", "whole"),
    [((), False), (("describe", "speculate"), False), (("decode_plain",), False),
     (("describe", "speculate", "decode_plain"), True)],
)  # fmt: skip
def test_a_loop_in_one_piece_that_decodes_plainly_too_is_run_whole(monkeypatch, precision, verbs, whole):
    device = type("Toy", (), dict.fromkeys(verbs, lambda self, *of: None))()
    monkeypatch.setattr(lossless, "NoiseFloors", lambda golden: "noise")
    monkeypatch.setattr(lossless, "loop_checks", lambda context, precision: iter([f"loop {precision}"]))
    monkeypatch.setattr(lossless, "equals_plain_decoding", lambda context, noise, precision: f"plain {precision}")
    monkeypatch.setattr(lossless, "golden_text", lambda context, precision: f"text {precision}")
    monkeypatch.setattr(lossless, "accepts_by_rule", lambda context: "rule")
    context = SimpleNamespace(golden=None, precision=precision, device=lambda precision: device)
    each = ["loop {}"] if whole else ["plain {}", "text {}"]
    due = [one.format(name) for name in dict.fromkeys(("float32", precision)) for one in each]
    assert [*lossless.checks(context)] == [*due, "rule"]


def test_a_check_of_losslessness_without_evidence_leaves_the_others_theirs(monkeypatch):
    def missing(*of):
        raise Inconclusive("no rows")

    monkeypatch.setattr(lossless, "NoiseFloors", lambda golden: "noise")
    monkeypatch.setattr(lossless, "equals_plain_decoding", missing)
    monkeypatch.setattr(lossless, "golden_text", missing)
    monkeypatch.setattr(lossless, "accepts_by_rule", lambda context: "rule")
    context = SimpleNamespace(golden=None, precision="float32", device=lambda precision: None)
    names = ("speculation = plain decoding, float32", "plain decoding = the golden's text, float32")
    assert [*lossless.checks(context)] == [*(Check(name, "inconclusive", "no rows") for name in names), "rule"]


@pytest.mark.parametrize("error", [NotOffered("a loop"), NotShown("hidden"), DeviceFailed("numpy", "verify", "oh")])
def test_what_a_device_does_not_offer_or_show_or_a_device_that_raises_ends_losslessness(monkeypatch, error):
    def ends(*of):
        raise error

    monkeypatch.setattr(lossless, "NoiseFloors", lambda golden: "noise")
    monkeypatch.setattr(lossless, "equals_plain_decoding", ends)
    context = SimpleNamespace(golden=None, precision="float32", device=lambda precision: None)
    with pytest.raises(type(error)):
        [*lossless.checks(context)]


@pytest.mark.parametrize(("precision", "rows"), [("float32", ["float32"]), ("bfloat16", ["float32", "bfloat16"])])
def test_verify_is_asked_in_float32_in_its_own_precision_in_a_batch_and_on_ties(monkeypatch, precision, rows):
    monkeypatch.setattr(verify, "NoiseFloors", lambda golden: "noise")
    monkeypatch.setattr(verify, "rows_agree", lambda context, noise, precision: precision)
    monkeypatch.setattr(verify, "batch_agrees", lambda context, noise: "batch")
    monkeypatch.setattr(verify, "lowest_wins", lambda context: "ties")
    assert [*verify.checks(SimpleNamespace(golden=None, precision=precision))] == [*rows, "batch", "ties"]
