"""What a report says of stages that a device does not show."""

from __future__ import annotations

from types import SimpleNamespace

from reports.verdict import not_shown

OUT, FAMILY = "target.layers.3.out", "target.layers.*.out"


def said(**first: str) -> str:
    """Of a report of two judged stages; `__` stands for a dot."""
    named = {name.replace("__", "."): where for name, where in first.items()}
    return not_shown(SimpleNamespace(not_shown=named, stages=(None, None)))


def test_hidden_stages_stand_behind_the_one_that_shows_them_first():
    told = said(target__layers__3__q=OUT, target__layers__3__k=OUT)
    assert told == "2 of 4 stages; an error in one of them shows first in target.layers.*.out (q, k)"


def test_those_that_none_shows_are_named_apart():
    told = said(target__layers__3__q=OUT, verify__logits="")
    assert (
        told == "2 of 4 stages; an error in one of them shows first in target.layers.*.out (q); in none: verify.logits"
    )


def test_where_none_shows_any_that_is_all_that_is_said():
    assert said(verify__logits="") == "1 of 3 stages; an error in one of them shows nowhere: verify.logits"
