"""Every stage has its place in the drawing, and what is wrong shows there."""

from __future__ import annotations

import pytest

from parity.reports.page.pipeline import node_of, pipeline
from parity.stages import declared


def stage(name, verdict="pass", l2=0.9, layer=None, judge="noise", **changes):
    found = dict(
        stage=name,
        verdict=verdict,
        layer=layer,
        judge=judge,
        rows=100,
        note="",
        marks=(),
        choices={},
        x={"l2": l2},
        bounds={"l2": [1.5, 3.0]},
    )
    return found | changes


def node(groups, group, name):
    return next(one for found in groups if found.name == group for one in found.nodes if one.name == name)


@pytest.mark.parametrize("name", declared(3, 2))
def test_every_stage_of_the_table_has_a_node_of_its_own_side(name):
    group, _ = node_of(name)
    side = name.split(".")[0]
    assert group == {"target": "Target", "drafter": "Drafter"}.get(side, "Round")


def test_a_stage_that_no_node_knows_is_shown_all_the_same():
    groups = pipeline({"local": [stage("sampler.noise", "fail", 9.0)]})
    assert node(groups, "Other", "Other stages").verdict == "fail"


def test_a_node_shows_its_gravest_stage_not_its_largest_error():
    stages = [
        stage("target.layers.0.q", l2=1.4, layer=0),
        stage("target.layers.1.q", "fail", 1.1, layer=1, x={"l2": 1.1, "scale": 9.0}, bounds={"scale": [5, 5]}),
    ]
    found = node(pipeline({"local": stages}), "Target", "Layers").readings[0]
    assert (found.verdict, found.figure, found.level) == ("fail", "1.10", "h2")
    assert found.detail == "layer 1, q; scale 9.00 (bound 5.00)"
    assert [(one.layer, one.wrong) for one in found.squares] == [(0, False), (1, True)]


def test_wrong_choices_are_counted_and_coloured():
    chosen = stage(
        "drafter.draft_tokens",
        "fail",
        judge="decision",
        x={},
        bounds={},
        choices={"same": 90, "tie": 1, "noise": 2, "bug": 7},
    )
    found = node(pipeline({"chained": [chosen]}), "Drafter", "Draft tokens").readings[0]
    assert (found.figure, found.unit, found.detail, found.level) == (
        "7",
        "of 100 choices wrong",
        "3 tied or within noise",
        "h5",
    )


def test_a_stage_without_evidence_has_no_colour_of_a_pass():
    found = node(
        pipeline({"local": [stage("drafter.taps", "inconclusive", x={}, bounds={}, note="the golden is constant")]}),
        "Drafter",
        "Taps",
    ).readings[0]
    assert (found.level, found.figure, found.detail) == ("hn", "–", "the golden is constant")


def test_an_infinite_error_is_told_in_words():
    found = node(pipeline({"local": [stage("drafter.taps", "fail", "inf")]}), "Drafter", "Taps").readings[0]
    assert (found.figure, found.level) == ("infinite", "hx")


def test_the_first_divergent_box_is_the_origin_and_what_comes_from_it_inherits():
    stages = [
        stage("drafter.taps", "fail", 9.0, marks=("own", "step")),
        stage("drafter.fc_out", "fail", 5.0, marks=("inherited",)),
        stage("drafter.logits", "fail", 5.0, marks=("inherited", "grown")),
        stage("drafter.pre_head_hidden", "fail", 5.0, marks=("own",)),
    ]
    groups = pipeline({"chained": stages, "local": stages[:1]}, {"chained": "drafter.taps", "local": ""})
    found = {one.name: one for one in groups[0].nodes}
    assert found["Taps"].origins == ("chained",)
    assert [found[name].readings[0].mark for name in ("Fuse (fc)", "Logits")] == ["inherited", ""]
