"""What a stage is said to be a product of makes the stage's golden rows, and each variant is another one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.compare.rows import stage_rows
from parity.diagnose.counterfactual_runs import CounterfactualRuns
from parity.golden.views import GoldenSlice
from parity.producers import counterfactuals
from parity.references.hypotheses.mutating import layers_of
from parity.references.products import attention
from parity.references.products.activations import activations, swiglu
from parity.references.products.attention import _of_layer, sums
from parity.references.products.attention.changes import _of_tile_before, _softmax_of
from parity.references.products.attention.operands import Pass
from parity.references.products.attention.projections import (
    Projected,
    _behind,
    _bias_behind,
    _entering,
    _inside,
    _normed_otherwise,
    _one_normed,
    _outside,
    norms_before,
)
from parity.references.products.attention.scaled import _scaled, _scored, _without_faint, _without_far
from parity.references.products.attention.sums import _mixed, _tiled
from parity.references.products.attention.tiles import _apart, _less_their_mean, _merged, _running, _sink_beside
from parity.references.products.experts import (
    _by_tile,
    _of_one_row,
    _without_bias,
    gated_experts,
    of_loads,
    of_other_places,
)
from parity.references.products.fixed_points import entering
from parity.references.products.gated import Gated
from parity.references.products.gated_changes import _by_other_scales, _cut_by_rank
from parity.references.products.halves import SecondHalf
from parity.references.products.layers import _led_back
from parity.references.products.norms import _streams, eps_of, normed
from parity.references.products.product import as_it_is, in_steps
from parity.references.products.rotated import Rotation, _partly, rotations, turn, turned_to
from tests.sample import WHOLE, first

STAGES = (
    "target.layers.1.attn_out",
    "target.layers.0.ffn_out",
    "target.layers.1.v",
    "target.layers.1.router_logits",
    "drafter.layers.0.attn_out",
    "drafter.layers.1.ffn_out",
    "drafter.logits",
    "target.logits",
    "verify.logits",
)

ROWS = ("target.embed", "target.layers.1.attn_in", "target.pre_head_hidden", "drafter.pre_head_hidden")

LAYERS = ("target.layers.0.out", "drafter.layers.0.out", "drafter.layers.1.out")


EVERY = slice(None)


def every_change(made):
    """All rows under each change, by what it says."""
    return {says: other(EVERY) for says, other in made.others()}


@pytest.fixture(scope="module")
def prompt(shallow_golden):
    case = shallow_golden.manifest.case
    rounds = len(case.prompts[0].generated.acceptance_length) if WHOLE else 2
    every = frozenset(shallow_golden.manifest.stages)
    device = SimpleNamespace(followed=every, follows=lambda round_, stage: True)
    runs = CounterfactualRuns(counterfactuals(shallow_golden, 1)[0], "local", case.max_new_tokens, device)
    return GoldenSlice(shallow_golden, 0, rounds), runs


@pytest.mark.parametrize("stage", STAGES)
def test_a_product_makes_the_rows_of_its_stage(stage, prompt):
    golden, runs = prompt
    (made,) = runs.products(golden, stage)
    rows = stage_rows(golden, golden, golden.declared[stage], device="float32", mode="local").golden
    assert np.allclose(made.x @ made.weight.T, rows.reshape(len(rows), -1), rtol=1e-4, atol=1e-4)
    assert sum(last - first for _, first, last in made.parts) in (0, 1, made.x.shape[1])


VARIED = [stage for stage in STAGES if stage.endswith(("attn_out", "ffn_out"))]


@pytest.mark.parametrize("stage", VARIED if WHOLE else [one for one in VARIED if one != "drafter.layers.0.attn_out"])
def test_variants_are_many_and_each_says_something_else(stage, prompt):
    golden, runs = prompt
    (made,) = runs.products(golden, stage)
    others = [(says, other(EVERY)) for says, other in made.others()]
    assert len(others) > 10 and len({says for says, _ in others}) == len(others)
    same = [says for says, other in others if np.array_equal(other, made.x)]
    assert all(other.shape == made.x.shape for _, other in others) and len(same) < len(others) / 3, same


@pytest.mark.parametrize("stage", ROWS)
def test_what_is_chosen_or_normed_is_made_again_too(stage, prompt):
    golden, runs = prompt
    (made,) = runs.products(golden, stage)
    rows = stage_rows(golden, golden, golden.declared[stage], device="float32", mode="local").golden
    assert made.weight is None and np.allclose(made.x, rows, rtol=1e-4, atol=1e-4)
    assert len({says for says, _ in made.others()}) >= (2 if made.table else 4)
    if made.table is not None:
        ids, held = made.table
        assert np.array_equal(held[ids], made.x)


@pytest.mark.parametrize("stage", first(LAYERS))
def test_a_layer_computed_again_without_a_change_is_what_the_golden_has(stage, prompt, monkeypatch):
    golden, runs = prompt
    projections = attention.of_projections
    monkeypatch.setattr(attention, "of_projections", lambda *of: first(projections(*of), 20))
    fed, made, behind = runs.products(golden, stage)
    rows = stage_rows(golden, golden, golden.declared[stage], device="float32", mode="local").golden
    numbers = np.arange(len(rows))
    assert np.allclose(behind.back(rows.astype(np.float64), numbers), behind.x @ behind.weight.T, atol=1e-3)
    assert fed.weight is not None and made.weight is None and np.allclose(made.x, rows, rtol=1e-4, atol=1e-4)
    changed = every_change(made)
    assert {"no attention", "no MLP", "a row does not see its own key"} <= set(changed)
    assert sum(np.allclose(other, made.x, atol=1e-6) for other in changed.values()) < len(changed) / 3


SOME = np.array([7, 0, 3, -1])


@pytest.mark.parametrize(
    "stage", ["target.layers.0.attn_out", "target.layers.0.ffn_out", "drafter.layers.0.ffn_out", *LAYERS[:2]]
)
def test_a_change_made_for_some_rows_is_that_of_all_rows_there(stage, prompt, monkeypatch):
    golden, runs = prompt
    every = attention.of_projections
    monkeypatch.setattr(attention, "of_projections", lambda *of: islice(every(*of), 0, None, 9))
    for made in runs.products(golden, stage):
        for says, other in islice(made.others(), 0, None, 9):
            assert np.allclose(other(SOME), other(EVERY)[SOME], rtol=1e-9, atol=1e-12, equal_nan=True), says


def test_experts_that_a_row_does_not_choose_add_nothing(prompt):
    layer = layers_of(prompt[1].references["float32"].loop, "target", 0)[0][1]
    x = torch.randn(9, 96, dtype=torch.float64)
    norm, router, held = layer.post_attention_layernorm, layer.mlp.router, layer.mlp.experts
    rows = normed(x, norm.weight.detach().double(), norm.variance_epsilon)
    best = (rows @ router.weight.detach().double().T + router.bias.detach().double()).topk(router.top_k)
    shares = rows.new_zeros(9, held.num_experts).scatter(1, best.indices, best.values.softmax(-1))
    every = torch.einsum("rei,eih->rh", gated_experts(held, rows).inner() * shares[..., None], held.down_proj.double())
    assert torch.allclose(
        SecondHalf.of(layer, "target").under()(x), x + every + shares @ held.down_proj_bias.double(), rtol=1e-12
    )


def test_rows_are_led_back_together_as_each_alone():
    """Halves that bend, that jump as where another expert is chosen, and that no row leads to."""
    turn = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q

    def bent(x):
        return x + 0.9 * (2 * x @ turn).tanh() + torch.where(x[:, :1] > 0, 0.1, -0.1)

    begun = torch.randn(20, 12, dtype=torch.float64)
    moved = begun + 0.1 * torch.randn(20, 12, dtype=torch.float64)
    together, alone = (
        entering(bent, bent(moved), begun),
        [entering(bent, bent(moved)[row : row + 1], begun[row : row + 1]) for row in range(20)],
    )
    assert torch.allclose(together, torch.cat(alone), equal_nan=True)
    found = together.isfinite().all(1)
    assert found.sum() > 15 and torch.allclose(bent(together[found]), bent(moved)[found], rtol=1e-8)
    assert entering(torch.tanh, torch.full_like(begun, 2.0), begun).isnan().all()
    numbers, rows = np.arange(20)[::-1].copy(), bent(moved).flip(0).numpy()
    assert np.allclose(_led_back(bent, begun * 0, begun, rows, numbers), together.flip(0).numpy(), equal_nan=True)


@pytest.mark.parametrize("stage", ["target.layers.1.q", "target.layers.0.k"])
def test_rotated_rows_are_led_back_to_their_projection(stage, prompt):
    golden, runs = prompt
    again, made = runs.products(golden, stage)
    rows = stage_rows(golden, golden, golden.declared[stage], device="float32", mode="local").golden
    assert np.allclose(again.x, rows.reshape(len(rows), -1), atol=1e-4)
    others = every_change(again)
    assert np.allclose(others["not rotated"], made.x @ made.weight.T, atol=1e-3)
    twice = others["the bias added behind the rotation as well"] - again.x
    assert np.allclose(twice, twice[0], atol=1e-4) and np.abs(twice).max() > 0.01
    same = [says for says, other in others.items() if np.array_equal(other, again.x)]
    assert all("modulo" in says or "by positions in" in says for says in same), "more positions than there are"
    plain = made.back(rows.reshape(len(rows), -1).astype(np.float64), np.arange(len(rows)))
    assert np.allclose(plain, made.x @ made.weight.T, atol=1e-3) and not np.allclose(plain, rows.reshape(plain.shape))
    beside = dict(made.beside())
    assert {"layer 0", "layer 1"} & set(beside) and all(one.shape == made.weight.shape for one in beside.values())


def test_what_is_no_product_has_none(prompt):
    golden, runs = prompt
    assert not runs.products(golden, "drafter.taps") and not runs.products(golden, "kv.target.0.k")


SAME = {
    "nothing": lambda one: one,
    "a tile as wide as all keys": lambda one: replace(
        one, shared=partial(_running, width=10**6, values=True, total=True)
    ),
    "one tile alone": lambda one: replace(one, shared=partial(_apart, width=10**6, mean=False)),
    "a softmax step by step": lambda one: _softmax_of(one, (as_it_is,) * 3),
    "tiles merged by their sums": lambda one: replace(one, shared=partial(_merged, width=16, times=1.0)),
    "the sink beside the sum as it is": lambda one: replace(one, shared=partial(_sink_beside, times=1.0)),
    "a sum of tiles": partial(_mixed, mixing=partial(_tiled, width=16, dtype=torch.float32)),
    "a sum of tiles by the largest so far": partial(
        _mixed, mixing=partial(sums._running, width=16, dtype=torch.float32)
    ),
    "in many steps": partial(
        _scaled, sides="qkv", axes=(2,), low=partial(in_steps, levels=1 << 26), before=torch.float32
    ),
    "no key is too far": partial(_scored, change=partial(_without_far, far=float("inf"))),
    "turned by nothing": partial(Pass.turned, change=partial(turned_to, other=lambda at: at), sides="qk"),
}


def test_attention_of_a_pass_without_change_is_what_enters_the_output_projection(prompt, monkeypatch):
    golden, runs = prompt
    monkeypatch.setattr(attention, "variants", lambda groups, sinks: SAME.items())
    monkeypatch.setattr(attention, "of_projections", lambda loop, side, number: ())
    monkeypatch.setattr(
        attention,
        "_of_layers",
        lambda own, near: [("its own", [partial(_of_layer, other=one, sides="kv") for one in own])],
    )
    for stage in ("target.layers.0.attn_out", "drafter.layers.0.attn_out"):
        (made,) = runs.products(golden, stage)
        others = every_change(made)
        assert len(others) == len(SAME) + 1
        assert all(np.allclose(other, made.x, atol=1e-5) for other in others.values())


def test_scores_move_against_the_sinks_alone():
    scores, sinks = torch.randn(4, 3, 9, dtype=torch.float64), torch.randn(4, 1, 1, dtype=torch.float64)
    alone, beside = _less_their_mean(scores, None), _less_their_mean(scores, sinks)
    assert torch.allclose(alone, scores.softmax(-1)) and not torch.allclose(beside.sum(-1), alone.sum(-1))
    assert torch.allclose(beside / beside.sum(-1, keepdim=True), alone)


def test_numbers_in_steps_of_a_scale_end_at_its_largest():
    held = torch.tensor([[-3.0, 0.26, 1.0]], dtype=torch.float64)
    assert in_steps(held, torch.tensor(1.0), 2).tolist() == [[-1.0, 0.5, 1.0]]
    assert in_steps(held, held.abs().amax(-1, keepdim=True), 3).tolist() == [[-3.0, 0.0, 1.0]]


def test_faint_shares_count_nothing_and_the_others_may_make_up_for_them():
    shares = torch.tensor([[0.125, 0.375, 0.25]], dtype=torch.float64)
    assert _without_faint(shares, 0.25).tolist() == [[0.0, 0.375, 0.25]]
    assert torch.allclose(_without_faint(shares, 0.25, whole=True), torch.tensor([[0.0, 0.45, 0.3]]).double())


def test_exponentials_about_a_constant_are_the_softmax_until_they_are_rounded():
    one = Pass(
        *(torch.randn(2, 5, 4, dtype=torch.float64) for _ in range(3)),
        torch.ones(5, 5).tril().bool(),
        torch.ones(2).double(),
    )
    about = _softmax_of(one, (as_it_is,) * 3, about=10.0)
    assert torch.allclose(about.mixed(), one.mixed(), rtol=1e-12)
    low = _softmax_of(one, (lambda x: in_steps(x, torch.tensor(1.0), 1024), as_it_is, as_it_is), about=10.0)
    assert not torch.allclose(low.mixed(), one.mixed(), rtol=1e-2)


def test_rows_of_a_tile_go_through_the_expert_of_its_first_or_last_one():
    share = torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.3, 0.7], [0.9, 0.1, 0.0]])  # of expert 0 rows 0 and 2, of 1 all
    first, last = (_by_tile(share, 3, place) for place in (0, -1))
    assert torch.equal(first, torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.9, 0.1, 0.0]]))
    assert torch.equal(last, torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.9, 0.1]]))
    assert torch.equal(_by_tile(share, 1, 0), share) and torch.equal(_by_tile(share[:0], 3, 0), share[:0])


def test_one_row_of_a_pass_tells_what_experts_weigh_in_all_of_its_rows():
    shares = [torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.3, 0.7]]), torch.tensor([[0.9, 0.1, 0.0]])]
    made = dict(_of_one_row(shares))
    assert torch.equal(made["the experts and shares of the pass' first row"][1], shares[0][0])
    assert torch.allclose(made["choice by choice the shares of the pass' first row"][1], torch.tensor([0.0, 0.4, 0.6]))
    assert all(torch.equal(taken[2], shares[1][0]) for taken in made.values())


def test_experts_of_few_rows_and_rows_behind_an_experts_first_ones_give_nothing():
    shares = [torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.3, 0.7], [0.5, 0.5, 0.0]]), torch.tensor([[0.9, 0.1, 0.0]])]
    made, share = dict(of_loads(shares)), torch.cat(shares)
    lone = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 0]], dtype=torch.bool)
    assert torch.equal(made["experts that run 1 row of a pass or fewer give nothing"], share * ~lone)
    first = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 1, 0]], dtype=torch.bool)
    assert torch.equal(made["experts give nothing behind their first 1 row of a pass"], share * first)
    assert torch.equal(made["experts give nothing at their first row of a pass"], share * ~first)
    last = torch.tensor([[0, 0, 0], [0, 0, 1], [1, 1, 0], [1, 1, 0]], dtype=torch.bool)
    assert torch.equal(made["experts give nothing at their last row of a pass"], share * ~last)


def test_an_experts_row_takes_what_the_one_beside_it_has():
    shares = [torch.tensor([[0.6, 0.4], [0.0, 1.0], [0.5, 0.5]]), torch.tensor([[1.0, 0.0], [0.2, 0.8]])]
    inner = torch.arange(10.0).reshape(5, 2, 1)
    made = {says: other[..., 0].tolist() for says, other in of_other_places(inner, shares)}
    before = made["each row of an expert takes what that expert gives at its row before"]
    assert before == [[0, 1], [2, 1], [0, 3], [6, 7], [6, 9]]
    assert made["each row of an expert but its first takes what that expert gives at its row behind"][1] == [2, 5]
    assert made["the first row of an expert's further tiles of 8 takes what that expert gives at its row before"] == (
        inner[..., 0].tolist()
    )


def test_shares_without_the_routers_bias_are_a_softmax_of_the_rest():
    scores, bias = torch.tensor([[1.0, 0.5, -9.0]]).double(), torch.tensor([0.3, -0.2, 4.0]).double()
    share = torch.cat(((scores[:, :2] + bias[:2]).softmax(-1), torch.zeros(1, 1)), dim=1)
    made = dict(_without_bias(share, bias))
    assert torch.allclose(made["the shares by scores without the router's bias"][:, :2], scores[:, :2].softmax(-1))
    assert torch.allclose(
        made["the shares by scores with the router's bias twice"][:, :2], (scores[:, :2] + 2 * bias[:2]).softmax(-1)
    )


def test_keys_of_a_tile_that_a_buffer_had_before():
    keys = torch.arange(10.0)[None, :, None]
    assert _of_tile_before(keys, 3, every=1)[0, :, 0].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6]
    assert _of_tile_before(keys, 3, every=2)[0, :, 0].tolist() == [0, 1, 2, 0, 1, 2, 6, 7, 8, 6]


def test_a_block_keeps_its_codes_and_has_the_scales_of_another():
    codes = torch.full((1, 2, 64), 1.5).double()
    weight = codes * torch.tensor([0.25] * 32 + [4.0] * 32)
    other = _by_other_scales(weight, [1, 0])
    assert torch.equal(other, codes * torch.tensor([4.0] * 32 + [0.25] * 32))
    assert torch.equal(_by_other_scales(weight, [0, 1]), weight)
    both = torch.cat((weight, 8 * weight))
    assert torch.equal(_by_other_scales(both, [0, 1], experts=[0, 0]), torch.cat((weight, weight)))


def test_keys_keep_the_scale_of_the_pass_that_wrote_them():
    """Two keys of the prompt, one of a later pass, and the pass's own."""
    keys = torch.tensor([1.0, 0.3, 0.2, 10.0], dtype=torch.float64)[None, :, None]
    one = Pass(keys[:, -1:], keys, keys, torch.ones(1, 4, dtype=torch.bool), None, prompt=2)
    made = _scaled(one, "k", (0, 1, 2), partial(in_steps, levels=2), torch.float32)
    assert torch.allclose(made.k[0, :, 0], torch.tensor([1.0, 0.5, 0.2, 10.0]).double())


def test_projections_made_anew_without_a_change_are_what_they_were(prompt, monkeypatch):
    golden, runs = prompt
    same = {
        "nothing": partial(_entering, sides="qkv", change=lambda x: x),
        "laid out and read alike": partial(_behind, sides="qkv", change=lambda made: _outside(_inside(made))),
    }

    def normed_alike(loop, side, number):
        layer = dict(layers_of(loop, side, "all"))[number]
        own = [(norm.weight.detach().double(), eps_of(norm)) for norm in norms_before(layer).values()]
        change = partial(_one_normed, held=own, place=0, norm=lambda x: normed(x, *own[0]))
        return [*same.items(), ("normed alike", partial(_normed_otherwise, change=change))]

    monkeypatch.setattr(attention, "of_projections", normed_alike)
    monkeypatch.setattr(attention, "_of_layers", lambda own, near: ())
    monkeypatch.setattr(attention, "variants", lambda groups, sinks: ())
    for stage in ("target.layers.1.attn_out", "drafter.layers.0.attn_out", "drafter.layers.1.attn_out"):
        (made,) = runs.products(golden, stage)
        others = every_change(made)
        assert len(others) == 3 and all(np.allclose(other, made.x, atol=1e-4) for other in others.values()), stage


def test_a_rotation_read_off_the_tables_is_the_one_that_the_rows_have():
    frequencies, positions = torch.linspace(1.0, 1e-4, 16).double(), torch.arange(70, 75).double()
    angles = positions[:, None] * frequencies
    (of,) = Rotation.of([(1.2 * angles.cos(), 1.2 * angles.sin())])
    assert of.first == 70 and abs(of.scale - 1.2) < 1e-9 and torch.allclose(of.frequencies, frequencies)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 32)))
    changed = {says: change(of, turn(x, angles, 1.2), positions) for says, change in rotations()}
    assert torch.allclose(changed["not rotated"], x)
    moved = turned_to(of, turn(x, angles, 1.2), positions, lambda at: at + 1)
    assert torch.allclose(moved, turn(x, angles + frequencies, 1.2))
    assert torch.allclose(changed["rotated the other way"], turn(x, -angles, 1.2))


def test_a_bias_behind_the_shares_is_that_of_the_values_where_no_sink_takes_of_it():
    q, k, v = (torch.randn(2, 5, 8, dtype=torch.float64) for _ in range(3))
    bias, seen = torch.randn(16, dtype=torch.float64), torch.ones(5, 5, dtype=torch.bool).tril()
    made = Projected(torch.zeros(5, 16), {"v": (torch.zeros(16, 16), bias)}, torch.ones(5, 4), torch.zeros(5, 4))
    for sinks in (None, torch.zeros(2, dtype=torch.float64)):
        plain = Pass(q, k, v, seen, sinks)
        assert torch.allclose(_bias_behind(plain, made).mixed(), plain.mixed()) == (sinks is None)


def test_gate_and_up_that_take_turns_are_read_as_halves_and_the_other_way_round():
    columns = torch.arange(8.0)[None, :, None]
    turns = Gated(columns[:, 0], columns[:, 0::2], columns[:, 1::2], None, None, act=min)
    halves = _cut_by_rank(turns, 4, back=True)
    assert halves.gate.flatten().tolist() == [0, 1, 2, 3] and halves.up.flatten().tolist() == [4, 5, 6, 7]
    again = _cut_by_rank(halves, 4)
    assert torch.equal(again.gate, turns.gate) and torch.equal(again.up, turns.up)


def test_a_matrix_that_is_cut_by_rank_and_read_back_is_what_it_was():
    weight, bias = torch.arange(48.0).view(1, 12, 4), torch.arange(12.0).view(1, 12)
    gated = Gated(torch.zeros(1, 4), *weight.chunk(2, 1), *bias.chunk(2, 1), swiglu)
    cut = _cut_by_rank(gated, 3)
    assert cut.gate_bias.tolist() == [[0, 1, 4, 5, 8, 9]] and cut.up[0, :, 0].tolist() == [8, 12, 24, 28, 40, 44]
    again = _cut_by_rank(cut, 3, back=True)
    assert all(torch.equal(getattr(again, side), getattr(gated, side)) for side in ("gate", "up", "gate_bias"))


def test_a_norm_may_give_another_norms_rows_or_be_taken_over_padding(prompt):
    golden, runs = prompt
    (made,), (before,) = (runs.products(golden, f"target.layers.{layer}.attn_in") for layer in (1, 0))
    others = every_change(made)
    assert np.allclose(others["the rows that the input norm of the layer before gives"], before.x)
    fewer = others["the squares divided by one fewer than there are"]
    assert np.allclose(fewer / np.sqrt(95 / 96), made.x, rtol=1e-3)
    padded = others["the mean square over 128 columns, 32 of them zeros"]
    assert np.allclose(padded / np.sqrt(128 / 96), made.x, rtol=1e-3)


def test_a_stream_may_have_more_or_less_of_what_attention_added():
    before, added = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[4.0, 8.0]]).double()
    held = dict(_streams(before, before + added, torch.tensor([1.0, 0.0]).double()))
    assert held["what attention added, alone"].tolist() == added.tolist()
    assert held["the stream with 0.5 times what attention added"].tolist() == [[3.0, 6.0]]
    assert held["the stream without attention's output bias"].tolist() == [[4.0, 10.0]]
    assert len(held) == len(dict(_streams(before, before, None))) + 2


def test_heads_that_turn_in_part_leave_the_others_as_they_are():
    of = Rotation(0, torch.tensor([1.0, 0.5, 0.25, 0.125]).double(), 1.0)
    plain, at = torch.randn(2, 3, 8, dtype=torch.float64), torch.arange(3).double()
    half = _partly(of, turn(plain, of.angles(at)), at, 0.5, False)
    assert torch.allclose(half[..., 4:], plain[..., 4:])
    assert torch.allclose(half[..., :4], turn(plain[..., :4], at[:, None] * of.frequencies[:2]))


def test_a_sigmoid_in_a_straight_line_ends_where_it_is_told():
    says = "a sigmoid that is straight from -3 to 3"
    straight = dict(activations(alpha=1.0, limit=7.0))[says]
    gate, up = torch.tensor([-3.5, -1.5, 0.0, 3.0, 5.0]).double(), torch.zeros(5).double()
    assert straight(gate, up).tolist() == [0.0, -0.375, 0.0, 3.0, 5.0]
