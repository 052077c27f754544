"""Heads that are turned by position, read from rows alone: which pairs, by how much, and as at which positions."""

from __future__ import annotations

import numpy as np

from parity.diagnose.components.rotations import in_rotations
from tests.diagnose.made_up_rows import HEADS, ROWS, random, said, wrong


def rotated(x, turn, start=0.0):
    pairs = x[..., :16] + 1j * x[..., 16:]
    pairs = pairs * np.exp(1j * (np.arange(len(x))[:, None] * turn + start))[:, None]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def test_a_pair_that_turns_otherwise_is_said_and_by_how_much():
    golden = random(ROWS, HEADS, 32)
    turn = np.where(np.arange(16) == 5, 0.03, 0.0)
    found = said(in_rotations(wrong(golden, rotated(golden, turn), "target.layers.1.q")))
    assert found.startswith("dimensions 5, 21 of 32: rotation: pair 5 turned by +0.03 a position")


def test_rows_that_all_turn_by_one_angle_are_not_said_to_turn_by_position():
    golden = random(ROWS, HEADS, 32)
    found = said(in_rotations(wrong(golden, rotated(golden, 0.0, np.linspace(1.5, 0.1, 16)), "target.layers.1.q")))
    assert (
        found.startswith("rotation: 16 of 16 pairs, 0 the first, turned by +1.5 (radians)") and "positions" not in found
    )
    found = said(in_rotations(wrong(golden, rotated(golden, 0.0, np.linspace(1.0, 0.1, 16)), "target.layers.1.q")))
    assert (
        found.startswith("rotation: 16 of 16 pairs, 0 the first, turned by +1 (radians)") and "positions" not in found
    )
    for far in (-1, 2):
        angles = far * 10000.0 ** (-np.arange(16) / 16)
        found = said(in_rotations(wrong(golden, rotated(golden, 0.0, angles), "target.layers.1.q")))
        assert f"turned by {far:+d} (radians): as {far:+d} positions do" in found, found


def test_values_that_turn_as_keys_do_are_told_with_what_cos_and_sin_are_scaled_by():
    golden = random(ROWS, HEADS, 32)
    device = 1.2 * rotated(golden, 10000.0 ** (-np.arange(16) / 16))
    found = said(in_rotations(wrong(golden, device.astype(np.float32), "target.layers.1.v")))
    assert found.startswith("rotation: 16 of 16 pairs, 0 the first, turned by +1 a position (radians), 1.2 times")


def test_rows_that_turn_as_at_positions_of_their_own_are_told_by_how_far():
    golden, steps = random(ROWS, HEADS, 32), np.resize([-3, -1, -3, 2], ROWS)
    angles = steps[:, None] * 10000.0 ** (-np.arange(16) / 16)
    pairs = (golden[..., :16] + 1j * golden[..., 16:]) * np.exp(1j * angles)[:, None]
    device = np.concatenate([pairs.real, pairs.imag], axis=-1).astype(np.float32)
    found = said(in_rotations(wrong(golden, device, "kv.target.0.k")))
    half, quarter = ROWS // 2, ROWS // 4
    assert found.startswith(
        f"rotation: rows turned as at positions so far from theirs: -3 ({half} rows), -1 ({quarter} rows), "
        f"+2 ({quarter} rows)"
    )


def test_cos_and_sin_that_are_others_are_told_by_what_all_heads_share():
    """Sines of the pair behind: no rotation, and no pair's own factor."""
    golden = random(60, 4, 32)
    pairs = golden[..., :16] + 1j * golden[..., 16:]
    angles = np.arange(60)[:, None] * 0.7 ** np.arange(16)
    other = np.cos(angles) + 1j * np.roll(np.sin(angles), -1, axis=1)
    turned = pairs * (other / np.exp(1j * angles))[:, None]
    device = np.concatenate([turned.real, turned.imag], axis=-1).astype(np.float32)
    found = said(in_rotations(wrong(golden, device, "kv.drafter.0.k")))
    assert "rotation: cos and sin are others, alike in every head" in found
    assert said(in_rotations(wrong(golden, golden + random(*golden.shape, seed=5), "kv.drafter.0.k"))) == ""


def test_a_bias_before_the_rotation_is_told_from_any_other_error():
    golden, frequencies = random(ROWS, HEADS, 32), np.linspace(0.9, 0.01, 16)
    added = rotated(np.broadcast_to(random(HEADS, 32, seed=4), golden.shape), frequencies)
    assert "before it is rotated: a bias" in said(in_rotations(wrong(golden, golden + added, "target.layers.1.k")))
    assert said(in_rotations(wrong(golden, golden + random(*golden.shape, seed=5), "target.layers.1.k"))) == ""
