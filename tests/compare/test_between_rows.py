"""Two devices by hand: what stands in the place of a device's tensor, whose words are told, and later failures."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import kept
from parity.compare.basis import Basis
from parity.compare.best_logits import _at
from parity.compare.between import DeviceDifference
from parity.compare.breakdown import _heads
from parity.compare.choices import BUG, NOISE, SAME, judge_choices
from parity.compare.constants import check_constants
from parity.compare.inconclusive import _nothing_computed, _nothing_in_common
from parity.compare.intervals import MANY
from parity.compare.kept import less_than_whole
from parity.compare.numbers import TOP, _missed, _overlap
from parity.compare.places import _later
from parity.compare.report import Place, StageResult
from parity.compare.rows import StageRows
from parity.errors import UsageError
from parity.golden.keeping import Form, Record, packed
from parity.policy import Bound, Row
from parity.stages import declared

NAMES = declared(2, 1)
OUT, EXPERTS, CACHE = "target.layers.0.out", "target.layers.0.experts", "kv.target.0.k"


def side(name: str, tensors: dict, constants: dict | None = None) -> SimpleNamespace:
    model = {part: SimpleNamespace(constants=(constants or {}).get(part, {})) for part in ("target", "drafter")}
    manifest = SimpleNamespace(producer=SimpleNamespace(name=name), model=SimpleNamespace(**model))
    contents = lambda variant, prompt, round_, stage: tensors.get((variant, stage))  # noqa: E731
    return SimpleNamespace(contents=contents, manifest=manifest)


def difference(golden: dict, run: dict, other: dict, start: int = 0) -> DeviceDifference:
    made = DeviceDifference.__new__(DeviceDifference)
    made.golden, made.run, made.other = side("golden", golden), side("one", run), side("other", other)
    made.shown, made.declared = None, NAMES
    made.rows = {("bfloat16", 0, 1, name): SimpleNamespace(start=start) for name in (OUT, EXPERTS, CACHE)}
    return made


def read(made: DeviceDifference, stage: str) -> list | None:
    found = made.contents("bfloat16", 0, 1, stage)
    return None if found is None else found.tolist()


TRUE, MINE, THEIRS = np.float32([[1, 2], [3, 4]]), np.float32([[1.5, 2], [3, 4]]), np.float32([[1, 2], [3, 3.5]])


def held(stage: str, *values) -> list[dict]:
    return [
        {(variant, stage): value} for variant, value in zip(("float32", "bfloat16", "bfloat16"), values, strict=True)
    ]


def test_numbers_are_the_goldens_and_what_parts_the_two():
    assert read(difference(*held(OUT, TRUE, MINE, THEIRS)), OUT) == [[1.5, 2], [3, 4.5]]
    assert read(difference(*held(OUT, TRUE, THEIRS, MINE)), OUT) == [[0.5, 2], [3, 3.5]]
    assert read(difference(*held(OUT, TRUE, MINE, THEIRS[:1])), OUT) == MINE.tolist()  # of another shape: its own
    assert read(difference({}, *held(OUT, TRUE, MINE, THEIRS)[1:]), OUT) == MINE.tolist()
    assert read(difference(held(OUT, TRUE, MINE, THEIRS)[0], {}, {}), OUT) is None


def test_choices_are_the_goldens_where_both_agree_and_else_those_of_the_one_that_differs():
    """Rows: all alike; both another one; the first alone is right; the second alone; neither."""
    true, mine = np.array([[1, 2]] * 5), np.array([[1, 2], [7, 8], [1, 2], [3, 4], [5, 6]])
    theirs = np.array([[1, 2], [7, 8], [9, 2], [1, 2], [7, 8]])
    made = difference(*held(EXPERTS, true, mine, theirs))
    assert read(made, EXPERTS) == [[1, 2], [1, 2], [9, 2], [3, 4], [5, 6]]
    made = difference(*held(EXPERTS, *(array[:, 0] for array in (true, mine, theirs))))
    assert read(made, EXPERTS) == [1, 1, 9, 3, 5]
    made.shown = made.other
    assert read(made, EXPERTS) == [1, 7, 9, 1, 7]


def test_what_is_stored_of_a_cache_are_the_rows_from_the_first_that_changed_on():
    made = difference(*held(CACHE, TRUE, MINE, THEIRS), start=1)
    assert made.stored("bfloat16", 0, 1, CACHE).tolist() == [[3, 4.5]]
    assert difference({}, {}, {}).stored("bfloat16", 0, 1, CACHE) is None
    one, other = made.alone()
    assert (one.shown, other.shown, made.shown) == (made.run, made.other, None)
    assert made.sides == (made.run, made.other)


def test_constants_of_two_devices_are_told_by_their_names():
    one, other = (side(name, {}, {"target": {"eps": n}}) for name, n in (("one", 1), ("other", 2)))
    found = check_constants(None, SimpleNamespace(sides=(one, other)))
    assert [each.message for each in found.findings] == ["other, target: eps is 2, one reads 1"]
    more = side("other", {}, {"target": {"eps": 1, "theta": 3}})
    found = check_constants(None, SimpleNamespace(sides=(one, more)))
    assert found.findings == () and found.compared == 1
    assert "one does not read theta of the target, other does" in found.unjudged


SCORES = np.float32([[9, 8, 0, 0], [0, 9, 8.9, 0]])


def test_a_draft_whose_column_nobody_knows_stands_for_the_best_one_left():
    """The golden's rows tell that column 0 is token 7 and column 1 token 5."""
    number = np.arange(2)

    def rows(name, golden, device, **more) -> StageRows:
        return StageRows(
            NAMES[name], np.array(golden), np.array(device), None, number * 0, number * 0 + 1, number, **more
        )

    scores = rows("drafter.logits", SCORES, np.float32([[0, 0, 1, 2], [0, 0, 3, 1]]), noise=np.array([0.15, 0.02]))
    row = Row(stages="*", judge="decision", reason="as a test has it")

    def judged(*tokens):
        found = judge_choices(rows("drafter.draft_tokens", [7, 5], tokens), scores, row, number > 9, number > 9)
        return {name: count for name, count in found.choices.items() if count}, found.largest_regret

    assert judged(7, 5) == ({SAME: 2}, 0)
    assert judged(5, 5) == ({SAME: 1, NOISE: 1}, 1)  # of row 0 the known column 1 is within seven times 0.15
    assert judged(8, 5) == ({SAME: 1, BUG: 1}, 9)  # by the device the best of columns 2 and 3 is 3
    assert judged(7, 8) == ({SAME: 1, NOISE: 1}, pytest.approx(0.1, rel=1e-5))
    assert judged(7, 7) == ({SAME: 1, BUG: 1}, 9)


def test_logits_are_found_by_their_columns_in_whatever_order_they_are_kept():
    rows = np.float32([[5, 1, 4, 3], [2, 6, 1, 7]])
    best = Record(np.arange(2), packed(Form(top=3), rows), Form(top=3))
    total = np.log(np.exp(rows.astype(float)).sum(axis=1))
    found = _at(best, np.array([[3, 1], [0, 2]]))
    assert found[:, :2].tolist() == [[3, 3], [2, 2]]  # columns 1 and 2 are not kept: the least of those that are
    assert found[:, 2] == pytest.approx(total, rel=1e-6)
    whole = _at(Record(np.arange(2), rows), np.array([[3, 1], [0, 2]]))
    assert whole[:, :2].tolist() == [[3, 1], [2, 1]] and whole[:, 2] == pytest.approx(total, rel=1e-6)


def test_every_head_is_a_slice():
    golden = np.ones((5, 3, 4), np.float32)
    number = np.arange(5)
    device = golden.copy()
    device[:, 2] += 0.5
    rows = StageRows(
        NAMES["target.layers.0.q"], golden, device, golden * np.float32(1.01), number * 0, number * 0, number
    )
    found = [*_heads(rows, None, None)]
    assert len(found) == 3 and [part.x > 1 for part in found] == [False, False, True]


def test_lengths_alone_prove_nothing_and_choices_or_numbers_do():
    golden = SimpleNamespace(declared=NAMES)
    words = "the run shows nothing that the models compute: {} alone prove nothing of them"
    assert _nothing_computed(golden, ["kv.target.length"]) == (words.format("kv.target.length"),)
    for more in (["verify.tokens"], [OUT], [EXPERTS]):
        assert _nothing_computed(golden, ["kv.target.length", *more]) == ()
    assert _nothing_computed(golden, []) == ()


@pytest.mark.parametrize(
    ("sides", "names", "not_shown", "told"),
    [(2, [EXPERTS], {"x": "y"}, True), (1, [EXPERTS], {"x": "y"}, False), (2, [OUT], {"x": "y"}, False),
     (2, [EXPERTS], {}, False)],
)  # fmt: skip
def test_two_devices_that_show_choices_alone_are_not_equivalent(sides, names, not_shown, told):
    run, golden = SimpleNamespace(sides=[None] * sides), SimpleNamespace(declared=NAMES)
    assert bool(_nothing_in_common(golden, run, names, not_shown)) is told


def result(verdict: str = "pass", first: Place | None = None) -> StageResult:
    return StageResult(OUT, OUT, 0, "noise", verdict, "as a test has it", rows=9, first=first)


def test_a_result_is_later_where_both_first_show_somewhere():
    passes = SimpleNamespace(later=lambda one, other: one.round > other.round)
    early, late = (result(first=Place(OUT, 0, 0, round_, 0)) for round_ in (1, 2))
    assert _later(late, early, passes) and not _later(early, late, passes)
    for pair in ((result(), early), (late, result()), (result(), result())):
        assert not _later(*pair, passes)


@pytest.mark.parametrize(
    ("verdict", "unseen", "due"), [("fail", 3, "inconclusive"), ("fail", 0, "fail"), ("pass", 3, "pass")]
)
def test_a_failure_that_pages_nobody_sees_may_explain_settles_nothing(monkeypatch, verdict, unseen, due):
    form = SimpleNamespace(sketch=0, top=4)
    one = SimpleNamespace(position=[1], less=True, sides=[SimpleNamespace(form=form)] * 3, lacking=0, due=9)
    monkeypatch.setattr(kept, "held", lambda *of: [one])
    monkeypatch.setattr(kept, "_unseen", lambda *of: unseen)
    monkeypatch.setattr("parity.compare.best_logits.judge_best", lambda *of: (result(verdict), ["finding"]))
    row = Row(stages="*", judge="noise", bounds={"l2": Bound(ok=1.0, warn=1.0)}, reason="as a test has it")
    golden = SimpleNamespace(declared=NAMES)
    found, findings = less_than_whole(golden, golden, NAMES[OUT], row, Basis(golden, golden), ())
    assert found.verdict == due and findings == ["finding"]
    assert found.note.startswith("3 of 9 rows") is (due == "inconclusive")
    with pytest.raises(UsageError, match="by exact: that needs whole tensors"):
        exact = Row(stages="*", judge="exact", reason="as a test has it")
        less_than_whole(golden, golden, NAMES[OUT], exact, Basis(golden, golden), ())
    one.less = False
    assert less_than_whole(golden, golden, NAMES[OUT], row, Basis(golden, golden), ()) is None


def test_of_the_best_logits_those_that_are_missed_are_over_the_floors():
    """Of two rows of ten the device misses two of the best five in one, the floor one in each."""
    golden = np.tile(np.arange(60.0, dtype=np.float32)[::-1], (2, 1))
    device, floor = golden.copy(), golden.copy()
    device[0, [3, 4]] = -1
    floor[:, 4] = -1
    number = np.arange(2)
    rows = StageRows(NAMES["target.logits"], golden, device, floor, number, number, number)
    topk = _overlap(golden, device)
    assert TOP == (1, 5, 50) and topk == pytest.approx({1: 1.0, 5: 0.8, 50: 0.98})
    assert _missed(rows, topk) == pytest.approx({"top1": 0, "top5": 1.0, "top50": 1.0})
    quiet = replace(rows, floor=golden)  # one place of ten, and one of a hundred
    assert _missed(quiet, topk) == pytest.approx({"top1": 0, "top5": 2.0, "top50": 2.0})
    assert _missed(rows, {}) == {} and MANY == 400
