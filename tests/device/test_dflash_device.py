"""DFlash on the device: its stages, what its block sees and carries, what stays in its cache, its faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parity import device
from parity.builders import builder
from parity.device.faults import CATALOGUE
from parity.errors import UsageError
from parity.gates.context import GateContext
from parity.gates.gate import run_gate
from tests.sample import WHOLE

FAMILY = "dflash"


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


@pytest.fixture(scope="module")
def golden(family_golden):
    return family_golden(FAMILY)


def test_a_round_has_context_rows_and_a_block(golden):
    """The prefill has no block: no ids, no attention; the prompt's last row waits for the first round."""
    prompt, k = len(golden.manifest.case.prompts[0].ids), golden.manifest.case.k

    def shape(round_, stage):
        rows = golden.stored("float32", 0, round_, stage)
        return None if rows is None else len(rows)

    block = ("drafter.input_ids", "drafter.layers.1.attn_out", "drafter.layers.0.out")
    context = ("drafter.taps", "drafter.fc_out")
    assert [shape(0, stage) for stage in (*block, *context)] == [None] * 3 + [prompt - 1] * 2
    assert [shape(1, stage) for stage in (*block, *context)] == [k + 1] * 3 + [1] * 2
    assert (shape(0, "drafter.positions"), shape(1, "drafter.positions")) == (prompt - 1, k + 2)
    assert golden.stored("float32", 0, 1, "drafter.positions").tolist() == list(range(prompt - 1, prompt + k + 1))


@pytest.mark.parametrize("k", [1, 3, 7])
def test_tokens_are_the_references_for_every_k(k, golden, tiny):
    """Drafts of the device and of the reference, also behind another's drafts, some of which are accepted."""
    from parity.references.seam import load

    def tap(stage, value):
        return value

    ids = golden.manifest.case.prompts[0].ids
    ours, theirs = (made(tiny / "target", tiny / "dflash", k, precision="float32") for made in (device.load, load))
    told = golden.manifest.case.prompts[0].generated.emitted
    assert ours.prefill(ids, 30, tap) == theirs.prefill(ids, 30, tap) == told[0]
    for given in (None, [*told[2:], *told][:k], [7] * k):
        drafts = ours.draft(tap)
        assert drafts.tolist() == theirs.draft(tap).tolist() and len(drafts) == k
        verified = [np.array(given) if given else drafts for _ in range(2)]
        emitted = [
            one.commit(some, one.verify(some, tap), tap) for one, some in zip((ours, theirs), verified, strict=True)
        ]
        assert emitted[0].tolist() == emitted[1].tolist()
        assert ours.drafter.length == theirs.loop.state.draft_length == ours.target.length - len(emitted[0])


def test_the_rotation_alone_reads_its_config(tiny):
    from parity.references.seam import rotate

    x = np.random.default_rng(0).normal(size=(3, 2, 32)).astype(np.float32)
    ours, theirs = (one(tiny / "dflash", "drafter", x, np.array([0, 7, 511])) for one in (device.rotate, rotate))
    np.testing.assert_allclose(ours, theirs, atol=2.0**-20)


@pytest.mark.parametrize(
    ("change", "config", "named"),
    [
        (lambda t: t | {"embed_tokens.weight": t["fc.weight"]}, {}, "embed_tokens"),
        (lambda t: {name: one for name, one in t.items() if name != "hidden_norm.weight"}, {}, "hidden_norm"),
        (lambda t: t | {"fc.weight": t["fc.weight"][:, :96].copy()}, {}, "fc.weight"),
        (lambda t: t, {"attention_bias": True}, "attention_bias"),
        (lambda t: t, {"hidden_act": "gelu"}, "hidden_act"),
        (lambda t: t, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (lambda t: t, {"use_sliding_window": True}, "use_sliding_window"),
        (lambda t: t, {"block_size": "gone"}, "block_size"),
        (lambda t: t, {"block_size": 1}, "block_size"),
        (lambda t: t, {"dflash_config": {"target_layer_ids": [1, 3, 4]}}, "mask_token_id"),
        (lambda t: t, {"dflash_config": {"mask_token_id": 1280, "target_layer_ids": [1, 3, 4]}}, "mask_token_id"),
        (lambda t: t, {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 3, 8]}}, "target_layer_ids"),
        (lambda t: t, {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 3, 4], "noise": 1}}, "noise"),
        (lambda t: t, {"num_target_layers": 9}, "num_target_layers"),
        (lambda t: t, {"vocab_size": 1281}, "1281"),
        (lambda t: t, {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change, config, named, edited, tiny):
    from parity.references.seam import load

    folder = edited(change, "dflash", **config)
    for made in (device.load, load):
        with pytest.raises(UsageError, match=named):
            made(tiny / "target", folder, 2)


def test_more_drafts_than_a_block_holds_are_refused(tiny):
    from parity.references.seam import load

    for made in (device.load, load):
        with pytest.raises(UsageError, match="block_size"):
            made(tiny / "target", tiny / "dflash", 8)


def test_tap_layers_that_the_config_leaves_out_are_the_published_spread(edited):
    """Two layers of eight: behind layer 1 and behind the third last."""
    from parity.references.seam import load

    target = Path(__file__).parents[2] / "fixtures/tiny/target"

    def narrow(tensors):
        return tensors | {"fc.weight": tensors["fc.weight"][:, :192].copy()}

    folder = edited(narrow, "dflash", dflash_config={"mask_token_id": 1272}, num_target_layers=8)
    ours, theirs = (made(target, folder, 2) for made in (device.load, load))
    assert ours.drafter.config.taps == theirs.loop.tap_inputs == (2, 6)


@pytest.mark.parametrize("name", ["block-context-not-kept", *(["", "block-kept"] if WHOLE else [])])
def test_rows_that_are_not_the_context_are_red_at_the_rollback_gate(name, golden, tmp_path):
    def build(**options):
        made = builder("numpy", golden)(**options)
        if name:
            CATALOGUE[name].plant(made)
        return made

    found = run_gate(GateContext(golden, "numpy", build, "float32", tmp_path, histories=4), "rollback")
    assert found.verdict == ("fail" if name else "pass"), found.first
    assert not name or "kv.drafter" in found.first.evidence


def test_the_taps_gate_knows_context_and_block(golden, tmp_path):
    context = GateContext(golden, "numpy", builder("numpy", golden), "float32", tmp_path)
    taps, pairs = run_gate(context, "taps").checks
    assert (taps.verdict, pairs.verdict) == ("pass", "pass") and "at their position" in pairs.evidence
