"""Views that exchange a part of a dump, by hand: whose tensor is read, of which variant, prompt and stage."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.rebased import ForcedGolden, Overlaid, RebasedGolden, SettledRun, WithTensors
from parity.golden.keeping import Record
from parity.golden.manifest import TensorRow, key
from parity.golden.views import DumpView
from parity.shown import View
from parity.stages import declared

NAMES = declared(1, 1)
EXPERTS, OUT = "target.layers.0.experts", "target.layers.0.out"


class Case(SimpleNamespace):
    def model_copy(self, update):
        return Case(**vars(self) | update)


class Told(DumpView):
    """Says whose tensor was read: the first letter of its name."""

    def __init__(self, name: str, variants=("float32", "bfloat16"), stages=(EXPERTS, OUT), prompts=(0, 1)):
        self.name, places = name, [(v, prompt, 0, stage) for v in variants for prompt in prompts for stage in stages]
        rows = {
            place: TensorRow(
                key=key(*place[1:]), variant=place[0], axes=("S", "H"), dtype=name, shape=(1, 1), start=0, shard=name,
                sha256="",
            )
            for place in places
        }  # fmt: skip
        case = Case(precision="bfloat16", forced=("target.tokens",), shown=(), kept=(), positions="")
        manifest = Case(case=case, tensors=(), stages=stages)
        super().__init__(Path(f"/{name}"), manifest, NAMES, rows, {place: (row,) for place, row in rows.items()})

    def stored(self, *place):
        return np.array([[ord(self.name[0])]]) if place in self.rows else None

    def record(self, *place):
        return Record(np.array([9]), self.stored(*place)) if place in self.rows else None


def read(view: DumpView, *place) -> str:
    """Who was read, and whether as a record of its own."""
    value, record = view.stored(*place), view.record(*place)
    if value is None:
        assert record is None
        return ""
    assert record.rows.tolist() == value.tolist()
    return chr(value[0, 0]) + ("" if record.index.tolist() == [9] else "!")


@pytest.fixture
def golden() -> Told:
    return Told("golden", ("float32", "bfloat16", "bfloat16.local"))


def test_a_rerun_takes_the_place_of_some_prompts_whole(golden):
    view = RebasedGolden(golden, Told("rerun", ("float32",)), [1])
    assert {place[1]: read(view, *place) for place in view.rows if place[0] == "float32"} == {0: "g", 1: "r"}
    assert [place for place in view.rows if place[1] == 1] == [("float32", 1, 0, EXPERTS), ("float32", 1, 0, OUT)]
    assert len(view.rows) == 6 + 2 == len(view.manifest.tensors) and view.folder == Path("/golden")
    assert {row.shard for place, row in view.rows.items() if place[1] == 1} == {"rerun"}
    assert {parts[0].shard for place, parts in view.parts.items() if place[1] == 1} == {"rerun"}


def test_overlaid_are_the_float32_tensors_of_some_prompts_alone(golden):
    view = Overlaid(golden, Told("again", ("float32",)), [0])
    assert {place: chr(view.stored(*place)[0, 0]) for place in view.rows} == {
        place: "a" if place[:2] == ("float32", 0) else "g" for place in golden.rows
    }
    assert {row.shard for place, row in view.rows.items() if place[:2] == ("float32", 0)} == {"again"}
    assert read(view, "float32", 0, 0, OUT) == "a!"


def test_a_forced_golden_has_the_runs_experts_in_its_truth(golden):
    view = ForcedGolden(golden, Told("run", ("bfloat16",), prompts=(0,)))
    assert read(view, "float32", 0, 0, EXPERTS) == "r!" and read(view, "float32", 1, 0, EXPERTS) == "g!"
    assert read(view, "float32", 0, 0, OUT) == "g" == read(view, "bfloat16", 0, 0, OUT)
    assert chr(view.stored("bfloat16", 0, 0, EXPERTS)[0, 0]) == "g"


def test_a_run_with_inferred_experts_is_the_run_else(golden):
    run = Told("run", ("bfloat16",), (OUT,))
    place = ("bfloat16", 1, 0, EXPERTS)
    view = WithTensors(run, golden, {place: np.array([[ord("x")]])})
    assert read(view, *place) == "x!" and read(view, "bfloat16", 1, 0, OUT) == "r"
    assert read(view, "bfloat16", 0, 0, EXPERTS) == "" and view.manifest.stages == (EXPERTS, OUT)
    assert view.rows[place].variant == "bfloat16" and view.rows[place].shard == "golden"
    assert view.parts[place] == (view.rows[place],) and len(view.manifest.tensors) == 3


@pytest.mark.parametrize("shown", [(), (SimpleNamespace(stages="target.*", when="", rows="all"),)])
def test_a_settled_run_is_the_run_forced_at_more(golden, shown):
    run = Told("run", ("bfloat16",))
    run.manifest.case.shown = shown
    view = SettledRun(run, ("kv.target.{l}.k",))
    assert read(view, "bfloat16", 0, 0, OUT) == "r" and view.settled and not run.settled
    assert view.manifest.case.forced == ("target.tokens", "kv.target.{l}.k") and view.rows is run.rows
    assert view.view.shows("kv.target.0.k") and isinstance(view.view, View)
    assert view.view.shows("kv.target.0.v") is (not shown)
