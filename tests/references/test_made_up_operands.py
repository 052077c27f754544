"""Changes of a product's operands, of made-up numbers: what each gives, and what it leaves."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from parity.references.hypotheses.loading import _scales_of
from parity.references.products.activations import activations, swiglu
from parity.references.products.attention.changes import _of_tile_before, _softmax_of
from parity.references.products.attention.operands import Pass
from parity.references.products.attention.projections import (
    Projected,
    _bias_behind,
)
from parity.references.products.attention.scaled import _scaled, _without_faint
from parity.references.products.attention.tiles import _less_their_mean, _running
from parity.references.products.expert_shares import (
    _by_tile,
    of_loads,
    of_one_row,
    of_other_places,
    without_bias,
)
from parity.references.products.fixed_points import entering
from parity.references.products.gated import Gated, of_earlier_rows
from parity.references.products.gated_changes import _cut_by_rank
from parity.references.products.gated_weights import _by_other_scales
from parity.references.products.layers import _led_back
from parity.references.products.norms import _streams
from parity.references.products.product import as_it_is, in_steps
from parity.references.products.rotated import Rotation, _partly, rotations, turn, turned_to


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
    made = dict(of_one_row(shares))
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
    made = dict(without_bias(share, bias))
    assert torch.allclose(made["the shares by scores without the router's bias"][:, :2], scores[:, :2].softmax(-1))
    assert torch.allclose(
        made["the shares by scores with the router's bias twice"][:, :2], (scores[:, :2] + 2 * bias[:2]).softmax(-1)
    )


def test_keys_of_a_tile_that_a_buffer_had_before():
    keys = torch.arange(10.0)[None, :, None]
    every = _of_tile_before(keys, 3, lambda number: number > 0)[0, :, 0]
    assert every.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6]
    assert _of_tile_before(keys, 3, lambda number: number == 1)[0, :, 0].tolist() == [0, 1, 2, 0, 1, 2, 6, 7, 8, 9]


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


@pytest.mark.parametrize(
    ("sink", "running"), [(-1.0, [0, 1, 3, 3]), (0.5, [0.5, 1, 3, 3]), (2.0, [2, 2, 3, 3]), (4.0, [4, 4, 4, 4])]
)
def test_what_begins_at_the_sink_is_scaled_down_by_larger_scores_alone(sink, running):
    scores = torch.tensor([[[0.0, 1.0, 3.0, 2.0]]], dtype=torch.float64)
    sinks = torch.full((1, 1, 1), sink, dtype=torch.float64)
    made = _running(scores, sinks, width=1, values=True, total=False, sink=True)
    late = running[-1] - torch.tensor(running, dtype=torch.float64)
    assert torch.allclose(made, torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1] * late.exp())


def test_gate_and_up_may_each_be_of_an_earlier_row():
    x = torch.arange(6.0, dtype=torch.float64)[:, None]
    gate, up = (torch.full((1, 1, 1), one, dtype=torch.float64) for one in (1.0, 100.0))
    late = dict(of_earlier_rows(Gated(x, gate, up, None, None, act=lambda gate, up: gate + up)))
    assert list(late) == [f"the {side} of the row {step} before" for step in (1, 2, 4) for side in ("gate", "up")]
    rows = torch.tensor([4, 5])
    assert late["the gate of the row 2 before"].at(rows).inner().flatten().tolist() == [402.0, 503.0]
    assert late["the up of the row 4 before"].at(rows).inner().flatten().tolist() == [4.0, 105.0]


def test_scales_of_blocks_are_those_that_made_their_codes():
    codes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    drawn = codes[torch.randint(0, 8, (2, 3, 32, 5), generator=torch.Generator().manual_seed(3))]
    drawn[1, 0] = codes[torch.randint(0, 6, (32, 5), generator=torch.Generator().manual_seed(4))]  # 3 at the most
    powers = torch.randint(-4, 5, (2, 3, 1, 5), generator=torch.Generator().manual_seed(5)).float().exp2()
    assert torch.equal(_scales_of(drawn * powers), powers)
