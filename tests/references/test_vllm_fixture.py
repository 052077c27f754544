"""vLLM's recordings of the tiny pair against our references and the device: vLLM itself is not installed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parity.golden.store import Dump
from parity.references.drafting import load_loop
from parity.references.hypotheses import taps
from parity.references.loop import SpeculativeLoop
from parity.stages import declared
from parity.trace import Trace

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures" / "vllm"
P_EAGLE = ("p-eagle-k3-b1", "p-eagle-k3-b2", "p-eagle-k7-b1", "p-eagle-k7-b2")
EAGLE3 = ("eagle3-k3-b1", "eagle3-k3-b2")
NAMES = P_EAGLE + EAGLE3

PARTS = ("taps", "input_ids", "positions", "slots", "fc_out", "layers.0.out", "draft_tokens")

RELATIVE = 1e-4
"""Of every stage: float32 sums of two implementations differ by 2e-6 here; this leaves room for other machines."""

LOGITS = 2e-4
"""Largest difference of a logit: one part in 100,000 of logits near 20."""


@pytest.fixture(params=NAMES)
def recording(request) -> Dump:
    return Dump(RECORDED / request.param)


def loop_of(tiny: Path, recording: Dump) -> SpeculativeLoop[Any, Any]:
    drafter = Path(recording.manifest.model.drafter.path).name
    return load_loop(tiny / "target", tiny / drafter, torch.float32, recording.manifest.case.k)


def differences(recording: Dump, loop: SpeculativeLoop[Any, Any]) -> list[str]:
    """Every tensor and count in which our references differ from a recording, in the order they are computed."""
    names = declared(recording.manifest.model.num_layers, recording.manifest.model.num_drafter_layers)
    found = []
    for number, case in enumerate(recording.manifest.case.prompts):
        trace = Trace(names)
        result = loop.run(case.ids, recording.manifest.case.max_new_tokens, trace)
        if (result.emitted, result.acceptance_length, result.accepted_drafts, result.finish) != tuple(
            getattr(case.generation, name) for name in ("emitted", "acceptance_length", "accepted_drafts", "finish")
        ):
            found.append("generation")
        rows = {place for place in trace.tensors if place[1] in recording.manifest.stages}
        held = {
            (round_, stage)
            for variant, prompt, round_, stage in recording.rows
            if (variant, prompt) == ("float32", number)
        }
        found += [f"{stage} is on one side only" for _, stage in sorted(rows ^ held)]
        for place in (place for place in trace.tensors if place in rows & held):
            found += differs(names[place[1]], trace.tensors[place], recording.stored("float32", number, *place))
    return found


def differs(named, ours: np.ndarray, theirs: np.ndarray) -> list[str]:
    if ours.shape != theirs.shape:
        return [f"{named.name} has another shape"]
    if named.stage.exact:
        return [] if np.array_equal(ours, theirs) else [f"{named.name} is another choice"]
    gap = np.abs(ours.astype(np.float64) - theirs)
    relative = np.linalg.norm(gap) / np.linalg.norm(theirs)
    right = relative <= RELATIVE and (named.stage.part != "logits" or gap.max() <= LOGITS)  # a NaN is not right
    return [] if right else [f"{named.name} is off by {relative:.1e}"]


def test_our_references_are_vllms(tiny, recording):
    assert differences(recording, loop_of(tiny, recording)) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.01])
def test_one_wrong_number_is_seen(value, recording):
    true = recording.stored("float32", 0, 1, "drafter.logits")
    ours = true.copy()
    ours[0, 0] += value
    assert differs(recording.declared["drafter.logits"], ours, true)


def test_a_recording_holds_what_it_should(recording):
    manifest = recording.manifest
    wanted = {name for name in recording.declared if name.startswith("drafter.")}
    assert wanted <= set(manifest.stages) and {"verify.tokens", "accept.length", "accept.emitted"} <= set(
        manifest.stages
    )
    assert manifest.producer.versions["vllm"].startswith("0.32.") and manifest.producer.platform
    assert manifest.producer.notes == {
        "drafter changed for vLLM": "none",
        "prompts at a time": str(len(manifest.case.prompts)),
    }


@pytest.mark.parametrize("name", P_EAGLE)
def test_masked_rows_are_the_placeholders_rows(name, tiny):
    """vLLM's own mask decides how many rows have taps; the ids say which rows carry the placeholder."""
    recording = Dump(RECORDED / name)
    placeholder = json.loads((tiny / "drafter" / "config.json").read_text())["ptd_token_id"]
    for variant, prompt, round_, stage in recording.rows:
        if stage == "drafter.input_ids" and variant == "float32":
            ids = recording.stored(variant, prompt, round_, stage)
            committed = len(recording.stored(variant, prompt, round_, "drafter.taps"))
            masked = recording.manifest.case.k - 1 if round_ else 0
            assert (ids == placeholder).tolist() == [False] * committed + [True] * masked


@pytest.mark.parametrize("name", EAGLE3)
def test_a_chains_rows_follow_the_committed_ones(name):
    """vLLM ran the drafter K times: the ids behind the committed rows are the drafts, a position further on each."""
    recording, k = Dump(RECORDED / name), 3
    for variant, prompt, round_, stage in recording.rows:
        if stage == "drafter.input_ids" and variant == "float32" and round_:
            stored = {part: recording.stored(variant, prompt, round_, f"drafter.{part}") for part in PARTS}
            committed = len(stored["taps"])
            assert stored["input_ids"][committed:].tolist() == stored["draft_tokens"][: k - 1].tolist()
            assert (np.diff(stored["positions"]) == 1).all() and np.array_equal(stored["positions"], stored["slots"])
            assert np.array_equal(stored["fc_out"][committed:], stored["layers.0.out"][committed - 1 : -1])


@pytest.mark.parametrize("names", [P_EAGLE, EAGLE3])
def test_rounds_accept_none_some_and_all(names):
    kept = [Dump(RECORDED / name).manifest.case for name in names]
    seen = {
        (count == 0, count == case.k)
        for case in kept
        for one in case.prompts
        for count in one.generation.accepted_drafts
    }
    assert {(True, False), (False, False), (False, True)} <= seen


@pytest.mark.parametrize("kind", ["p-eagle-k3", "p-eagle-k7", "eagle3-k3"])
def test_prompts_at_a_time_change_nothing(kind):
    alone, together = (Dump(RECORDED / f"{kind}-b{batch}") for batch in (1, 2))
    assert alone.manifest.case.prompts[0] == together.manifest.case.prompts[0]


@pytest.mark.parametrize("name", ["p-eagle-k3-b1", "eagle3-k3-b1"])
def test_a_tap_one_layer_late_is_seen_first_at_the_taps(tiny, name):
    recording = Dump(RECORDED / name)
    loop = loop_of(tiny, recording)
    with taps.shifted(loop, 1):
        found = [one for one in differences(recording, loop) if "is off by" in one and one.startswith("drafter.")]
    assert found[0].startswith("drafter.taps ")


def test_a_chain_that_recycles_behind_the_norm_is_seen_first_at_the_recycled_hidden(tiny):
    recording = Dump(RECORDED / "eagle3-k3-b1")
    loop = loop_of(tiny, recording)
    loop.recycled = lambda stream: loop.drafter.norm(stream[-1:])
    found = [one for one in differences(recording, loop) if "is off by" in one]
    assert found[0].startswith("drafter.fc_out ")


@pytest.fixture
def here(monkeypatch) -> None:
    """The recordings name the tiny pair's checkpoints relative to the repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_the_device_is_green_against_vllm(precision, parity, here):
    found = parity("diff", "--golden", RECORDED / "p-eagle-k3-b1", "--precision", precision)
    assert found.code == 0 and found.last.startswith("chained verdict: pass"), found.out


def test_a_broken_device_is_red_against_vllm(parity, here):
    found = parity("diff", "--golden", RECORDED / "p-eagle-k3-b1", "--device", "parity.device.faults:tap_off_by_one")
    assert found.code == 1 and "first divergent: drafter.taps" in found.last, found.out


def test_a_recording_without_a_floor_cannot_pass(parity, here):
    found = parity("diff", "--golden", RECORDED / "p-eagle-k7-b1", "--precision", "float32")
    assert found.code != 0 and "no noise floor" in found.out
