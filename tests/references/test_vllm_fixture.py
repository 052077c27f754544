"""vLLM's recordings of the tiny pair against our references and the device: vLLM itself is not installed here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from parity.golden.store import Dump
from parity.stages import declared
from parity.trace import Trace
from references.hf_target import HFTarget
from references.loop import SpeculativeLoop
from references.mutations import taps
from references.peagle import PEagle

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures" / "vllm"
NAMES = ("p-eagle-k3-b1", "p-eagle-k3-b2", "p-eagle-k7-b1", "p-eagle-k7-b2")

RELATIVE = 1e-4
"""Of every stage: float32 sums of two implementations differ by 2e-6 here; this leaves room for other machines."""

LOGITS = 2e-4
"""Largest difference of a draft logit: one part in 100,000 of logits near 20."""


@pytest.fixture(scope="module")
def models(tiny) -> tuple[HFTarget, PEagle]:
    return HFTarget(tiny / "target", torch.float32), PEagle.load(tiny / "drafter")


@pytest.fixture(params=NAMES)
def recording(request) -> Dump:
    return Dump(RECORDED / request.param)


def loop_of(models, recording: Dump) -> SpeculativeLoop:
    return SpeculativeLoop(*models, recording.manifest.case.k)


def differences(recording: Dump, loop: SpeculativeLoop) -> list[str]:
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
        held = {(round_, stage) for variant, prompt, round_, stage in recording.rows if (variant, prompt) == ("float32", number)}
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
    wrong = relative > RELATIVE or (named.name == "drafter.logits" and gap.max() > LOGITS)
    return [f"{named.name} is off by {relative:.1e}"] if wrong else []


def test_our_references_are_vllms(models, recording):
    assert differences(recording, loop_of(models, recording)) == []


def test_a_recording_holds_what_it_should(recording):
    manifest = recording.manifest
    wanted = {name for name in recording.declared if name.startswith("drafter.")}
    assert wanted <= set(manifest.stages) and {"verify.tokens", "accept.length", "accept.emitted"} <= set(manifest.stages)
    assert manifest.producer.versions["vllm"].startswith("0.32.") and manifest.producer.platform
    assert manifest.producer.notes == {
        "drafter changed for vLLM": "none",
        "prompts at a time": str(len(manifest.case.prompts)),
    }


@pytest.mark.parametrize("name", NAMES)
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


def test_rounds_accept_none_some_and_all():
    kept = [Dump(RECORDED / name).manifest.case for name in NAMES]
    seen = {(count == 0, count == case.k) for case in kept for one in case.prompts for count in one.generation.accepted_drafts}
    assert {(True, False), (False, False), (False, True)} <= seen


def test_prompts_at_a_time_change_nothing():
    for k in (3, 7):
        alone, together = (Dump(RECORDED / f"p-eagle-k{k}-b{batch}") for batch in (1, 2))
        assert alone.manifest.case.prompts[0] == together.manifest.case.prompts[0]


def test_a_tap_one_layer_late_is_seen_first_at_the_taps(models):
    recording = Dump(RECORDED / "p-eagle-k3-b1")
    loop = loop_of(models, recording)
    with taps.shifted(loop, 1):
        found = [one for one in differences(recording, loop) if "drafter." in one]
    assert found[0].startswith("drafter.taps is off by")


@pytest.fixture
def here(monkeypatch) -> None:
    """The recordings name the tiny pair's checkpoints relative to the repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_the_device_is_green_against_vllm(precision, parity, here):
    found = parity("diff", "--golden", RECORDED / "p-eagle-k3-b1", "--precision", precision)
    assert found.code == 0 and found.last.startswith("chained verdict: pass"), found.out


def test_a_broken_device_is_red_against_vllm(parity, here):
    found = parity("diff", "--golden", RECORDED / "p-eagle-k3-b1", "--device", "device.faults:tap_off_by_one")
    assert found.code == 1 and "first divergent: drafter.taps" in found.last, found.out


def test_a_recording_without_a_floor_cannot_pass(parity, here):
    found = parity("diff", "--golden", RECORDED / "p-eagle-k7-b1", "--precision", "float32")
    assert found.code != 0 and "no noise floor" in found.out
