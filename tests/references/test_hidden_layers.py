"""The way back through a whole layer, and layers of a segment that run again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.compare.rows import stage_rows
from parity.diagnose.counterfactual_runs import CounterfactualRuns
from parity.diagnose.deduced import _agree
from parity.golden.views import GoldenSlice
from parity.producers import counterfactuals
from parity.references.hypotheses import HYPOTHESES
from parity.references.hypotheses.mutating import layers_of
from parity.references.products import whole_layers
from parity.references.products.halves import HalfChange, SecondHalf, of_router
from parity.references.products.norms import of_module

STAGES = ("target.layers.1.out", "drafter.layers.1.out")
BY_ID = {hypothesis.id: hypothesis for hypothesis in HYPOTHESES}


@pytest.fixture(scope="module")
def prompt(two_layer_golden):
    """Two rounds, of which all but the first layers are followed."""
    case = two_layer_golden.manifest.case
    followed = frozenset(two_layer_golden.manifest.stages) - {"target.layers.0.out", "drafter.layers.0.out"}
    followed = {name for name in followed if not name.startswith(("target.layers", "drafter.layers"))}
    device = SimpleNamespace(followed=frozenset(followed), follows=lambda round_, stage: stage in followed)
    runs = CounterfactualRuns(counterfactuals(two_layer_golden, 1)[0], "local", case.max_new_tokens, device)
    return GoldenSlice(two_layer_golden, 0, 2), runs


def rows(golden, stage: str) -> np.ndarray:
    """The golden's, float64."""
    return stage_rows(golden, golden, golden.declared[stage], device="float32", mode="local").golden.astype(np.float64)


def forwards(way, stream) -> np.ndarray:
    """What leaves a layer of a stream."""
    parts = way._by_pass(stream)
    return np.concatenate([way.second(x + way.of.attended(one, x)).numpy() for one, x in parts])


@pytest.mark.parametrize("stage", STAGES[:1])
def test_a_layer_is_led_back_to_what_entered_it(stage, prompt):
    golden, runs = prompt
    way = runs.layers_back(golden, [stage])[stage]
    entered = rows(golden, stage.replace("1.out", "0.out"))
    assert np.allclose(forwards(way, entered), rows(golden, stage), rtol=1e-4, atol=1e-4)
    assert np.allclose(way.entering(rows(golden, stage)), entered, rtol=1e-4, atol=1e-4)
    moved = entered * (1 + 0.01 * np.random.default_rng(0).standard_normal(entered.shape))
    assert np.allclose(way.entering(forwards(way, moved)), moved, rtol=1e-6, atol=1e-6)


def test_its_caches_tell_which_of_several_streams_entered(prompt):
    """Experts are chosen by what enters: far from the golden another choice may end alike."""
    golden, runs = prompt
    way = runs.layers_back(golden, STAGES[:1])[STAGES[0]]
    entered = rows(golden, "target.layers.0.out")
    far = entered + 0.5 * entered[::-1]
    left = forwards(way, far)
    told, blind = (way.entering(left, caches, 1e-4) for caches in (way.cached(far), ()))
    off, without = (np.linalg.norm(found - far, axis=1) / np.linalg.norm(far, axis=1) for found in (told, blind))
    missing = np.isnan(off)
    assert missing.sum() <= 2 and (off[~missing] < 1e-6).all()
    assert (without > 1e-3).sum() > 2


def test_caches_that_a_stream_does_not_give_speak_against_it(prompt):
    golden, runs = prompt
    way = runs.layers_back(golden, STAGES[:1])[STAGES[0]]
    entered = rows(golden, "target.layers.0.out")
    moved = entered * 1.1 + 0.1 * entered[::-1]
    agrees = [_agree(way, moved, entered, way.cached(stream), "float32") for stream in (moved, entered)]
    assert agrees == [True, False]
    near = entered * (1 + 1e-7)
    assert _agree(way, near, entered, way.cached(entered), "float32") is None
    half = moved + 0.3 * (entered - moved)
    assert _agree(way, moved, entered, way.cached(half), "float32") is None


def test_a_layer_that_fuses_embeddings_and_hidden_states_has_no_way_back(prompt):
    golden, runs = prompt
    assert runs.layers_back(golden, ["drafter.layers.0.out"]) == {}
    assert len(runs.products(golden, STAGES[1], ["drafter.layers.0.out"])) == len(runs.products(golden, STAGES[1]))


@pytest.mark.parametrize(
    ("hypothesis", "value", "says"),
    [("attn-sinks-missing", "all", "no sink"), ("ffn-gate-up-swapped", "all", "gate and up exchanged")],
)
def test_layers_of_a_segment_run_again_with_the_change_of_a_hypothesis(hypothesis, value, says, prompt):
    golden, runs = prompt
    made = runs.products(golden, STAGES[0], ["target.layers.0.out"])[-2]
    assert np.allclose(made.x, rows(golden, STAGES[0]), rtol=1e-4, atol=1e-4)
    changed = next(change for told, change in made.others() if told == f"in layers 0 and 1 alike: {says}")
    under = runs.tensors(golden, [(BY_ID[hypothesis], value)], [STAGES[0]]).tensors
    every = np.concatenate([under[round_, STAGES[0]] for round_ in range(3)])
    assert np.allclose(changed(slice(None)), every, rtol=1e-3, atol=1e-3)
    some = np.array([3, len(every) - 1])
    assert np.allclose(changed(some), every[some], rtol=1e-3, atol=1e-3)


def test_a_second_half_under_other_routers(prompt):
    golden, runs = prompt
    layers = dict(layers_of(runs._reference("float32").loop, "target", "all"))
    layer, x = layers[1], torch.from_numpy(rows(golden, "target.layers.0.out"))
    changes = dict(of_router(layer, [("layer 0", layers[0].mlp.router)]))
    half = SecondHalf.of(layer, "target")
    normed, router = of_module(layer.post_attention_layernorm)(x), layer.mlp.router
    weight, bias = router.weight.detach().double(), router.bias.detach().double()

    def shares(change):
        held = []
        half.under(replace(change, shares=lambda share: (held.append(share), share)[1]))(x)
        return held[0]

    scores = normed @ weight.T + bias
    ids = scores.topk(router.top_k, dim=1).indices
    bare = shares(changes["experts weighed without the router's bias"])
    assert torch.allclose(bare.gather(1, ids), (normed @ weight.T).gather(1, ids).softmax(1))
    assert ((bare > 0).sum(1) == router.top_k).all()
    other = changes["the router with expert 1's bias for expert 0"]
    moved = bias.clone()
    moved[0] = bias[1]
    ids = (normed @ weight.T + moved).topk(router.top_k, dim=1).indices
    assert torch.equal(shares(other) > 0, torch.zeros_like(scores).scatter(1, ids, 1.0) > 0)
    plain = torch.zeros_like(scores).scatter(1, scores.topk(router.top_k).indices, 1.0)
    assert torch.equal(shares(HalfChange()) > 0, plain > 0)
    assert not torch.equal(shares(changes["the router of layer 0"]), shares(HalfChange()))
    assert not torch.equal(shares(changes["the norm of the router's rows alone: no norm"]), shares(HalfChange()))


def test_a_layer_that_is_too_large_is_not_run_again(prompt, monkeypatch):
    golden, runs = prompt
    monkeypatch.setattr(whole_layers, "LARGE", 1000)
    assert runs.layers_back(golden, STAGES[:1]) == {}
    assert len(runs.products(golden, STAGES[0], ["target.layers.0.out"])) == 3
