"""Hypotheses about draft models, DFlash and prompt lookup: each changes first what it claims; what is there then."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.fault_choice import PROMPTS
from parity.references.hypotheses import NotApplicable, block, block_context, lookup, offered, unfed
from parity.references.ngram import NGram, NGramConfig
from parity.references.prompts import read_prompts
from parity.stages import matches
from parity.trace import ForcingTrace
from tests.references.hypothesis_case import BY_ID, FIRST_VALUES, IN_PASSES, Case, differ, state
from tests.sample import WHOLE, sample
from tests.shallow import cut_target

K = 4
BUDGETS = {"draft-model": 14, "dflash": 14, "n-gram": 24}
UNSHOWN = {
    *("input-raw-prompt", "verify-tie-rule", "load-square-transpose", "accept-eos-ignored", "accept-eos-dropped"),
    *("rope-position-rounded", "rope-position-rounded-drafter", "rope-position-rounded-chain-rows"),
    *("rope-position-rounded-context-rows", "rope-position-rounded-block-rows", "accept-budget-ignored"),
    *("accept-past-mismatch", "accept-last-match", "report-truncated-step", "attn-sinks-added-drafter"),
}
UNSHOWN |= {f"{each}-{end}" for each in ("rope-position-rounded", "load-square-transpose") for end in IN_PASSES}
"""What these prompts do not show in every family; shown with the P-EAGLE drafter."""


@pytest.fixture(scope="module")
def cases(tiny, tmp_path_factory):
    """A family's case: a draft model's rounds accept 4, 3, 0 and 3 drafts, DFlash's 4, 3, 0, 0 and 1; by day, of what
    needs no such rounds, on a target of three layers."""
    made = {}

    def of(family, whole=True):
        if (family, whole) not in made:
            ids = dict(read_prompts(tiny / "prompts/chat.jsonl", tiny / "target", 1280))[PROMPTS[family][0]]
            folder = tiny if whole else tmp_path_factory.mktemp("pair")
            if not whole:
                cut_target(tiny, folder, family)
            made[family, whole] = Case(folder, ids=list(ids), budget=BUDGETS[family], drafter=family)
        return made[family, whole]

    return of


def needs_rounds(name):
    """Of the draft behind a round that accepts all; by night every one has the whole target."""
    return WHOLE or name.startswith("draft-")


def first_shown(case, hypothesis):
    """The first stage that it changes with the first value that this pair of checkpoints gives something to change."""
    given = hypothesis.sized(0, 0, 0.5) if hypothesis.part else FIRST_VALUES.get(hypothesis.id)
    before = state(case.counterfactuals.loop)
    for value in [given] if given is not None else hypothesis.values or [0.5]:
        try:
            first = case.first(case.run([(hypothesis, value)], stop=True))
        except NotApplicable as error:
            assert "no run comes of it" not in str(error)
            first = None
        assert state(case.counterfactuals.loop) == before
        if first:
            return first
    return None


PLAIN = ("rope-factor", "rope-original-context", "rope-low-freq-factor", "rope-high-freq-factor")
PLAIN += ("rope-concentration", "rope-table-overflow")
IDLE = {f"{each}-{end}" for each in PLAIN for end in ("drafter", "chain-rows", "context-rows", "block-rows")}
IDLE |= {"tp-kv-heads-exchanged-back-drafter", "tp-kv-heads-strided-drafter", "tp-q-heads-exchanged-back-drafter"}
IDLE |= {"tp-o-rows-exchanged-back-drafter", *(f"part-{name}-weight-drafter" for name in "qkv")}
"""What these drafters have nothing of: their schedules are plain, two layers' two kv heads are all there are, and no
projection has a bias."""

OFFERED = [(family, one) for family in BUDGETS for one in offered(family) if one.id not in UNSHOWN | IDLE]
BY_HAND = {("n-gram", "lookup-whole-only"), ("n-gram", "lookup-stops-at-eos"), ("n-gram", "verify-first-row-missing")}
BY_HAND |= {("n-gram", "accept-bonus-clamped")}
"""What this prompt's drafts do not show; below, or of the other families."""
BY_HAND |= {("dflash", f"part-{name}-drafter") for name in "qk"}  # a norm takes it back


@pytest.mark.parametrize(
    ("family", "hypothesis"),
    sample(
        (one for one in OFFERED if (one[0], one[1].id) not in BY_HAND),
        name=lambda one: f"{one[0]} {one[1].id}",
        kind=lambda one: one[1].stages[0],
    ),
    ids=lambda one: getattr(one, "id", one),
)
def test_it_changes_first_what_it_claims_in_these_families_too(family, hypothesis, cases):
    first = first_shown(cases(family, needs_rounds(hypothesis.id)), hypothesis)
    assert first and any(matches(stage, first) for stage in hypothesis.stages), first


OWN = [
    *(("draft-model", one.id, value) for one in unfed.unfed.hypotheses for value in one.values),
    *(
        ("dflash", one.id, value)
        for family in (block.block, block.sight, block_context.context, block_context.heads)
        for one in family.hypotheses
        for value in one.values
    ),
]


@pytest.mark.parametrize(("family", "name", "value"), sample(OWN, kind=lambda one: one[:2]))
def test_every_value_of_their_own_changes_its_stage(family, name, value, cases):
    (hypothesis,) = (one for one in offered(family) if one.id == name)
    case = cases(family, needs_rounds(name))
    first = case.first(case.run([(hypothesis, value)], stop=True))
    assert first and any(matches(stage, first) for stage in hypothesis.stages), first


def test_hypotheses_about_drafters_with_weights_are_not_offered_for_prompt_lookup():
    names = {one.id for one in offered("n-gram")}
    assert {"lookup-place", "rollback-noop", "attn-sinks-missing", "verify-row", "accept-all"} <= names
    assert not [name for name in names if name.endswith(("-drafter", "-chain-rows"))]
    shown = {one.id: one.stages for one in offered("dflash")}
    assert "kv.drafter.*" in shown["rope-interleaved-drafter"] and "fuse-border" not in shown


TEXT = [5, 6, 7, 1, 5, 6, 8, 2, 6, 9, 5, 6]
"""(5, 6) stands at 0 and at 4 before the end, (6) at 8 as well."""
DRAFTS = {
    ("lookup-place", "the latest"): [8, 2, 6],
    ("lookup-place", "the earliest but the first"): [8, 2, 6],
    ("lookup-place", "the earliest but the text's start"): [8, 2, 6],
    ("lookup-place", "the end itself"): [],
    ("lookup-order", "the shortest with a place"): [7, 1, 5],
    ("lookup-order", "the one with the latest place"): [9, 5, 6],
    ("lookup-order", "the longest alone"): [],
    ("lookup-lengths", (-2, 0)): [7, 1, 5],
    ("lookup-start", 1): [1, 5, 6],
    ("lookup-start", -1): [6, 7, 1],
    ("lookup-start-at-match", None): [5, 6, 7],
    ("lookup-count", 1): [7, 1, 5, 6],
    ("lookup-count", -1): [7, 1],
    ("lookup-count-of-length", "one"): [7],
    ("lookup-none", None): [],
    ("lookup-reversed", None): [5, 1, 7],
    ("lookup-stops-at-eos", "behind it"): [7, 1],
    ("lookup-stops-at-eos", "before it"): [7],
    ("lookup-text-short", 1): [6, 7, 1],
    ("lookup-text-late", 1): [8, 2, 6],
    ("lookup-text-late", "the prompt"): [9, 5, 6],
    ("lookup-prompt-alone", "from it alone"): [7, 1, 5],
}


LOOKUPS = {one.id: one for family in (lookup.lookup, lookup.drafts, lookup.texts) for one in family.hypotheses}
"""Of the lookup alone, without the target's cache."""


def lookup_in(text, prompt):
    """A loop of which a lookup alone is asked, and what it looks up in."""
    config = NGramConfig(num_layers=0, max_positions=64, longest=3, shortest=1)
    target = SimpleNamespace(config=SimpleNamespace(pad_token_id=0, bos_token_id=None))
    state = SimpleNamespace(prompt=torch.tensor(text[:prompt]), emitted=text[prompt:])
    return SimpleNamespace(drafter=NGram(config), state=state, eos=(1,), target=target)


@pytest.mark.parametrize(("name", "value"), DRAFTS)
def test_a_lookup_gone_wrong_gives_these_drafts(name, value):
    loop = lookup_in(TEXT, 6)
    assert loop.drafter.following(list(TEXT), 3) == [7, 1, 5]
    with LOOKUPS[name].apply(loop, value):
        assert loop.drafter.following(list(TEXT), 3) == DRAFTS[name, value]


def test_a_lookup_with_little_behind_its_place():
    loop, text = lookup_in([4, 3, 9, 3], 4), [4, 3, 9, 3]
    assert loop.drafter.following(text, 3) == [9, 3]
    for name, value, drafts in (
        ("lookup-padded", ("pad", "where there is one"), [9, 3, 0]),
        ("lookup-padded", ("the last token", "and where there is none"), [9, 3, 3]),
        ("lookup-whole-only", None, []),
        ("lookup-wraps", "with themselves", [9, 3, 9]),
    ):
        with LOOKUPS[name].apply(loop, value):
            assert loop.drafter.following(text, 3) == drafts
    with LOOKUPS["lookup-padded"].apply(loop, (0, "where there is one")):
        assert loop.drafter.following([1, 2, 3], 3) == []


@pytest.mark.parametrize("value", [unfed.HOLE, unfed.LATE_HOLE, unfed.TAKEN, unfed.TAKEN_ROTATED])
def test_where_the_bonus_goes_when_the_last_draft_never_runs(value, cases):
    """Round 2 follows four accepted drafts: slot p + K holds nothing, of a prompt of p tokens."""
    case = cases("draft-model")
    made = case.run([(BY_ID["draft-bonus-alone"], value)], "chained").tensors
    prompt, first = len(case.ids), case.truth[2, "drafter.slots"][0]
    assert first == prompt + K and case.truth[2, "drafter.input_ids"][1] == made[2, "drafter.input_ids"][0]
    slot = int(made[2, "drafter.slots"][0])
    assert slot == first + (value in (unfed.HOLE, unfed.LATE_HOLE))
    rotated = int(made[2, "drafter.positions"][0])
    assert rotated == (first if value == unfed.TAKEN else first + 1)
    length = int(made[1, "kv.drafter.length"][0]) - int(case.truth[1, "kv.drafter.length"][0])
    assert length == (value == unfed.HOLE)


def test_context_of_rejected_drafts_goes_behind_or_is_written_over(cases):
    case = cases("dflash")
    for value in ("where they should", "behind them"):
        made = case.run([(BY_ID["block-context-rejected"], value)], "chained").tensors
        rejected = K + 1 - len(case.truth[3, "drafter.taps"])
        assert len(made[3, "drafter.taps"]) == K + 1 and rejected == 1
        later = int(made[4, "drafter.slots"][0] - case.truth[4, "drafter.slots"][0])
        assert later == (rejected if value == "behind them" else 0)


def test_context_rows_alone_are_turned_another_way(cases):
    case = cases("dflash")
    made = {end: case.run([(BY_ID[f"rope-backwards-{end}"], "all")]).tensors for end in ("context-rows", "block-rows")}
    assert differ(made["context-rows"][0, "kv.drafter.0.k"], case.truth[0, "kv.drafter.0.k"])
    assert not differ(made["block-rows"][0, "kv.drafter.0.k"], case.truth[0, "kv.drafter.0.k"])
    assert np.array_equal(made["block-rows"][0, "kv.drafter.1.v"], case.truth[0, "kv.drafter.1.v"])
    assert all(
        differ(each[1, "drafter.layers.0.attn_out"], case.truth[1, "drafter.layers.0.attn_out"])
        for each in made.values()
    )


@pytest.mark.parametrize("drafter", ["draft-model", "dflash"])
def test_a_round_told_late_is_handed_over_in_the_passes_of_its_drafter(drafter, cases):
    case, drafts = cases(drafter, whole=False), "drafter.draft_tokens"
    late, true = (case.run(one).tensors for one in ([(BY_ID["told-late"], "tokens and count")], []))
    assert late[1, drafts].tolist() == [0] * K and late[2, drafts].tolist() == true[1, drafts].tolist()


def test_attention_over_a_context_that_is_turned_apart_is_not_read(cases):
    case = cases("dflash", whole=False)
    trace = ForcingTrace(case.names, lambda round_, stage: None, frozenset(), keep=lambda name: False)
    asked = case.ids, case.budget, trace, 1
    assert case.counterfactuals.products("drafter.layers.0.attn_out", *asked) == ()
