"""The `eagle3` reference against the official implementation's recorded stages (fixtures/eagle)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parity.golden.store import Dump
from parity.references.capture import to_numpy, to_torch, torch_tap
from parity.references.eagle3 import Eagle3
from parity.trace import ForcingTrace, Tensors, forced_names
from tests.references.chain_cases import chain

LOGITS = 2e-4
"""Largest difference of float32 logits near 10: about 20 of their ULPs, summed over 128 and 320 terms."""
STAGE = 1e-4
DELTA = 0.0125
"""Bound of the official comparison elsewhere: largest difference of a row's bfloat16 logits over its largest logit."""


@pytest.fixture(scope="module")
def recorded(tiny) -> Dump:
    return Dump(tiny.parent / "eagle")


@pytest.fixture(scope="module")
def load(tiny):
    return lambda dtype: Eagle3.load(tiny / "eagle3", dtype)


class Choices(ForcingTrace):
    """Follows the recorded choices of float32: what official bfloat16 went on with."""

    def __init__(self, golden: Dump, prompt: int):
        names = golden.declared
        super().__init__(names, lambda r, s: golden.contents("float32", prompt, r, s), forced_names("chained", names))


@torch.no_grad()
def replay(golden: Dump, variant: str, prompt: int, drafter: Eagle3, plant=lambda loop: None) -> Tensors:
    """Draft every recorded round from its recorded taps and tokens; caches are the reference's own."""
    trace = Choices(golden, prompt)
    case = golden.manifest.case
    loop = chain(drafter, case.k, torch_tap(trace))
    plant(loop)
    ids, generation = case.prompts[prompt].ids, case.prompts[prompt].generation
    emitted = list(generation.emitted)
    ends = np.cumsum([1, *generation.acceptance_length]).tolist()
    dtype = drafter.fc.weight.dtype

    def taps(round_: int) -> torch.Tensor:
        return to_torch(golden.contents(variant, prompt, round_, "drafter.taps")).to(dtype)

    loop.taps = lambda first, end: taps(0)
    trace.begin(0)
    loop.prefill_drafter(torch.tensor(ids))
    for round_, end in enumerate(ends[:-1], 1):
        trace.begin(round_)
        loop.state.emitted, loop.state.pending_taps = emitted[:end], taps(round_)
        loop.draft()
        loop.state.cache.crop(loop.state.draft_length)
        for part, rows in zip("kv", loop.state.cache.rows[0], strict=True):
            trace.tensors[round_, f"kv.drafter.0.{part}"] = to_numpy(rows[0].transpose(0, 1))
    return trace.tensors


def pairs(golden: Dump, variant: str, load, plant=lambda loop: None):
    """Stage name, ours and theirs, of every recorded tensor that the replay makes."""
    drafter = load(torch.float32 if variant == "float32" else torch.bfloat16)
    for prompt in range(len(golden.manifest.case.prompts)):
        ours = replay(golden, variant, prompt, drafter, plant)
        for round_, stage in ours:
            if (variant, prompt, round_, stage) in golden.rows:
                yield stage, ours[round_, stage], golden.contents(variant, prompt, round_, stage)


def wrong(golden: Dump, load, plant=lambda loop: None) -> set[str]:
    """Stages that part from the recording in float32."""
    found = set()
    for stage, ours, theirs in pairs(golden, "float32", load, plant):
        assert ours.shape == theirs.shape, stage
        if ours.dtype.kind == "i":
            agree = np.array_equal(ours, theirs)
        elif stage == "drafter.logits":
            agree = np.abs(ours - theirs).max() <= LOGITS
        else:
            agree = np.linalg.norm(ours - theirs) <= STAGE * np.linalg.norm(theirs)
        found |= set() if agree else {stage}
    return found


def test_every_stage_is_the_official_ones_in_float32(recorded, load):
    seen = {stage for stage, _, _ in pairs(recorded, "float32", load)}
    assert {
        "drafter.logits",
        "drafter.draft_tokens",
        "drafter.positions",
        "drafter.layers.0.out",
        "kv.drafter.0.k",
    } <= seen
    assert seen == {
        name for name in recorded.manifest.stages if not name.startswith("accept.") and "length" not in name
    }
    assert wrong(recorded, load) == set()


def deltas(golden: Dump, load, plant=lambda loop: None) -> tuple[float, float]:
    """The largest regret and the largest relative logit difference of a row, both in bfloat16."""
    regret, delta = [], []
    for stage, ours, theirs in pairs(golden, "bfloat16", load, plant):
        if stage == "drafter.logits":
            ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
            picked = np.take_along_axis(theirs, ours.argmax(-1)[:, None], -1)[:, 0]
            regret.append((theirs.max(-1) - picked).max())
            delta.append((np.abs(ours - theirs).max(-1) / np.abs(theirs).max(-1)).max())
    return max(regret), max(delta)


def test_bfloat16_has_no_regret_and_stays_within_the_bound(recorded, load):
    regret, delta = deltas(recorded, load)
    assert regret == 0
    assert delta <= DELTA


def test_rounds_that_accept_nothing_something_and_everything_are_recorded(recorded):
    case = recorded.manifest.case
    accepted = {drafts for prompt in case.prompts for drafts in prompt.generation.accepted_drafts}
    assert accepted == {0, 1, 2, 3} and len(case.prompts) == 2 and case.k == 3


def test_the_recording_is_small_and_of_the_drafter_that_lies_here(recorded, tiny):
    from parity.golden.provenance import checkpoint

    assert sum(path.stat().st_size for path in recorded.folder.iterdir()) < 500_000
    assert recorded.manifest.model.drafter.weights_digest == checkpoint(tiny / "eagle3").weights_digest
    assert "eagle.model.cnets" in recorded.manifest.producer.sources
    assert not {"parity.references.eagle3", "parity.references.chain"} & set(recorded.manifest.producer.modules)


def recycled_behind_the_norm(loop):
    loop.recycled = lambda stream: loop.drafter.norm(stream[-1:])


def recycled_fused_hidden(loop):
    fused = []
    loop.drafter.fc.register_forward_hook(lambda module, args, output: fused.append(output))
    loop.recycled = lambda stream: fused[-1][-1:]


def chain_rows_that_stand_still(loop):
    right = loop.positions

    def still(rows, masked):
        committed = len(loop.state.pending_taps) or rows
        return right(rows, masked).clamp(max=loop.state.draft_length + committed - 1)

    loop.positions = still


def taps_of_each_others_layers(loop):
    drafter = loop.drafter
    drafter.fuse = lambda taps: drafter.fc(taps.roll(drafter.config.target_hidden_size, -1))


FAULTS = {
    recycled_behind_the_norm: "drafter.fc_out",
    recycled_fused_hidden: "drafter.fc_out",
    chain_rows_that_stand_still: "drafter.positions",
    taps_of_each_others_layers: "drafter.fc_out",
}


@pytest.mark.parametrize(("plant", "stage"), FAULTS.items())
def test_a_planted_fault_is_seen_in_float32(plant, stage, recorded, load):
    found = wrong(recorded, load, plant)
    assert stage in found and "drafter.logits" in found


@pytest.mark.parametrize("plant", FAULTS)
def test_a_planted_fault_is_seen_in_bfloat16(plant, recorded, load):
    regret, delta = deltas(recorded, load, plant)
    assert regret > 0 and delta > 10 * DELTA


def test_draft_ids_taken_for_target_ids_are_seen(recorded, load):
    def plant(loop):
        loop.drafter.d2t.zero_()

    assert "drafter.draft_tokens" in wrong(recorded, load, plant)
