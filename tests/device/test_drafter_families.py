"""What holds of every family of drafters on the device: its stages, its rows' rotation, its faults."""

from __future__ import annotations

import pytest

from parity import device
from parity.api import compare_dumps, run_device
from parity.builders import builder
from parity.device.faults import CATALOGUE
from parity.faults import FaultRunRequest, compare_planted
from parity.gates.positions_passes import SAME, cached_keys, misturned
from parity.gates.rope import read_schedule
from parity.gates.taps import token_pairings
from parity.golden.views import GoldenSlice
from tests.sample import WHOLE, cover

COMPILED = (
    ("eagle-3", "xla", "chained", "bfloat16"),
    ("draft-model", "xla", "chained", "bfloat16"),
    ("dflash", "xla", "local", "bfloat16"),
)
"""A compiler takes longer than all else together; gates/test_sampling_engines runs a family on xla."""


@pytest.mark.parametrize(
    ("family", "engine", "mode", "precision"),
    cover(
        [
            ("eagle-3", "numpy", "local", "float32"),
            ("eagle-3", "numpy", "local", "bfloat16"),
            ("eagle-3", "numpy", "chained", "float32"),
            ("eagle-3", "numpy", "chained", "bfloat16"),
            ("draft-model", "numpy", "local", "bfloat16"),
            ("draft-model", "numpy", "chained", "float32"),
            ("dflash", "numpy", "local", "float32"),
            ("dflash", "numpy", "chained", "bfloat16"),
            ("n-gram", "numpy", "local", "float32"),
            ("n-gram", "numpy", "chained", "bfloat16"),
            *(COMPILED if WHOLE else ()),
        ]
    ),
)
def test_every_stage_is_within_its_bounds(family, engine, mode, precision, family_golden, tmp_path):
    if engine == "xla":
        pytest.importorskip("jax", reason="the xla engine needs jax: pip install 'parity-harness[xla]'")
    golden, free = family_golden(family), True if mode == "chained" else None
    if not WHOLE:
        case, number = golden.manifest.case, int(family == "n-gram")  # which finds nothing in the first of its prompts
        golden = GoldenSlice(golden, number, len(case.prompts[number].generated.acceptance_length), case.max_new_tokens)
    run = run_device(golden, engine, mode, precision, out=tmp_path / "run", free=free)
    report = compare_dumps(golden, run)
    assert report.verdict == "pass", report.first
    assert not [stage.stage for stage in report.stages if stage.verdict != "pass"]
    assert run.manifest.model.family == family
    if family != "n-gram":  # its drafter has no rows
        pairings = list(token_pairings(golden, run, precision))
        assert pairings and not [pair for pair in pairings if pair.wrong]


@pytest.mark.parametrize("drafter", ["eagle3", "draft-model", "dflash"])
def test_every_row_of_the_drafters_cache_is_turned_by_its_position(drafter, tiny):
    keys, _ = cached_keys(device.load(tiny / "target", tiny / drafter, 3, max_positions=64), 30, 3)
    assert misturned(read_schedule(tiny / drafter)[0], keys["drafter"]).max() < SAME


FAULTS = (
    ("eagle-3", "chain-recycles-post-norm"),
    ("eagle-3", "chain-blind-to-itself"),
    ("eagle-3", "chain-draft-ids"),
    ("draft-model", "draft-rejected-kept"),
    ("draft-model", "draft-last-skipped"),
    ("draft-model", "chain-slot-still"),
    ("dflash", "block-causal"),
    ("dflash", "block-taps-stale"),
    ("dflash", "block-kept"),
    ("dflash", "block-drafts-early"),
    ("n-gram", "lookup-latest"),
    ("n-gram", "lookup-stale"),
    ("n-gram", "lookup-padded"),
)


@pytest.mark.parametrize(
    ("family", "name", "mode"),
    cover(((*fault, mode) for fault in FAULTS for mode in ("local", "chained")), lambda row: (row[0], row[2])),
)
def test_a_fault_is_killed_and_placed(family, name, mode, family_golden):
    golden = family_golden(family)
    request = FaultRunRequest(golden, "numpy", builder("numpy", golden), rounds=4)
    seen = compare_planted(request, CATALOGUE[name], mode)
    assert seen.placed, seen
