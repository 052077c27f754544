"""The sampling gate: clean devices pass under both rules, every planted fault fails, the oracle is what others say."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from parity import device
from parity.device.faults import CATALOGUE
from parity.device.faults.sampling import fault as planted_faults
from parity.device.kernels.head import greedy
from parity.device.sampler import Sampler
from parity.errors import NotOffered, UsageError
from parity.gates import run_gate, sampling
from parity.gates.context import GateContext
from parity.gates.sampling_counts import Counts
from parity.gates.sampling_oracle import processed, residual, round_outcomes
from parity.gates.sampling_rounds import table
from parity.guard import guard
from parity.seam import Sampling
from tests.gates import planted

FULL = Sampling(temperature=0.7, top_k=6, top_p=0.9, min_p=0.05)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """One prompt and a few rounds: enough to see it red, and cheap."""
    monkeypatch.setattr(sampling, "PROMPTS", 1)
    monkeypatch.setattr(sampling, "BUDGET", 10)
    monkeypatch.setattr(sampling, "ROUNDS", 0)


@pytest.fixture
def judged(shallow_golden, tmp_path):
    """The gate over a device with this defect."""
    return lambda plant=lambda device: None: run_gate(planted.context_of(shallow_golden, tmp_path, plant), "sampling")


def _lines(result):
    return {check.name: check for check in result.checks}


def test_a_clean_device_passes_under_both_rules(judged, monkeypatch):
    monkeypatch.setattr(sampling, "ROUNDS", 60)
    found = judged()
    assert [check.verdict for check in found.checks] == ["pass"] * 8, found
    lines = _lines(found)
    assert lines["rule alone, residual"].figures["worst"] <= 1e-9
    assert lines["replay, residual, plain"].figures["near"] > 40
    assert "error rate 1e-06 each" in lines["distribution, match"].evidence
    assert not found.checks[2].figures["close"]


@pytest.mark.parametrize("fault", planted_faults.faults, ids=lambda fault: fault.id)
def test_every_planted_fault_is_killed(fault, judged):
    wrong = [check.name for check in judged(fault.plant).checks if check.verdict == "fail"]
    assert any(name.startswith("replay") for name in wrong), wrong


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("sample-ratio-inverted", "accept"),
        ("sample-replaced-from-p", "replace"),
        ("sample-bonus-row", "target"),
        ("sample-draft-temperature", "draft"),
    ],
)
def test_a_failure_names_what_was_decided_wrongly(name, what, judged):
    lines = _lines(judged(CATALOGUE[name].plant))
    wrong = [check for check in lines.values() if check.name.startswith("replay") and check.verdict == "fail"]
    assert any(f" of {what}" in check.evidence.split("wrong are")[1].split(";")[0] for check in wrong), wrong
    assert wrong[0].place.stage in ("verify.tokens", "drafter.draft_tokens") and " by 0." in wrong[0].evidence


def test_what_comes_out_is_judged_without_the_formula(judged, monkeypatch):
    """Whatever the replay says: a device that takes the least likely token in every row."""

    class LeastLikely(Sampler):
        def decided(self, p, q, drafts, uniforms):
            return greedy(-p)

    def plant(pipeline):
        pipeline.make_sampler = LeastLikely

    monkeypatch.setattr(sampling, "ROUNDS", 60)
    lines = _lines(judged(plant))
    for rule in sampling.RULES:
        assert lines[f"distribution, {rule}"].verdict == "fail", lines[f"distribution, {rule}"].evidence
        assert lines[f"distribution, {rule}"].evidence.startswith("tokens, position 0")


def test_the_smallest_bias_is_the_bound():
    """Tokens that lie 0.1 too low are found with 800 samples, and 800 clean ones are not."""
    random = np.random.default_rng(0)
    clean, low = random.random(800), random.random(800) * 0.8
    (right,), (wrong,) = (Counts(ranks={0: list(ranks)}).lines() for ranks in (clean, low))
    assert right.off < right.bound < wrong.off


def test_a_device_that_does_not_sample_is_not_judged(shallow_golden, tmp_path):
    def plant(pipeline):
        says = replace(pipeline.describe(), samples=False)
        pipeline.describe = lambda: says

    found = run_gate(planted.context_of(shallow_golden, tmp_path, plant), "sampling")
    assert (found.verdict, len(found.checks)) == ("not judged", 1)


def test_a_rule_that_cannot_be_asked_alone_is_not_judged(judged):
    def plant(pipeline):
        pipeline.decide = None

    lines = _lines(judged(plant))
    assert lines["rule alone, match"].verdict == "not judged"
    assert lines["replay, match, plain"].verdict == "pass"


def test_numbers_of_its_own_are_found(judged):
    def plant(pipeline):
        given = pipeline.sample

        def sample(settings, uniforms):
            given(settings, np.random.default_rng(1).random(uniforms.shape, np.float32))

        pipeline.sample = sample

    assert _lines(judged(plant))["replay, match, plain"].verdict == "fail"


def test_a_device_is_greedy_behind_the_gate(shallow_golden, tmp_path):
    context: GateContext = planted.context_of(shallow_golden, tmp_path)
    run_gate(context, "sampling")
    assert context.device().inside.sampler is None


def test_the_seam_says_whether_the_rule_can_be_asked(tiny):
    class Bare:
        decide = None

    with pytest.raises(NotOffered, match="does not offer its accept rule alone"):
        guard(Bare(), "bare").decide(Sampling())
    with pytest.raises(ValueError, match="no way to sample"):
        Sampling(top_p=0)
    pipeline = device.load(tiny / "target", tiny / "drafter", 2)
    assert pipeline.describe().samples
    with pytest.raises(UsageError, match=r"uniforms: \[R, 4, n\]"):
        pipeline.sample(Sampling(), np.zeros((2, 2)))
    pipeline.sample(Sampling(temperature=0), table((0,), 4, 2))
    assert pipeline.sampler is None


@pytest.mark.parametrize("settings", [Sampling(temperature=0.4), Sampling(top_k=5), Sampling(top_p=0.7), FULL])
def test_the_processors_are_those_of_transformers(settings):
    import torch
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = np.random.default_rng(3).normal(size=(50, 40)) * 2
    chain = [TemperatureLogitsWarper(settings.temperature)] if settings.temperature != 1 else []
    chain += [TopKLogitsWarper(settings.top_k)] if settings.top_k else []
    chain += [TopPLogitsWarper(settings.top_p)] if settings.top_p < 1 else []
    chain += [MinPLogitsWarper(settings.min_p)] if settings.min_p else []
    theirs = LogitsProcessorList(chain)(None, torch.from_numpy(logits)).softmax(-1).numpy()
    np.testing.assert_allclose(processed(logits, settings), theirs, atol=1e-12)


@pytest.mark.parametrize("rule", ["residual", "match"])
def test_the_enumeration_keeps_the_targets_distribution(rule):
    """Whatever q is, the first token is drawn from the first row of p, and a rejected draft never comes out again."""
    random = np.random.default_rng(0)
    p, q = (random.dirichlet(np.ones(5), rows) for rows in (3, 2))
    outcomes = round_outcomes(p, q, rule)
    firsts = [sum(chance for emitted, chance in outcomes.items() if emitted[0] == token) for token in range(5)]
    np.testing.assert_allclose(firsts, p[0], atol=1e-12)
    for first in range(5):  # and the second, where there is one, from the second row
        seconds = [sum(outcomes.get((first, token, *rest), 0) for rest in _rests()) for token in range(5)]
        np.testing.assert_allclose(np.array(seconds) / sum(seconds), p[1], atol=1e-12)


def _rests():
    return [(), *((token,) for token in range(5))]


def test_nothing_is_left_of_a_draft_that_q_never_overrates():
    p = np.array([[0.5, 0.5, 0.0]])
    assert residual(p, p).tolist() == p.tolist()
    assert residual(p, np.array([[0.75, 0.25, 0]])).tolist() == [[0, 1, 0]]


def test_every_outcome_of_a_small_round_is_enumerated():
    p, q = np.full((2, 2), 0.5), np.full((1, 2), 0.5)
    assert round_outcomes(p, q, "residual") == dict.fromkeys(product(range(2), repeat=2), 0.25)
    assert sum(round_outcomes(p, q, "match").values()) == 1
