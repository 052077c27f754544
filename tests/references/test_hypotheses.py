"""Hypotheses: each changes first the stage that it claims, undoes itself, and goes with others.

A sample of them; the whole catalogue is `make catalogue`.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.references.hypotheses import DECISIONS, NotApplicable, offered
from parity.references.points import replaced
from parity.references.prompts import read_prompts
from parity.stages import matches
from parity.trace import Trace
from tests.references.hypothesis_case import BY_ID, IN_PASSES, Case, differ, state, value_of
from tests.sample import by_night, sample

ELSEWHERE = {
    "input-raw-prompt": "test_another_prompt_is_another_sequence",
    "rope-position-rounded": "test_rounded_positions_show_behind_256",
    "rope-position-rounded-drafter": "test_rounded_positions_show_behind_256",
    "d2t-row-before": "test_every_reading_of_d2t_differs",
    "verify-tie-rule": "test_ties_are_decided_another_way",
    "accept-eos-ignored": "test_eos_in_the_middle_of_a_round",
    "accept-eos-dropped": "test_eos_in_the_middle_of_a_round",
    "load-square-transpose": "test_a_square_weight_is_needed",
    "accept-first-unchecked": "test_drafts_may_be_counted_from_the_second_on",
    "accept-likely": "test_drafts_that_the_target_finds_likely_may_count",
}
ELSEWHERE |= {
    f"{name}-{end}": ELSEWHERE[name] for name in ("rope-position-rounded", "load-square-transpose") for end in IN_PASSES
}
"""What this prompt cannot show, and the test that shows it."""


@pytest.fixture(scope="module")
def case(tiny):
    return Case(tiny)


def test_without_an_assumption_the_references_are_themselves(case):
    again = case.run(()).tensors
    assert again.keys() == case.truth.keys()
    assert all(np.array_equal(again[place], case.truth[place]) for place in again)
    assert case.result.accepted_drafts == (1, 1, 4, 4)


@pytest.mark.parametrize(
    "name",
    sample((one.id for one in offered("p-eagle") if one.id not in ELSEWHERE), kind=lambda name: BY_ID[name].stages[0]),
)
def test_it_changes_first_what_it_claims_and_undoes_itself(name, case):
    hypothesis, before = BY_ID[name], state(case.counterfactuals.loop)
    first = case.first(case.run([(hypothesis, value_of(hypothesis))], stop=True))
    assert first and any(matches(stage, first) for stage in hypothesis.stages), first
    assert state(case.counterfactuals.loop) == before


@pytest.mark.parametrize(
    ("drafts", "tokens", "count"), [([9, 2, 3, 4], [1, 2, 3, 5, 6], 3), ([9, 8], [1, 2, 3], 1), ([1, 2], [1, 2, 3], 2)]
)
def test_drafts_may_be_counted_from_the_second_on(drafts, tokens, count, case):
    loop = case.counterfactuals.loop
    with BY_ID["accept-first-unchecked"].apply(loop, "tokens"):
        assert loop.matched(torch.tensor(drafts), torch.tensor(tokens)) == count


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("among its best 2", 2),
        ("among its best 3", 3),
        ("likelier than 0.3", 2),
        ("likelier than 0.5", 0),
        ("that is typical: likelier than the smaller of 0.3 and 0.09 exp(-entropy)", 3),
    ],
)
def test_drafts_that_the_target_finds_likely_may_count(value, count, case, monkeypatch):
    """Rows of the target's probabilities; the drafts have 0.4 and 0.4, then 0.1, and are never its choice."""
    loop = case.counterfactuals.loop
    monkeypatch.setattr(loop, "state", SimpleNamespace(tap=lambda stage, x: x))
    logits = torch.log(torch.tensor([[0.6, 0.4, 1e-9], [0.4, 0.6, 1e-9], [0.5, 0.4, 0.1], [0.1, 0.2, 0.7]]))
    with BY_ID["accept-likely"].apply(loop, value):
        loop.tap("verify.logits", logits)
        assert loop.matched(torch.tensor([1, 0, 2]), logits.argmax(-1)) == count


def test_a_mutation_that_is_not_undone_is_seen(case):
    before, loop = state(case.counterfactuals.loop), case.counterfactuals.loop
    with BY_ID["attn-sinks-missing"].apply(loop, 3):
        assert state(loop) != before
    with BY_ID["tap-without-residual"].apply(loop, None):
        assert state(loop) != before


def test_one_layer_alone_shows_in_that_layer(case):
    assert case.first(case.run([(BY_ID["attn-sinks-missing"], 3)], stop=True)) == "target.layers.3.attn_out"
    assert case.first(case.run([(BY_ID["drafter-masked-apart"], 2)], stop=True)) == "drafter.layers.2.attn_out"
    with pytest.raises(NotApplicable, match="layer 8"):
        case.run([(BY_ID["attn-sinks-missing"], 8)])


def test_what_this_prompt_cannot_show_is_shown_by_another_test():
    assert all(test in globals() for test in ELSEWHERE.values())
    assert ELSEWHERE.keys() <= BY_ID.keys()


@by_night
def test_another_prompt_is_another_sequence(tiny):
    ids = read_prompts(tiny / "prompts/chat.jsonl", tiny / "target", 1280)[9][1]
    case = Case(tiny, ids=ids, budget=3)
    for value in BY_ID["input-raw-prompt"].values:
        trace = case.run([(BY_ID["input-raw-prompt"], value)])
        assert case.first(trace) == "target.embed"
    raw = case.run([(BY_ID["input-raw-prompt"], "raw")]).tensors[0, "target.embed"]
    text = read_prompts(tiny / "prompts/raw.jsonl", tiny / "target", 1280)[9][1]
    weight = case.counterfactuals.loop.target.model.model.embed_tokens.weight
    assert np.array_equal(raw, weight[text].detach().numpy())


def test_rounded_positions_show_behind_256(case):
    loop = case.counterfactuals.loop
    places = torch.tensor([[200, 257, 511]])
    x = torch.zeros(1, 3, 96)
    for name, tables in (
        ("rope-position-rounded-drafter", lambda: loop.drafter.tables(places)[0]),
        ("rope-position-rounded", lambda: loop.target.model.model.rotary_emb(x, places)[0]),
    ):
        clean = tables()
        with BY_ID[name].apply(loop, BY_ID[name].values[0]):
            apart = (tables() != clean).flatten(2).any(-1)[0]
        assert apart.tolist() == [False, True, True]


def test_every_reading_of_d2t_differs(case):
    loop = case.counterfactuals.loop
    count = loop.drafter.config.draft_vocab_size
    ids = torch.randperm(count, generator=torch.Generator().manual_seed(0))  # the first and the last one's differ
    found = [loop.drafter.to_target(ids)]
    for hypothesis in (one for one in offered("p-eagle") if one.id.startswith("d2t-")):
        with hypothesis.apply(loop, hypothesis.values[0]):
            found.append(loop.drafter.to_target(ids))
    assert len({tuple(ids.tolist()) for ids in found}) == len(found) == 12


def test_ties_are_decided_another_way(case):
    loop, logits = case.counterfactuals.loop, torch.tensor([[1.0, 3.0, 2.9999, 3.0, 2.0]])
    found = {}
    for value in BY_ID["verify-tie-rule"].values:
        with BY_ID["verify-tie-rule"].apply(loop, value):
            found[value] = int(loop.greedy(logits)), int(loop.greedy(torch.tensor([[1.0, 2.9999, 3.0]])))
    assert found["the last of equal ones"] == (3, 2)
    assert found["the last of equal bfloat16 ones"] == (3, 2)
    assert found["of bfloat16 logits"] == (1, 1)
    assert found["smallest"] == (0, 0)


def test_eos_in_the_middle_of_a_round(tiny):
    case = Case(tiny)
    middle = case.result.emitted[7]
    with replaced(case.counterfactuals.loop, "eos", (middle,)):
        case.retell()
        assert case.result.finish == "eos"
        for name in ("accept-eos-ignored", "accept-eos-dropped"):
            assert case.first(case.run([(BY_ID[name], None)])) == "accept.length"


def test_a_square_weight_is_needed(case):
    with pytest.raises(NotApplicable, match="square"):
        case.run([(BY_ID["load-square-transpose"], "all")])


def test_mxfp4_is_read_wrongly_from_a_quantised_checkpoint(tiny):
    quantised = Case(tiny, target="target-mxfp4", budget=1)
    for name in ("load-mxfp4-nibbles", "load-mxfp4-scale"):
        value = BY_ID[name].values[0]
        assert quantised.first(quantised.run([(BY_ID[name], value)])) == "target.layers.0.ffn_out"


PAIRS = [
    ("tap-off-by-one", "attn-sinks-missing"),
    ("rollback-noop", "input-position-plus-one"),
    ("rollback-reset", "commit-stale-placeholder"),
    ("rollback-too-far", "rollback-head-axis-drafter"),
    ("input-no-prefill", "rollback-reset"),
    ("input-context-blind", "rope-interleaved-drafter"),
    ("rope-interleaved", "rope-missing-k"),
    ("attn-gqa-tiled", "attn-window-missing"),
    ("load-tied-head", "verify-row"),
    ("accept-all", "commit-last-row-only"),
    ("ffn-top-k", "ffn-softmax-before-topk"),
    ("d2t-absolute", "tp-both-argmax-first-shard"),
]


@pytest.mark.parametrize("mode", ["local", "chained"])
@pytest.mark.parametrize("pair", sample(PAIRS), ids="+".join)
def test_pairs_go_together(pair, mode, case):
    before = state(case.counterfactuals.loop)
    both = case.run([(BY_ID[name], value_of(BY_ID[name])) for name in pair], mode)
    assert case.first(both)
    assert state(case.counterfactuals.loop) == before


def test_a_pair_shows_both(case):
    pair = [(BY_ID["tap-off-by-one"], 1), (BY_ID["attn-sinks-missing"], 3)]
    both = case.run(pair).tensors
    for one in pair:
        alone = case.run([one]).tensors
        changed = [place for place in alone if differ(alone[place], case.truth[place])]
        assert changed and all(np.array_equal(alone[place], both[place]) for place in changed)


@pytest.mark.parametrize("name", sample(one.id for family in DECISIONS for one in family.hypotheses if not one.layered))
def test_a_free_run_comes_to_an_end(name, case):
    ids = case.ids[:20]
    hypothesis, record = BY_ID[name], Trace(case.names)
    result = case.counterfactuals.run([(hypothesis, value_of(hypothesis))], ids, 6, record, rounds=3)
    assert result.emitted and len(result.acceptance_length) <= 3
