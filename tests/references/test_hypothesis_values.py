"""Values of hypotheses: which are clean, and which are read out of a device's tensors."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.references.constants import constants
from parity.references.hypotheses import HYPOTHESES, NotApplicable
from tests.references.hypothesis_case import BY_ID, Case, value_of
from tests.sample import sample


@pytest.fixture(scope="module")
def case(tiny):
    return Case(tiny)


@pytest.mark.parametrize("name", sample(one.id for one in HYPOTHESES if one.fit and one.fit.clean is not None))
def test_the_clean_value_of_a_fit_changes_nothing(name, case):
    with suppress(NotApplicable):
        assert case.first(case.run([(BY_ID[name], BY_ID[name].fit.clean)], stop=True)) is None


@pytest.mark.parametrize("name", sample(one.id for one in HYPOTHESES if one.fit and one.fit.constant))
def test_the_recorded_value_of_a_fit_is_of_its_key_and_changes_nothing(name, case):
    side, _, key = BY_ID[name].fit.constant.partition(".")
    said = constants(case.counterfactuals.loop)[side]
    assert BY_ID[name].fit.clean in (None, said[key])
    with suppress(NotApplicable):
        assert case.first(case.run([(BY_ID[name], said[key])], stop=True)) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input-wrong-placeholder", 5),
        ("input-position-plus-one", 3),
        ("input-masked-positions", -1),
        ("input-chunk-boundary", 9),
        ("load-layers-exchanged", (2, 5)),
        ("load-layers-exchanged-drafter", (1, 3)),
        ("load-layers-exchanged-mlp", (0, 7)),
        ("fuse-scaled", 0.75),
        ("tap-scaled", 1.5),
        ("rope-table-short", 40),
        ("rope-table-short-drafter", 60),
        ("rope-table-begun-anew", 33),
        ("rope-table-begun-anew-drafter", 64),
    ],
)
def test_a_value_is_read_out_of_the_devices_tensors(name, value, case):
    infer = BY_ID[name].infer
    assert infer(case.run([(BY_ID[name], value)]).tensors, case.truth) == pytest.approx(value, rel=1e-5)
    assert infer(case.truth, case.truth) is None


@pytest.mark.parametrize("part", ["", "-gate-up", "-gate-up-and-bias", "-down", "-down-and-bias"])
@pytest.mark.parametrize("value", [(2, 1, 4), (0, 0, 3), (7, 2, 5)])
def test_exchanged_experts_are_read_out_of_which_rows_are_wrong(part, value, case):
    one = BY_ID[f"load-experts-exchanged{part}"]
    device = case.run([(one, value)]).tensors
    rough = {place: bfloat16(tensor) for place, tensor in device.items()}
    assert one.infer(rough, case.truth) == value
    assert one.infer({place: bfloat16(tensor) for place, tensor in case.truth.items()}, case.truth) is None


def test_exchanged_experts_are_read_out_of_what_leaves_a_layer_that_hides_its_experts(case):
    one = BY_ID["load-experts-exchanged"]
    changed = case.run([(one, (2, 1, 4))]).tensors
    device = {place: tensor for place, tensor in case.truth.items() if not place[1].endswith("ffn_out")}
    for (round_, stage), tensor in changed.items():
        if stage == "target.layers.2.ffn_out":
            device[round_, "target.layers.2.out"] = (
                device[round_, "target.layers.2.out"] + tensor - case.truth[round_, stage]
            )
    assert one.infer(device, case.truth) == (2, 1, 4)


def test_exchanged_experts_of_some_rows_alone_are_those_of_which_every_wrong_row_has_one(case):
    one = BY_ID["load-experts-exchanged"]
    device = {place: bfloat16(tensor) for place, tensor in case.truth.items()}
    place = (0, "target.layers.2.ffn_out")
    changed = case.run([(one, (2, 1, 4))]).tensors[place]
    first = np.arange(len(changed))[:, None] < len(changed) // 3
    device[place] = bfloat16(np.where(first, changed, case.truth[place]))
    assert one.infer(device, case.truth) == (2, 1, 4)


def test_how_near_a_second_best_is_chosen_is_read_between_the_rows():
    logits = np.array([[5.0, 4.75, 0.0], [5.0, 1.0, 4.5], [3.0, 0.0, 1.0], [0.0, 2.0, 9.0]])
    golden = {(1, "drafter.logits"): logits, (1, "drafter.draft_tokens"): np.array([0, 0, 0, 2])}
    infer = BY_ID["draft-runner-up"].infer
    assert infer(golden | {(1, "drafter.draft_tokens"): np.array([1, 2, 0, 2])}, golden) == pytest.approx(1.25)
    assert infer(golden, golden) is None
    assert infer(golden | {(1, "drafter.draft_tokens"): np.array([1, 2, 2, 1])}, golden) is None


def bfloat16(tensor):
    """Rounded, as a device in bfloat16 hands it over."""
    return tensor if tensor.dtype.kind in "iub" else torch.from_numpy(tensor).bfloat16().float().numpy()


@pytest.mark.parametrize(
    ("name", "seen"), [("input-round-positions", [11, 12, 13]), ("input-round-positions-mask", [1, 2, 3])]
)
def test_a_mask_that_is_made_from_positions_sees_the_slots_up_to_them(name, seen, case, monkeypatch):
    loop = case.counterfactuals.loop
    monkeypatch.setattr(loop, "state", SimpleNamespace(draft_length=10), raising=False)
    with BY_ID[name].apply(loop, "restarted"):
        assert loop.positions(2, 1).tolist() == [0, 1, 2]
        mask = loop.mask(torch.tensor([10, 11, 12]), 2)
    assert mask.shape == (3, 13) and mask.sum(1).tolist() == seen and mask[:, 0].all()


def test_isolated_ids_are_read_out_and_shifted_ones_are_not(case):
    one, ids = BY_ID["input-other-ids"], ((5, 7), (71, 9))
    assert one.infer(case.run([(one, ids)]).tensors, case.truth) == ids
    assert one.infer(case.truth, case.truth) is None
    for name in ("input-no-shift", "input-wrong-placeholder"):
        assert one.infer(case.run([(BY_ID[name], value_of(BY_ID[name]))]).tensors, case.truth) is None


def test_a_float8_cache_clips_what_float8_cannot_hold(case):
    loop = case.counterfactuals.loop
    with loop.tap.around(lambda inner, stage, value: value), BY_ID["cache-narrow"].apply(loop, "float8 e4m3"):
        k, v = loop.cached("kv.target.0", torch.tensor([[[1.07, 1e4]]]), torch.tensor([[[0.3, -1e4]]]))
    assert k.flatten().tolist() == [1.125, 448.0]
    assert v.flatten().tolist() == [0.3125, -448.0]


def test_a_tiled_head_keeps_its_own_sink(case):
    """Compared with the equation: query head n on kv head n mod G, with sink n, in place n of the output."""
    loop = case.counterfactuals.loop
    layer = loop.target.model.model.layers[0].self_attn
    N, G, D = loop.target.config.num_attention_heads, loop.target.config.num_key_value_heads, layer.head_dim
    torch.manual_seed(0)
    q, k, v = torch.randn(1, N, 1, D), torch.randn(1, G, 5, D), torch.randn(1, G, 5, D)
    with torch.no_grad():
        each = [n % G for n in range(N)]
        scores = (q @ k[:, each].transpose(2, 3)) * layer.scaling
        weights = torch.cat((scores, layer.sinks.view(1, N, 1, 1)), -1).softmax(-1)[..., :-1]
        expected = (weights @ v[:, each]).transpose(1, 2)
        with BY_ID["attn-gqa-tiled"].apply(loop, 0):
            mask = torch.zeros(1, 1, 1, 5)
            found = layer.parity_attend(layer, q, k, v, mask, scaling=layer.scaling)[0]
    torch.testing.assert_close(found, expected)


def test_a_fitted_value_is_told_as_far_as_it_is_known():
    assert "is 1.000046 (" in BY_ID["rope-concentration"].describe(1.000046296679987)
