"""Hypotheses of tensor parallelism, compared with ranks written out one by one."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from parity.references.counterfactual import Counterfactuals
from parity.references.hypotheses import HYPOTHESES, NotApplicable
from parity.references.hypotheses.ranks import dealt, gate_up_split
from parity.references.hypotheses.reductions import ADDED, reduced, stale

BY_ID = {hypothesis.id: hypothesis for hypothesis in HYPOTHESES}
BEHIND, FIRST, PARTS = ADDED
SIDES_AND_PARTS = [(side, part) for side in ("target", "drafter") for part in ("attn", "ffn")]


@pytest.fixture(scope="module")
def loop(tiny):
    torch.set_num_threads(1)
    with torch.no_grad():
        yield Counterfactuals(tiny / "target", tiny / "drafter", 4).loop


def projection(loop, side, part, number=1):
    """A layer's row-parallel module and inputs for it."""
    torch.manual_seed(0)
    layer = loop.target.model.model.layers[number] if side == "target" else loop.drafter.layers[str(number)]
    if part == "attn":
        return layer.self_attn.o_proj, (torch.randn(5, layer.self_attn.o_proj.in_features),)
    if side == "drafter":
        return layer.mlp.down_proj, (torch.randn(5, layer.mlp.down_proj.in_features),)
    experts = layer.mlp.experts
    return experts, (torch.randn(5, experts.hidden_size), torch.randint(0, 6, (5, 2)), torch.rand(5, 2))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("side", "part"), SIDES_AND_PARTS)
def test_partial_sums_and_the_bias_are_the_projection(side, part, ranks, loop):
    if (side, part, ranks) == ("drafter", "attn", 8):
        pytest.skip("8 ranks cannot share out 12 heads")
    module, inputs = projection(loop, side, part)
    true = module(*inputs)
    with reduced(loop, ranks, side, part, lambda _: lambda sums, bias: torch.stack(sums).sum(0) + bias):
        torch.testing.assert_close(module(*inputs), true, rtol=1e-4, atol=1e-5)
    with reduced(loop, ranks, side, part, lambda _: lambda sums, bias: torch.stack(sums[1:]).sum(0) + bias):
        assert not torch.allclose(module(*inputs), true, rtol=1e-2)


def test_one_rank_of_o_proj_is_its_own_heads_and_the_bias(loop):
    o, (x,) = projection(loop, "target", "attn")
    half = o.in_features // 2
    with BY_ID["tp-attn-not-reduced"].apply(loop, (1, 2)):
        torch.testing.assert_close(o(x), F.linear(x[:, half:], o.weight[:, half:], o.bias))


@pytest.mark.parametrize(
    ("where", "first", "second", "behind"), [(BEHIND, 0, 0, 1), (FIRST, 1, 0, 0), (PARTS, 0.5, 0.5, 0)]
)
def test_narrow_sums_travel_with_the_bias_where_it_is_added(where, first, second, behind, loop):
    o, (x,) = projection(loop, "target", "attn")
    half = o.in_features // 2
    low, high = (F.linear(x[:, cut], o.weight[:, cut]) for cut in (slice(half), slice(half, None)))
    narrow = [(rank + share * o.bias).bfloat16().float() for rank, share in ((low, first), (high, second))]
    with BY_ID["tp-attn-narrowed"].apply(loop, ("bfloat16", 2, where)):
        torch.testing.assert_close(o(x), sum(narrow) + behind * o.bias, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("first", "expected"), [("zero", 0), ("own", 1), ("last", 7)])
def test_a_stale_sum_is_the_layer_befores(first, expected, loop):
    """Layer 0 takes nothing, its own, or the last layer's of the pass before; layer 1 takes layer 0's."""
    layers = [loop.target.model.model.layers[number].self_attn.o_proj for number in range(8)]
    x = torch.randn(3, layers[0].in_features)
    half = layers[0].in_features // 2
    low, high = ([F.linear(x[:, cut], o.weight[:, cut]) for o in layers] for cut in (slice(half), slice(half, None)))
    with stale(loop, (1, 2), "target", "attn", first):
        for o in layers:
            o(x)
        again = [o(x) for o in layers[:2]]
    late = {0: torch.zeros_like(high[0]), 1: high[0], 7: high[7]}[expected]
    torch.testing.assert_close(again[0], low[0] + late + layers[0].bias, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again[1], low[1] + high[0] + layers[1].bias, rtol=1e-4, atol=1e-5)


def test_units_are_dealt_out_as_is_said():
    found = {
        how: dealt(8, 4, how, "heads").tolist()
        for how in ("the next rank's", "the previous rank's", "the first rank's", "in turn")
    }
    assert found == {
        "the next rank's": [2, 3, 4, 5, 6, 7, 0, 1],
        "the previous rank's": [6, 7, 0, 1, 2, 3, 4, 5],
        "the first rank's": [0, 1, 0, 1, 0, 1, 0, 1],
        "in turn": [0, 4, 1, 5, 2, 6, 3, 7],
    }


@pytest.mark.parametrize("how", ["run", "in turn"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_gate_up_as_each_rank_cuts_it(how, ranks, loop):
    experts = loop.target.model.model.layers[0].mlp.experts
    fused = experts.gate_up_proj.data
    columns = torch.cat((fused[..., ::2], fused[..., 1::2]), -1) if how == "run" else fused
    gates, ups = [], []
    for rank in range(ranks):
        if how == "run":
            mine = columns.chunk(ranks, -1)[rank]
            gate, up = mine.chunk(2, -1)
        else:
            mine = columns[..., rank::ranks]
            gate, up = mine[..., ::2], mine[..., 1::2]
        gates.append(gate)
        ups.append(up)
    with gate_up_split(loop, (ranks, how), "target"):
        torch.testing.assert_close(experts.gate_up_proj.data[..., ::2], torch.cat(gates, -1), rtol=0, atol=0)
        torch.testing.assert_close(experts.gate_up_proj.data[..., 1::2], torch.cat(ups, -1), rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in BY_ID if name.startswith("tp-")])
def test_a_split_that_does_not_come_out_even_is_not_tried(name, loop):
    """11 divides no axis of the tiny pair that ranks share out."""
    value = BY_ID[name].values[0]
    if isinstance(value, int):
        uneven = 11
    else:  # (one of them, how many), or (how many, in which way)
        uneven = (11, value[1]) if isinstance(value[1], str) else (value[0], 11, *value[2:])
    with pytest.raises(NotApplicable, match="cannot share out"), BY_ID[name].apply(loop, uneven):
        pass
