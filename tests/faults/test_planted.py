"""Planted faults are killed and placed; and the runner calls a survivor, a crash and a misplaced one what they are.

A sample of the catalogue; the whole of it is `make catalogue`, and in every comparison `parity faults run --all`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from parity.builders import builder
from parity.device.faults import CATALOGUE
from parity.fault_choice import PROMPTS, TOKENS
from parity.faults import FaultRunRequest, compare_planted, judge_fault, run_faults
from parity.gates import GATES
from tests.sample import WHOLE, cover, cut, sample
from tests.shallow import LAYERS, cut_pair


def deep(fault) -> bool:
    """Whether a fault is of a layer behind the first two."""
    layer = re.search(r"\.layers\.(\d+)\.", fault.stage)
    return layer is not None and int(layer[1]) >= LAYERS


PARALLEL = [
    fault
    for fault in CATALOGUE.values()
    if "p-eagle" in fault.drafters and not (fault.partial_kv or fault.kv_cache)
    if fault.lanes == 1  # those: tests/gates/test_batch.py
]
UNSHOWN = {"choose-draft-runner-up"}
"""By day no draft is close, and there are two layers."""
SHOWN = sample(
    (fault for fault in PARALLEL if fault.stage and fault.gate if WHOLE or not (fault.id in UNSHOWN or deep(fault))),
    name=lambda fault: fault.id,
    kind=lambda fault: fault.family,
)
DEAR = ("verify", "boundary", "sampling", "rollback", "lifecycle")
"""Gates that take seconds and more; tests/gates plants faults of their own for them, without all of the rest."""
GATED = cover(
    (fault for fault in PARALLEL if fault.gate not in ("", "stages", *(() if WHOLE else DEAR))),
    lambda fault: (fault.gate,),
)
CHAINED = (
    "load-experts-swapped",
    "attn-window-missing-once",
    "tap-off-by-one",
    "input-no-shift",
    "d2t-absolute",
    "rollback-target-noop",
    "tp-attn-not-reduced",
    "const-rope-theta",
)
MORE_CHAINED = (
    "rope-concentration",
    "attn-o-bias-dropped",
    "ffn-router-bias",
    "drafter-residual-normed",
    "accept-one-late",
    "skip-sink-far",
)
"""One of a family: a chained run of every fault is `parity faults run --all`."""


@pytest.fixture(scope="module")
def one_prompt(tiny, remake_small_golden, tmp_path_factory) -> FaultRunRequest:
    """The first prompt of the command's default golden; by day the second, cut to 98 tokens, of a pair of two layers
    each, and with a budget that cuts its second round."""
    folder = tmp_path_factory.mktemp("faults")
    lines = {json.loads(line)["id"]: line for line in (tiny / "prompts/chat.jsonl").read_text().splitlines()}
    line = lines[PROMPTS["p-eagle"][not WHOLE]]
    prompts = folder / "prompt.jsonl"
    prompts.write_text(line if WHOLE else cut(line, words=40))
    asked = dict(max_new_tokens=TOKENS["p-eagle"]) if WHOLE else dict(max_new_tokens=4, **cut_pair(tiny, folder))
    golden = remake_small_golden(folder / "golden", prompts=prompts, **asked)
    return FaultRunRequest(golden, "numpy", builder("numpy", golden))


@pytest.mark.parametrize("fault", SHOWN, ids=lambda fault: fault.id)
def test_a_local_comparison_names_the_stage_and_no_other(fault, one_prompt):
    early = fault.round is not None and fault.round < 2
    seen = compare_planted(replace(one_prompt, rounds=1) if early else one_prompt, fault, "local")
    assert seen.placed, seen


@pytest.mark.parametrize("name", (*CHAINED, *MORE_CHAINED) if WHOLE else CHAINED[3:7])
def test_a_chained_comparison_says_where_it_first_shows_and_what_inherits_it(name, one_prompt):
    seen = compare_planted(one_prompt, CATALOGUE[name], "chained")
    assert seen.placed, seen
    assert seen.inherited or CATALOGUE[name].family in ("d2t", "accept"), seen


@pytest.mark.parametrize("fault", GATED, ids=lambda fault: fault.id)
def test_what_no_comparison_shows_is_killed_by_its_gate(fault, one_prompt):
    if fault.gate not in GATES:
        pytest.skip(f"the gate {fault.gate} is not there")
    outcome = judge_fault(one_prompt, fault, [])
    assert outcome.killed, outcome


def test_a_defect_as_large_as_rounding_shows_in_the_bits(one_prompt):
    (outcome,) = run_faults(one_prompt, [CATALOGUE["norm-cast-first"]])
    assert outcome.killed and outcome.placed
    assert {mode: seen.verdict for mode, seen in outcome.comparisons.items()} == {"local": "fail"}


@pytest.mark.parametrize("mode", ["local", "chained"])
def test_a_clean_device_survives(mode, one_prompt):
    seen = compare_planted(one_prompt, replace(CATALOGUE["tap-early"], plant=lambda device: None), mode)
    assert seen.verdict == "pass" and not seen.placed


def test_a_device_that_breaks_down_is_not_killed(one_prompt):
    def plant(device):
        device.draft = lambda tap: [][1]

    outcome = judge_fault(one_prompt, replace(CATALOGUE["tap-early"], plant=plant), [])
    assert not outcome.killed and "broke down" in outcome.note and outcome.text_changed is None


@pytest.mark.parametrize(
    ("change", "accused"),
    [
        (dict(stage="drafter.fc_out", sites=("drafter.*",)), ()),
        (dict(round=3), ()),
        (dict(stage="target.layers.0.attn_in", sites=("target.layers.0.attn_in",)), ("drafter.taps",)),
    ],
)
def test_a_fault_that_shows_elsewhere_is_misplaced(change, accused, one_prompt):
    seen = compare_planted(replace(one_prompt, rounds=1), replace(CATALOGUE["tap-early"], **change), "local")
    assert seen.verdict == "fail" and not seen.placed and seen.own == accused


@pytest.mark.parametrize(("device", "ranks"), [("numpy", 2), ("numpy,tp=4", 4), ("numpy,tp=1", 2)])
def test_a_device_named_with_more_ranks_than_a_fault_needs_keeps_them(device, ranks, one_prompt):
    asked = []

    def build(**options):
        asked.append(options["tp"])
        raise LookupError

    with pytest.raises(LookupError):
        compare_planted(replace(one_prompt, device_name=device, build=build), CATALOGUE["tp-attn-averaged"], "local")
    assert asked == [ranks]
