"""Rows of dumps that keep less than all, by hand: which are compared, what stands for logits that are not kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import best_logits, records
from parity.compare.best_logits import _at, _columns, divergence, judge_best, unknown_choices
from parity.compare.records import Held, held, kept_ids, labelled, whole_rows
from parity.compare.rows import HALF_ULP, StageRows
from parity.errors import Inconclusive, UsageError
from parity.golden.keeping import Form, Record, log_sum_exp, packed, packed_floor
from parity.golden.manifest import TensorRow, key
from parity.policy import Bound, Row
from parity.stages import declared

NAMES = declared(2, 1)
OUT, LOGITS, TOKENS = "target.layers.0.out", "target.logits", "target.tokens"


class Side:
    """A dump of one prompt's prefill: `{(variant, stage): (numbers of rows, values, start)}`."""

    def __init__(self, name: str, held: dict, last: bool = False, precision: str = "bfloat16"):
        self.folder, self.held = Path(f"/{name}"), held
        self.rows = {
            (variant, 0, 0, stage): TensorRow(
                key=key(0, 0, stage), variant=variant, axes=("S",), dtype=more[0] if more else "float32",
                shape=(more[1] if len(more) > 1 else 6, *np.shape(values)[1:]), start=0, shard="", sha256="",
            )
            for (variant, stage), (_, values, *more) in held.items()
        }  # fmt: skip
        self.view = SimpleNamespace(rows=lambda stage, round_: "last" if last else "all")
        self.manifest = SimpleNamespace(case=SimpleNamespace(precision=precision, mode="chained"))

    def record_from(self, place, start):
        index, values, *_ = self.held[place[0], place[3]]
        return None if values is None else Record(np.array(index), np.asarray(values, np.float32))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """One prompt, its prefill alone; rows begin at position 30."""
    made = SimpleNamespace(rounds=1, first=lambda stage, round_, start: 30)
    monkeypatch.setattr(records.Clock, "all_of", lambda golden: [made])


def of(*numbers: int) -> tuple[list[int], np.ndarray]:
    """Rows of these numbers, each holding its own."""
    return [*numbers], np.array([[float(number)] * 4 for number in numbers])


def golden(truth=(0, 1, 4, 5), floor=(0, 1, 2, 5), stage: str = OUT) -> Side:
    return Side("golden", {("float32", stage): of(*truth), ("bfloat16", stage): of(*floor)})


def test_rows_are_compared_that_every_side_holds():
    run = Side("run", {("bfloat16", OUT): of(1, 3, 4, 5)})
    (one,) = held(golden(), run, NAMES[OUT])
    assert one.position.tolist() == [31, 35] and [side.rows[:, 0].tolist() for side in one.sides] == [[1, 5]] * 3
    assert (one.due, one.lacking, one.shape, one.prompt, one.round) == (4, 2, (4,), 0, 0) and not one.less
    rows = whole_rows(golden(), run, NAMES[OUT])
    assert rows.position.tolist() == [31, 35] and rows.golden[:, 0].tolist() == rows.floor[:, 0].tolist() == [1, 5]
    assert whole_rows(golden((0, 1)), Side("run", {("bfloat16", OUT): of(4, 5)}), NAMES[OUT]) is None


def test_choices_have_no_floor():
    ids = lambda name, variant, *numbers: Side(name, {(variant, TOKENS): ([*numbers], np.array(numbers), "int64")})  # noqa: E731
    (one,) = held(ids("golden", "float32", 1, 2), ids("run", "bfloat16", 2, 3), NAMES[TOKENS])
    assert len(one.sides) == 2 and one.position.tolist() == [32] and one.dtypes == ("int64", "int64")
    rows = whole_rows(ids("golden", "float32", 1, 2), ids("run", "bfloat16", 2, 3), NAMES[TOKENS])
    assert rows.floor is None and rows.golden.tolist() == [2]


@pytest.mark.parametrize(
    "other",
    [
        ([1], np.ones((1, 5))),
        ([1], np.ones((1, 4)), "int64"),
        ([1], np.ones((1, 4)), "complex64"),
        ([1], np.ones((1, 4)), "float32", 7),
    ],
)
def test_a_tensor_of_another_shape_or_kind_is_left_to_the_structure(other):
    assert held(golden(), Side("run", {("bfloat16", OUT): other}), NAMES[OUT]) == []
    assert held(golden(), Side("run", {}), NAMES[OUT]) == []


def test_a_tensor_that_is_listed_and_cannot_be_read_is_told():
    run = Side("run", {("bfloat16", OUT): of(1)})
    run.record_from = lambda place, start: None
    with pytest.raises(Inconclusive, match=rf"^{OUT} of round 0 is listed and cannot be read$"):
        held(golden(), run, NAMES[OUT])


def test_a_side_that_shows_its_last_row_is_compared_with_the_others_last():
    run = Side("run", {("bfloat16", OUT): ([0], np.full((1, 4), 9.0), "float32", 1)}, last=True)
    (one,) = held(golden(), run, NAMES[OUT])
    assert one.position.tolist() == [35] and [side.rows[0, 0] for side in one.sides] == [5, 9, 5]


def part(rows: int, prompt: int, round_: int, *sides, shape=(4,), dtypes=("float32", "float32", "bfloat16")) -> Held:
    return Held(prompt, round_, np.arange(rows) + 30, tuple(sides), shape, dtypes, rows, 0)


def test_rows_are_labelled_by_their_tensor():
    prompt, round_, position = labelled([part(2, 1, 0), part(1, 0, 3)])
    assert (prompt.tolist(), round_.tolist(), position.tolist()) == ([1, 1, 0], [0, 0, 3], [30, 31, 30])


TRUE = np.array([[0.5, 3, -1, 2, 0], [1, 1, 4, 0, 2]], np.float32)
DEVICE = TRUE + np.array([[0, 0.5, 0, -3, 0], [0, 0, 0, 0, 0.25]], np.float32)
ERROR = np.array([[0, 1, 0, -2, 0], [0, 0, 0.5, 0, 0]], np.float32)
TOP = Form(top=2)


def sides(kept: str) -> list[Record]:
    """Golden, device and floor: of each letter one that keeps its best two, or all."""
    made, form = [], {"b": TOP, "w": Form()}
    for letter, rows in zip(kept, (TRUE, DEVICE, TRUE + ERROR), strict=True):
        whole = rows if letter == "w" else packed(TOP, rows)
        whole = packed_floor(TOP, TRUE, rows) if letter == "b" and rows is not TRUE and len(made) == 2 else whole
        made.append(Record(np.arange(2), whole, form[letter]))
    return made


@pytest.mark.parametrize("kept", ["bbb", "bwb", "wbw", "bbw", "wbb"])
def test_columns_are_the_goldens_best_and_what_a_device_does_not_keep_is_at_its_least(kept):
    """The device's best of row 0 are columns 1 and 0, which leaves 0.5 for column 3."""
    one = part(2, 0, 0, *sides(kept), shape=(5,))
    assert kept_ids(one).tolist() == [[1, 3], [2, 4]]
    true, device, floor = _columns(one)
    assert true[:, :2].tolist() == [[3, 2], [4, 2]] and floor[:, :2].tolist() == [[4, 0], [4.5, 2]]
    assert device[:, :2].tolist() == [[3.5, -1 if kept[1] == "w" else 0.5], [4, 2.25]]
    for found, rows in ((true, TRUE), (device, DEVICE), (floor, TRUE + ERROR)):
        assert found[:, 2] == pytest.approx(log_sum_exp(rows), rel=1e-6)


def test_the_fewest_best_of_any_side_are_compared():
    device = Record(np.arange(2), packed(Form(top=1), DEVICE), Form(top=1))
    one = part(2, 0, 0, *(sides("bbb")[0], device, sides("bbb")[2]), shape=(5,))
    assert kept_ids(one).tolist() == [[1], [2]]
    assert _at(device, np.array([[4], [2]])).tolist()[1][0] == 4


def test_logits_that_are_not_kept_are_at_the_least_of_those_that_are(monkeypatch):
    monkeypatch.setattr(records, "held", lambda *of, **how: [part(2, 0, 0, *sides("bbb"), shape=(5,))])
    rows = whole_rows(golden(), Side("run", {}), NAMES[LOGITS])
    assert rows.golden.tolist() == [[2, 3, 2, 2, 2], [2, 2, 4, 2, 2]] and rows.golden.dtype == np.float32
    assert rows.device.tolist() == [[0.5, 3.5, 0.5, 0.5, 0.5], [2.25, 2.25, 4, 2.25, 2.25]]
    assert rows.floor.tolist() == [[2, 4, 2, 0, 2], [2, 2, 4.5, 2, 2]] and rows.known.tolist() == [[1, 3], [2, 4]]
    size = np.sqrt((rows.golden.astype(np.float64) ** 2).sum(axis=1))
    own = np.array([5**0.5, 0.5]) / size
    noisy = own.min() + 0.9 * (own.max() - own.min())
    due = np.maximum(np.maximum(own, noisy), HALF_ULP) * size / 5**0.5
    assert rows.noise == pytest.approx(due, rel=1e-6)


def test_a_sketch_is_no_row(monkeypatch):
    sketch = Record(np.arange(2), np.zeros((2, 10)), Form(8))
    monkeypatch.setattr(records, "held", lambda *of, **how: [part(2, 0, 0, sketch, sketch, sketch)])
    for name in (OUT, LOGITS):
        with pytest.raises(
            UsageError, match=rf"^/golden or /run keeps {name} as a sketch: this needs the whole tensor"
        ):
            whole_rows(golden(), Side("run", {}), NAMES[name])


def test_the_divergence_is_at_least_that_of_the_best_and_all_others_as_one():
    def logs(*rows) -> np.ndarray:
        """Probabilities as logits, with a log-sum-exp of 3."""
        return np.array([[*np.log(row) + 3, 3.0] for row in rows])

    expected = 0.5 * np.log(0.5 / 0.25) + 0.25 * np.log(0.25 / 0.5) + 0.25 * np.log(0.25 / 0.25)
    same, other = [0.5, 0.25], [0.25, 0.5]
    assert divergence(logs(same, same), logs(same, other)) == pytest.approx(expected)
    assert divergence(logs(same), logs(same)) == pytest.approx(0, abs=1e-12)
    rest = 0.5 * np.log(0.5 / 0.125) + 0.25 * np.log(0.25 / 0.125) + 0.25 * np.log(0.25 / 0.75)
    assert divergence(logs(same), logs([0.125, 0.125])) == pytest.approx(rest)
    assert divergence(np.array([[0.0, 1.0]]), np.array([[np.nan, 1.0]])) == np.inf
    assert divergence(np.zeros((0, 3)), np.zeros((0, 3))) == 0


SCALED = Record(np.arange(2), packed(TOP, TRUE * np.float32(1.05)), TOP)


def judged(without=(), judge: str = "relative", warn: float = 0.2):
    bounds = {} if judge == "none" else {"l2": Bound(ok=warn / 2, warn=warn)}
    row = Row(stages="*", judge=judge, bounds=bounds, reason="as a test has it")
    one = part(2, 0, 0, sides("bbb")[0], SCALED, sides("bbb")[2], shape=(5,))
    return judge_best(None, NAMES[LOGITS], [one], lambda rows: np.zeros(2, bool), row, without)[0]


def test_best_logits_leave_the_other_columns_open():
    """All that is kept is 5 % off, or a little less."""
    found = judged()
    said = "3 of 5 columns not judged: a sketch beside the best settles it, --without columns leaves it out"
    assert (found.verdict, found.note, found.not_judged) == ("inconclusive", said, ("columns",))
    assert found.evidence == "top 2 and log-sum-exp" and found.topk == {}
    kept = part(2, 0, 0, sides("bbb")[0], SCALED, sides("bbb")[2], shape=(5,))
    assert found.x["kl_at_least"] == pytest.approx(divergence(*_columns(kept)[:2])) and found.x["kl_at_least"] > 0
    assert not [name for name in found.x if name.startswith("top")] and found.rows == 2
    left = judged(("columns",))
    assert left.verdict in ("pass", "warn") and left.note == "" and left.not_judged == ("columns",)
    assert (
        judged(warn=0.01).verdict == judged(("columns",), warn=0.01).verdict == "fail" and judged(warn=0.01).note == ""
    )
    assert judged(judge="none").verdict == "not judged"


def scored(known=((1, 3), (2, 4)), noise: float = 0.0) -> StageRows:
    nothing = np.zeros(2, np.int64)
    return StageRows(
        NAMES[LOGITS], TRUE, TRUE, TRUE, nothing, nothing, nothing, known=None if known is None else np.array(known),
        noise=np.full(2, noise),
    )  # fmt: skip


def chosen(mine, theirs) -> StageRows:
    nothing = np.zeros(2, np.int64)
    return StageRows(NAMES[TOKENS], np.array(mine), np.array(theirs), None, nothing, nothing, nothing)


@pytest.mark.parametrize(
    ("theirs", "near", "count"),
    [([1, 2], True, 0), ([3, 4], True, 0), ([0, 2], True, 1), ([0, 0], True, 2), ([0, 0], False, 0)],
)
def test_a_choice_of_which_no_logit_is_kept_is_unknown_where_the_least_kept_one_is_close(
    theirs, near, count, monkeypatch
):
    monkeypatch.setattr(best_logits, "row_noise", lambda scores: np.full(2, 9.0 if near else 1e-9))
    assert unknown_choices(chosen([1, 2], theirs), scored()) == count
    assert unknown_choices(chosen([1, 2], theirs), scored(None)) == 0
    assert unknown_choices(chosen([1, 2, 3], [0, 0, 0]), scored()) == 0


def test_a_least_logit_at_the_very_noise_is_close(monkeypatch):
    """Best and least are 1 and 2 apart."""
    monkeypatch.setattr(best_logits, "row_noise", lambda scores: np.array([1.0, 1.999]) / best_logits.NOISE_SIGMAS)
    assert unknown_choices(chosen([1, 2], [0, 0]), scored()) == 1
    monkeypatch.setattr(best_logits, "row_noise", lambda scores: np.array([0.999, 2.0]) / best_logits.NOISE_SIGMAS)
    assert unknown_choices(chosen([1, 2], [0, 0]), scored()) == 1
