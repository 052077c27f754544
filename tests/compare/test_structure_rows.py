"""Structure by hand: the first thing wrong with a tensor, what is listed and not there, values that are none, pairs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.between import _both, _graver
from parity.compare.places import DISGUISED
from parity.compare.report import StageResult
from parity.compare.rows import StageRows
from parity.compare.structure import _declared, _tensor, check_values, due
from parity.golden.manifest import TensorRow, key
from parity.metrics import measure
from parity.stages import declared

NAMES = declared(2, 1)
OUT, TOKENS = "target.layers.0.out", "verify.tokens"


def row(stage: str = OUT, variant: str = "float32", dtype: str = "float32", shape=(3, 8), **more) -> TensorRow:
    fields = dict(axes=("S", "H"), start=0, shard="", sha256="") | more
    return TensorRow(key=key(1, 2, stage), variant=variant, dtype=dtype, shape=shape, **fields)


def first_wrong(
    stage: str = OUT, truth=None, floor=None, seen=None, rows: str = "all", precision: str = "bfloat16", **gone
):
    """What is told of a tensor of prompt 1, round 2."""
    exact = NAMES[stage].stage.exact
    axes = {"axes": ("S",), "shape": (3,), "dtype": "int64"} if exact else {}
    made = {"truth": row(stage, **axes | (truth or {})), "floor": row(stage, "bfloat16", **axes | (floor or {}))}
    made["seen"] = row(stage, precision, **axes | ({"dtype": precision} if not exact else {}) | (seen or {}))
    places = {"truth": "float32", "floor": "bfloat16", "seen": precision}
    there = {side: {(places[side], 1, 2, stage): one} for side, one in made.items()}
    golden = SimpleNamespace(rows=there["truth"] | there["floor"])
    run = SimpleNamespace(
        rows=there["seen"], parts={place: [one] for place, one in there["seen"].items()},
        manifest=SimpleNamespace(case=SimpleNamespace(precision=precision, mode="chained")),
        view=SimpleNamespace(rows=lambda name, round_: rows),
    )  # fmt: skip
    found = [*_tensor(golden, run, NAMES[stage], 1, 2)]
    assert len(found) <= 1 and all((one.stage, one.prompt, one.round) == (stage, 1, 2) for one in found)
    end = " (prompt 1, round 2)"
    assert all(one.message.startswith(f"{stage} ") and one.message.endswith(end) for one in found)
    return (found[0].kind, found[0].message[len(stage) + 1 : -len(end)]) if found else None


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, None),
        ({"truth": {"dtype": "float64"}}, None),
        ({"seen": {"dtype": "float32"}}, None),
        ({"seen": {"dtype": "float64"}}, ("dtype", "has dtype float64, it should be bfloat16 or float32")),
        ({"seen": {"dtype": "float32"}, "precision": "float32"}, None),
        ({"truth": {"dtype": "bfloat16"}}, ("dtype", "has dtype bfloat16 in the golden")),
        ({"floor": {"shape": (3, 9)}}, ("shape", "has a noise floor of shape [3, 9], the golden's is [3, 8]")),
        ({"floor": {"shape": (1, 8), "start": 2}}, None),
        ({"seen": {"axes": ("H", "S")}}, ("axes", "has axes ['H', 'S'], the golden's are ['S', 'H']")),
        ({"seen": {"shape": (4, 8)}}, ("shape", "has shape [4, 8], the golden's is [3, 8]")),
        ({"seen": {"shape": (2, 8), "start": 1}}, None),
        ({"seen": {"shape": (0, 8)}}, ("empty", "has shape [0, 8], the golden's is [3, 8]")),
        ({"seen": {"shape": (3, 0)}}, ("empty", "has shape [3, 0], the golden's is [3, 8]")),
        ({"seen": {"shape": (1, 8)}, "rows": "last"}, None),
        ({"rows": "last"}, ("shape", "has shape [3, 8], the golden's is [1, 8]")),
        ({"stage": TOKENS}, None),
        ({"stage": TOKENS, "truth": {"dtype": "float32"}}, ("dtype", "has dtype float32 in the golden")),
        ({"stage": TOKENS, "seen": {"dtype": "float32"}}, ("dtype", "has dtype float32, it should be an integer")),
        ({"stage": TOKENS, "seen": {"shape": (1,)}, "rows": "last"}, None),
        ({"seen": {"axes": ("H", "S"), "shape": (4, 8), "dtype": "float32"}},
         ("axes", "has axes ['H', 'S'], the golden's are ['S', 'H']")),
    ],
)  # fmt: skip
def test_the_first_thing_wrong_with_a_tensor_is_told(changes, wrong):
    assert first_wrong(**changes) == wrong


def test_sides_that_are_not_there_are_told_the_golden_first():
    made = row()
    golden, run = SimpleNamespace(rows={}), SimpleNamespace(rows={}, parts={})
    run.manifest = SimpleNamespace(case=SimpleNamespace(precision="bfloat16", mode="local"))
    run.view = SimpleNamespace(rows=lambda *of: "all")

    def told() -> tuple:
        (found,) = _tensor(golden, run, NAMES[OUT], 1, 2)
        return found.kind, found.message.removesuffix(" (prompt 1, round 2)").removeprefix(f"{OUT} ")

    assert told() == ("missing", "is declared by the golden, which lacks it")
    golden.rows["float32", 1, 2, OUT] = made
    assert told() == ("missing", "has no noise floor in the golden (bfloat16.local)")
    golden.rows["bfloat16.local", 1, 2, OUT] = made
    assert told() == ("missing", "is missing from the run")
    seen = row(variant="bfloat16", dtype="bfloat16", axes=("H", "S"))
    run.rows["bfloat16", 1, 2, OUT] = seen
    other = seen.model_copy(update={"rank": 1, "sha256": "b"})
    run.parts["bfloat16", 1, 2, OUT] = [seen, other]
    assert told() == ("replicas", "differs between ranks that should hold the same")


def test_what_is_listed_on_one_side_alone_is_told_with_its_first_round():
    golden = SimpleNamespace(
        manifest=SimpleNamespace(stages=("odd", OUT, TOKENS, "target.embed")), declared=NAMES,
        rows=dict.fromkeys([("float32", 0, 1, OUT), ("float32", 0, 0, "target.embed")]),
    )  # fmt: skip
    rows = [
        ("bfloat16", 0, 1, OUT),
        ("bfloat16", 0, 3, OUT),
        ("float32", 0, 1, OUT),
        ("bfloat16", 2, 0, "target.embed"),
    ]
    run = SimpleNamespace(
        manifest=SimpleNamespace(stages=(OUT, "other", "drafter.logits"), case=SimpleNamespace(precision="bfloat16")),
        view=SimpleNamespace(rows=lambda name, round_: "" if (name, round_) == ("target.embed", 0) else "all"),
        rows=rows,
    )  # fmt: skip
    told = [(one.kind, one.stage, one.prompt, one.round, one.message) for one in _declared(golden, run, {OUT, TOKENS})]
    assert told == [
        ("unknown", "odd", 0, 0, "odd is declared by the golden but is no stage of the table"),
        ("missing", TOKENS, 0, 1, f"{TOKENS} is missing: the run does not declare it"),
        ("surplus", "other", 0, 0, "other is surplus: the golden does not declare it"),
        ("surplus", "drafter.logits", 0, 1, "drafter.logits is surplus: the golden does not declare it"),
        ("surplus", OUT, 0, 3, f"the golden has no {OUT} in round 3"),
        ("dtype", OUT, 0, 1, f"{OUT} is recorded as float32 in a bfloat16 run"),
        ("surplus", "target.embed", 2, 0, "target.embed of round 0 is recorded, and not declared as shown"),
    ]


def owed(round_: int, parted=None, hidden=()) -> list[str]:
    case = SimpleNamespace(drafts=lambda round_: 4)
    golden = SimpleNamespace(declared=NAMES, manifest=SimpleNamespace(case=case))
    told = None if parted is None else SimpleNamespace(round=parted[0], stage=parted[1])
    prompts = [None, SimpleNamespace(parted=told)]
    view = SimpleNamespace(rows=lambda name, round_: "" if name in hidden else "all")
    run = SimpleNamespace(view=view, manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))
    return [named.name for named in due(golden, run, 1, round_)]


def test_a_run_owes_what_it_shows_up_to_where_it_parted():
    every = owed(2)
    assert TOKENS in every and OUT in every and owed(2, hidden=(OUT,)) == [name for name in every if name != OUT]
    assert owed(2, (3, TOKENS)) == every and owed(2, (1, TOKENS)) == []
    up_to = owed(2, (2, TOKENS))
    assert up_to[-1] == TOKENS and up_to == every[: len(up_to)] and owed(2, (2, "no.stage")) == []


def values(golden, device, floor=None) -> list[tuple]:
    golden, device = np.float32(golden), np.float32(device)
    floor = golden if floor is None else np.float32(floor)
    number = np.arange(len(golden))
    rows = StageRows(NAMES[OUT], golden, device, floor, number * 0 + 3, number + 1, number + 7)
    pair, noise = measure(golden, device, row_axes=1), measure(golden, floor, row_axes=1)
    return [(one.kind, one.prompt, one.round, one.message) for one in check_values(rows, pair, noise)]


def test_values_that_are_none_are_placed_and_whose_they_are_is_said():
    golden = np.arange(8.0).reshape(2, 4)
    broken = golden.copy()
    broken[1, 2], broken[1, 3] = np.nan, np.inf
    where = "the first at [2] of position 8 (prompt 3, round 2)"
    assert values(golden, golden) == []
    assert values(golden, broken) == [("non-finite", 3, 2, f"{OUT} has 2 NaN or Inf that the golden lacks, {where}")]
    assert values(golden, golden, broken) == [
        ("non-finite", 3, 2, f"{OUT} has 1 NaN and 1 Inf in the noise floor, {where}")
    ]
    assert values(broken, broken, golden) == [("non-finite", 3, 2, f"{OUT} has 1 NaN and 1 Inf in the golden, {where}")]


@pytest.mark.parametrize(
    ("value", "said"), [(np.inf, "0 NaN and 1 Inf"), (-np.inf, "0 NaN and 1 Inf"), (np.nan, "1 NaN and 0 Inf")]
)
def test_one_kind_of_what_is_no_number_is_enough_and_no_side_excuses_another(value, said):
    golden = np.arange(8.0).reshape(2, 4)
    broken = golden.copy()
    broken[0, 1] = value
    where = "the first at [1] of position 7 (prompt 3, round 1)"
    in_golden, in_floor = (
        ("non-finite", 3, 1, f"{OUT} has {said} in the {side}, {where}") for side in ("golden", "noise floor")
    )
    assert values(broken, broken, broken) == [in_golden, in_floor]
    assert values(broken, broken, golden) == [in_golden]
    assert values(golden, golden, broken) == [in_floor]
    assert values(golden, broken) == [("non-finite", 3, 1, f"{OUT} has 1 NaN or Inf that the golden lacks, {where}")]


def test_a_constant_is_told_where_the_golden_is_none():
    golden = np.arange(8.0).reshape(2, 4)
    assert values(golden, golden * 0 + 5) == [("constant", 3, 1, f"{OUT} is constant, the golden's is not")]
    assert values(golden * 0 + 5, golden * 0 + 5) == []


@pytest.mark.parametrize(("mine", "theirs", "start", "rows"), [(0, 0, 0, 3), (2, 1, 1, 4), (1, 2, 1, 3), (5, 0, 0, 8)])
def test_rows_that_changed_in_either_run_are_compared(mine, theirs, start, rows):
    found = _both(row(start=mine), row(start=theirs))
    assert (found.start, found.shape) == (start, (rows, 8))


def result(verdict: str, l2: float, marks=(), topk=None, **x: float) -> StageResult:
    return StageResult(
        OUT, "target.layers.{l}.out", 0, "noise", verdict, "as a test has it", rows=9, x={"l2": l2} | x,
        bounds={"l2": (1.5, 3.0)}, marks=marks, topk=topk or {},
    )  # fmt: skip


def test_of_two_ways_the_graver_is_told_with_the_larger_figures():
    one, two = (
        result("warn", 2.0, ("own", DISGUISED), {1: 0.5, 5: 1.0}, median=1.0),
        result("pass", 9.0, (), {1: 1.0, 5: 0.9}),
    )
    for pair in ((one, two), (two, one)):
        found = _graver(*pair)
        assert (found.verdict, found.x, found.topk) == ("warn", {"l2": 9.0, "median": 1.0}, {1: 0.5, 5: 0.9})
        assert found.marks == ("own",)
    larger = _graver(result("fail", 4.0), result("fail", 5.0, ("step",)))
    assert larger.marks == ("step",) and larger.x == {"l2": 5.0}
