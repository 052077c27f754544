"""What a failing stage costs of the acceptance is the reference's with the device's values of it."""

from __future__ import annotations

import numpy as np

from parity.diagnose.acceptance_cost import acceptance_cost
from parity.golden.views import GoldenSlice, PromptSlice
from tests.meta.dumps import clean, write
from tests.meta.plants import noise, values
from tests.meta.worlds import Size

LOGITS, FC = "drafter.logits", "drafter.fc_out"


class Head:
    """A reference that drafts the best of its logits, which nothing else reaches."""

    def run(self, precision, assumed, golden, trace, rounds) -> None:
        for round_ in range(1, rounds + 1):
            trace.begin(round_)
            for stage in (FC, LOGITS):
                best = trace(stage, golden.contents("float32", 0, round_, stage))
            own = golden.contents("float32", 0, round_, "drafter.draft_tokens")
            offset = own - golden.contents("float32", 0, round_, LOGITS).argmax(axis=1)
            trace("drafter.draft_tokens", (best.argmax(axis=1) + offset).astype(own.dtype))
            trace("verify.tokens", golden.contents("float32", 0, round_, "verify.tokens"))


def cost(tmp_path, *plants, failing=(FC, LOGITS)):
    pair = clean(Size(prompts=(20, 30)))
    for plant in plants:
        plant(pair)
    golden, run = write(pair, tmp_path)
    return acceptance_cost(
        failing, [(Head(), GoldenSlice(golden, each, 3), PromptSlice(run, each, 3)) for each in (0, 1)]
    )


def test_the_stage_that_changes_drafts_costs_acceptance_and_the_other_none(tmp_path):
    told = cost(tmp_path, noise(FC, 50.0), values(lambda x: -x, LOGITS))
    assert (told.rounds, told.prompts, told.left_out) == (6, 2, ())
    assert told.reference == told.stages[FC] > told.stages[LOGITS] == told.together == 1.0


def test_a_stage_of_another_shape_is_not_replaced_and_named(tmp_path):
    told = cost(tmp_path, values(lambda x: np.concatenate([x, x[-1:]]), FC), values(lambda x: -x, LOGITS))
    assert told.left_out == (FC,) and [*told.stages] == [LOGITS]


def test_choices_alone_have_no_cost_of_this_kind(tmp_path):
    assert cost(tmp_path, failing=("drafter.draft_tokens",)) is None
