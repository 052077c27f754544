"""A small draft model on the device: its stages, its tokens by two judges, what stays in its cache, its faults."""

from __future__ import annotations

import numpy as np
import pytest

from parity import device
from parity.builders import builder
from parity.device.faults import CATALOGUE
from parity.errors import UsageError
from parity.gates.context import GateContext
from parity.gates.gate import run_gate
from tests.sample import first

FAMILY = "draft-model"


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


@pytest.fixture(scope="module")
def golden(family_golden):
    return family_golden(FAMILY)


def test_stages_that_it_does_not_have_are_not_declared(golden):
    assert {"drafter.taps", "drafter.fc_out"} & set(golden.manifest.stages) == set()
    assert "drafter.layers.1.attn_out" in golden.manifest.stages


@pytest.mark.parametrize("k", [1, 2, 6])
def test_tokens_are_the_references_for_every_k(k, golden, tiny):
    """Behind a full acceptance two tokens are fed; behind another's drafts all that were not run over."""
    from parity.references.seam import load

    ids, drafter = golden.manifest.case.prompts[0].ids, tiny / "draft-model"
    ours, theirs = (made(tiny / "target", drafter, k, precision="float32") for made in (device.load, load))

    def tap(stage, value):
        if stage == "drafter.input_ids":
            fed.append(value.tolist())
        return value

    for one in (ours, theirs):
        one.prefill(ids, 30, tap=lambda _, value: value)
    known = [*ids, *ours._emitted.tolist()]
    for round_ in range(3):
        fed: list[list[int]] = []
        drafts = ours.draft(tap)
        assert drafts.tolist() == theirs.draft(tap).tolist()
        assert fed[0] == fed[1] and len(drafts) == k
        count = len(fed[0]) - (k - 1)
        assert fed[0] == [*known[-count:], *drafts[:-1]]
        others = drafts if round_ == 0 else np.full_like(drafts, 7)
        emitted = [one.commit(others, one.verify(others, tap), tap).tolist() for one in (ours, theirs)]
        assert emitted[0] == emitted[1]
        known += emitted[0]
        behind = int(ours.target.length - ours.drafter.length)
        assert (
            behind == (1 if len(emitted[0]) == k + 1 else 0) and theirs.loop.state.draft_length == ours.drafter.length
        )


def test_tokens_are_those_of_transformers_assisted_generation(golden, tiny):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    target = transformers.GptOssForCausalLM.from_pretrained(
        golden.manifest.model.target.path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assistant = transformers.LlamaForCausalLM.from_pretrained(tiny / "draft-model", dtype=torch.float32).eval()
    own = assistant.generation_config
    own.num_assistant_tokens, own.num_assistant_tokens_schedule, own.assistant_confidence_threshold = 4, "constant", 0.0
    passes: list[int] = []
    target.register_forward_hook(lambda *_: passes.append(1))
    for prompt in golden.manifest.case.prompts:
        ids = torch.tensor([prompt.ids])
        passes.clear()
        made = target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, assistant_model=assistant
        )
        told = prompt.generated
        assert made[0, len(prompt.ids) :].tolist() == list(told.emitted)
        assert len(passes) <= len(told.acceptance_length) + 1  # assisted generation verifies with its prefill


def test_a_head_that_is_the_embeddings_is_read_on_both_sides(edited, tiny, golden):
    from parity.references.seam import load

    def tie(tensors):
        return {name: value for name, value in tensors.items() if name != "lm_head.weight"}

    folder, ids = edited(tie, "draft-model", tie_word_embeddings=True), golden.manifest.case.prompts[0].ids
    drafts = []
    for made in (device.load, load):
        one = made(tiny / "target", folder, 2, precision="float32")
        one.prefill(ids, 6, lambda _, value: value)
        drafts.append(one.draft(lambda _, value: value).tolist())
    assert drafts[0] == drafts[1]
    assert one.describe().family == FAMILY


@pytest.mark.parametrize(
    ("change", "config", "named"),
    [
        (lambda t: t | {"model.layers.0.self_attn.q_norm.weight": t["model.norm.weight"]}, {}, "q_norm"),
        (lambda t: {name: one for name, one in t.items() if name != "lm_head.weight"}, {}, "lm_head"),
        (lambda t: t, {"attention_bias": True}, "attention_bias"),
        (lambda t: t, {"mlp_bias": True}, "mlp_bias"),
        (lambda t: t, {"hidden_act": "gelu"}, "hidden_act"),
        (lambda t: t, {"vocab_size": 1281}, "1281"),
        (lambda t: t, {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change, config, named, edited, tiny):
    from parity.references.seam import load

    folder = edited(change, "draft-model", **config)
    for made in (device.load, load):
        with pytest.raises(UsageError, match=named):
            made(tiny / "target", folder, 2)


@pytest.mark.parametrize("name", first(["draft-rejected-kept", "draft-last-never-fed"]))
def test_rows_that_are_not_the_sequences_are_red_at_the_rollback_gate(name, golden, tmp_path):
    build = builder("numpy", golden)

    def planted(**options):
        made = build(**options)
        CATALOGUE[name].plant(made)
        return made

    result = run_gate(GateContext(golden, "numpy", planted, "float32", tmp_path, histories=4), "rollback")
    assert result.verdict == "fail" and "kv.drafter" in result.first.evidence


def test_the_taps_gate_says_that_there_are_none(golden, tmp_path):
    context = GateContext(golden, "numpy", builder("numpy", golden), "float32", tmp_path)
    taps, pairs = run_gate(context, "taps").checks
    assert (taps.verdict, pairs.verdict) == ("not judged", "pass") and "draft-model" in taps.evidence


def test_a_device_says_its_own_family(golden, shallow_golden):
    alone = device.load(
        golden.manifest.model.target.path, golden.manifest.model.drafter.path, golden.manifest.case.k, max_positions=64
    )
    assert alone.describe().family == FAMILY != shallow_golden.manifest.model.family
