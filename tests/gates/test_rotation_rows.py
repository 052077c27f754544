"""Rotations by hand: what a schedule states, what a wrong rotation may be, and what is made of the readings of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from parity.errors import NotOffered
from parity.gates import positions_rotation, rope
from parity.gates.positions_rotation import EXPLAINED, RotationError, measured_theta, name_suspect
from parity.gates.rope import RopeSchedule, theta_beside

PLAIN = RopeSchedule("default", 10_000.0, 4, {})
NUMBERS = {"factor": 8.0, "original_max_position_embeddings": 64.0}
YARN = RopeSchedule("yarn", 10_000.0, 16, NUMBERS | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True})
LLAMA3 = RopeSchedule("llama3", 10_000.0, 16, NUMBERS | {"low_freq_factor": 1.0, "high_freq_factor": 4.0})


def test_a_schedule_is_told_by_its_numbers():
    assert str(PLAIN) == "default (theta 10000)"
    assert str(LLAMA3) == "llama3 (theta 10000, x8 over 64)"
    assert str(YARN) == "yarn (theta 10000, x8 over 64, truncated, concentration 1.2079)"
    plain = replace(YARN, parameters=YARN.parameters | {"truncate": False, "attention_factor": 1.0})
    assert str(plain) == "yarn (theta 10000, x8 over 64)"


@pytest.mark.parametrize(
    ("factor", "stated", "concentration"),
    [(1.5, None, 1.0405465), (0.5, None, 1.0), (8.0, None, 1.2079442), (8.0, 2, 2)],
)
def test_yarn_grows_by_a_tenth_of_the_factors_logarithm_or_as_it_states(factor, stated, concentration):
    more = {"factor": factor} | ({} if stated is None else {"attention_factor": stated})
    assert replace(YARN, parameters=YARN.parameters | more).concentration == pytest.approx(concentration)
    assert replace(YARN, kind="default", parameters={}).concentration == LLAMA3.concentration == 1


def test_the_ends_of_yarns_blend_stay_inside_the_head():
    """Its last pair with a turn lies at 25.6: it is held at 15; its first one at 1.6 is cut to 1."""
    numbers = {"factor": 8.0, "original_max_position_embeddings": 1e4, "beta_fast": 1000.0, "beta_slow": 1.0}
    wide = RopeSchedule("yarn", 10.0, 16, numbers | {"truncate": True})
    assert wide.blend()[2] == pytest.approx(np.clip((np.arange(8) - 1) / 14, 0, 1))
    low = replace(wide, parameters=wide.parameters | {"beta_fast": 1e4})
    assert low.blend()[2] == pytest.approx(np.arange(8) / 15)


@pytest.mark.parametrize(("context", "until"), [(500, 500), (629, np.inf), (314, 314), (628, 628), (4, 4)])
def test_pairs_that_do_not_go_round_within_the_context_count(context, until):
    """The slower of two turns by a hundredth a position: 628 positions are not quite a turn."""
    assert PLAIN.unscaled_until(context) == until


@pytest.mark.parametrize(
    ("config", "theta"),
    [
        ({"model_type": "llama"}, 10_000.0),
        ({"model_type": "llama", "rope_theta": None}, 10_000.0),
        ({"model_type": "llama", "rope_theta": 5e5}, 5e5),
        ({"model_type": "llama", "rope_scaling": {}}, None),
        ({"model_type": "llama", "rope_parameters": {}}, None),
        ({"model_type": "qwen3"}, None),
        ({"model_type": "qwen3", "rope_theta": 1e6}, 1e6),
        ({}, None),
    ],
)
def test_a_llama_config_without_a_word_of_rope_has_llamas_base(config, theta):
    assert theta_beside(config) == theta


def test_other_schedules_that_a_config_can_be_read_as():
    """Without its extension, as the other extension, its blend cut or not; and each with the base that was measured."""
    default = replace(YARN, kind="default", parameters={})
    as_llama3 = replace(
        YARN, kind="llama3", parameters={"low_freq_factor": 1.0, "high_freq_factor": 4.0} | YARN.parameters
    )
    uncut = replace(YARN, parameters=YARN.parameters | {"truncate": False})
    schedules = positions_rotation._schedules
    for theta in (None, 10_000.0):
        assert [*schedules(YARN, theta)] == [default, as_llama3, uncut]
        assert [*schedules(PLAIN, theta)] == [PLAIN]
    assert [*schedules(uncut, None)][-1] == YARN
    known = [*schedules(YARN, 500.0)]
    assert known[3:] == [replace(one, theta=500.0) for one in (YARN, default, as_llama3, uncut)]
    betas = {"beta_fast": 32.0, "beta_slow": 1.0}
    assert [*schedules(LLAMA3, None)] == [
        default,
        *(
            replace(LLAMA3, kind="yarn", parameters=LLAMA3.parameters | betas | {"truncate": cut})
            for cut in (True, False)
        ),
    ]


AT = np.array([0, 1, 5, 63, 64, 130, 70_000])


def suspects(schedule: RopeSchedule, at=AT) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = rope.unit_heads(np.random.default_rng(0), len(at), 2, schedule.head_dim)
    numbers = np.arange(len(at))[::-1]
    return dict(positions_rotation._suspects(schedule, None, x, at, numbers)), rope.pairs(x)


def turned(frequencies, at, z, scale: float) -> np.ndarray:
    return rope.dimensions(scale * np.exp(1j * np.outer(at, frequencies))[:, None] * z)


def test_a_suspect_is_rotated_as_its_name_says():
    found, z = suspects(YARN)
    own, scale = YARN.frequencies(), YARN.concentration
    plain = 10_000.0 ** (-np.arange(8) / 8)
    due = {
        "default (theta 10000)": turned(plain, AT, z, 1.0),
        "default (theta 10000), at concentration 1.2079": turned(plain, AT, z, scale),
        "without the concentration": turned(own, AT, z, 1.0),
        "linear (all positions divided by 8)": turned(plain / 8, AT, z, scale),
        "positions wrapped at 64": turned(own, [0, 1, 5, 63, 0, 2, 70_000 % 64], z, scale),
        "positions held at 63": turned(own, [0, 1, 5, 63, 63, 63, 63], z, scale),
        "turned by the number of the row, not by the given position": turned(own, [6, 5, 4, 3, 2, 1, 0], z, scale),
        "one position late": turned(own, AT + 1, z, scale),
        "turned backwards": turned(own, -AT, z, scale),
        "frequencies in bfloat16": turned(own.astype(ml_dtypes.bfloat16).astype(float), AT, z, scale),
        "frequencies in float16": turned(own.astype(np.float16).astype(float), AT, z, scale),
        "positions in bfloat16": turned(own, [0, 1, 5, 63, 64, 130, 70_144], z, scale),
        "positions in float16": turned(own, [0, 1, 5, 63, 64, 130, 0], z, scale),
    }
    for name, rotated in due.items():
        assert found.pop(name) == pytest.approx(rotated, abs=1e-9), name
    assert [*found] == [
        "llama3 (theta 10000, x8 over 64)", "llama3 (theta 10000, x8 over 64), at concentration 1.2079",
        "yarn (theta 10000, x8 over 64, concentration 1.2079)",
        "the interleaved form where half-split is meant",
        "a table of cos and sin in bfloat16", "a table of cos and sin in float16",
    ]  # fmt: skip
    table = scale * np.exp(1j * np.outer(AT, own))[:, None]
    for name, dtype in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        real, imag = (part.astype(dtype).astype(float) for part in (table.real, table.imag))
        assert found[f"a table of cos and sin in {name}"] == pytest.approx(
            rope.dimensions((real + 1j * imag) * z), abs=1e-12
        )


def test_what_has_no_extension_has_no_suspects_of_one():
    found, _ = suspects(PLAIN)
    assert [*found][:4] == [
        "default (theta 10000)", "turned by the number of the row, not by the given position", "one position late",
        "turned backwards",
    ]  # fmt: skip
    assert len(found) == 11 and "without the concentration" not in suspects(LLAMA3)[0]


def test_interleaved_pairs_lie_beside_each_other():
    x = np.arange(8.0).reshape(1, 2, 4)
    assert rope.interleaved_pairs(x).tolist() == [[[0 + 1j, 2 + 3j], [4 + 5j, 6 + 7j]]]
    assert rope.interleaved_dimensions(rope.interleaved_pairs(x)).tolist() == x.tolist()
    got = positions_rotation._interleaved(PLAIN, x, np.array([3]))
    z = rope.interleaved_pairs(x) * np.exp(3j * PLAIN.frequencies())
    assert got == pytest.approx(rope.interleaved_dimensions(z))


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (0.0999, "it is that"),
        (0.1001, "no defect known here; nearest is that, which leaves 10% of the error"),
        (0.6, "no defect known here; nearest is another, which leaves 50% of the error"),
    ],
)
def test_a_suspect_is_named_that_leaves_a_tenth_of_the_error(monkeypatch, left, said):
    x = rope.unit_heads(np.random.default_rng(0), 3, 1, 4)
    at = np.array([0, 1, 2])
    true = rope.dimensions(rope.rotate(PLAIN, x, at))
    off = np.ones_like(true)

    def suspected(schedule, theta, *of):
        yield "another", true + 0.5 * off
        yield "that", true + (1 - left) * off

    monkeypatch.setattr(positions_rotation, "_suspects", suspected)
    assert name_suspect(PLAIN, x, at, at, true + off) == said and EXPLAINED == 0.1
    bad = true.copy()
    bad[1, 0, 0] = np.nan
    assert name_suspect(PLAIN, x, at, at, bad) == "it holds NaN or infinity"


@pytest.mark.parametrize(("theta", "measured"), [(1.5, 1.5), (0.5, None), (2.5, 2.5), (1.0, None)])
def test_a_base_is_larger_than_one(theta, measured):
    at = np.array([1, 9])
    x = rope.unit_heads(np.random.default_rng(0), 2, 1, 8)
    turned_ = rope.dimensions(rope.rotate(RopeSchedule("default", theta, 8, {}), x, at))
    found = measured_theta(x, at, turned_)
    assert found == (measured if measured is None else pytest.approx(measured, rel=1e-4))


@pytest.mark.parametrize(
    ("wrong", "asked", "alone"),
    [
        ((2,), slice(None), False),
        ((6,), slice(None), False),
        ((7,), slice(-3, None), True),
        ((6, 9), slice(None), False),
    ],
)
def test_where_rows_asked_alone_are_wrong_they_alone_are_looked_at(monkeypatch, wrong, asked, alone):
    monkeypatch.setattr(positions_rotation, "ROWS", 4)
    given = []
    monkeypatch.setattr(positions_rotation, "name_suspect", lambda *of: given.append(of) or "it is that")
    at = np.arange(10)[::-1]
    x = rope.unit_heads(np.random.default_rng(0), 10, 1, 4)
    got = rope.rotate_float32(PLAIN, x, at)
    got[list(wrong)] += 0.5
    found = positions_rotation._judged("toy", PLAIN, x, at, got)
    ((schedule, some, places, numbers, seen),) = given
    rows = np.array([0, 1, 2, 3, 0, 1, 2, 0, 0, 0])
    assert schedule is PLAIN and (some == x[asked]).all() and (seen == got[asked]).all()
    assert places.tolist() == at[asked].tolist() and numbers.tolist() == rows[asked].tolist()
    first = f"outside float32 at {len(wrong)} of 10 positions, from {at[list(wrong)].min()} on; "
    assert found.wrong == f"{first}{'where one is asked alone, ' if alone else ''}it is that"


def test_what_a_rotation_raises_or_gives_is_told():
    x, at = np.ones((2, 1, 4), np.float32), np.array([3, 1234])

    def ask(rotate):
        return positions_rotation._ask(rotate, Path("/c"), "target", x, at)

    def raising(error):
        def rotate(*of):
            raise error

        return rotate

    with pytest.raises(RotationError, match=r"^rotate raised at positions up to 1,234: .*no such table"):
        ask(raising(KeyError("no such table")))
    with pytest.raises(NotOffered, match=r"^not here$"):
        ask(raising(NotOffered("not here")))
    for got, said in ((x[:1], r"float32 \[1, 1, 4\]"), (x.astype(np.float64), r"float64 \[2, 1, 4\]")):
        with pytest.raises(RotationError, match=rf"^rotate gave {said}, float32 \[2, 1, 4\] is expected$"):
            ask(lambda *of, got=got: got)

    def spoils(folder, side, x, positions):
        x += 1
        positions += 1
        return x

    assert (ask(spoils) == 2).all() and (x == 1).all() and at.tolist() == [3, 1234]
