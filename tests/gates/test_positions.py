"""The positions gate: clean devices pass it, and each planted RoPE defect is red with its name in the evidence."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from parity import device
from parity.errors import NotOffered
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.gates.positions import checks, not_refused
from parity.gates.positions_schedules import compared
from parity.gates.rope import read_schedule
from parity.references import rotary
from tests.sample import WHOLE

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
SHORT, LONG = 64, 5120
TARGET, DRAFTER, PASSES, REFUSED, COMPARED = range(5)


def shortened(folder: Path, count: int) -> Path:
    """The published parameters over fewer positions, so that a fault costs a moment."""
    for published in CONFIGS.iterdir():
        config = json.loads((published / "config.json").read_text()) | {"max_position_embeddings": count}
        (folder / published.name).mkdir()
        (folder / published.name / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    return shortened(tmp_path_factory.mktemp("short"), SHORT)


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> Path:
    return shortened(tmp_path_factory.mktemp("long"), LONG)


@pytest.fixture
def context(short, tiny, request, monkeypatch):
    """Makes a context of a rotation, or of a factory; the golden is as much of one as this gate reads."""
    if "long" in request.fixturenames:  # the first config shows the fault; the others only have to be read
        monkeypatch.setattr("parity.gates.positions.SPREAD", SHORT)

    def make(rotate=None, load=None, configs=short, pair=("gpt-oss-20b", "p-eagle-20b")) -> GateContext:
        target, drafter = (tiny / "target", tiny / "drafter") if load else (configs / name for name in pair)
        sides = {"target": SimpleNamespace(path=target), "drafter": SimpleNamespace(path=drafter)}
        model = SimpleNamespace(**sides, family="p-eagle")
        case = SimpleNamespace(k=4, prompts=[SimpleNamespace(ids=[1266, 300])])
        golden = SimpleNamespace(manifest=SimpleNamespace(model=model, case=case), folder=Path("golden"))

        def build(precision, **options):
            if load is None:
                raise NotOffered("no passes")
            return load(target=target, drafter=drafter, precision=precision, **options)

        return GateContext(
            golden, "package.module:factory", build, "bfloat16", Path("runs"), rotate=rotate, configs=configs
        )

    return make


def judged(context: GateContext) -> list:
    return list(run_gate(context, "positions").checks)


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
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_a_wrong_rotation_is_red_and_named(rotate, named, context, long):
    check = target_check(context(rotate, configs=long))
    assert check.verdict == "fail"
    assert named in check.evidence


@pytest.mark.parametrize(("dtype", "named"), [(ml_dtypes.bfloat16, "bfloat16"), (np.float16, "float16")])
def test_a_table_of_few_bits_is_red_and_named(dtype, named, context, long, monkeypatch):
    exact = device.kernels.rope.tables

    def rounded(*arguments):
        return tuple(table.astype(dtype).astype(np.float32) for table in exact(*arguments))

    monkeypatch.setattr(device.kernels.rope, "tables", rounded)
    check = target_check(context(device.rotate, configs=long))
    assert check.verdict == "fail"
    assert f"it is a table of cos and sin in {named}" in check.evidence
    assert "positions, from 0 on" in check.evidence


def test_frequencies_of_few_bits_are_red_named_and_seen_to_grow_with_the_position(context, long, monkeypatch):
    exact = device.kernels.rope.frequencies

    def rounded(*arguments):
        return exact(*arguments).astype(ml_dtypes.bfloat16).astype(np.float64)

    monkeypatch.setattr(device.kernels.rope, "frequencies", rounded)
    check = target_check(context(device.rotate, configs=long))
    assert check.verdict == "fail"
    assert "it is frequencies in bfloat16" in check.evidence


def test_one_wrong_position_of_one_pair_is_red(context, long):
    def rotate(folder, side, x, positions):
        turned = device.rotate(folder, side, x, positions).copy()
        turned[positions == 4345, 1, 7] += 1e-3
        return turned

    check = target_check(context(rotate, configs=long))
    assert check.verdict == "fail"
    assert "outside float32 at 1 of 5,120 positions, from 4,345 on" in check.evidence


@pytest.mark.parametrize(
    ("rotate", "why"),
    [
        (lambda folder, side, x, positions: np.full_like(x, np.nan), "it holds NaN or infinity"),
        (lambda folder, side, x, positions: x.astype(np.float64), "float64"),
        (lambda folder, side, x, positions: x[:, :1], "float32 [5120, 1, 64]"),
        (lambda folder, side, x, positions: [][1], "IndexError"),
    ],
    ids=["nan", "float64", "shape", "raises"],
)
def test_a_rotation_that_cannot_be_judged_fails(rotate, why, context, long):
    check = target_check(context(rotate, configs=long))
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
def test_what_must_be_an_error_and_is_none_is_red_and_named(rotate, taken, context):
    check = judged(context(rotate))[REFUSED]
    assert check.verdict == "fail"
    assert taken in check.evidence


def test_the_references_pass_every_check_that_needs_no_pass(context, long):
    found = judged(context(rotary.rotate, configs=CONFIGS if WHOLE else long))
    assert [check.verdict for check in found] == ["pass", "pass", "inconclusive", "pass", "pass"]
    # Hugging Face turns by float32 angles: it is its own floor, and says so.
    target = found[TARGET].figures["readings"][0]
    assert target["positions"] == (131072 if WHOLE else LONG)
    assert 0.5 < target["worst"] / target["floor"] < 1.5
    assert target["halves"][1] > 1.5 * target["halves"][0]


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


@pytest.mark.parametrize("side", ["target", "drafter"])
@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (by_row_number, r"first row 47\d \(in the rounds behind the prompt\), as if at position 0"),
        (wraps, r"first row 400 \(in prefill\), as if at position 0"),
        (plain_in_the_pass, "rows misturned"),
    ],
)
def test_a_pass_that_turns_rows_wrongly_is_red_where_it_starts(side, fault, named, context):
    found = judged(context(device.rotate, load=fault(side)))
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
def test_passes_that_cannot_be_seen_are_inconclusive(load, why, context):
    check = judged(context(device.rotate, load=load))[PASSES]
    assert check.verdict == "inconclusive"
    assert why in check.evidence


def test_the_schedules_of_a_pair_are_reported(context):
    check = judged(context())[COMPARED]
    assert (check.verdict, check.figures["same"]) == ("pass", False)
    assert "target yarn (theta 150000, x32 over 4096, concentration 1.3466)" in check.evidence
    assert "drafter llama3 (theta 500000, x32 over 8192): they differ" in check.evidence
    same = judged(context(pair=("gpt-oss-20b", "gpt-oss-120b")))[COMPARED]
    assert same.figures["same"] and same.evidence.endswith("the same")


def test_a_device_without_the_seam_is_inconclusive_with_what_to_add(context):
    found = judged(context())
    assert [check.verdict for check in found] == ["inconclusive"] * 4 + ["pass"]
    assert "add parity.seam.Rotary as package.module.rotate" in found[TARGET].evidence


def test_missing_published_configs_are_inconclusive(context):
    one = context(device.rotate)
    one.configs = None
    assert [check.verdict for check in judged(one)] == ["inconclusive"] * 3 + ["pass"] * 2


def test_a_device_that_does_not_offer_a_config_is_inconclusive(context):
    def rotate(*_arguments):
        raise NotOffered("no llama3 here")

    assert [check.verdict for check in judged(context(rotate))] == ["inconclusive"] * 4 + ["pass"]


def test_the_command_passes_the_clean_device_at_every_position(small_golden, parity, tmp_path):
    found = tmp_path / "gates.json"
    ended = parity("gate", "--only", "positions", "--golden", small_golden.folder, "--json", found)
    assert ended.code == 0, ended.out
    assert ended.last == "gates verdict: pass"
    listed = json.loads(found.read_text())["results"][0]["checks"]
    assert len(listed) == 5
    for side in (TARGET, DRAFTER):
        first = listed[side]["figures"]["readings"][0]
        assert first["positions"] == 131072
        assert first["worst"] < 4e-7  # the device turns by float64 angles: six roundings, at any position


def test_the_command_says_what_a_device_lacks(small_golden, parity):
    name = "tests.faults.broken:breaks_in_draft"
    bare = parity("gate", "--only", "positions", "--golden", small_golden.folder, "--device", name)
    assert bare.code == 3
    assert "add parity.seam.Rotary as tests.faults.broken.rotate" in bare.out
