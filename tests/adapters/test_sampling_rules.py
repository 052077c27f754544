"""The sampling gate over accept rules of others: transformers' own here, vLLM's where `make vllm` has set it up."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest
import torch

from docs.ports import transformers_rule
from docs.ports.transformers_rule import TransformersRule
from parity.builders import builder
from parity.compare.sampling.oracle import processed
from parity.device.engines import numpy_engine
from parity.device.sampler import Sampler
from parity.gates.context import GateContext
from parity.gates.sampling import gate as sampling
from parity.gates.sampling import rule as sampling_rule
from parity.seam import Sampling
from tests.gates.asked import Asked
from tests.sample import WHOLE

NAME = "docs.ports.torch_sampling:load,rule={}"
needs_vllm = pytest.mark.skipif("PARITY_VLLM_PYTHON" not in os.environ, reason="`make vllm` runs this")


@pytest.fixture
def judged(two_layer_golden, tmp_path, monkeypatch):
    """The gate's checks of the PyTorch port with this rule, by name; one draft in place of two in the rule alone."""
    for name, value in (("PROMPTS", 1), ("BUDGET", 10), ("ROUNDS", 20), ("FINE_BOUND", 1 / 64 + 1e-5)):
        monkeypatch.setattr(sampling, name, value)
    monkeypatch.setattr(sampling_rule, "FINE", 64)
    monkeypatch.setattr(sampling_rule, "P", sampling_rule.P[:2])
    monkeypatch.setattr(sampling_rule, "Q", sampling_rule.Q[:1])

    def run(rule, precision="float32"):
        name = NAME.format(rule)
        context = GateContext(two_layer_golden, name, builder(name, two_layer_golden), precision, tmp_path)
        return Asked(context, "sampling")

    return run


def test_transformers_rule_passes_in_float32(judged):
    checks = judged("transformers")
    verdicts = {name: check.verdict for name, check in checks.items()}
    assert verdicts == {
        "rule alone, residual": "pass", "rule alone, match": "not judged", "temperature 0": "pass",
        "replay, residual, plain": "pass", "replay, residual, processed": "pass", "distribution, residual": "pass",
        "replay, match, plain": "not judged", "replay, match, processed": "not judged",
        "distribution, match": "not judged", "replay, in lanes": "not judged", "steered, residual": "not judged",
    }, checks  # fmt: skip
    assert checks["replay, residual, plain"].figures["near"] > 20


def test_transformers_top_p_keeps_some_of_the_tokens_that_tie_at_its_edge():
    """Not all, as the seam has it: bfloat16 logits tie, and the gate calls draws from such rows wrong."""
    logits, settings = np.array([[3.0, 1, 1, 1, 0]], np.float32), Sampling(top_p=0.75)
    theirs = transformers_rule.behind(settings, torch.tensor(logits))[0] > -torch.inf
    assert (processed(logits, settings) > 0).sum() == 4 and theirs.sum() == 2


def test_transformers_ensemble_which_is_not_lossless_fails(judged, monkeypatch):
    """Its own option: acceptance by a mixture of p and q."""
    mixed = partial(transformers_rule._speculative_sampling, assistant_ensemble_weight=0.5)
    monkeypatch.setattr(transformers_rule, "_speculative_sampling", mixed)
    checks = judged("transformers")
    for name in ("rule alone, residual", *(("replay, residual, plain",) if WHOLE else ())):
        assert checks[name].verdict == "fail", checks[name]


def test_transformers_decides_as_the_bundled_device_does_in_several_rows():
    random, settings = np.random.default_rng(4), Sampling(temperature=0.8, top_k=9, top_p=0.9, min_p=0.02)
    target = (2 * random.normal(size=(200, 4, 12))).astype(np.float32)
    draft = target[:, :-1] + random.normal(size=(200, 3, 12)).astype(np.float32)
    drafts, uniforms = draft.argmax(-1), random.random((200, 4, 4), np.float32)
    ours = Sampler(settings, uniforms, numpy_engine).decide(target, draft, drafts, uniforms)
    theirs = TransformersRule().decide(settings, target, draft, drafts, uniforms)
    kept = np.cumprod(ours[:, :-1] == drafts, axis=1).sum(axis=1)
    assert set(kept) == {0, 1, 2, 3}
    for row, length in enumerate(kept):
        assert ours[row, : length + 1].tolist() == theirs[row, : length + 1].tolist()
        assert (theirs[row, length + 1 :] == -1).all()


@needs_vllm
def test_vllms_rule_passes_by_its_own_numbers(judged):
    checks = judged("vllm")
    passed = {name for name, check in checks.items() if check.verdict == "pass"}
    assert passed == {"rule alone, residual", "temperature 0", "distribution, residual"}, checks
    assert {check.verdict for name, check in checks.items() if name not in passed} == {"not judged"}


@needs_vllm
def test_vllms_whole_sampler_fails_where_its_kernels_run_on_a_processor(judged):
    """vllm#55005: the temperature of each request is never written to its rows."""
    assert judged("vllm-whole")["rule alone, residual"].verdict == "fail"
