"""The torch device: compared with goldens and with the numpy device, faults planted in it, what it refuses."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from parity import device
from parity.api import check_device, compare_dumps
from parity.builders import builder, present_engines
from parity.compare.between import DeviceDifference
from parity.device import stored
from parity.device import torch as torch_device
from parity.drive import run_device
from parity.errors import UsageError
from parity.golden.store import Dump
from parity.run_request import RunRequest
from parity.seam import Sampling
from tests.sample import cover, sample

IDS = range(100, 140)


def run_of(golden, made, mode, folder, free=False):
    """What a device shows on a golden, in a folder."""
    return Dump(run_device(RunRequest(device=made, golden=golden, mode=mode, stages=("*",), out=folder, free=free)))


@pytest.mark.parametrize(
    ("name", "mode", "precision"),
    cover(product(["shallow_golden", "chain_golden"], ["local", "chained"], ["bfloat16", "float32"])),
)
def test_every_stage_is_within_its_bounds_of_the_golden_and_of_numpy(name, mode, precision, request, tmp_path):
    golden = request.getfixturevalue(name)
    runs = [
        run_of(golden, builder(device_name, golden)(precision), mode, tmp_path / device_name)
        for device_name in ("torch", "numpy")
    ]
    report = compare_dumps(golden, runs[0])
    assert report.verdict == "pass" and report.stages, report.first
    against = compare_dumps(golden, DeviceDifference(golden, *runs))
    assert against.verdict == "pass", against.first
    assert runs[0].manifest.producer.notes["platform"] and "torch" in runs[0].manifest.producer.versions


@pytest.mark.parametrize("drafter", ["drafter", "eagle3"])
def test_mxfp4_and_either_family_emit_what_numpy_does(drafter, tiny, monkeypatch):
    """Experts are decoded one at a time, large matrices mapped."""
    monkeypatch.setattr(stored, "LARGE", 2**12)
    pair = tiny / "target-mxfp4", tiny / drafter, 4, "float32"
    assert torch_device.load(*pair).generate(IDS, 12) == device.load(*pair).generate(IDS, 12)


def window_one_wide(pipeline):
    pipeline.target.windows = tuple(window and window + 1 for window in pipeline.target.windows)


def sinks_dropped(pipeline):
    for layer in pipeline.target.layers:
        layer["sinks"].fill_(-float("inf"))


def ramp_truncated(pipeline):
    pipeline.target.turn(replace(pipeline.target.rope, truncate=True))


def taps_late(pipeline):
    config, last = pipeline.drafter.config, pipeline.target.config.layers
    pipeline.drafter.config = replace(config, taps=tuple(min(tap + 1, last) for tap in config.taps))


def mask_hidden_lost(pipeline):
    pipeline.drafter.outer["mask_hidden"].zero_()


def last_expert_twice(pipeline):
    for layer in pipeline.target.layers:
        layer["down"][-2] = layer["down"][-1]


def offsets_lost(pipeline):
    pipeline.drafter.outer["d2t"].zero_()


def first_draft_refused(pipeline):
    pipeline.accepted = lambda drafts, verified: 1


FAULTS = {
    window_one_wide: "target.layers.0.attn_out",
    sinks_dropped: "target.layers.0.attn_out",
    ramp_truncated: "target.layers.0.q",
    last_expert_twice: "target.layers.0.ffn_out",
    taps_late: "drafter.taps",
    mask_hidden_lost: "drafter.fc_out",
    offsets_lost: "drafter.draft_tokens",
    first_draft_refused: "accept.length",
}


@pytest.mark.parametrize(
    ("fault", "stage"),
    sample(FAULTS.items(), lambda one: one[0].__name__, lambda one: one[1].split(".")[0]),
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_planted_fault_is_seen_where_it_sits(fault, stage, shallow_golden, tmp_path):
    made = torch_device.load(*pair_of(shallow_golden), 4)
    fault(made)
    report = compare_dumps(shallow_golden, run_of(shallow_golden, made, "local", tmp_path / "run"))
    assert report.verdict == "fail" and report.first.stage == stage


def pair_of(golden):
    model = golden.manifest.model
    return model.target.path, model.drafter.path


def test_what_lies_in_dead_rows_is_never_read(tiny):
    clean, poisoned = (torch_device.load(tiny / "target", tiny / "drafter", 4) for _ in range(2))
    for one in (clean, poisoned):
        one.prefill(IDS, 12)
    for value in (np.nan, 1e4):
        poisoned.poison(value)
        drafts = [one.draft().tolist() for one in (clean, poisoned)]
        assert drafts[0] == drafts[1]
        emitted = [one.commit(drafts[0], one.verify(drafts[0])).tolist() for one in (clean, poisoned)]
        assert emitted[0] == emitted[1]


def test_on_a_gpu_it_is_waited_for(tiny, monkeypatch):
    made = torch_device.load(tiny / "target", tiny / "drafter", 4)
    places = []
    monkeypatch.setattr("torch.cuda.synchronize", places.append)
    for place in ("cpu", "cuda"):
        monkeypatch.setattr("parity.device.torch.tensors.PLACE", torch.device(place))
        made.synchronize()
    assert [place.type for place in places] == ["cuda"]


@pytest.mark.parametrize("verb", ["prefill", "prefill_from"])
def test_a_prefill_that_fails_leaves_the_sequence_before_it(verb, tiny):
    """Prompt rows are written over committed ones."""
    made = torch_device.load(tiny / "target", tiny / "drafter", 4, "float32")
    made.prefill(IDS, 12)
    drafts = made.draft()

    def raises(stage, value):
        if stage == "target.layers.5.out":
            raise RuntimeError
        return value

    other = np.array([*IDS[:20], *range(300, 320)])
    with pytest.raises(RuntimeError):
        made.prefill(other, 12, raises) if verb == "prefill" else made.prefill_from(20, other, 12, raises)
    assert made.draft().tolist() == drafts.tolist()
    made.commit(drafts, made.verify(drafts))
    expected = torch_device.load(tiny / "target", tiny / "drafter", 4, "float32")
    expected.prefill(IDS, 12), expected.draft(), expected.commit(drafts, expected.verify(drafts))
    rows, caches = made.target.length, zip(made.target.caches, expected.target.caches, strict=True)
    assert all(ours[part][:, :rows].equal(theirs[part][:, :rows]) for ours, theirs in caches for part in (0, 1))


@pytest.mark.parametrize(
    ("drafter", "family"), [("dflash", "dflash"), ("draft-model", "draft-model"), ("n-gram", "n-gram")]
)
def test_other_families_are_refused_by_name(drafter, family, tiny):
    with pytest.raises(UsageError, match=f"a {family} drafter; this device offers p-eagle and eagle-3 ones"):
        torch_device.load(tiny / "target", tiny / drafter, 4)


def test_copies_of_the_sequence_emit_what_it_does_alone(tiny):
    pair = tiny / "target", tiny / "drafter", 4, "float32"
    assert torch_device.load(*pair, batch=2).generate(IDS, 8) == torch_device.load(*pair).generate(IDS, 8)


@pytest.mark.parametrize("options", [dict(batch=0), dict(precision="float16"), dict(k=0), dict(max_positions=0)])
def test_options_that_do_not_fit_are_refused(options, tiny):
    with pytest.raises(UsageError, match=f"^{next(iter(options))}"):
        torch_device.load(tiny / "target", tiny / "drafter", **dict(k=4) | options)


def test_it_keeps_the_contract():
    assert check_device("torch", "float32").verdict == "pass"


def test_it_says_that_it_does_not_sample(tiny):
    made = torch_device.load(tiny / "target", tiny / "drafter", 4)
    assert not made.describe().samples
    with pytest.raises(UsageError, match="does not sample"):
        made.sample(Sampling(temperature=1.0), np.zeros((1, 4, 8), np.float32))


def test_to_import_it_imports_no_torch():
    code = (
        "import sys, parity.device, parity.device.torch, parity.producers, parity.builders; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_torch_it_says_what_to_install(monkeypatch):
    for name in ("tensors", "assembly"):
        monkeypatch.delitem(sys.modules, f"parity.device.torch.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    here, absent = present_engines()
    assert "torch" not in here and "pip install 'parity-harness[torch]'" in absent["torch"]
