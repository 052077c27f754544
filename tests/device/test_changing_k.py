"""K that changes between rounds, 0 included: every family's golden, the clean device, faults, and who cannot."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import count, islice, product

import pytest

from parity import device
from parity.api import compare_dumps, open_golden, run_device
from parity.device.faults import changing
from parity.device.pipeline import Pipeline
from parity.errors import UsageError
from parity.families import FAMILIES, MODEL
from parity.gates.acceptance_counts import AcceptanceCounts, contradictions
from parity.gates.rollback.baseline import Baseline
from parity.gates.rollback.history import SequencePlan
from parity.gates.rollback.play import HistoryPlayer
from parity.isolation import IsolatedFactory, ProcessLimits
from parity.producers import dump_golden
from parity.rounds import generate, untapped
from parity.schedule import scheduled
from parity.stages import drafting
from tests.sample import by_night, cover, cut, first, sample

KS = (4, 0, 2, 0, 0, 3)
BUDGET = 16
OF_DRAFTER = ("drafter.*", "kv.drafter.*")
WITH_CACHE = [name for name, family in FAMILIES.items() if MODEL in family.has]


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


@pytest.fixture(scope="module")
def goldens(tiny, once_for_all):
    """By family: one chat prompt over K = 4, 0, 2, 0, 0, 3 in turn."""

    def golden(family):
        def make(out):
            out.mkdir()
            line = (tiny / "prompts/chat.jsonl").read_text().splitlines()[0]
            (out / "prompts.jsonl").write_text(cut(line) + "\n")
            dump_golden(
                target=tiny / "target", drafter=tiny / FAMILIES[family].checkpoint,
                prompts=out / "prompts.jsonl", k=KS, out=out / "golden",
                max_new_tokens=32 if family == "n-gram" else BUDGET,
            )  # fmt: skip

        return open_golden(once_for_all(f"changing-{family}", make) / "golden")

    return golden


@pytest.fixture
def judged(tmp_path):
    """Runs a device over a golden and compares."""
    numbers = count()

    def judge(golden, name="numpy", mode="chained", precision="bfloat16", stages=()):
        out = tmp_path / f"run-{next(numbers)}"
        run = run_device(golden, name, mode, precision, out=out, stages=stages, free=False if stages else None)
        return compare_dumps(golden, run, stages=stages)

    return judge


@pytest.mark.parametrize("family", first(FAMILIES))
def test_the_golden_says_k_of_each_round_and_the_device_follows(family, goldens, judged):
    golden = goldens(family)
    case = golden.manifest.case
    assert (case.k, case.schedule) == (4, KS)
    rounds = len(case.prompts[0].generated.acceptance_length)
    drafts = [golden.stored("float32", 0, round_, "drafter.draft_tokens") for round_ in range(1, rounds + 1)]
    asked = list(islice(map(case.drafts, count(1)), rounds))
    given = [len(one) for one in drafts]
    assert 0 in asked and (given == asked or (FAMILIES[family].fewer and all(map(int.__le__, given, asked))))
    for round_, k in enumerate(asked, 1):
        there = {row.place[2] for row in golden.manifest.tensors if row.place[1] == round_}
        assert {name for name, named in golden.declared.items() if drafting(named)} & there == set() or k
        tokens = golden.stored("float32", 0, round_, "verify.tokens")
        assert len(tokens) == len(drafts[round_ - 1]) + 1
    report = judged(golden, mode="local", precision="float32")
    assert report.verdict == "pass", report.first


@by_night
@pytest.mark.parametrize("family", sample(FAMILIES, kind=lambda family: FAMILIES[family].chain))
def test_references_and_device_emit_what_plain_decoding_does(family, tiny, goldens):
    """Also where K is 0 in every round, and the drafter runs to the end without a draft."""
    case = goldens(family).manifest.case
    pipeline = device.load(tiny / "target", tiny / FAMILIES[family].checkpoint, 4, "float32")
    asked = case.prompts[0].ids, case.max_new_tokens
    plain = pipeline.decode_plain(*asked)
    assert generate(pipeline, *asked, case.drafts) == case.prompts[0].generated
    assert list(case.prompts[0].generated.emitted) == plain == [*generate(pipeline, *asked, lambda round_: 0).emitted]


FIRST = {
    "k-stale": "drafter.input_ids",
    "k-committed-cut": "drafter.taps",
    "k-zero-skips-drafter": "drafter.taps",
    "k-zero-cache-unwritten": "kv.drafter.0.k",
    "k-zero-rows-uncounted": "kv.drafter.0.k",
}
"""Where each is found first; a drafter without taps has its ids first."""


@by_night
@pytest.mark.parametrize(
    ("family", "fault"),
    cover(product(WITH_CACHE, changing.fault.faults), lambda row: (row[0], row[1].id)),
    ids=lambda value: getattr(value, "id", value),
)
def test_a_fault_of_a_changing_k_is_placed(family, fault, goldens, judged):
    golden = goldens(family)
    report = judged(golden, f"parity.device.faults:{fault.id.replace('-', '_')}", stages=OF_DRAFTER)
    assert report.verdict == "fail" and report.first.round == 2
    due = FIRST[fault.id]
    assert report.first.stage == (due if due in golden.declared else "drafter.input_ids")


SAID = {
    "k-stale": "draft gave 4 drafts, not 0",
    "k-committed-cut": "of the committed rows is",
    "k-zero-skips-drafter": "kv.drafter.0.k row 2. is .* off the never-speculated one",
    "k-zero-cache-unwritten": "kv.drafter.0.k row 2. is .* off the never-speculated one",
    "k-zero-rows-uncounted": "kv.drafter.length is 2., not 2.",
}


@pytest.mark.parametrize("family", first(["p-eagle", "draft-model"]))
def test_the_rollback_gate_asks_for_a_k_that_changes(family, tiny):
    """Whatever the golden's; the histories that it plays of any device with `varies_k`."""
    explore = import_module("parity.gates.rollback.explore")  # by module: the package's own `explore` is the function
    load = partial(device.load, tiny / "target", tiny / FAMILIES[family].checkpoint, 4, "float32")
    baseline = Baseline(load(), 0, tuple(range(40, 60)), 21)
    for fault in (None, *changing.fault.faults):
        pipeline = load()
        if fault:
            fault.plant(pipeline)
        player = HistoryPlayer(pipeline, [baseline], exact=False)
        plans = [(SequencePlan(0, 15, rounds),) for rounds in explore._changes(4)]
        broken = next(filter(None, (explore.judge_history(player, plan) for plan in plans)), None)
        assert (fault and re.search(SAID[fault.id], broken.message)) or broken is fault is None, fault


def test_a_device_that_drafts_k_in_every_round_is_refused(goldens, judged, monkeypatch):
    says = Pipeline.describe
    monkeypatch.setattr(Pipeline, "describe", lambda self: replace(says(self), varies_k=False))
    with pytest.raises(UsageError, match=r"drafts 4 tokens in every round .* 4, 0, 2, 0, 0, 3 in turn"):
        judged(goldens("p-eagle"))


def test_a_loop_in_one_piece_is_refused(goldens, judged, monkeypatch):
    monkeypatch.setattr(Pipeline, "speculate", lambda self: None, raising=False)
    with pytest.raises(UsageError, match="in turn"):
        judged(goldens("p-eagle"))


def test_a_device_in_a_process_of_its_own_is_told_k(tiny, goldens):
    case = goldens("draft-model").manifest.case
    make = IsolatedFactory("numpy", tiny / "target", tiny / "draft-model", 4, ProcessLimits())
    isolated = make(precision="float32")
    assert isolated.describe().varies_k
    assert generate(isolated, case.prompts[0].ids, BUDGET, case.drafts) == case.prompts[0].generated


def test_a_draft_of_more_than_k_is_refused(tiny, goldens):
    ids = goldens("p-eagle").manifest.case.prompts[0].ids
    for load, precision in ((device.load, "bfloat16"), (import_module("parity.references.seam").load, "float32")):
        made = load(tiny / "target", tiny / "drafter", 2, precision)
        made.prefill(ids, 8, untapped)
        with pytest.raises(UsageError, match=r"3 drafts are asked for, this .* drafts 0 to 2"):
            made.draft(untapped, 3)
        assert len(made.draft(untapped, 1)) == 1


def test_acceptance_counts_only_rounds_that_had_the_draft(goldens):
    case = goldens("p-eagle").manifest.case
    told = case.prompts[0].generated
    counts = AcceptanceCounts.of([told], case.ks)
    asked = list(islice(map(case.drafts, count(1)), len(told.acceptance_length)))
    assert counts.adds_up and all(counts.tried <= [sum(k >= draft for k in asked) for draft in range(1, 5)])
    assert list(contradictions(told, case.ks, case.max_new_tokens)) == []
    more = told.model_copy(update={"accepted_drafts": (told.accepted_drafts[0], 1, *told.accepted_drafts[2:])})
    assert any("at K = 0" in wrong for wrong in contradictions(more, case.ks, case.max_new_tokens))


@pytest.mark.parametrize(
    ("k", "said"),
    [
        ("0", "no round drafts"),
        ("0,0", "no round drafts"),
        ("4,x", "whole numbers are due"),
        ("4,-1", "whole numbers are due"),
        ("", "-k is empty"),
        ("9999", "0 to 1024 drafts"),
        (",".join("1" * 99), "up to 64 rounds"),
        ("4,99", "drafts 1 to 8 tokens"),
    ],
)
def test_k_that_cannot_be_is_one_sentence(k, said, parity):
    ended = parity("dump-golden", "-k", k)
    assert ended.code == 2 and said in ended.err and not ended.out


def test_one_k_in_every_round_is_no_schedule():
    assert scheduled((4, 4)) == (4, ()) and scheduled(3) == (3, ()) and scheduled((0, 2)) == (2, (0, 2))
