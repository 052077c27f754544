"""The positions gate on a rotation alone: clean ones pass, each RoPE defect is red with its name in the evidence."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from parity import device
from parity.gates.context import GateContext
from parity.gates.positions import checks, not_refused
from parity.gates.rope import read_schedule
from parity.references import rotary
from tests.gates.positions import CONFIGS, LONG, REFUSED, SHORT, TARGET, judged
from tests.sample import WHOLE, first, sample


def target_check(context: GateContext):
    """The first check alone."""
    return next(checks(context))


def misreading(change):
    """A device that reads another config than the one it is given."""

    def rotate(folder, side, x, positions):
        config = json.loads((folder / "config.json").read_text())
        other = folder / "other"
        other.mkdir(exist_ok=True)
        (other / "config.json").write_text(json.dumps(change(config)))
        return device.rotate(other, side, x, positions)

    return rotate


def with_rope(config, **changes):
    """The config with changes to its RoPE, under the key it uses."""
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    return config | {key: config[key] | changes}


def falls_back_to_default(config):
    rope = config.get("rope_parameters") or config["rope_scaling"]
    theta = rope.get("rope_theta") or config.get("rope_theta")
    if rope.get("rope_type") == "llama3":
        return config
    rest = {key: value for key, value in config.items() if key not in ("rope_parameters", "rope_scaling")}
    return rest | {"rope_theta": theta}


def falls_back_to_llama3(config):
    rope = config.get("rope_parameters") or config["rope_scaling"]
    if rope.get("rope_type") != "yarn":
        return config
    numbers = {name: rope[name] for name in ("factor", "original_max_position_embeddings")}
    theta = rope.get("rope_theta") or config.get("rope_theta")
    rope = numbers | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": theta}
    return {key: value for key, value in config.items() if key != "rope_scaling"} | {"rope_parameters": rope}


def ignores_rope_scaling(config):
    return {key: value for key, value in config.items() if key != "rope_scaling"}


def no_concentration(config):
    return with_rope(config, attention_factor=1.0) if "yarn" in json.dumps(config) else config


def other_theta(config):
    key = "rope_parameters" if "rope_parameters" in config else None
    return config | ({key: config[key] | {"rope_theta": 10000.0}} if key else {"rope_theta": 10000.0})


def truncated(config):
    return with_rope(config, truncate=True) if "yarn" in json.dumps(config) else config


def interleaved(folder, side, x, positions):
    back = np.arange(x.shape[-1]).reshape(-1, 2).T.ravel()
    turned = device.rotate(folder, side, np.ascontiguousarray(x[..., back]), positions)
    return np.ascontiguousarray(turned[..., np.argsort(back)])


def length_not_position(folder, side, x, positions):
    return device.rotate(folder, side, x, np.arange(len(positions)))


def backwards(folder, side, x, positions):
    half = x.shape[-1] // 2
    swapped = np.roll(device.rotate(folder, side, np.roll(x, half, axis=-1), positions), half, axis=-1)
    return np.ascontiguousarray(swapped)


def short_table(rows, index):
    return lambda folder, side, x, positions: device.rotate(folder, side, x, index(positions, rows))


@pytest.mark.parametrize(
    ("rotate", "named"),
    sample(
        [
            (misreading(falls_back_to_default), "it is default (theta 150000)"),
            (misreading(falls_back_to_llama3), "it is llama3 (theta 150000, x32 over 4096)"),
            (misreading(ignores_rope_scaling), "it is default (theta"),
            (misreading(no_concentration), "it is without the concentration"),
            (misreading(other_theta), "(theta 10000"),
            (misreading(truncated), "it is yarn (theta 150000, x32 over 4096, truncated, concentration 1.3466)"),
            (interleaved, "it is the interleaved form where half-split is meant"),
            (length_not_position, "it is turned by the number of the row, not by the given position"),
            (backwards, "it is turned backwards"),
            (short_table(4096, np.mod), "it is positions wrapped at 4096"),
            (short_table(4095, np.minimum), "it is positions held at 4095"),
        ],
        lambda row: row[1],
    ),
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_a_wrong_rotation_is_red_and_named(rotate, named, positions_context, long_configs):
    check = target_check(positions_context(rotate, configs=long_configs))
    assert check.verdict == "fail"
    assert named in check.evidence


@pytest.mark.parametrize(("dtype", "named"), first([(ml_dtypes.bfloat16, "bfloat16"), (np.float16, "float16")]))
def test_a_table_of_few_bits_is_red_and_named(dtype, named, positions_context, long_configs, monkeypatch):
    exact = device.kernels.rope.tables

    def rounded(*arguments):
        return tuple(table.astype(dtype).astype(np.float32) for table in exact(*arguments))

    monkeypatch.setattr(device.kernels.rope, "tables", rounded)
    check = target_check(positions_context(device.rotate, configs=long_configs))
    assert check.verdict == "fail"
    assert f"it is a table of cos and sin in {named}" in check.evidence
    assert "positions, from 0 on" in check.evidence


def test_frequencies_of_few_bits_are_red_named_and_seen_to_grow_with_the_position(
    positions_context, long_configs, monkeypatch
):
    exact = device.kernels.rope.frequencies

    def rounded(*arguments):
        return exact(*arguments).astype(ml_dtypes.bfloat16).astype(np.float64)

    monkeypatch.setattr(device.kernels.rope, "frequencies", rounded)
    check = target_check(positions_context(device.rotate, configs=long_configs))
    assert check.verdict == "fail"
    assert "it is frequencies in bfloat16" in check.evidence


def test_one_wrong_position_of_one_pair_is_red(positions_context, long_configs):
    def rotate(folder, side, x, positions):
        turned = device.rotate(folder, side, x, positions).copy()
        turned[positions == 4345, 1, 7] += 1e-3
        return turned

    check = target_check(positions_context(rotate, configs=long_configs))
    assert check.verdict == "fail"
    assert "outside float32 at 1 of 5,120 positions, from 4,345 on" in check.evidence


@pytest.mark.parametrize(
    ("rotate", "why"),
    [
        (lambda folder, side, x, positions: np.full_like(x, np.nan), "it holds NaN or infinity"),
        (lambda folder, side, x, positions: x.astype(np.float64), "float64"),
        (lambda folder, side, x, positions: x[:, :1], "float32 [5117, 1, 64]"),
        (lambda folder, side, x, positions: [][1], "IndexError"),
    ],
    ids=["nan", "float64", "shape", "raises"],
)
def test_a_rotation_that_cannot_be_judged_fails(rotate, why, positions_context, long_configs):
    check = target_check(positions_context(rotate, configs=long_configs))
    assert check.verdict == "fail"
    assert why in check.evidence


@pytest.mark.parametrize(
    ("rotate", "taken"),
    [
        (misreading(falls_back_to_default), "target, rope_parameters: type 'nonsense'"),
        (misreading(ignores_rope_scaling), "target, rope_scaling: type 'nonsense'"),
        (
            lambda folder, side, x, at: device.rotate(folder, side, x, at.clip(max=SHORT - 1)),
            f"target: position {SHORT}",
        ),
        (lambda folder, side, x, at: device.rotate(folder, side, x, at % SHORT), f"target: position {SHORT}"),
        (lambda folder, side, x, at: device.rotate(folder, side, x, np.abs(at)), "target: position -1"),
        (lambda folder, side, x, at: [][1], "target, rope_parameters: a good config"),
    ],
    ids=["fallback", "key ignored", "clamps", "wraps", "negative", "refuses everything"],
)
def test_what_must_be_an_error_and_is_none_is_red_and_named(rotate, taken, positions_context):
    check = judged(positions_context(rotate))[REFUSED]
    assert check.verdict == "fail"
    assert taken in check.evidence


def test_the_references_pass_every_check_that_needs_no_pass(positions_context, long_configs):
    found = judged(positions_context(rotary.rotate, configs=CONFIGS if WHOLE else long_configs))
    assert [check.verdict for check in found] == ["pass", "pass", "inconclusive", "pass", "pass"]
    # Hugging Face turns by float32 angles: it is its own floor, and says so.
    target = found[TARGET].figures["readings"][0]
    assert target["positions"] == (131072 if WHOLE else LONG)
    assert 0.5 < target["worst"] / target["floor"] < 1.5
    assert target["halves"][1] > 1.5 * target["halves"][0]


def alone_one_off(folder, side, x, positions):
    """Right where many positions come at once; one row, as in decoding, turns a position too far."""
    return device.rotate(folder, side, x, positions + (len(positions) == 1))


def test_a_rotation_that_is_wrong_for_one_row_alone_is_red(positions_context, long_configs):
    check = judged(positions_context(alone_one_off, configs=long_configs))[TARGET]
    assert check.verdict == "fail", check
    assert (
        "outside float32 at 3 of" in check.evidence
        and "where one is asked alone, it is one position late" in check.evidence
    )


@pytest.mark.parametrize("spelled", ["speculators", "silent", "no head_dim"])
def test_the_refusals_are_tried_on_every_format_of_a_drafter(spelled, tiny, tmp_path):
    config = json.loads((tiny / "eagle3" / "config.json").read_text())
    if spelled == "silent":
        config = {key: value for key, value in config.items() if not key.startswith("rope")}
    elif spelled == "no head_dim":
        del config["head_dim"]
    else:
        outside = {key: config.pop(key) for key in ("draft_vocab_size", "norm_before_residual", "target_hidden_size")}
        config = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": config,
            **outside,
        }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for rotate in (device.rotate, rotary.rotate):
        wrong, tried = not_refused(rotate, tmp_path, "drafter")
        assert wrong == [] and tried > 10
    assert read_schedule(tmp_path)[0].theta == (10000.0 if spelled == "silent" else 30000.0)
