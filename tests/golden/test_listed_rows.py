"""Rows of a manifest by hand: of stages, prompts and axes that are there, once each, with their floors and rounds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.golden.consistent import (
    _floors,
    _rounds,
    _rows,
    _starts,
)
from parity.golden.manifest import TensorRow, key
from parity.stages import declared

NAMES = declared(1, 1)


def row(stage: str, shape=(3,), round_: int = 0, prompt: int = 0, **more) -> TensorRow:
    fields = dict(variant="float32", axes=("S",), dtype="int64", start=0, shard="", sha256="") | more
    return TensorRow(key=key(prompt, round_, stage), shape=shape, **fields)


def manifest(*rows: TensorRow, kind="golden", stages=("target.embed", "verify.tokens"), lengths=(1,), prompts=1):
    told = SimpleNamespace(acceptance_length=lengths)
    cases = [SimpleNamespace(id=f"id{number}", generation=told) for number in range(prompts)]
    return SimpleNamespace(tensors=rows, kind=kind, stages=stages, case=SimpleNamespace(prompts=cases), table=NAMES)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, ""),
        (
            {"stage": "target.logits", "axes": ("S", "V")},
            "p000/r0000/target.logits is of a stage that it does not list",
        ),
        ({"prompt": 1}, "p001/r0000/target.embed is of a prompt that is not there: there are 1"),
        ({"shape": (3,)}, "p000/r0000/target.embed has axes ['S', 'H'] and shape [3]"),
        ({"axes": ("S", "V")}, "p000/r0000/target.embed has axes ['S', 'V'], its stage ['S', 'H']"),
        ({"variant": "bfloat16.local"}, ""),
    ],
)
def test_a_row_is_of_a_stage_a_prompt_and_axes_that_are_there(changes, wrong):
    changes = {"stage": "target.embed", "shape": (3, 4), "axes": ("S", "H")} | changes
    made = row(changes.pop("stage"), **changes)
    assert [*_rows(manifest(made))] == ([wrong] if wrong else [])
    lenient = [*_rows(manifest(made, kind="run"))]
    if made.variant == "bfloat16.local":
        assert lenient == ["p000/r0000/target.embed is bfloat16.local in a run"]
    elif "its stage" in wrong:
        assert lenient == []  # a run's axes are what a device did


def test_a_row_that_is_there_twice_is_named():
    one = row("target.embed", (3, 4), axes=("S", "H"))
    other = row("verify.tokens", (3,), 1)
    assert [*_rows(manifest(one, other, one))] == ["p000/r0000/target.embed is there twice"]
    assert [*_rows(manifest(one, other, row("target.embed", (3, 4), axes=("S", "H"), rank=1)))] == []


def test_a_floor_is_there_of_every_round_or_of_none():
    truth = [row("target.embed", round_=round_) for round_ in range(2)]
    floor = [row("target.embed", round_=round_, variant="bfloat16") for round_ in range(2)]
    assert [*_floors(manifest(*truth))] == [*_floors(manifest(*truth, *floor))] == []
    last = "which other rounds of the stage have"
    assert [*_floors(manifest(*truth, floor[0]))] == [f"p000/r0001/target.embed has float32 and no bfloat16, {last}"]
    assert [*_floors(manifest(truth[1], *floor))] == [f"p000/r0000/target.embed has bfloat16 and no float32, {last}"]
    assert [*_floors(manifest(truth[1], *floor, kind="run"))] == []


@pytest.mark.parametrize(
    ("rounds", "wrong"), [((0, 1), 0), ((0,), 1), ((0, 1, 2), 3), ((0, 2), 2), ((1, 2), 2), ((), 0)]
)
def test_rounds_of_tensors_are_those_that_a_prompt_took(rounds, wrong):
    made = manifest(*(row("target.embed", round_=round_) for round_ in rounds))
    said = f"prompt 0 (id0) takes 1 rounds behind the prefill, there are tensors of {wrong} in all"
    due = [said] if rounds not in ((0, 1),) else []
    assert [*_rounds(made)] == due and [*_rounds(manifest(kind="run"))] == []
    floors = manifest(
        *(row("target.embed", round_=round_) for round_ in (0, 1)), row("x", round_=5, variant="bfloat16")
    )
    assert [*_rounds(floors)] == []


@pytest.mark.parametrize(("start", "lacks"), [(0, False), (4, False), (5, True)])
def test_continued_rows_are_those_of_the_same_variant_rank_and_stage(start, lacks):
    before = [
        row("kv.target.0.k", (2,), 0, start=2, rank=1),
        row("kv.target.0.k", (9,), 0),
        row("kv.target.0.v", (9,), 0),
    ]
    one = row("kv.target.0.k", (1,), 1, start=start, rank=1)
    wrong = f"p000/r0001/kv.target.0.k (float32) continues {start} rows, which p000/r0000/kv.target.0.k does not have"
    told = [each for each in _starts([*before, one]) if "r0001/kv.target.0.k (" in each]
    assert told == ([wrong] if lacks else [])
    first = [*_starts([row("kv.target.0.k", (1,), 0, start=1)])]
    assert first == [
        "p000/r0000/kv.target.0.k (float32) continues 1 rows, which p000/r0000/kv.target.0.k does not have"
    ]
