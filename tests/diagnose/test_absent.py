"""A tensor that a counterfactual and a device both lack is agreement; one that only one of them lacks is not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.diagnose.counterfactual import CounterfactualGolden
from parity.diagnose.residuals import MissingOnBothSides
from parity.golden.views import PromptSlice

STAGE = "drafter.taps"


@pytest.fixture(scope="module")
def golden(shallow_golden):
    return PromptSlice(shallow_golden, 0, 1)


def imagined(golden, change):
    places = [(round_, stage) for variant, _, round_, stage in golden.rows if variant == "float32" and stage == STAGE]
    tensors = {place: golden.contents("float32", 0, *place) for place in places}
    return CounterfactualGolden(golden, change(tensors), "local")


def run(golden, *rows):
    found = {("bfloat16", 0, round_, STAGE): SimpleNamespace(full_shape=shape) for round_, shape in rows}
    return SimpleNamespace(rows=found, manifest=SimpleNamespace(case=SimpleNamespace(precision="bfloat16")))


def without_prefill(tensors):
    return {place: value for place, value in tensors.items() if place[0]}


def with_empty_prefill(tensors):
    return {place: value if place[0] else np.zeros((0, value.shape[1]), np.float32) for place, value in tensors.items()}


@pytest.mark.parametrize("change", [without_prefill, with_empty_prefill])
@pytest.mark.parametrize("rows", [[(1, (1, 288))], [(0, (0, 288)), (1, (1, 288))]])
def test_what_both_lack_is_absent(golden, change, rows):
    absent = MissingOnBothSides(imagined(golden, change), run(golden, *rows))
    assert absent.at(0, STAGE) and not absent.at(1, STAGE)
    assert not absent.throughout(STAGE)


def test_what_one_side_lacks_is_not_absent(golden):
    whole = run(golden, (0, (9, 288)), (1, (1, 288)))
    assert not MissingOnBothSides(imagined(golden, without_prefill), whole).at(0, STAGE)
    assert not MissingOnBothSides(imagined(golden, dict), run(golden, (1, (1, 288)))).at(0, STAGE)


def test_nothing_is_absent_from_a_golden(golden):
    absent = MissingOnBothSides(golden, run(golden))
    assert not absent.at(0, STAGE) and not absent.throughout(STAGE)


def test_a_stage_that_both_lack_in_every_round_is_absent_throughout(golden):
    assert MissingOnBothSides(imagined(golden, lambda tensors: {}), run(golden)).throughout(STAGE)
    assert not MissingOnBothSides(imagined(golden, lambda tensors: {}), run(golden)).throughout("no.stage")
