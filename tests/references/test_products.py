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
from parity.references.products.attention import _of_layer, sums
from parity.references.products.attention.changes import _softmax_of
from parity.references.products.attention.layouts import _read_as
from parity.references.products.attention.operands import Pass
from parity.references.products.attention.projections import (
    _behind,
    _entering,
    _inside,
    _normed_otherwise,
    _one_normed,
    _outside,
    norms_before,
)
from parity.references.products.attention.scaled import _scaled, _scored, _without_far
from parity.references.products.attention.sums import _mixed, _tiled
from parity.references.products.attention.tiles import _apart, _merged, _running, _sink_beside
from parity.references.products.experts import (
    gated_experts,
)
from parity.references.products.halves import SecondHalf
from parity.references.products.norm_changes import normed
from parity.references.products.norms import eps_of
from parity.references.products.product import as_it_is, in_steps
from parity.references.products.rotated import turned_to
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
    assert not runs.products(golden, "drafter.taps") and not runs.products(golden, "kv.target.length")


SAME = {
    "nothing": lambda one: one,
    "a tile as wide as all keys": lambda one: replace(
        one, shared=partial(_running, width=10**6, values=True, total=True)
    ),
    "a tile as wide as all keys, from the sink on": lambda one: replace(
        one, shared=partial(_running, width=10**6, values=True, total=True, sink=True)
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


def test_a_norm_may_give_another_norms_rows_or_be_taken_over_padding(prompt):
    golden, runs = prompt
    (made,), (before,) = (runs.products(golden, f"target.layers.{layer}.attn_in") for layer in (1, 0))
    others = every_change(made)
    assert np.allclose(others["the rows that the input norm of the layer before gives"], before.x)
    fewer = others["the squares divided by one fewer than there are"]
    assert np.allclose(fewer / np.sqrt(95 / 96), made.x, rtol=1e-3)
    padded = others["the mean square over 128 columns, 32 of them zeros"]
    assert np.allclose(padded / np.sqrt(128 / 96), made.x, rtol=1e-3)
    late, own = others["the root mean square of the row 8 before"], np.linalg.norm(made.x, axis=1)
    factors = late[8:] / np.where(made.x[8:] == 0, 1, made.x[8:])
    assert np.allclose(factors, np.median(factors, axis=1, keepdims=True)) and not np.allclose(
        own[8:] * factors[:, 0], own[8:]
    )


@pytest.mark.parametrize("side", ["target", "drafter"])
def test_a_final_norm_may_be_of_the_stream_before_the_last_layer(side, prompt):
    golden, runs = prompt
    (made,) = runs.products(golden, f"{side}.pre_head_hidden")
    others = every_change(made)
    before, twice = (
        others[f"the norm of the stream {says}"]
        for says in ("before the last layer", "with the last layer's input once more")
    )
    last = max(
        named.layer for named in golden.declared.values() if named.name.startswith(side) and named.layer is not None
    )
    rows = stage_rows(golden, golden, golden.declared[f"{side}.layers.{last - 1}.out"], device="float32", mode="local")
    streams = np.concatenate([rows.golden[rows.round == round_][-count:] for round_, count in counts(golden, side)])
    weights = before / streams
    assert np.allclose(weights / weights[:, :1], (weights / weights[:, :1])[0], rtol=1e-3)
    assert not np.allclose(twice, made.x, atol=1e-2)


def counts(golden, side):
    """How many rows a final norm has in each round that it runs in."""
    rows = stage_rows(golden, golden, golden.declared[f"{side}.pre_head_hidden"], device="float32", mode="local")
    rounds, numbers = np.unique(rows.round, return_counts=True)
    return zip(rounds.tolist(), numbers.tolist(), strict=True)


def test_a_layout_that_is_written_and_read_alike_changes_nothing_and_two_ways_undo_each_other():
    x = torch.randn(3, 40, 8, dtype=torch.float64)
    for one, other, page in (("head", "dim", 1), ("row", "head", 16), ("row", "dim", 16)):
        read = _read_as(x, one, other, page)
        whole = read.shape[1] // page * page
        assert not torch.equal(read, x)
        assert torch.equal(_read_as(read, other, one, page)[:, :whole], x[:, :whole])
    by_hand = x[:, 0].flatten().view(8, 3).T  # written head by dim, read dim by head
    assert torch.equal(_read_as(x, "head", "dim", 1)[:, 0], by_hand)
