"""Which failing stage is asked first where an error may come of several layers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.diagnose import causes
from parity.diagnose.causes import CauseSearch
from parity.diagnose.residuals import Residual

OUT, KEYS, LATER = "target.layers.1.out", "kv.target.0.k", "kv.target.1.k"
SEGMENTS = {
    OUT: [OUT, "target.layers.1.attn_in", "target.layers.0.out", "target.layers.0.k"],
    KEYS: [KEYS, "target.layers.0.k"],
    LATER: [LATER, "target.layers.1.attn_in", "target.layers.0.out"],
}
LAYERS = {name: SimpleNamespace(layer=0 if "0" in name else 1) for names in SEGMENTS.values() for name in names}


@pytest.mark.parametrize(
    ("stages", "contained", "first"),
    [((OUT, LATER, KEYS), True, KEYS), ((OUT, LATER), True, OUT), ((OUT, KEYS), False, OUT), ((OUT,), True, OUT)],
)
def test_what_comes_of_one_layer_is_asked_before_what_may_come_of_several(stages, contained, first, monkeypatch):
    search = CauseSearch.__new__(CauseSearch)
    search.left = {stage: Residual(stage, True, 0.1, 0.1, 10.0, None) for stage in stages}
    golden = SimpleNamespace(declared=LAYERS)
    search.trials = SimpleNamespace(
        contained=contained, hidden=None, golden=golden, segment=lambda left: SEGMENTS[left.stage]
    )
    monkeypatch.setattr(search, "_needs_cause", lambda residual: True)
    assert search._failing()[0].stage == first and len(search._failing()) == len(stages)


@pytest.mark.parametrize(("told", "read"), [(True, [KEYS]), (False, [KEYS, OUT])])
def test_what_a_pass_left_in_a_failing_cache_is_read_first_and_alone_where_it_tells(told, read, monkeypatch):
    names = {KEYS: SimpleNamespace(stage=SimpleNamespace(cache=True)), OUT: SimpleNamespace(stage=None)}
    search, asked = CauseSearch.__new__(CauseSearch), []
    search.left = {stage: Residual(stage, True, 0.1, 0.1, 10.0, None) for stage in (OUT, KEYS)}
    search.known, search.read, search.parts, search.rounds = (), set(), {}, 1
    search.trials = SimpleNamespace(contained=True, golden=SimpleNamespace(declared=names))
    monkeypatch.setattr(causes, "inputs", lambda named, names: [KEYS] if named is names[OUT] else [])
    monkeypatch.setattr(
        causes, "parts_of", lambda trials, rounds, stage: asked.append(stage) or (SimpleNamespace(whole=told),)
    )
    search._take_apart(search.left[OUT])
    search._take_apart(search.left[OUT])
    assert asked == read and search.read == {OUT, KEYS}
