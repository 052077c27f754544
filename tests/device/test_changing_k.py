"""K that changes between rounds, 0 included: every family's golden, the clean device, faults, and who cannot."""

from __future__ import annotations

import json
from itertools import count, islice

import numpy as np
import pytest

from parity import device
from parity.api import compare_dumps, open_golden, run_device
from parity.device.faults import changing
from parity.drive import drafted, generate, untapped
from parity.families import FAMILIES, MODEL
from parity.gates.context import GateContext
from parity.gates.gate import run_gate
from parity.producers import builder, dump_golden
from parity.seam import VaryingK
from parity.stages import drafting

KS = (4, 0, 2, 0, 0, 3)
BUDGET = 16
WITH_CACHE = [name for name, family in FAMILIES.items() if MODEL in family.has]


@pytest.fixture(scope="module")
def goldens(tiny, once_for_all):
    """By family: one chat prompt over K = 4, 0, 2, 0, 0, 3 in turn."""

    def golden(family):
        def make(out):
            out.mkdir()
            line = (tiny / "prompts/chat.jsonl").read_text().splitlines()[0]
            (out / "prompts.jsonl").write_text(line + "\n")
            dump_golden(
                drafter=tiny / FAMILIES[family].checkpoint, prompts=out / "prompts.jsonl", k=KS, out=out / "golden",
                max_new_tokens=32 if family == "n-gram" else BUDGET,
            )  # fmt: skip

        return open_golden(once_for_all(f"changing-{family}", make) / "golden")

    return golden


@pytest.fixture
def judged(tmp_path):
    """Runs a device over a golden and compares."""
    numbers = count()

    def judge(golden, name="numpy", mode="chained", precision="bfloat16"):
        out = tmp_path / f"run-{next(numbers)}"
        return compare_dumps(golden, run_device(golden, name, mode, precision, out=out))

    return judge


@pytest.mark.parametrize("family", FAMILIES)
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


@pytest.mark.parametrize("family", FAMILIES)
def test_references_and_device_emit_what_plain_decoding_does(family, tiny, goldens):
    """One of K = 0 in every round behind the first, so that the drafter runs to the end without drafting."""
    golden, pair = goldens(family), (tiny / "target", tiny / FAMILIES[family].checkpoint)
    pipeline, ids = device.load(*pair, 4, "float32"), golden.manifest.case.prompts[0].ids
    plain = pipeline.decode_plain(ids, BUDGET)
    assert list(golden.manifest.case.prompts[0].generated.emitted) == plain
    assert generate(pipeline, ids, BUDGET, golden.manifest.case.drafts) == golden.manifest.case.prompts[0].generated
    assert list(generate(pipeline, ids, BUDGET, lambda round_: 0).emitted) == plain


FIRST = {
    "k-stale": "drafter.input_ids",
    "k-committed-cut": "drafter.taps",
    "k-zero-skips-drafter": "drafter.taps",
    "k-zero-cache-unwritten": "kv.drafter.0.k",
    "k-zero-rows-uncounted": "kv.drafter.length",
}


@pytest.mark.parametrize("fault", changing.fault.faults, ids=lambda fault: fault.id)
@pytest.mark.parametrize("family", WITH_CACHE)
def test_a_fault_of_a_changing_k_is_placed(family, fault, goldens, judged):
    report = judged(goldens(family), f"parity.device.faults:{fault.id.replace('-', '_')}", "local")
    assert report.verdict == "fail"
    print(family, fault.id, report.first)
