"""A golden's rounds by hand: how many rows of each stage are due, which tokens, and what contradicts them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden.case import Generation
from parity.golden.consistent_tensors import _counted, _drafted, _few, _named_drafts, _sizes, _tokens, refuse_untold
from parity.golden.manifest import TensorRow, key
from parity.golden.prompt_rounds import PromptRounds
from parity.stages import declared

NAMES = declared(1, 1)
IDS = (1, 2, 3)
FRESH = ((10,), (11, 12), (13,))
"""Round 1 accepts one draft of three, round 2 none of two."""


def rounds_of(family: str = "p-eagle", vocabulary=None, ks=(3, 2)) -> PromptRounds:
    told = Generation(emitted=(10, 11, 12, 13), acceptance_length=(2, 1), accepted_drafts=(1, 0), finish="length")
    model = SimpleNamespace(family=family, draft_vocabulary=vocabulary)
    case = SimpleNamespace(drafts=lambda round_: ks[(round_ - 1) % len(ks)])
    return PromptRounds.of(SimpleNamespace(ids=IDS), told, SimpleNamespace(model=model, case=case))


def test_tokens_are_dealt_out_by_round_and_known_ones_lead_a_drafters_pass():
    rounds = rounds_of()
    assert (rounds.fresh, rounds.accepted, rounds.lengths) == (FRESH, (0, 1, 0), (3, 5, 6))
    assert rounds.vocabulary == frozenset() and rounds_of(vocabulary=(7, 9)).vocabulary == {7, 9}
    committed = [rounds.committed(round_) for round_ in range(3)]
    assert committed[1] == [10] and committed[2] == [11, 12] and committed[0] == [*IDS][rounds.family.ahead :]
    assert [rounds.count(round_) for round_ in range(3)] == [rounds.drafted[0], 1, 2]


@pytest.mark.parametrize(
    ("stage", "due"),
    [
        ("target.embed", [3, 4, 3]),
        ("verify.tokens", [3, 4, 3]),
        ("drafter.draft_tokens", [0, 3, 2]),
        ("accept.emitted", [1, 2, 1]),
        ("accept.length", [1, 1, 1]),
        ("kv.target.0.k", [3, 5, 6]),
        ("kv.target.length", [1, 1, 1]),
    ],
)
def test_so_many_rows_of_a_stage_are_due(stage, due):
    rounds = rounds_of()
    if stage == "kv.target.length":
        assert not NAMES[stage].stage.cache
    assert [rounds.due(round_, NAMES[stage]) for round_ in range(3)] == due
    assert [rounds.due(round_, NAMES["kv.drafter.0.k"]) for round_ in range(3)] == list(rounds.drafted)


def row(stage: str, shape=(3,), round_: int = 0, prompt: int = 0, **more) -> TensorRow:
    fields = dict(variant="float32", axes=("S",), dtype="int64", start=0, shard="", sha256="") | more
    return TensorRow(key=key(prompt, round_, stage), shape=shape, **fields)


def sized(stage: str, shape, round_: int = 1, rounds=None, **more) -> list[str]:
    return [*_sizes(rounds or rounds_of(), [(round_, stage, row(stage, shape, round_, **more))], NAMES)]


def test_a_stage_of_another_size_or_kind_is_told():
    assert sized("verify.tokens", (4,)) == sized("drafter.draft_tokens", (3,)) == sized("no.stage", (99,)) == []
    assert sized("verify.tokens", (4,), dtype="uint8") == [] == sized("target.embed", (4, 7), dtype="float32")
    assert sized("verify.tokens", (5,)) == ["verify.tokens of round 1 has 5 rows, 4 are due"]
    assert sized("kv.target.0.k", (1,), start=4) == []
    assert sized("kv.target.0.k", (1,), start=3) == ["kv.target.0.k of round 1 has 4 rows, 5 are due"]
    kind = "integers in one axis are due"
    assert sized("verify.tokens", (4,), dtype="float32") == [
        f"verify.tokens of round 1 is float32 of shape [4], {kind}"
    ]
    assert sized("accept.length", (1, 1)) == [f"accept.length of round 1 is int64 of shape [1, 1], {kind}"]


def test_a_family_that_may_draft_fewer_is_taken_at_its_word_up_to_k():
    def counted(drafts: int) -> list[str]:
        rows = [(1, name, row(name, shape, 1)) for name, shape in (("drafter.draft_tokens", (drafts,)), ("x", (9,)))]
        assert _counted(rows) == {1: drafts}
        rounds = rounds_of("n-gram")
        rounds.__dict__["drafts"] = _counted(rows)
        return sized("drafter.draft_tokens", (drafts,), rounds=rounds) + sized(
            "verify.tokens", (drafts + 1,), rounds=rounds
        )

    assert counted(2) == counted(3) == counted(0) == []
    assert counted(4) == ["drafter.draft_tokens of round 1 has 4 rows, 3 are due"]


HELD = {
    (0, "target.tokens"): [9, 9, 10],
    (0, "kv.target.length"): [3],
    (1, "kv.target.length"): [5],
    (1, "accept.length"): [2],
    (1, "accept.emitted"): [11, 12],
    (1, "verify.tokens"): [11, 12, 50, 51],
    (1, "drafter.draft_tokens"): [11, 40, 50],
    (1, "drafter.input_ids"): [10, 7, 7],
    (2, "drafter.input_ids"): [11, 12, 7],
    (2, "verify.tokens"): [13, 60, 61],
    (2, "drafter.draft_tokens"): [41, 60],
    (2, "accept.emitted"): [13],
}


def said(**changes) -> list[str]:
    held = HELD | {(int(name[-1]), name[:-2].replace("__", ".")): value for name, value in changes.items()}
    return [*_tokens(rounds_of(), lambda *place: np.array(held[place]) if held.get(place) is not None else None)]


IS = " is not what the manifest says of it: "


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, []),
        ({"target__tokens_0": [8, 8, 10]}, []),
        ({"target__tokens_0": [10, 8]}, [f"target.tokens of round 0{IS}[10, 8] for [10]"]),
        ({"kv__target__length_1": [4]}, [f"kv.target.length of round 1{IS}[4] for [5]"]),
        ({"accept__length_1": [3]}, [f"accept.length of round 1{IS}[3] for [2]"]),
        ({"accept__emitted_2": [14]}, [f"accept.emitted of round 2{IS}[14] for [13]"]),
        ({"drafter__input_ids_2": [11, 12, 99]}, []),
        ({"drafter__input_ids_2": [11, 13, 7]},
         [f"drafter.input_ids of round 2{IS}[11, 13, 7] for [11, 12]"]),
        ({"verify__tokens_1": [11, 13, 50, 51]}, ["round 1 emits [11, 12], verify.tokens are [11, 13, 50, 51]"]),
        ({"drafter__draft_tokens_1": [11, 12, 40]}, ["round 1 accepts 1 drafts, of which 2 are the target's tokens"]),
        ({"drafter__draft_tokens_1": [40, 12, 50]}, ["round 1 accepts 1 drafts, of which 0 are the target's tokens"]),
        ({"drafter__draft_tokens_2": [13, 60]}, ["round 2 accepts 0 drafts, of which 2 are the target's tokens"]),
        ({"drafter__draft_tokens_2": None, "verify__tokens_1": None, "accept__emitted_1": None}, []),
    ],
)  # fmt: skip
def test_tokens_are_those_of_the_manifest(changes, wrong):
    assert said(**changes) == wrong


def test_of_many_values_the_first_eight_are_told():
    assert _few(range(20)) == [*range(8)] and _few(np.array([1.0])) == [1]


@pytest.mark.parametrize(
    ("width", "drafted", "wrong"),
    [
        (3, [7, 9, 7], []),
        (4, [7, 9, 7], ["drafter.logits of round 1 has 4 columns, 3 draft tokens are named"]),
        (3, [7, 8, 7], ["[7, 8, 7] of round 1 are not all of the draft vocabulary"]),
    ],
)
def test_drafts_are_of_the_vocabulary_that_is_named(width, drafted, wrong):
    rows = [(1, "drafter.logits", row("drafter.logits", (3, width), 1)), (1, "drafter.draft_tokens", row("x", (3,), 1))]
    read = lambda round_, stage: np.array(drafted)  # noqa: E731
    assert [*_named_drafts(rounds_of(vocabulary=(7, 9, 5)), rows, read)] == wrong
    assert [*_named_drafts(rounds_of(), rows, read)] == []


def test_rows_behind_the_committed_ones_are_asked_where_both_are_there():
    held = {(1, "drafter.input_ids"): np.array([10, 7, 8]), (2, "drafter.input_ids"): np.array([11, 12, 7])}
    drafts = {(round_, "drafter.draft_tokens"): np.array([7, 7]) for round_ in (1, 2)}
    wrong = ["rows of round 1 carry [7, 8]; of p-eagle [7, 7] are due"]
    assert [*_drafted(rounds_of(), lambda *place: (held | drafts).get(place))] == wrong
    for lacking in (held, drafts):
        assert [*_drafted(rounds_of(), lambda *place, lacking=lacking: lacking.get(place))] == []


@pytest.mark.parametrize(
    ("family", "drafts", "wrong"),
    [
        ("p-eagle", 3, ""),
        ("p-eagle", 2, "has 2 rows, 3 are due"),
        ("n-gram", 2, ""),
        ("n-gram", 4, "has 4 rows, 3 are due"),
    ],
)
def test_the_first_contradiction_of_a_golden_is_told_with_its_prompt(family, drafts, wrong):
    """The truth alone is read; a prompt that generated nothing says nothing."""
    model = SimpleNamespace(family=family, draft_vocabulary=None)
    told = Generation(emitted=(10, 11), acceptance_length=(1,), accepted_drafts=(0,), finish="length")
    prompts = [
        SimpleNamespace(id="silent", ids=IDS, generation=None),
        SimpleNamespace(id="b", ids=IDS, generation=told),
    ]
    case = SimpleNamespace(drafts=lambda round_: 3, prompts=prompts)
    rows = {
        ("float32", 1, 1, "drafter.draft_tokens"): row("drafter.draft_tokens", (drafts,), 1, 1),
        ("float32", 1, 1, "verify.tokens"): row("verify.tokens", (drafts + 1 if family == "n-gram" else 4,), 1, 1),
        ("bfloat16", 1, 1, "drafter.draft_tokens"): row("drafter.draft_tokens", (99,), 1, 1, variant="bfloat16"),
        ("float32", 0, 1, "drafter.draft_tokens"): row("drafter.draft_tokens", (99,), 1, 0),
    }
    golden = SimpleNamespace(
        rows=rows, declared=NAMES, folder="/g", manifest=SimpleNamespace(model=model, case=case),
        stored=lambda *place: None,
    )  # fmt: skip
    if not wrong:
        refuse_untold(golden)
        return
    with pytest.raises(UsageError) as refused:
        refuse_untold(golden)
    said = f"/g contradicts itself: prompt 1 (b): drafter.draft_tokens of round 1 {wrong}"
    assert str(refused.value) == said
