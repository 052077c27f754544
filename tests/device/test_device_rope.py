"""RoPE frequencies against the published formulas, and what a config may say."""

import math
from pathlib import Path

import numpy as np
import pytest

from parity.device.engines import numpy_engine as engine
from parity.device.fields import Fields
from parity.device.kernels import rope
from parity.device.rope_config import RopeConfig, parse_rope
from parity.errors import UsageError

YARN_20B = {
    "rope_type": "yarn",
    "rope_theta": 150000,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def parse(**config):
    return parse_rope(Fields(Path("config.json"), config))


def yarn_by_the_formula(pair, dim, theta, factor, fast, slow, original, truncate):
    """One frequency, written from arXiv 2309.00071 without regard to the device."""
    frequency = theta ** (-2 * pair / dim)
    low = dim * math.log(original / (fast * 2 * math.pi)) / (2 * math.log(theta))
    high = dim * math.log(original / (slow * 2 * math.pi)) / (2 * math.log(theta))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = min(1, max(0, (pair - low) / (high - low)))
    return frequency / factor * ramp + frequency * (1 - ramp)


def llama3_by_the_formula(frequency, factor, low, high, original):
    wavelength = 2 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def test_20b_ramps_between_the_published_bounds_and_scales_by_the_published_magnitude():
    config = parse(rope_parameters=YARN_20B)
    assert rope.yarn_bounds(config, 32) == pytest.approx((8.0928, 17.3980), abs=1e-4)
    assert config.magnitude == pytest.approx(1.3465736, abs=1e-7)


@pytest.mark.parametrize("truncate", [False, True])
def test_yarn_frequencies_follow_the_formula(truncate):
    config = parse(rope_parameters=YARN_20B | {"truncate": truncate})
    expected = [yarn_by_the_formula(pair, 64, 150000, 32, 32, 1, 4096, truncate) for pair in range(32)]
    np.testing.assert_allclose(rope.frequencies(config, 64), expected, rtol=1e-12)


def test_llama3_frequencies_follow_the_formula():
    expected = [llama3_by_the_formula(500000.0 ** (-pair / 64), 8, 1, 4, 8192) for pair in range(64)]
    np.testing.assert_allclose(rope.frequencies(parse(rope_parameters=LLAMA3), 128), expected, rtol=1e-12)


def test_tables_are_float32_and_carry_the_magnitude_on_both_waves():
    config = RopeConfig("default", 100.0, magnitude=1.5)
    cos, sin = rope.tables(config, 4, 200)
    assert cos.dtype == sin.dtype == np.float32
    assert cos[199, 1] == np.float32(1.5 * math.cos(199 * 0.1))
    assert sin[199, 1] == np.float32(1.5 * math.sin(199 * 0.1))


def test_the_rotation_pairs_each_dimension_with_the_one_half_a_head_away():
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 6)).astype(np.float32)
    cos, sin = rope.tables(RopeConfig("default", 50.0), 6, 9)
    at = np.array([[8, 3]])
    turned = engine.host(rope.rotate(engine.array(x), engine.array(cos[at]), engine.array(sin[at])))
    for row, position in enumerate(at[0]):
        for pair in range(3):
            turn = np.exp(1j * position * 50.0 ** (-2 * pair / 6))
            expected = (x[0, row, :, pair] + 1j * x[0, row, :, pair + 3]) * turn
            np.testing.assert_allclose(turned[0, row, :, pair], expected.real, atol=1e-6)
            np.testing.assert_allclose(turned[0, row, :, pair + 3], expected.imag, atol=1e-6)


def test_both_spellings_of_a_config_mean_the_same():
    older = {key: value for key, value in YARN_20B.items() if key != "rope_theta"}
    assert parse(rope_theta=150000, rope_scaling=older) == parse(rope_parameters=YARN_20B)
    assert parse(rope_theta=150000, rope_scaling={"type": "yarn", **older}) == parse(rope_parameters=YARN_20B)
    assert parse(rope_theta=10000.0, rope_scaling=None) == RopeConfig("default", 10000.0)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"rope_parameters": YARN_20B | {"rope_type": "longrope"}}, "rope_type"),
        ({"rope_parameters": YARN_20B | {"mscale": 1.0}}, "mscale"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": None}}, "high_freq_factor"),
        ({"rope_parameters": YARN_20B, "rope_scaling": LLAMA3}, "rope_scaling"),
        ({"rope_parameters": YARN_20B, "rope_theta": 10000}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "default"}}, "rope_theta"),
        ({"rope_parameters": YARN_20B | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": YARN_20B | {"truncate": "no"}}, "truncate"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_field(config, field):
    with pytest.raises(UsageError, match=rf"^config\.json: field '[a-z_.]*{field}' .*\.$"):
        parse(**config)
