"""The RoPE oracle by its own properties, by published figures, and against transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from parity.errors import UsageError
from parity.gates import rope
from parity.gates.positions import STYLES, restyled, unknown
from parity.gates.rope import RopeSchedule, read_schedule

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
NAMES = ("gpt-oss-20b", "gpt-oss-120b", "p-eagle-20b", "p-eagle-120b")
FAR = np.array([0, 1, 127, 4095, 4096, 65535, 131071])


@pytest.fixture(params=NAMES)
def config(request) -> dict:
    return json.loads((CONFIGS / request.param / "config.json").read_text())


@pytest.fixture(params=["gpt-oss-20b", "p-eagle-20b"])
def schedule(request) -> RopeSchedule:
    return read_schedule(CONFIGS / request.param)[0]


def read(config: dict, folder: Path) -> RopeSchedule:
    (folder / "config.json").write_text(json.dumps(config))
    return read_schedule(folder)[0]


def heads(schedule: RopeSchedule, rows: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, 3, schedule.head_dim))


def test_lengths_are_kept_up_to_the_concentration(schedule):
    x = heads(schedule, len(FAR))
    turned = rope.dimensions(rope.rotate(schedule, x, FAR))
    longer = np.linalg.norm(turned, axis=-1) / np.linalg.norm(x, axis=-1)
    np.testing.assert_allclose(longer, schedule.concentration, rtol=1e-14)


def test_unit_heads_are_of_length_1_in_every_direction():
    drawn = rope.pairs(rope.unit_heads(np.random.default_rng(1), 100, 2, 8))
    np.testing.assert_allclose(np.abs(drawn), 1, rtol=1e-6)
    assert abs(drawn.mean()) < 0.1 and abs((drawn**2).mean()) < 0.1


def test_position_0_is_the_concentration_alone(schedule):
    x = heads(schedule, 1)
    turned = rope.dimensions(rope.rotate(schedule, x, np.array([0])))
    np.testing.assert_array_equal(turned, schedule.concentration * x)


def test_a_score_depends_on_the_distance_alone(schedule):
    q, k = heads(schedule, 2)

    def score(at: int) -> np.ndarray:
        query, key = (rope.rotate(schedule, one[None], np.array([p])) for one, p in ((q, at + 37), (k, at)))
        return (query * key.conj()).real.sum(axis=-1)[0]

    # Angles of 1e5 rad carry 1e-11 in float64.
    np.testing.assert_allclose(score(131000), score(0), atol=1e-8)
    assert np.abs(score(0) - np.einsum("nd,nd->n", q, k) * schedule.concentration**2).min() > 1e-3


def test_interleaved_and_half_split_are_one_rotation_under_the_permutation(schedule):
    x = heads(schedule, len(FAR))
    order = np.arange(schedule.head_dim).reshape(2, -1).T.ravel()  # `x[..., order]` is interleaved
    half_split = rope.dimensions(rope.rotate(schedule, x, FAR))
    turn = schedule.concentration * rope.turn(schedule.frequencies(), FAR)[:, None]
    interleaved = rope.interleaved_dimensions(turn * rope.interleaved_pairs(x[..., order]))
    np.testing.assert_array_equal(interleaved, half_split[..., order])
    assert not np.allclose(rope.interleaved_dimensions(turn * rope.interleaved_pairs(x)), half_split)


def test_gpt_oss_has_the_published_concentration_and_ramp():
    schedule = read_schedule(CONFIGS / "gpt-oss-20b")[0]
    plain, slow, share = schedule.blend()
    assert schedule.concentration == pytest.approx(1.3465736, abs=1e-7)
    # The ramp runs from 8.0928 to 17.3980 of 32.
    np.testing.assert_allclose(share, np.clip((np.arange(32) - 8.0928) / (17.3980 - 8.0928), 0, 1), atol=1e-4)
    # By turns in the original context, where nothing is truncated: linear in their logarithm, from 32 down to 1.
    turns = 4096 * plain / (2 * math.pi)
    np.testing.assert_allclose(share, np.clip(1 - np.log(turns) / math.log(32), 0, 1), atol=1e-12)
    np.testing.assert_allclose(plain / slow, 32)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("original", [64, 4096, 40])
def test_yarn_is_that_of_transformers(truncate, original, tmp_path):
    rope = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": original, "truncate": truncate}
    check_against_transformers(rope | {"rope_theta": 150000.0}, tmp_path)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_is_that_of_transformers(factor, tmp_path):
    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    check_against_transformers(rope | {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}, tmp_path)


def check_against_transformers(rope: dict, folder: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = dict(hidden_size=512, num_attention_heads=8, head_dim=64, max_position_embeddings=131072)
    schedule = read(config | {"rope_parameters": rope}, folder)
    theirs, concentration = ROPE_INIT_FUNCTIONS[rope["rope_type"]](LlamaConfig(rope_parameters=dict(rope), **config))
    # Theirs is float32; its blend loses a few bits where two far frequencies mix.
    np.testing.assert_allclose(schedule.frequencies(), theirs.numpy(), rtol=2e-6)
    assert schedule.concentration == pytest.approx(concentration, rel=1e-12)


def test_every_spelling_reads_the_same(config, tmp_path):
    spelt = [read(restyled(config, style), tmp_path) for style in STYLES]
    old = {**config["rope_scaling"], "type": config["rope_scaling"]["rope_type"]}
    del old["rope_type"]
    spelt.append(read(config | {"rope_scaling": old}, tmp_path))
    assert spelt == [read(config, tmp_path)] * 3


@pytest.mark.parametrize("style", STYLES)
def test_the_oracle_knows_no_wrong_config_either(config, style, tmp_path):
    wrong = dict(unknown(config, style))
    assert len(wrong) >= 8
    for what, one in wrong.items():
        with pytest.raises(UsageError, match=r"config\.json"):
            pytest.fail(f"{what}: {read(one, tmp_path)}")


@pytest.mark.parametrize("kind", ["default", "llama3", "yarn"])
@pytest.mark.parametrize("seed", range(4))
def test_float32_stays_within_its_bound_and_uses_it(kind, seed):
    rng = np.random.default_rng(seed)
    parameters = {"factor": rng.uniform(2, 64), "original_max_position_embeddings": 2 ** int(rng.integers(6, 15))}
    parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}
    parameters["truncate"] = bool(seed % 2)
    schedule = RopeSchedule(kind, rng.uniform(1e4, 1e6), int(rng.choice([32, 64, 128])), parameters)
    positions = np.unique(rng.integers(0, 131072, 2048))
    x = rope.unit_heads(rng, len(positions), 1, schedule.head_dim)
    true = rope.rotate(schedule, x, positions)
    error = rope.error(schedule, rope.rotate_float32(schedule, x, positions), x, true).max(axis=1)
    share = (error / rope.bound(schedule, positions)).max()
    assert 0.1 < share < 1
