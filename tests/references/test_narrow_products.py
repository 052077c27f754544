"""Single changes of norms, formats, activations and experts' choices, beside what they are worked out to be by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from parity.references.products.activations import activations, clamped_swiglu, swiglu
from parity.references.products.attention.tiles import _sink_of_the_first
from parity.references.products.expert_shares import among_those_that_run, by_scores, of_loads, other_shares
from parity.references.products.few_rows import of_few_rows
from parity.references.products.gated import Gated
from parity.references.products.gated_changes import variants as gated_variants
from parity.references.products.norm_changes import variants
from parity.references.products.norms import other_rows, shared, together
from parity.references.products.product import in_formats
from parity.references.products.rotated import last_rows_alike

X = torch.randn(5, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHT = torch.linspace(0.5, 1.5, 48, dtype=torch.float64)
EPS = 0.01


@pytest.mark.parametrize("last", [16, 32])
def test_squares_that_are_not_read_count_as_zeros(last):
    made = dict(variants(WEIGHT, EPS, []))
    squares = X[:, :last].square().sum(-1, keepdim=True)
    for says, count in (
        (f"the squares of columns from {last} on are not read", 48),
        (f"the mean square of the first {last} columns", last),
    ):
        torch.testing.assert_close(made[says](X), X / (squares / count + EPS).sqrt() * WEIGHT)


def test_an_inverse_root_may_have_few_bits():
    made = dict(variants(WEIGHT, EPS, []))["the norm's inverse root in bfloat16"](X)
    inverse = (X.square().mean(-1, keepdim=True) + EPS).rsqrt()
    torch.testing.assert_close(made, X * inverse.bfloat16().double() * WEIGHT)
    assert not torch.allclose(made, X * inverse * WEIGHT, rtol=1e-4)


def test_eight_bits_of_what_bfloat16_holds_are_others_than_of_float32():
    made = dict(in_formats())
    x = torch.tensor([1.0626], dtype=torch.float64)  # in bfloat16 half-way between two numbers of e4m3
    assert made["e4m3"](x).item() == 1.125 and made["e4m3, from bfloat16"](x).item() == 1.0


def test_tf32_keeps_ten_bits_behind_the_point():
    low = dict(in_formats())["TF32"]
    x = torch.tensor([1 + 2**-10, 1 + 2**-11, -1 - 2**-12, 3e-40], dtype=torch.float64)
    assert low(x).tolist() == [1 + 2**-10, 1 + 2**-10, -1.0, low(x)[3].item()] and low(x)[3] <= 3.1e-40


def test_clamps_at_another_limit():
    gate, up = torch.tensor([[3.0]]), torch.tensor([[2.0]])
    made = dict(activations(1.7, 7.0))
    assert made["clamps at 0"](gate, up).item() == 0.0
    torch.testing.assert_close(made["clamps at 1"](gate, up), clamped_swiglu(1.7, 7.0)(gate / 3, up / 2))


def test_one_choice_of_experts_is_that_of_the_row_before():
    share = torch.tensor([[0.7, 0.3, 0.0, 0.0], [0.0, 0.0, 0.6, 0.4], [0.2, 0.8, 0.0, 0.0]])
    second = dict(other_shares(share))["as choice 2 the expert of the row before"]
    torch.testing.assert_close(second[1:], torch.tensor([[0.0, 0.4, 0.6, 0.0], [0.0, 0.8, 0.0, 0.2]]))
    first = dict(other_shares(share))["as choice 1 the expert of the row before"]
    torch.testing.assert_close(first[1], torch.tensor([0.6, 0.0, 0.0, 0.4]))


def test_experts_may_be_numbered_by_their_place_among_a_rows_choices():
    share = torch.tensor([[0.0, 0.3, 0.7, 0.0], [0.6, 0.0, 0.0, 0.4]])
    placed = dict(other_shares(share))["experts numbered by their place among a row's choices"]
    torch.testing.assert_close(placed, torch.tensor([[0.7, 0.3, 0.0, 0.0], [0.6, 0.4, 0.0, 0.0]]))


def test_experts_may_be_numbered_among_those_that_a_pass_runs():
    shares = [torch.tensor([[0.7, 0.0, 0.3, 0.0], [0.0, 0.0, 1.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.0, 1.0]])]
    ((_, moved),) = among_those_that_run(shares)
    torch.testing.assert_close(moved, torch.tensor([[0.7, 0.3, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("shards", [2, 4])
def test_each_shard_of_the_columns_may_have_a_mean_square_of_its_own(shards):
    made = dict(variants(WEIGHT, EPS, []))[f"the mean square of each of {shards} shards of the columns alone"](X)
    width = 48 // shards
    own = X[:, :width] / (X[:, :width].square().mean(-1, keepdim=True) + EPS).sqrt() * WEIGHT[:width]
    torch.testing.assert_close(made[:, :width], own)


def test_squares_added_one_by_one_in_bfloat16_stop_growing():
    ones = torch.ones(2, 512, dtype=torch.float64)
    made = dict(variants(ones[0], 0.0, []))["the norm's squares added one by one in bfloat16"](ones)
    torch.testing.assert_close(made, ones * (512 / 256) ** 0.5)  # 257 is no number of eight bits


def test_experts_of_few_rows_may_run_otherwise():
    gated = Gated(X[:3, :8], *(torch.randn(2, 40, 8, dtype=torch.float64) for _ in range(2)), None, None, swiglu)
    shares = [torch.tensor([[0.4, 0.6], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)]
    right = gated.inner()
    made = dict(of_few_rows(gated, right, shares))
    inner, of_inner, of_bias = made["inputs of down from 32 on left out of experts that run 1 row of a pass or fewer"]
    assert not inner[0, 0, 32:].any() and torch.equal(inner[:, 1], right[:, 1]) and torch.equal(inner[1:], right[1:])
    assert torch.equal(of_inner, shares[0]) and torch.equal(of_bias, shares[0])
    *_, of_bias = made["no bias of down of experts that run 1 row of a pass or fewer"]
    assert of_bias.tolist() == [[0.0, 0.6], [0.0, 1.0], [0.0, 1.0]]
    alone = dict(of_few_rows(gated.at(slice(1, 3)), right[1:], [shares[0][1:]]))
    assert alone and not any("run 1 row" in says for says in alone)


def test_rows_behind_an_experts_first_tile_may_be_run_by_the_next_one():
    share = torch.zeros(10, 3, dtype=torch.float64)
    share[:, 1] = 1.0
    made = dict(of_loads([share]))["rows behind the first 8 of a pass that an expert runs are run by the expert behind"]
    assert made[:8].tolist() == share[:8].tolist() and made[8:].tolist() == [[0.0, 0.0, 1.0]] * 2


@pytest.mark.parametrize("shards", [2, 3])
def test_the_roots_of_shards_may_be_averaged(shards):
    made = dict(variants(WEIGHT, EPS, []))[f"the mean of the roots of {shards} shards' mean squares"](X)
    roots = [(one.square().mean(-1, keepdim=True) + EPS).sqrt() for one in X.chunk(shards, dim=1)]
    torch.testing.assert_close(made, X / (sum(roots) / shards) * WEIGHT)


def test_a_norm_may_take_the_root_of_the_first_row_of_a_tile_of_its_pass():
    rows = dict(other_rows([6, 5]))
    assert rows["the first row of its tile of 4"].tolist() == [0, 0, 0, 0, 4, 4, 6, 6, 6, 6, 10]
    assert rows["its pass' first row"].tolist() == [0] * 6 + [6] * 5
    assert rows["the row 2 before"].tolist()[2:] == [*range(9)]


def test_a_norm_may_take_one_mean_square_of_all_rows_of_a_pass():
    runs = dict(together([3, 2]))
    assert runs["the rows of its pass"].tolist() == [0, 0, 0, 1, 1]
    _, counts = runs["the rows of its tile of 2"].unique(return_counts=True)
    assert counts.tolist() == [2, 1, 2]
    inverse = (X.square().mean(-1, keepdim=True) + EPS).rsqrt()
    made = shared(inverse, EPS, runs["the rows of its pass"])
    due = (X[:3].square().mean() + EPS).rsqrt().expand(3), (X[3:].square().mean() + EPS).rsqrt().expand(2)
    torch.testing.assert_close(made[:, 0], torch.cat(due))


def test_of_a_rows_experts_one_may_be_missing_by_its_number():
    share = torch.tensor([[0.0, 0.3, 0.7, 0.0], [0.6, 0.0, 0.0, 0.4]])
    made = dict(other_shares(share))
    lost = made["of a row's experts the one of the lowest number is missing"]
    torch.testing.assert_close(lost, torch.tensor([[0.0, 0.0, 0.7, 0.0], [0.0, 0.0, 0.0, 0.4]]))
    twice = made["of a row's experts the one of the highest number counts twice"]
    torch.testing.assert_close(twice, torch.tensor([[0.0, 0.3, 1.4, 0.0], [0.6, 0.0, 0.0, 0.8]]))


def test_an_experts_last_row_may_count_for_its_padding():
    share = torch.zeros(7, 2, dtype=torch.float64)
    share[:5, 0], share[5:, 1] = 0.5, 0.25
    says = "an expert's last row of a pass counts once more for each row that is missing in its last tile of {}"
    made = dict(of_loads([share]))
    assert made[says.format(2)][:, 0].tolist() == [0.5] * 4 + [1.0, 0, 0] and made[says.format(2)][6, 1] == 0.25
    assert made[says.format(8)][4, 0] == 0.5 * 4 and made[says.format(8)][6, 1] == 0.25 * 7


def test_codes_of_four_bits_may_be_read_as_others():
    gate = torch.tensor([[[6.0, 0.5, -0.5, 3.0] + [0.0] * 44]], dtype=torch.float64)
    gated = Gated(X, gate, gate.clone(), None, None, act=swiglu)
    read = dict(gated_variants(gated))["numbers of gate that MXFP4 has as 0.5 read as 0.75"](gated)
    assert read.gate[0, 0, :4].tolist() == [6.0, 0.75, -0.75, 3.0] and torch.equal(read.up, gate)


def test_biases_may_stand_behind_the_clamp():
    gated = Gated(
        X,
        *(torch.randn(2, 3, 48, dtype=torch.float64) for _ in range(2)),
        *[torch.ones(2, 3).double()] * 2,
        act=clamped_swiglu(1.7, 0.5),
    )
    made = dict(gated_variants(gated, 1.7, 0.5))["biases of gate and up behind the clamp"](gated)
    gate = torch.einsum("rh,eih->rei", X, gated.gate).clamp(max=0.5) + 1
    up = torch.einsum("rh,eih->rei", X, gated.up).clamp(-0.5, 0.5) + 1
    torch.testing.assert_close(made.inner(), (up + 1) * gate * torch.sigmoid(1.7 * gate))
    torch.testing.assert_close(made.of_expert(1, X), made.inner()[:, 1])


def test_a_softmax_may_have_scores_of_zero_beside_those_of_the_chosen():
    router = SimpleNamespace(weight=torch.eye(4, 48), bias=torch.tensor([0.0, 1.0, 0.0, 0.0]))
    scores = X @ router.weight.double().T + router.bias
    chosen = scores >= scores.sort(dim=1).values[:, 2:3]
    share = torch.where(chosen, scores, float("-inf")).softmax(-1)
    made = dict(by_scores(share, X, router))["the shares of a softmax that has 2 scores of zero beside"]
    beside = torch.cat((torch.where(chosen, scores, float("-inf")), torch.zeros(5, 2)), dim=1).softmax(-1)[:, :4]
    torch.testing.assert_close(made, beside)


def test_the_sigmoid_alone_may_take_few_bits():
    gate, up = torch.tensor([[1.003]]), torch.tensor([[2.0]])
    made = dict(activations(1.7, 7.0))["the sigmoid's argument in bfloat16"](gate, up)
    argument = (1.7 * gate).bfloat16()
    torch.testing.assert_close(made.float(), 3 * gate * torch.sigmoid(argument.float()))


def test_the_last_rows_of_a_pass_may_turn_as_the_first_of_them():
    other = dict(last_rows_alike())["its last 3 rows by the position of the first of these"]
    assert other(torch.arange(10, 16)).tolist() == [10, 11, 12, 13, 13, 13] and other(torch.tensor([7])).tolist() == [7]


@pytest.mark.parametrize("among", [False, True])
def test_a_sink_that_is_not_rescaled_is_by_the_largest_score_of_the_first_tile_seen(among):
    scores = torch.tensor([[float("-inf"), 0.5, 2.0, 3.0], [1.0, 0.2, float("-inf"), float("-inf")]]).double()
    sink = torch.tensor(0.75, dtype=torch.float64)
    made = _sink_of_the_first(scores, sink, 2, among)
    begun = torch.tensor([[0.75 if among else 0.5], [1.0]], dtype=torch.float64)
    parts = (scores - scores.amax(-1, keepdim=True)).exp()
    torch.testing.assert_close(made, parts / (parts.sum(-1, keepdim=True) + (sink - begun).exp()))
