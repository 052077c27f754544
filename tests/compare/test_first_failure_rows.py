"""Which failure is the first, by hand: round, pass, dataflow, prompt, and what its stage is asked to hold instead."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.compare import first_failure
from parity.compare.first_failure import earliest_failure, held_at
from parity.compare.report import Place
from parity.compare.structure import Finding

RANKS = {(False, "a"): 0, (False, "b"): 1, (True, "b"): 0, (True, "a"): 1, (False, "c"): 2, (True, "c"): 2}
"""In the prefill `a` comes before `b`, in a verify round behind it."""


@pytest.fixture
def earliest(monkeypatch):
    """The first of these failing places and findings; `c` in a place's position is its pass."""
    monkeypatch.setattr(first_failure, "order", lambda golden: RANKS)
    passes = SimpleNamespace(number=lambda place: place.position or 0)
    monkeypatch.setattr(first_failure, "ChainPasses", SimpleNamespace(of=lambda golden: passes))
    declared = {name: SimpleNamespace(layer=number) for number, name in enumerate("abc", 5)}

    def first(*places, findings=(), verdict: str = "fail"):
        results = [SimpleNamespace(verdict=verdict, first=place) for place in places]
        return earliest_failure(SimpleNamespace(declared=declared), results, findings)

    return first


def at(stage: str, prompt: int, round_: int, position: int | None = None) -> Place:
    return Place(stage, None, prompt, round_, position)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (at("c", 9, 0), at("a", 0, 1)),  # round first
        (at("c", 9, 1, 0), at("b", 0, 1, 1)),  # then the pass
        (at("a", 9, 0), at("b", 0, 0)),  # then the dataflow, of a prefill
        (at("b", 9, 1), at("a", 0, 1)),  # and of a round
        (at("b", 9, 2), at("c", 0, 2)),
        (at("a", 1, 1), at("a", 2, 1)),  # then the prompt
        (at("unknown", 0, 1), at("a", 0, 1)),  # a stage that is not in the dataflow comes first
    ],
)
def test_the_first_is_by_round_pass_dataflow_and_prompt(earliest, one, other):
    assert earliest(one, other) is one and earliest(other, one) is one


def test_only_failures_with_a_place_count(earliest):
    assert earliest(None) is earliest() is None
    assert earliest(at("a", 0, 0), verdict="warn") is None


@pytest.mark.parametrize("kind", ["dtype", "shape", "non-finite"])
def test_a_finding_of_any_kind_but_a_free_runs_comes_before_later_places(earliest, kind):
    found = Finding(kind, "b", 3, 1, "words")
    assert earliest(at("a", 0, 2), findings=[found]) == Place("b", 6, 3, 1)
    free = Finding("generation", "b", 3, 1, "words")
    assert earliest(at("a", 0, 2), findings=[free]) == at("a", 0, 2) and earliest(findings=[free]).stage == "b"


def test_a_finding_counts_with_its_stages_layer_and_one_of_no_stage_not(earliest):
    found = Finding("shape", "b", 3, 1, "words")
    assert earliest(at("a", 0, 2), findings=[found]) == Place("b", 6, 3, 1)
    assert earliest(findings=[Finding("shape", "nowhere", 0, 0, "words")]) is None


def test_what_a_free_run_emits_is_named_where_nothing_else_failed(earliest):
    emitted = Finding("generation", "a", 0, 0, "words")
    late = at("c", 8, 7)
    assert earliest(late, findings=[emitted]) is late and earliest(findings=[emitted]) == Place("a", 5, 0, 0)
    assert earliest(findings=[emitted, Finding("shape", "c", 1, 9, "words")]) == Place("c", 7, 1, 9)


def test_what_a_stage_holds_instead_is_asked_of_whole_tensors_of_one_device(monkeypatch):
    asked = []
    monkeypatch.setattr("parity.compare.origins.held_instead", lambda *of: asked.append(of) or said[0])
    said = ["holds another"]

    here = at("a", 0, 0)

    def held(first=here, keeps=False, run_keeps=False, imagined=False, sides: int = 1) -> str:
        golden = SimpleNamespace(keeps=keeps, imagined=imagined, declared={"a": "named"})
        return held_at(golden, SimpleNamespace(keeps=run_keeps, sides=(None,) * sides), first)

    assert held() == "holds another" and asked[0][2] == "named"
    others = [held(None), held(keeps=True), held(run_keeps=True), held(imagined=True), held(sides=2)]
    assert others == [""] * 5 and len(asked) == 1
    said[0] = None
    assert held() == ""
