"""The sampling gate: clean devices pass under both rules, every planted fault fails, the oracle is what others say."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, product
from types import SimpleNamespace

import numpy as np
import pytest

from parity import device
from parity.builders import builder
from parity.compare.sampling.oracle import processed, residual, round_outcomes
from parity.compare.sampling.replay import decisions, of_tokens
from parity.compare.sampling.round import SampledRound
from parity.compare.vocabulary import DraftVocabulary
from parity.device.faults.sampling import BonusGreedy
from parity.device.faults.sampling import fault as planted_faults
from parity.device.kernels.head import greedy
from parity.device.sampler import Sampler
from parity.errors import NotOffered, UsageError
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.gates.sampling import gate as sampling
from parity.gates.sampling import verdict
from parity.gates.sampling.counts import Counts
from parity.gates.sampling.rounds import Play, sampled, table
from parity.guard import guard
from parity.isolation import ProcessLimits
from parity.partly_shown import shown_only
from parity.seam import Sampling
from tests.gates import planted
from tests.gates.asked import Asked
from tests.sample import WHOLE, by_night, cover, first, sample

FULL = Sampling(temperature=0.7, top_k=6, top_p=0.9, min_p=0.05)


pytestmark = pytest.mark.usefixtures("few_samples")


def test_what_comes_behind_the_third_position_counts_with_it():
    """Five drafts of four equally likely tokens, all accepted by a target that is as sure of each."""
    count, even = Counts(), np.full((6, 4), 0.25)
    seen = SimpleNamespace(
        round=1, kept=5, tokens=np.zeros(6, np.int64), drafts=np.zeros(5, np.int64), emitted=[range(6)]
    )
    seen.p, seen.q = lambda settings: even, lambda settings, vocabulary: even[:5]
    count.add(seen, Sampling(temperature=1.0), None, np.random.default_rng(0))
    assert {place: len(each) for place, each in count.ranks.items()} == {0: 1, 1: 1, 2: 4}
    assert dict(count.accepted) == {0: [(True, 1)], 1: [(True, 1)], 2: [(True, 1)] * 3}


@pytest.fixture
def judged(two_layer_golden, tmp_path, monkeypatch):
    """The gate over a device with this defect, as far as it is asked; by day under these rules alone."""

    def run(plant=lambda device: None, rules=sampling.RULES):
        monkeypatch.setattr(sampling, "RULES", sampling.RULES if WHOLE else rules)
        return Asked(planted.context_of(two_layer_golden, tmp_path, plant), "sampling")

    return run


def _machine(engine):
    from parity.device.engines import numpy_engine

    if engine == "numpy":
        return numpy_engine
    pytest.importorskip("jax")
    from parity.device.engines import xla_engine

    return xla_engine.engine()


def _lines(result):
    return {check.name: check for check in result.checks}


def test_a_clean_device_passes_under_both_rules(two_layer_golden, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "ROUNDS", 40 if WHOLE else 20)
    context = planted.context_of(two_layer_golden, tmp_path)
    found, built = run_gate(context, "sampling"), [context.device()]
    assert [check.verdict for check in found.checks] == ["pass"] * 12, found
    lines = _lines(found)
    assert lines["rule alone, residual"].figures["worst"] <= 1e-9
    assert lines["replay, residual, plain"].figures["near"] > (40 if WHOLE else 20)
    assert "error rate 1e-06 each" in lines["distribution, match"].evidence
    assert not found.checks[3].figures["close"]
    assert built[0].inside.sampler is None, "it is greedy again"


WHAT = {"sample-ratio-inverted": "accept", "sample-replaced-from-p": "replace", "sample-bonus-row": "target"}
WHAT |= {"sample-draft-temperature": "draft"}
"""What some of them decide wrongly."""


@pytest.mark.parametrize(
    "fault",
    sample(planted_faults.faults, lambda fault: fault.id, lambda fault: WHAT.get(fault.id)),
    ids=lambda fault: fault.id,
)
def test_every_planted_fault_is_killed_by_a_replay_that_names_it(fault, judged):
    checks = judged(fault.plant, sampling.RULES[:1])
    wrong = (check for check in checks.values() if check.name.startswith("replay") and check.verdict == "fail")
    first = next(wrong, None)
    assert first, dict(checks)
    assert first.place.stage in ("verify.tokens", "drafter.draft_tokens") and " by 0." in first.evidence
    told = (check.evidence.split("wrong are")[1].split(";")[0] for check in chain([first], wrong))
    assert any(f" of {WHAT.get(fault.id, '')}" in said for said in told), dict(checks)


def test_what_comes_out_is_judged_without_the_formula(judged, monkeypatch):
    """Whatever the replay says: a device that takes the least likely token in every row."""

    class LeastLikely(Sampler):
        def decided(self, p, q, drafts, uniforms):
            return greedy(-p)

    def plant(pipeline):
        pipeline.make_sampler = LeastLikely

    monkeypatch.setattr(sampling, "ROUNDS", 40 if WHOLE else 20)
    lines = judged(plant, sampling.RULES[:1])
    for rule in sampling.RULES:
        assert lines[f"distribution, {rule}"].verdict == "fail", lines[f"distribution, {rule}"].evidence
        assert lines[f"distribution, {rule}"].evidence.startswith("tokens, position 0")


def test_the_smallest_bias_is_the_bound():
    """Tokens that lie 0.1 too low are found with 800 samples, and 800 clean ones are not."""
    random = np.random.default_rng(0)
    clean, low = random.random(800), random.random(800) * 0.8
    (right,), (wrong,) = (Counts(ranks={0: list(ranks)}).lines() for ranks in (clean, low))
    assert right.off < right.bound < wrong.off


def test_a_device_that_does_not_sample_is_not_judged(two_layer_golden, tmp_path):
    def plant(pipeline):
        says = replace(pipeline.describe(), samples=False)
        pipeline.describe = lambda: says

    found = run_gate(planted.context_of(two_layer_golden, tmp_path, plant), "sampling")
    assert (found.verdict, len(found.checks)) == ("not judged", 1)


def test_a_rule_that_cannot_be_asked_alone_is_not_judged(judged):
    def plant(pipeline):
        pipeline.decide = None

    lines = judged(plant, ("match",))
    assert lines["rule alone, match"].verdict == "not judged"
    assert lines["replay, match, plain"].verdict == "pass"


@by_night
def test_a_device_that_samples_at_temperature_zero_fails(judged):
    def plant(pipeline):
        given = pipeline.sample

        def sample(settings, uniforms):
            given(settings and replace(settings, temperature=settings.temperature or 1.0), uniforms)

        pipeline.sample = sample

    lines = judged(plant)
    assert lines["temperature 0"].verdict == "fail" and "is the largest" in lines["temperature 0"].evidence
    assert lines["replay, match, plain"].verdict == "pass"


@pytest.mark.parametrize(("engine", "rule"), cover(product(("numpy", "xla"), sampling.RULES)))
def test_at_temperature_zero_the_rule_alone_is_greedy(engine, rule):
    """Ties go to the lowest id, and no row becomes NaN; the oracle says the same."""
    random, settings = np.random.default_rng(2), Sampling(temperature=0, top_k=3, top_p=0.5, rule=rule)
    target, draft = (random.integers(0, 4, (64, rows, 6)).astype(np.float32) for rows in (3, 2))
    target[:, :, 5] = -np.inf
    drafts, uniforms = random.integers(0, 6, (64, 2)), random.random((64, 4, 3), np.float32)
    ids = Sampler(settings, uniforms, _machine(engine)).decide(target, draft, drafts, uniforms)
    np.testing.assert_array_equal(ids, target.argmax(axis=-1))
    np.testing.assert_array_equal(processed(target, settings), np.eye(6)[target.argmax(axis=-1)])


def test_a_rule_that_samples_at_temperature_zero_fails_alone(judged):
    def plant(pipeline):
        given = pipeline.decide

        def decide(settings, *arrays):
            return given(replace(settings, temperature=settings.temperature or 1.0), *arrays)

        pipeline.decide = decide

    lines = judged(plant)
    for rule in sampling.RULES:
        assert lines[f"rule alone, {rule}"].verdict == "fail", lines[f"rule alone, {rule}"].evidence
    assert lines["temperature 0"].verdict == "pass"


@pytest.mark.parametrize("temperature", [-1.0, 1e-40, float("inf"), float("nan")])
def test_a_temperature_that_nothing_can_be_divided_by_is_refused(temperature):
    with pytest.raises(ValueError, match="no way to sample"):
        Sampling(temperature=temperature)


def test_numbers_of_its_own_are_found(judged):
    def plant(pipeline):
        given = pipeline.sample

        def sample(settings, uniforms):
            given(settings, np.random.default_rng(1).random(uniforms.shape, np.float32))

        pipeline.sample = sample

    assert judged(plant, ("match",))["replay, match, plain"].verdict == "fail"


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
    for one in range(5):  # and the second, where there is one, from the second row
        seconds = [sum(outcomes.get((one, token, *rest), 0) for rest in _rests()) for token in range(5)]
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


def test_what_is_emitted_is_what_the_rule_accepts(judged):
    def plant(pipeline):
        commit = pipeline.commit
        pipeline.commit = lambda *given: np.append(commit(*given)[:-1], 7)

    found = judged(plant, ("match",))["replay, match, plain"]
    assert found.verdict == "fail" and found.evidence.startswith("round 1 emits [") and "is due" in found.evidence


def test_a_replay_without_drafts_is_inconclusive(judged):
    def plant(pipeline):
        draft = pipeline.draft
        pipeline.draft = lambda tap: draft(tap, 0)

    found = judged(plant, sampling.RULES[:1])["replay, residual, plain"]
    assert found.verdict == "inconclusive" and found.evidence.startswith("no round has a draft")


@pytest.mark.parametrize(
    ("tokens", "decided", "right"),
    [
        ((1, 2, 0), 3, True),
        ((1, 3, -1), 2, True),
        ((3, -1, -1), 1, True),
        ((1, 2, -1), 3, False),
        ((-1, -1, -1), 1, False),
    ],
)
def test_rows_behind_a_rejected_draft_may_be_undecided_and_no_others(tokens, decided, right):
    """p is uniform, q nearly certain; token 3 stands for a rejected draft, by numbers that say so."""
    logits, uniforms = np.zeros((3, 4), np.float32), np.full((4, 3), 0.1, np.float32)
    drafts, draft_logits = np.array([1, 2]), np.array([[0, 9, 0, 0], [0, 0, 9, 0]], np.float32)
    for row, token in enumerate(tokens):
        if token == 3:
            uniforms[1, row], uniforms[2, row] = 0.9, 0.9
    seen = SampledRound(0, 1, drafts, np.array(tokens), draft_logits, logits, uniforms)
    made = list(decisions(seen, Sampling(), DraftVocabulary(np.arange(4), "")))
    assert seen.decided == decided
    assert all(one.right for one in made if one.what != "draft") == right


def test_too_much_within_rounding_is_inconclusive(judged, monkeypatch):
    monkeypatch.setattr(verdict, "CLOSE", -1)
    found = judged(rules=sampling.RULES[:1])["replay, residual, plain"]
    assert found.verdict == "inconclusive" and found.evidence.startswith("too many decisions within rounding")


def test_without_logits_only_the_rule_alone_is_judged(two_layer_golden, tmp_path):
    build = builder("numpy", two_layer_golden)
    shown = GateContext(
        two_layer_golden, "numpy", lambda **options: shown_only(build(**options), "tokens"), "bfloat16", tmp_path
    )
    found = run_gate(shown, "sampling")
    assert [check.verdict for check in found.checks] == ["pass", "pass", "not judged"]
    assert "does not show every row of target.logits" in found.checks[-1].evidence


def test_a_loop_in_one_piece_is_not_judged(two_layer_golden, tmp_path):
    class Loop:
        def __init__(self, says):
            self.describe = lambda: says

        def speculate(self, *given):
            raise AssertionError

    says = planted.context_of(two_layer_golden, tmp_path).device().describe()
    context = GateContext(two_layer_golden, "loop", lambda **options: Loop(says), "bfloat16", tmp_path)
    assert run_gate(context, "sampling").verdict == "not judged"


def test_a_device_in_a_process_of_its_own_samples_the_same(two_layer_golden):
    ids = two_layer_golden.manifest.case.prompts[0].ids
    settings, uniforms = Sampling(temperature=1.5, top_k=20), table((4,), 6, 4)
    logits = np.random.default_rng(0).normal(size=(2, 3, 9)).astype(np.float32)
    rule = settings, logits, logits[:, :2], np.zeros((2, 2), np.int64), uniforms[:2, :, :3]
    made = []
    for limits in (None, ProcessLimits()):
        one = builder("numpy", two_layer_golden, limits)("bfloat16")
        seen = [[*seen.tokens] for seen in sampled(one, Play(settings, 0, ids, 6, uniforms))]
        made.append((seen, one.decide(*rule).tolist()))
    assert made[0] == made[1] and len(made[0][0]) > 2


@by_night
def test_the_kernels_are_the_same_compiled():
    random = np.random.default_rng(1)
    target, draft = (random.normal(size=(64, rows, 50)).astype(np.float32) for rows in (4, 3))
    drafts, uniforms = random.integers(0, 50, (64, 3)), random.random((64, 4, 4), np.float32)
    for rule in sampling.RULES:
        settings = replace(FULL, rule=rule)
        ids = [
            Sampler(settings, uniforms, engine).decide(target, draft, drafts, uniforms)
            for engine in map(_machine, ("numpy", "xla"))
        ]
        np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize("token", [2, 3])
@pytest.mark.parametrize("likely", [2, 3])
def test_a_forced_draft_that_the_drafter_cannot_draw_is_accepted_where_the_target_can(likely, token):
    """Draft 3 has a q of 0; where it has no p either, it is never emitted."""
    logits = np.where(np.arange(4) == likely, 0, -np.inf).astype(np.float32)[None].repeat(2, axis=0)
    draft_logits, uniforms = np.array([[0, -np.inf, -np.inf, -np.inf]], np.float32), np.full((4, 2), 0.5, np.float32)
    seen = SampledRound(0, 1, np.array([3]), np.array([token, likely]), draft_logits, logits, uniforms)
    made = of_tokens(seen, Sampling(), DraftVocabulary(np.arange(4), ""))
    assert all(one.right for one in made) == (token == likely)


class Brief(Sampler):
    """It says nothing of rows behind the first rejected draft."""

    def decided(self, p, q, drafts, uniforms):
        tokens = np.asarray(self.engine.host(super().decided(p, q, drafts, uniforms)))
        kept = np.cumprod(tokens[..., :-1] == drafts, axis=-1).sum(axis=-1)
        return self._array(np.where(np.arange(tokens.shape[-1]) <= kept[..., None], tokens, -1))


@pytest.mark.parametrize(("greedily", "rule"), first(product([True, False], sampling.RULES), 2))
def test_a_bonus_that_is_the_likeliest_token_fails_where_it_is_asked_for_another(greedily, rule, judged):
    """By random numbers few rounds come to it, and the likeliest token is mostly right there: this device passed."""

    class Bonus(BonusGreedy, Brief):
        pass

    def plant(pipeline):
        pipeline.make_sampler, pipeline.decide = Bonus if greedily else Brief, None

    lines = judged(plant, (rule,))
    assert lines[f"steered, {rule}"].verdict == ("fail" if greedily else "pass"), lines[f"steered, {rule}"].evidence
    assert not greedily or "row 4, target by" in lines[f"steered, {rule}"].evidence
