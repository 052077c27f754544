"""Hypotheses about an EAGLE-3 chain: each changes first what it claims; what a chain row holds under it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parity.references.hypotheses import chain, offered
from parity.references.hypotheses.catalogue import CHAIN, EVERY, PARALLEL, STEPS
from parity.references.hypotheses.stale import ALL, ALONE, AS_EMITTED
from parity.stages import matches
from parity.trace import Trace
from tests.references.hypothesis_case import BY_ID, Case, differ, state, value_of
from tests.sample import sample

K = 4
UNSHOWN = {
    *("rope-position-rounded", "rope-position-rounded-drafter", "rope-position-rounded-chain-rows"),
    *("input-raw-prompt", "verify-tie-rule", "accept-budget-ignored", "accept-eos-ignored", "accept-eos-dropped"),
    *("accept-end-ignored", "report-truncated-step", "drafter-window-chain-rows"),
    *("load-square-transpose", "load-square-transpose-in-verify", "load-square-transpose-in-prefill"),
    *("tp-attn-stale-own-drafter", "tp-ffn-stale-own-drafter", "accept-first-unchecked"),
    *("accept-bonus-clamped", "accept-likely"),
}
"""What this prompt does not show, or one layer alone cannot: shown with the P-EAGLE drafter, or past 256 positions."""
ABSENT = (
    *("rope-silent-fallback", "rope-factor", "rope-original-context", "rope-low-freq-factor", "rope-high-freq-factor"),
    *("rope-concentration", "rope-table-overflow", "drafter-layer-skipped", "load-embed-random"),
    *("norm-input-weight-of-layer", "norm-mlp-weight-of-layer", "load-layers-exchanged"),
    *("load-layers-exchanged-attention", "load-layers-exchanged-mlp"),
    *("tp-kv-heads-exchanged-back", "tp-kv-heads-strided"),
)
"""Of the drafter: it has one layer, two kv heads, a plain schedule, and another width than the target."""
OWN = [(one.id, value) for one in chain.chain.hypotheses for value in (one.values or (0.5,))]


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


def shown(name: str) -> bool:
    """Whether this case gives a hypothesis something to change, with its first value."""
    absent = {f"{each}{end}" for each in ABSENT for end in ("-drafter", "-chain-rows")} | {"drafter-layer-skipped"}
    return name not in UNSHOWN | absent | {"load-embed-random"}


@pytest.fixture(scope="module")
def case(tiny):
    """Rounds of 4, 2, 2 and 5 tokens: three drafts are accepted, one, one and all."""
    return Case(tiny, drafter="eagle3")


def committed_in(case, round_: int) -> int:
    """C of a round."""
    return len(case.truth[round_, "drafter.taps"])


def test_a_hypothesis_is_offered_for_the_drafters_that_it_is_about():
    both = {one.id for one in offered(*PARALLEL)} & {one.id for one in offered(*CHAIN)}
    assert {"tap-off-by-one", "rollback-noop", "input-masked-positions", "drafter-no-cache"} <= both
    assert not {"fuse-border", "drafter-row", "input-wrong-placeholder", "drafter-recycles-post-norm"} & both
    assert {one.drafters for one in chain.chain.hypotheses} == {CHAIN, STEPS}
    assert {one.id for family in EVERY for one in offered(family, True, True)} == set(BY_ID)


@pytest.mark.parametrize(
    "name", sample((one.id for one in offered(*CHAIN) if shown(one.id)), kind=lambda name: BY_ID[name].stages[0])
)
def test_it_changes_first_what_it_claims_in_a_chain_too(name, case):
    hypothesis, before = BY_ID[name], state(case.counterfactuals.loop)
    first = case.first(case.run([(hypothesis, value_of(hypothesis))], stop=True))
    assert first and any(matches(stage, first) for stage in hypothesis.stages), first
    assert state(case.counterfactuals.loop) == before


@pytest.mark.parametrize(("name", "value"), sample(OWN, kind=lambda one: one[0]))
def test_every_value_of_a_chains_own_changes_its_stage(name, value, case):
    first = case.first(case.run([(BY_ID[name], value)], stop=True))
    assert first and any(matches(stage, first) for stage in BY_ID[name].stages), first


@pytest.mark.parametrize(
    ("name", "stage"), [("drafter-mlp-gelu", "drafter.layers.0.ffn_out"), ("d2t-missing", "drafter.draft_tokens")]
)
def test_on_chain_rows_alone_those_hold_what_all_rows_would_and_committed_rows_stay(name, stage, case):
    one, everywhere = BY_ID[f"{name}-chain-rows"], BY_ID[name]
    alone, all_rows = (case.run([(each, value_of(each))]).tensors for each in (one, everywhere))
    for round_ in range(1, 5):
        right = 1 if name == "d2t-missing" else committed_in(case, round_)
        place = (round_, stage)
        assert np.array_equal(alone[place][:right], case.truth[place][:right])
        np.testing.assert_allclose(alone[place][right:], all_rows[place][right:], rtol=1e-4, atol=1e-5)
        assert differ(alone[place][right:], case.truth[place][right:])


def test_a_stream_behind_the_norm_is_what_a_chain_row_takes(case):
    made = case.run([(BY_ID["drafter-recycles-post-norm"], "the final norm")], "chained").tensors
    for round_ in range(1, 5):
        C = committed_in(case, round_)
        streams = torch.from_numpy(made[round_, "drafter.layers.0.out"])
        normed = case.counterfactuals.loop.drafter.norm(streams[C - 1 : -1]).detach().numpy()
        np.testing.assert_allclose(made[round_, "drafter.fc_out"][C:], normed, rtol=1e-5)


def test_committed_rows_carry_the_streams_of_their_drafts(case):
    made = case.run([(BY_ID["chain-refed-streams"], "those of accepted drafts")]).tensors
    for round_ in (2, 3, 4):
        C, before = committed_in(case, round_), committed_in(case, round_ - 1)
        fused, truth = made[round_, "drafter.fc_out"], case.truth[round_, "drafter.fc_out"]
        recycled = case.truth[round_ - 1, "drafter.fc_out"][before:]
        assert np.array_equal(fused[: C - 1], recycled[: C - 1]) and np.array_equal(fused[C - 1 :], truth[C - 1 :])


def test_an_unmapped_draft_is_its_id_in_the_draft_vocabulary(case):
    made = case.run([(BY_ID["chain-token-unmapped"], "their ids in the draft vocabulary")]).tensors
    best = case.truth[1, "drafter.logits"].argmax(-1)
    assert made[1, "drafter.input_ids"][1:].tolist() == best[:-1].tolist()
    assert made[1, "drafter.input_ids"][0] == case.truth[1, "drafter.input_ids"][0]


@torch.no_grad()
def one_pass(case, made, rounds, positions, limits) -> np.ndarray:
    """The residual streams of the rows of several rounds in one pass: row i sees slots up to limit i."""
    ids, hidden = (
        torch.from_numpy(np.concatenate([made[number, f"drafter.{part}"] for number in rounds]))
        for part in ("input_ids", "fc_out")
    )
    mask = torch.arange(len(ids)) <= torch.tensor(limits)[:, None]
    trunk = case.counterfactuals.loop.drafter.trunk
    return trunk(ids[None], hidden[None], torch.tensor(positions)[None], mask[None, None])[0].numpy()


def free(case, name, value, rounds=2):
    """The tensors of a run on its own tokens, and those tokens."""
    record = Trace(case.names)
    result = case.counterfactuals.run([(BY_ID[name], value)], case.ids, case.budget, record, rounds)
    return record.tensors, result


def equal(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("given", [ALL, AS_EMITTED, ALONE])
@pytest.mark.parametrize("limit", ["", "-by-position"])
def test_rows_go_behind_chain_rows_that_a_rollback_left(limit, given, case):
    made, result = free(case, f"rollback-behind-stale{limit}-drafter", given)
    before, committed = len(case.ids) - 1, result.acceptance_length[0]
    width = committed + K - 1
    positions = [*range(before + K), *range(before + 1, before + 1 + width)]
    limits = positions if limit else range(len(positions))
    equal(made[2, "drafter.layers.0.out"], one_pass(case, made, (0, 1, 2), positions, limits)[-width:])
    assert made[2, "drafter.positions"].tolist() == made[2, "drafter.slots"].tolist() == positions[-width:]
    rows = len(positions) if given == ALL else before + 1 + committed
    assert made[2, "kv.drafter.length"] == len(made[2, "kv.drafter.0.k"]) == rows


@pytest.mark.parametrize("positions", ["0", "their tokens' own"])
def test_without_a_cache_a_chain_sees_the_rows_of_its_round(positions, case):
    made, result = free(case, "drafter-no-cache", positions)
    assert not [place for place in made if "kv.drafter" in place[1] or (place[0] == 0 and "drafter" in place[1])]
    width = result.acceptance_length[0] + K - 1
    places = [place + (0 if positions == "0" else len(case.ids)) for place in range(width)]
    assert made[2, "drafter.positions"].tolist() == places
    equal(made[2, "drafter.layers.0.out"], one_pass(case, made, (2,), places, range(width)))
