"""EAGLE-3 on the device: its chain compared with the golden, checkpoints in their layouts, faults in the chain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parity import device
from parity.builders import builder
from parity.device.faults import CATALOGUE
from parity.device.faults.planting import during, in_each
from parity.device.kernels import drafter_layer
from parity.errors import UsageError
from parity.faults import FaultRunRequest, compare_planted
from parity.seam import RowTap

FAMILY = "eagle-3"


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


@pytest.fixture(scope="module")
def golden(family_golden):
    return family_golden(FAMILY)


@pytest.mark.parametrize("k", [1, 2, 6])
def test_tokens_are_the_references_for_every_k(k, golden, tiny):
    """Through plain taps too: one that knows no rows gets every stage of a chain whole, once a round."""
    from parity.references.seam import load

    ids, seen = golden.manifest.case.prompts[0].ids, []
    ours, theirs = (made(tiny / "target", tiny / "eagle3", k, precision="float32") for made in (device.load, load))

    def tap(stage, value):
        seen.append((stage, len(value)))
        return value

    assert not isinstance(tap, RowTap)
    for one in (ours, theirs):
        one.prefill(ids, 20, tap)
    for _ in range(2):
        seen.clear()
        ours_drafts = ours.draft(tap)
        assert ours_drafts.tolist() == theirs.draft(lambda _, value: value).tolist() and len(ours_drafts) == k
        rows = dict(seen)
        assert len(seen) == len(rows) and rows["drafter.logits"] == k
        assert rows["drafter.fc_out"] == rows["drafter.taps"] + k - 1
        emitted = [one.commit(ours_drafts, one.verify(ours_drafts, tap), tap).tolist() for one in (ours, theirs)]
        assert emitted[0] == emitted[1]


def _with(name):
    return lambda tensors: tensors | {name: tensors["norm.weight"]}


def _without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "config", "named"),
    [
        (_with("midlayer.self_attn.q_norm.weight"), {}, "q_norm"),
        (_with("layers.0.hidden_norm.weight"), {}, "layers.0"),
        (_without("d2t"), {}, "d2t"),
        (_without("embed_tokens.weight"), {}, "embed_tokens"),
        (None, {"num_hidden_layers": 2}, "ptd_token_id"),
        (None, {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change, config, named, edited, tiny):
    folder = edited(change or (lambda tensors: tensors), **config)
    with pytest.raises(UsageError, match=named):
        device.load(tiny / "target", folder, 2)


def test_a_config_without_a_word_of_rope_turns_by_llamas_base(edited, tiny):
    folder = edited(rope_theta="gone", rope_scaling="gone")
    rope = device.load(tiny / "target", folder, 2).drafter.rope
    assert (rope.kind, rope.theta) == ("default", 10000.0)


def test_a_stage_that_is_wrong_in_chain_rows_alone_is_named_before_what_later_rows_inherit(golden):
    """Attention comes first in the dataflow, and is wrong only in the rows behind the first wrong MLP."""
    stage = "drafter.layers.0.ffn_out"

    def twice_in_the_chain(pipeline):
        clean = drafter_layer._mlp

        def mlp(x, weights):
            out = clean(x, weights)
            return out + out if x.shape[1] == 1 and weights is pipeline.drafter.layers[0] else out

        during(pipeline, "kernels.drafter_layer:_mlp", lambda _: mlp)

    fault = replace(
        CATALOGUE["chain-blind-to-itself"],
        stage=stage,
        chained=stage,
        sites=(stage,),
        plant=in_each(twice_in_the_chain),
    )
    seen = compare_planted(FaultRunRequest(golden, "numpy", builder("numpy", golden), rounds=2), fault, "chained")
    assert seen.placed and seen.inherited, seen
