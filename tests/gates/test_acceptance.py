"""The acceptance gate: contradictory counts fail, few prompts say nothing, enough rounds give a verdict."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.device.recorder import Recorder
from parity.gates import acceptance, run_gate
from parity.gates.acceptance_counts import AcceptanceCounts, _round, contradictions, counts_match, forced_rounds
from parity.gates.acceptance_interval import TokenSums, interval_verdict, least_rounds, paired_bootstrap, wilson_limits
from parity.golden.case import Generation
from tests.gates import planted

K, BUDGET = 4, 48


def generation(random: np.random.Generator, rate: float, budget: int = BUDGET) -> Generation:
    """A prompt whose every draft is accepted with this probability, cut by the budget."""
    lengths, drafts, left = [], [], budget - 1
    while left:
        accepted = min(int(np.cumprod(random.random(K) < rate).sum()), left)
        length = min(accepted + 1, left)
        lengths.append(length)
        drafts.append(accepted)
        left -= length
    return Generation(
        emitted=tuple(range(budget)), acceptance_length=tuple(lengths), accepted_drafts=tuple(drafts), finish="length"
    )


def sides(seed: int, rate: float, true: float, prompts: int = 24) -> tuple[list[Generation], list[Generation]]:
    random = np.random.default_rng(seed)
    device = [generation(random, rate) for _ in range(prompts)]
    return device, [generation(random, true) for _ in range(prompts)]


def free(device, reference, bound: float = 0.05):
    case = SimpleNamespace(ks=(K,), max_new_tokens=BUDGET)
    context = SimpleNamespace(golden=SimpleNamespace(manifest=SimpleNamespace(case=case)), seed=0, bound=bound)
    return next(iter(acceptance.free(context, device, reference, credible=True)))


def test_the_identity_holds_and_cut_rounds_are_not_tried():
    one = Generation(
        emitted=tuple(range(10)), acceptance_length=(5, 1, 2, 1), accepted_drafts=(4, 0, 1, 1), finish="length"
    )
    found = AcceptanceCounts.of([one], (K,))
    assert list(contradictions(one, (K,), 10)) == []
    assert found.adds_up
    assert (found.rounds, found.tokens, found.cut, found.two_or_more) == (4, 9, 1, 2)
    assert found.reached.tolist() == [3, 1, 1, 1]
    # Draft 2 was tried in two rounds: the last one was cut right behind draft 1.
    assert found.tried.tolist() == [4, 2, 1, 1]
    assert found.acceptance_length == pytest.approx(1 + found.rates.sum() - found.cut / found.rounds)
    assert "AL 2.250 = 1 + 0.750 + 0.250" in found.identity()


GOOD = Generation(emitted=tuple(range(8)), acceptance_length=(3, 1, 3), accepted_drafts=(2, 0, 3), finish="length")


def test_the_first_and_the_last_id_of_the_vocabulary_are_drafts_and_what_lies_outside_is_accepted_by_chance_0():
    """Of three tokens with the probabilities 1/2, 1/4 and 1/4 in every row."""
    surely = np.log(np.tile([0.5, 0.25, 0.25], (3, 1)))
    text = np.array([0, 2, 1])
    assert _round(np.array([0, 2]), text, surely) == (3, 2, pytest.approx(1 + 0.5 + 0.5 * 0.25))
    assert _round(np.array([0, 3]), text, surely) == (2, 1, pytest.approx(1 + 0.5))
    assert _round(np.array([-1, 2]), text, surely) == (1, 0, pytest.approx(1))


def test_a_good_generation_contradicts_nothing():
    assert list(contradictions(GOOD, (K,), 8)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # report-truncated-step: the last round counts what the budget cut
        (dict(acceptance_length=(3, 1, 4)), "add up to 8, 7 tokens"),
        # report-bonus: lengths without the target's token, drafts with it
        (dict(acceptance_length=(2, 0, 3)), "add up to 5, 7 tokens"),
        (dict(accepted_drafts=(3, 1, 3)), "only the last round can be cut"),
        (dict(accepted_drafts=(2, 0, 1)), "no cut explains it"),
        (dict(accepted_drafts=(2, 0)), "3 acceptance lengths, 2 counts"),
        (dict(acceptance_length=(6, 1), accepted_drafts=(5, 0)), "length 6 with 5 accepted drafts at K = 4"),
        (
            dict(emitted=tuple(range(7)), acceptance_length=(3, 1, 2), accepted_drafts=(2, 0, 2)),
            "7 tokens of a budget of 8",
        ),
        (dict(emitted=(0, 1, 99, 3, 4, 5, 6, 7)), "behind an end token"),
        (dict(finish="eos"), "says EOS"),
    ],
)
def test_counts_that_cannot_be_are_contradictions(change, words):
    assert any(words in found for found in contradictions(GOOD.model_copy(update=change), (K,), 8, ends=(99,)))


def test_a_device_that_parts_on_a_few_prompts_passes_with_an_interval():
    other, reference = sides(3, 0.72, 0.72)
    found = free([*other[:3], *reference[3:]], reference)
    assert found.verdict == "pass", found.evidence
    assert "95 % limits [" in found.evidence


def test_a_drafter_ten_per_cent_worse_fails_with_enough_rounds():
    found = free(*sides(1, 0.66, 0.72, prompts=300))
    assert -0.14 < found.figures["relative"] < -0.07
    assert found.verdict == "fail", found.evidence


def test_a_blind_drafter_fails_on_the_default_number_of_prompts():
    assert free(*sides(2, 0.2, 0.72)).verdict == "fail"


def test_a_loss_that_the_interval_cannot_place_is_inconclusive():
    found = free(*sides(1, 0.69, 0.72))
    assert found.verdict == "inconclusive", found.evidence
    assert "more prompts are needed" in found.evidence


def test_five_prompts_are_inconclusive_whatever_they_show():
    for rate in (0.72, 0.1):
        found = free(*sides(0, rate, 0.72, prompts=5))
        assert found.verdict == "inconclusive"
        assert "too few: 354 rounds and 20 prompts are needed" in found.evidence
        assert "95 % limits [" in found.evidence


def test_many_short_prompts_with_few_rounds_are_inconclusive():
    same = [generation(np.random.default_rng(one), 0.7, budget=8) for one in range(30)]
    assert free(same, same).verdict == "inconclusive"


def test_a_wider_bound_needs_fewer_rounds():
    assert (least_rounds(0.05), least_rounds(0.10), least_rounds(0.02)) == (354, 89, 2210)


def test_a_true_loss_as_large_as_the_bound_seldom_passes():
    """Two independent sides, a true loss of 5 %: the limit is passed 5 % of the time; 20 prompts add a little."""
    random = np.random.default_rng(7)
    rounds = np.full(24, 20.0)
    passed = 0
    for seed in range(300):
        device, reference = (random.normal(mean, 0.12, 24) * rounds for mean in (2.565 * 0.95, 2.565))
        found = paired_bootstrap(TokenSums(device, rounds), TokenSums(reference, rounds), seed)
        passed += interval_verdict(found, 0.05, 480, 24)[0] == "pass"
    assert 0.02 < passed / 300 < 0.10


def test_prompts_are_drawn_in_pairs():
    """A difference that every prompt has alike is certain, however much the prompts differ."""
    rounds = np.full(24, 20.0)
    true = np.random.default_rng(0).uniform(20, 80, 24)
    found = paired_bootstrap(TokenSums(true * 0.9, rounds), TokenSums(true, rounds), 0)
    assert found.low == pytest.approx(found.high) == pytest.approx(-0.1)
    assert interval_verdict(found, 0.05, 480, 24)[0] == "fail"


@pytest.fixture(scope="module")
def context(shallow_golden, tmp_path_factory):
    """The clean device over two prompts, in float32."""
    return planted.context_of(shallow_golden, tmp_path_factory.mktemp("context"), precision="float32")


def test_two_prompts_add_up_and_are_inconclusive(context):
    found = {check.name: check for check in run_gate(context, "acceptance").checks}
    assert found[acceptance.COUNTS].verdict == "pass"
    assert found[acceptance.FREE].verdict == found[acceptance.FORCED].verdict == "inconclusive"
    assert found["conditional rates"].verdict == "not judged"
    # In float32 device and reference draft and emit the same.
    assert found[acceptance.FREE].figures["relative"] == found[acceptance.FORCED].figures["relative"] == 0
    assert abs(found[acceptance.FORCED].figures["expected"]["relative"]) < 1e-9


def told(run, **changes):
    """The run's first prompt with other counts."""
    first, *others = run.manifest.case.prompts
    first = first.model_copy(update={"generation": first.generation.model_copy(update=changes)})
    case = run.manifest.case.model_copy(update={"prompts": (first, *others)})
    return run.manifest.model_copy(update={"case": case})


@pytest.mark.parametrize("fault", ["report-truncated-step", "report-bonus"])
def test_a_run_that_counts_wrongly_fails_and_its_acceptance_counts_for_nothing(fault, context, monkeypatch):
    run = context.run("chained")
    true = run.manifest.case.prompts[0].generation
    changes = {
        "report-truncated-step": {"acceptance_length": (*true.acceptance_length[:-1], 5)},
        "report-bonus": {"accepted_drafts": true.acceptance_length},
    }
    monkeypatch.setattr(run, "manifest", told(run, **changes[fault]))
    counts, found, *_ = run_gate(context, "acceptance").checks
    assert counts.verdict == "fail"
    assert "contradictions, first device" in counts.evidence
    assert found.verdict == "inconclusive"


def test_a_run_without_generations_or_drafts_is_inconclusive(context, monkeypatch):
    run = context.run("chained")
    first, *others = run.manifest.case.prompts
    case = run.manifest.case.model_copy(update={"prompts": (first.model_copy(update={"generation": None}), *others)})
    monkeypatch.setattr(run, "manifest", run.manifest.model_copy(update={"case": case}))
    rows = {place: row for place, row in run.rows.items() if place[3] != "drafter.draft_tokens"}
    monkeypatch.setattr(run, "rows", rows)
    monkeypatch.setattr(run, "_verified", {})
    counts, drafts, cuts = run_gate(context, "acceptance").checks
    assert (counts.verdict, drafts.verdict, cuts.verdict) == ("inconclusive", "inconclusive", "pass")


def test_cuts_by_end_and_budget_are_tried(context):
    found = acceptance.emits_what_counts(context)
    assert (found.verdict, found.figures["rounds"]) == ("pass", 10)


def test_a_device_without_an_end_token_is_no_pass(shallow_golden, tmp_path):
    def endless(device):
        says = replace(device.describe(), eos=())
        device.describe = lambda: says

    found = acceptance.emits_what_counts(planted.context_of(shallow_golden, tmp_path, endless))
    assert found.verdict == "inconclusive"


def test_the_goldens_counts_are_recounted_from_its_own_drafts(shallow_golden):
    for number, case in enumerate(shallow_golden.manifest.case.prompts):
        found = forced_rounds(shallow_golden, shallow_golden, "float32", number)
        assert counts_match(found, case)
        wrong = case.generation.model_copy(update={"accepted_drafts": (0,) * len(case.generation.accepted_drafts)})
        assert not counts_match(found, case.model_copy(update={"generation": wrong}))


def test_a_worse_drafter_shows_under_teacher_forcing_though_few_prompts_give_no_verdict(small_golden, tmp_path):
    def blind(device):
        choose = device.drafter.choose

        def wrong(x, committed, k, record):
            drafts = choose(x, committed, k, Recorder(None, device._engine))
            return record.exact("drafter", "draft_tokens", drafts * 0 + 3)

        device.drafter.choose = wrong

    found = acceptance.teacher_forced(planted.context_of(small_golden, tmp_path, blind))
    assert found.figures["high"] < -0.2
    assert found.figures["expected"]["high"] < -0.2
    assert found.verdict == "inconclusive"


def test_the_command_ends_with_3_on_a_small_golden(parity, shallow_golden):
    ended = parity("gate", "--only", "acceptance", "--golden", shallow_golden.folder)
    assert ended.code == 3, ended
    assert "95 % limits [" in ended.out
    assert ended.last.startswith(
        "gates verdict: inconclusive; acceptance: acceptance length, free; reproduce: parity gate --only acceptance"
    )


def test_the_limits_of_a_rate_are_wilsons():
    assert wilson_limits(0, 0) == (0.0, 1.0)
    assert wilson_limits(0, 10)[0] == 0.0 and wilson_limits(10, 10)[1] == 1.0
    low, high = wilson_limits(40, 100)
    assert (round(low, 4), round(high, 4)) == (0.3094, 0.498)
