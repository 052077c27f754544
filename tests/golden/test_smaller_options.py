"""Options that say what is kept of a golden, by hand: their ends, their words, and what a run takes from its golden."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity import limits
from parity.errors import UsageError
from parity.golden.case import KeptStages
from parity.golden.smaller import Smaller


def kept(stages: str, form: str, numbers: int, seed: int = 0) -> KeptStages:
    return KeptStages(stages=stages, form=form, numbers=numbers, seed=seed)


@pytest.mark.parametrize(
    ("asked", "due"),
    [
        (Smaller(), []),
        (Smaller(sketch=16), [("*", "sketch", 16, 0), ("*.logits", "top", 64, 0)]),
        (Smaller(sketch=1, sketch_seed=3, logits="top:7"), [("*", "sketch", 1, 3), ("*.logits", "top", 7, 0)]),
        (Smaller(sketch=limits.SKETCH, logits="whole"), [("*", "sketch", limits.SKETCH, 0)]),
        (Smaller(logits=f"top:{limits.SKETCH}"), [("*.logits", "top", limits.SKETCH, 0)]),
        (Smaller(logits="whole", positions="3"), []),
    ],
)
def test_options_say_what_is_kept_and_are_read_again(asked, due):
    found = asked.kept()
    assert [(one.stages, one.form, one.numbers, one.seed) for one in found] == due
    case = SimpleNamespace(kept=found, positions=asked.positions)
    assert Smaller.of(case).kept() == found and Smaller.of(case).positions == asked.positions


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Smaller(sketch=limits.SKETCH + 1), "--sketch 4097: a row's sketch has 1 to 4096 numbers"),
        (Smaller(sketch=-1), "--sketch -1: a row's sketch has 1 to 4096 numbers"),
        (Smaller(sketch=0, sketch_seed=0), "--sketch-seed goes with --sketch N"),
        (Smaller(logits="top:4097"), "--logits top:4097: it is whole, or top:K with K of 1 to 4096"),
        (Smaller(logits="top:0"), "--logits top:0: it is whole, or top:K with K of 1 to 4096"),
        (Smaller(logits="y" * 50), f"--logits {'y' * 40}: it is whole, or top:K with K of 1 to 4096"),
    ],
)
def test_options_out_of_range_are_told_with_it(asked, said):
    with pytest.raises(UsageError) as refused:
        asked.kept()
    assert str(refused.value) == said


@pytest.mark.parametrize("odd", [kept("a.*", "sketch", 8), kept("*", "top", 8)])
def test_what_no_option_says_is_told_so(odd):
    with pytest.raises(UsageError, match="is not what the options of `parity dump-golden` say"):
        Smaller.of(SimpleNamespace(kept=(odd,), positions=""))


def test_a_run_is_sketched_by_the_goldens_seed_where_it_names_none():
    def golden(*stages):
        return SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(kept=stages)))

    both = golden(kept("*.logits", "top", 4), kept("*", "sketch", 8, 5))
    assert Smaller(8).beside(both) == Smaller(8, 5)
    for asked in (Smaller(8, 0), Smaller(8, 9), Smaller(logits="top:4"), Smaller()):
        assert asked.beside(both) is asked
    assert Smaller(8).beside(golden(kept("*", "top", 4))).sketch_seed is None
