"""Two runs of one sequence: what only one of them has, and which row is named."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.gates.difference import Difference
from parity.gates.rollback.sameness import WithinNoise
from parity.stages import declared

OUT, TOKENS = "target.layers.0.out", "verify.tokens"


@pytest.fixture
def found():
    return Difference[str](
        WithinNoise(
            declared(2, 1),
            "float32",
            SimpleNamespace(noisy=lambda stage: 1e-3, flips=False, flip_bound=lambda stage: 0.0),
        )
    )


def run(rounds=2, scale=1.0):
    rows = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    tensors = {(round_, OUT): rows * np.float32(scale if round_ else 1) for round_ in range(rounds)}
    return tensors | {(round_, TOKENS): np.arange(4) for round_ in range(1, rounds)}


def test_the_same_bits_are_no_difference(found):
    found.add(run(), run(), "one")
    assert (found.tensors, found.moved, found.first, found.furthest) == (3, 0, None, None)


@pytest.mark.parametrize("lacks", ["round", "stage", "dtype", "no rows"])
@pytest.mark.parametrize("first", [True, False])
def test_what_one_run_lacks_is_beyond_every_bound(lacks, first, found):
    whole, less = run(), run(1 if lacks == "round" else 2)
    if lacks == "stage":
        del less[1, OUT]
    if lacks == "dtype":
        less[1, OUT] = less[1, OUT].astype(np.float64)
    if lacks == "no rows":
        less[1, OUT] = less[1, OUT][:0].astype(np.float64)
    found.add(*((whole, less) if first else (less, whole)), "one")
    assert found.first is not None and found.first.apart == found.worst == np.inf and found.first.round == 1


def test_the_earliest_round_beyond_the_bound_is_named_and_rounding_is_not(found):
    found.add(run(), run(scale=1 + 2e-7), "rounding")
    assert found.first is None and found.furthest.stage == OUT and found.furthest.apart < 1
    late, early = run(), run()
    late[1, TOKENS], early[0, OUT] = np.array([0, 9, 2, 3]), 2 * early[0, OUT]
    found.add(run(), late, "late")
    assert (found.first.where, found.first.row, found.first.stage) == ("late", 1, TOKENS)
    found.add(run(), early, "early")
    assert (found.first.where, found.first.round) == ("early", 0) and found.worst == np.inf
