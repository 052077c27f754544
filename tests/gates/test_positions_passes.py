"""The positions gate on the passes of a device, the schedules of a pair, what cannot be judged, and its command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from parity import device
from parity.errors import NotOffered
from parity.gates.positions_schedules import compared
from tests.gates.positions import COMPARED, DRAFTER, PASSES, TARGET, judged
from tests.sample import by_night, cover

PAIR = {
    "target": {"rope_type": "yarn", "rope_theta": 5e4, "factor": 8.0, "original_max_position_embeddings": 64},
    "plain": {"rope_type": "default", "rope_theta": 5e4},
    "first half": {"rope_type": "yarn", "rope_theta": 5e4, "factor": 4.0, "original_max_position_embeddings": 64},
    "other context": {
        "rope_type": "llama3",
        "rope_theta": 5e4,
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "more": {"rope_type": "yarn", "rope_theta": 5e4, "factor": 16.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ("target", "the same"),
        ("plain", "noise from position 1 on; it begins to matter from position 64 on"),
        ("first half", "begins to matter from position 256 on"),
        # Its pair of 94 positions a turn turns 2.72 times in 256: 0.575 kept, 0.425 / 8 slowed, so 64 / 0.628 = 102.
        ("other context", "begins to matter from position 102 on"),
        ("more", "stay within the angles"),
    ],
)
def test_it_says_from_which_position_on_another_schedule_matters(drafter, said, tmp_path):
    own = {}
    for side, name in (("target", "target"), ("drafter", drafter)):
        own[side] = tmp_path / side
        own[side].mkdir()
        config = {"head_dim": 32, "max_position_embeddings": 512, "rope_parameters": PAIR[name]}
        (own[side] / "config.json").write_text(json.dumps(config))
    verdict, line, figures = compared(own)
    assert verdict == "pass" and said in line
    assert figures["same"] == (drafter == "target")
    if drafter == "plain":  # the slowest pair of those that do not go round within 64 positions, by hand
        turned = 64 * 5e4 ** (-np.arange(0, 32, 2) / 32)
        assert figures["matters_from"] == 64 and (turned < 2 * np.pi).any()


def turned_by(broken, side: str, change) -> None:
    """Let one side's passes turn their rows by other positions, and leave everything else as it is."""
    model = getattr(broken, side)
    exact = model.step

    def step(rows):
        other = exact(replace(rows, positions=change(rows.positions)))
        return replace(exact(rows), cos=other.cos, sin=other.sin)

    model.step = step


def by_row_number(side):
    def load(**options):
        broken = device.load(**options)
        turned_by(broken, side, lambda positions: np.arange(positions.size, dtype=np.int32)[None])
        return broken

    return load


def wraps(side):
    def load(**options):
        broken = device.load(**options)
        turned_by(broken, side, lambda positions: positions % 400)
        return broken

    return load


def plain_in_the_pass(side):
    """The rotation alone is right; the passes fall back to unscaled RoPE."""

    def load(**options):
        broken = device.load(**options)
        model = getattr(broken, side)
        model.turn(replace(model.config.attention.rope, kind="default"))
        return broken

    return load


NAMED = {
    by_row_number: r"first row 47\d \(in the rounds behind the prompt\), as if at position 0",
    wraps: r"first row 400 \(in prefill\), as if at position 0",
    plain_in_the_pass: "rows misturned",
}


@pytest.mark.parametrize(
    ("fault", "named", "side"),
    [(fault, NAMED[fault], side) for fault, side in cover(product(NAMED, ["target", "drafter"]))],
)
def test_a_pass_that_turns_rows_wrongly_is_red_where_it_starts(side, fault, named, positions_context):
    found = judged(positions_context(device.rotate, load=fault(side)))
    assert found[PASSES].verdict == "fail"
    assert re.match(rf"{side}: .*{named}", found[PASSES].evidence)
    assert [check.verdict for check in found if check is not found[PASSES]] == ["pass"] * 4


def silent_about_keys(**options):
    quiet = device.load(**options)
    quiet.target.record = quiet.drafter.record = lambda record: None
    return quiet


def breaks(**options):
    broken = device.load(**options)
    broken.draft = lambda tap: [][1]
    return broken


@pytest.mark.parametrize(
    ("load", "why"), [(silent_about_keys, "records no kv.drafter.0.k"), (breaks, "IndexError: list index out of range")]
)
def test_passes_that_cannot_be_seen_are_inconclusive(load, why, positions_context):
    check = judged(positions_context(device.rotate, load=load))[PASSES]
    assert check.verdict == "inconclusive"
    assert why in check.evidence


def test_the_schedules_of_a_pair_are_reported(positions_context):
    check = judged(positions_context())[COMPARED]
    assert (check.verdict, check.figures["same"]) == ("pass", False)
    assert "target yarn (theta 150000, x32 over 4096, concentration 1.3466)" in check.evidence
    assert "drafter llama3 (theta 500000, x32 over 8192): they differ" in check.evidence
    same = judged(positions_context(pair=("gpt-oss-20b", "gpt-oss-120b")))[COMPARED]
    assert same.figures["same"] and same.evidence.endswith("the same")


def test_a_device_without_the_seam_is_inconclusive_with_what_to_add(positions_context):
    found = judged(positions_context())
    assert [check.verdict for check in found] == ["inconclusive"] * 4 + ["pass"]
    assert "add parity.seam.Rotary as package.module.rotate" in found[TARGET].evidence


def test_missing_published_configs_are_inconclusive(positions_context):
    one = positions_context(device.rotate)
    one.configs = None
    assert [check.verdict for check in judged(one)] == ["inconclusive"] * 3 + ["pass"] * 2


def test_a_device_that_does_not_offer_a_config_is_inconclusive(positions_context):
    def rotate(*_arguments):
        raise NotOffered("no llama3 here")

    assert [check.verdict for check in judged(positions_context(rotate))] == ["inconclusive"] * 4 + ["pass"]


@by_night
def test_the_command_passes_the_clean_device_at_every_position(shallow_golden, parity, tmp_path):
    found = tmp_path / "gates.json"
    ended = parity("gate", "--only", "positions", "--golden", shallow_golden.folder, "--json", found)
    assert ended.code == 0, ended.out
    assert ended.last.startswith("gates verdict: pass; not run: ")
    listed = json.loads(found.read_text())["results"][0]["checks"]
    assert len(listed) == 5
    for side in (TARGET, DRAFTER):
        first = listed[side]["figures"]["readings"][0]
        assert first["positions"] == 131072
        assert first["worst"] < 4e-7  # the device turns by float64 angles: six roundings, at any position


def test_the_command_says_what_a_device_lacks(shallow_golden, parity):
    name = "tests.faults.broken:breaks_in_draft"
    bare = parity("gate", "--only", "positions", "--golden", shallow_golden.folder, "--device", name)
    assert bare.code == 3
    assert "add parity.seam.Rotary as tests.faults.broken.rotate" in bare.out
