"""Quantised caches: what references and device make of keys and values, and what a golden of them asks."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from parity import device
from parity.builders import builder
from parity.compare import compare
from parity.device.engines import numpy_engine, xla_engine
from parity.device.faults import CATALOGUE
from parity.device.faults.planting import during
from parity.device.kernels import quantised
from parity.drive import run_device
from parity.errors import NotOffered, UsageError
from parity.factories import Factory
from parity.fault_choice import choose_faults
from parity.faults import FaultRunRequest, compare_planted
from parity.fixtures.scaled import SHARD
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.grid import Grid
from parity.kv_cache import KVFormats
from parity.oracles import ReferenceRerun
from parity.policy import read_policy
from parity.references.kv_cache import Quantiser, read_scales
from parity.references.seam import load as load_references
from parity.run_request import RunRequest

FORMATS = {"fp8_e4m3": (3, -6, 448.0), "fp8_e5m2": (2, -14, 57344.0)}
"""Bits of the mantissa, the exponent of the smallest normal number, and the largest number."""


@pytest.fixture(scope="module")
def golden(quantised_golden):
    return trusted(quantised_golden)


@pytest.fixture(scope="module")
def run(golden, tmp_path_factory):
    made = builder("numpy", golden)(precision="float32")
    return Dump(run_device(RunRequest(made, golden, "chained", (), tmp_path_factory.mktemp("run") / "run", free=False)))


@pytest.mark.parametrize(
    ("text", "target", "drafter"),
    [
        ("", "", ""),
        ("fp8_e4m3", "fp8_e4m3", "fp8_e4m3"),
        ("target=fp8_e5m2", "fp8_e5m2", ""),
        ("target=fp8_e4m3,drafter=fp8_e5m2", "fp8_e4m3", "fp8_e5m2"),
    ],
)
def test_formats_are_read_as_they_are_written(text, target, drafter):
    made = KVFormats.parse(text)
    assert (made.target, made.drafter, str(made)) == (target, drafter, text)


@pytest.mark.parametrize("text", ["fp8", "int8", "fp8_e4m3 ", "drafter=fp8_e4m3,target=fp8_e4m3", "both=fp8_e4m3"])
def test_other_words_are_refused(text):
    with pytest.raises(UsageError, match="is due"):
        KVFormats.parse(text)


@pytest.mark.parametrize("load", [device.load, load_references])
@pytest.mark.parametrize(
    ("drafter", "asked", "why"),
    [
        ("n-gram", dict(kv_cache="fp8_e4m3"), "name the target's alone, target=fp8_e4m3"),
        ("dflash", dict(kv_cache="drafter=fp8_e4m3"), "a dflash drafter has no rows"),
        ("drafter", dict(kv_cache="fp8_e4m3", partial_kv="1+2+1x8"), "not with partial KV"),
    ],
)
def test_what_cannot_be_quantised_is_refused_by_both_sides(load, drafter, asked, why, tiny):
    with pytest.raises(UsageError, match=why):
        load(tiny / "target", tiny / drafter, 4, **asked)


def by_loops(x, kind):
    """The nearest number of a format in float64, of two the even one."""
    bits, least, largest = FORMATS[kind]
    size = abs(float(x))
    step = 2.0 ** (max(np.floor(np.log2(size)) if size else least, least) - bits)
    return float(np.copysign(min(np.round(size / step) * step, largest), x))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_number_is_kept_as_the_nearest_of_its_format(kind):
    random = np.random.default_rng(5)
    x = (random.standard_normal(4000) * np.exp2(random.uniform(-18, 18, 4000))).astype(np.float32)
    every = np.arange(256, dtype=np.uint8).view(quantised.FORMATS[kind]).astype(np.float32)
    every = np.unique(every[np.isfinite(every)])
    x = np.concatenate([x, every, (every[1:] + every[:-1]) / 2])  # ties, too
    due = np.array([by_loops(one, kind) for one in x])
    mine = Quantiser(kind, {"k": (1.0,)}).through("k", torch.tensor(x), 0).numpy()
    np.testing.assert_array_equal(mine, due)
    for engine in (numpy_engine, xla_engine.engine()):
        held = engine.zeros((1, len(x), 1, 1), quantised.FORMATS[kind])
        scale = engine.array(np.ones(1, np.float32))
        held[:, np.arange(len(x))] = quantised.scaled(engine.array(x.reshape(1, -1, 1, 1)), scale, kind)
        seen = engine.host(quantised.widened(held, scale, np.dtype(np.float32))).reshape(-1)
        np.testing.assert_array_equal(seen, due, engine.NAME)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_a_cache_cannot_hold_and_nobody_cut_off_is_no_number(kind):
    x = np.array([[[[1e6]]]], np.float32)
    for engine in (numpy_engine, xla_engine.engine()):
        held = engine.zeros(x.shape, quantised.FORMATS[kind])
        held[:, np.arange(1)] = engine.array(x)
        assert not np.isfinite(engine.host(held).astype(np.float32)).any(), engine.NAME


def test_scales_are_read_by_both_sides_under_both_names(golden, tmp_path):
    target = golden.manifest.model.target.path
    scales = read_scales(Path(target), 2)
    assert golden.manifest.case.kv_scales["target"] == scales and len({*scales["k"], *scales["v"]}) == 4
    made = device.load(target, golden.manifest.model.drafter.path, 4, kv_cache="fp8_e4m3")
    for layer, weights in enumerate(made.target.layers):
        for part in "kv":
            assert float(made.engine.host(weights[f"{part}_scale"])[0]) == scales[part][layer]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda held: held | {"model.layers.0.self_attn.k_scale": np.zeros(1, np.float32)}, "positive"),
        (
            lambda held: {name: x for name, x in held.items() if not name.endswith("0.self_attn.v_scale")},
            "v_scale|other",
        ),
        (
            lambda held: held | {"model.layers.0.self_attn.k_proj.k_scale": np.ones(1, np.float32)},
            "scales of the same|another name",
        ),
        (lambda held: held | {"model.layers.0.self_attn.k_scale": np.ones(4, np.float32)}, "one number|shape"),
    ],
    ids=["zero", "alone", "twice", "per head"],
)
@pytest.mark.parametrize("load", [device.load, load_references])
def test_scales_that_are_none_are_refused_by_both_sides(load, change, why, golden, tmp_path):
    target = copytree(golden.manifest.model.target.path, tmp_path / "target")
    save_file(change(load_file(target / SHARD)), target / SHARD)
    (target / "model.safetensors.index.json").unlink()
    names = {name: file.name for file in target.glob("*.safetensors") for name in load_file(file)}
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(UsageError, match=why):
        load(target, golden.manifest.model.drafter.path, 4, kv_cache="fp8_e4m3")


def test_scales_without_quantised_caches_are_not_read(golden, shallow_golden):
    model = golden.manifest.model
    made = device.load(model.target.path, model.drafter.path, 4)
    assert made.describe().kv_cache == "" and "k_scale" not in made.target.layers[0]


def test_a_golden_says_its_caches_and_shows_what_is_written_to_them(golden, shallow_golden):
    assert golden.manifest.case.kv_cache == "fp8_e4m3" and "drafter.layers.1.k" in golden.manifest.stages
    assert "drafter.layers.0.k" not in shallow_golden.manifest.stages
    scale = golden.manifest.case.kv_scales["target"]["k"][1]
    written, kept = (golden.contents("float32", 0, 0, name) for name in ("target.layers.1.k", "kv.target.1.k"))
    numbers = (kept / np.float32(scale)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_allclose(numbers * np.float32(scale), kept, rtol=1e-6)
    assert 0.005 < np.linalg.norm(kept - written) / np.linalg.norm(written) < 0.1


@pytest.mark.parametrize(("precision", "mode"), [("float32", "local"), ("bfloat16", "local"), ("bfloat16", "chained")])
def test_a_clean_device_passes(precision, mode, golden, tmp_path):
    made = builder("numpy", golden)(precision=precision)
    report = judged(golden, Dump(run_device(RunRequest(made, golden, mode, (), tmp_path / "run", free=False))))
    assert report.verdict == "pass", report.first_summary
    assert precision == "float32" or widest_row(report) == {"local": 3.0, "chained": 5.0}[mode]


def widest_row(report):
    """The largest bound of a row."""
    return max(stage.bounds["worst_row"][1] for stage in report.stages if "worst_row" in stage.bounds)


def test_a_clean_float32_run_passes_with_the_golden_s_side_of_ties(golden, run):
    report = judged(golden, run)
    assert report.verdict == "pass", report.first_summary
    assert run.manifest.case.settled == tuple(
        f"{side}.layers.{{l}}.{part}" for side in ("target", "drafter") for part in "kv"
    )


def test_a_float32_device_that_hides_what_it_writes_is_inconclusive_and_never_failed_for_a_tie(golden, tmp_path):
    made = builder("numpy,show=logits+kv.*", golden)(precision="float32")
    run = Dump(run_device(RunRequest(made, golden, "chained", (), tmp_path / "run", free=False)))
    assert run.manifest.case.settled == () and judged(golden, run).verdict in ("pass", "inconclusive")
    for weights in made.inside.inside.target.layers:
        weights["k_scale"] = weights["k_scale"] * 1.01
    run = Dump(run_device(RunRequest(made, golden, "chained", (), tmp_path / "wrong", free=False)))
    report = judged(golden, run)
    assert report.verdict == "fail" and {one.kind for one in report.findings} == {"off-grid"}


def judged(golden, run):
    return compare(golden, run, read_policy(None, run.manifest.case.precision))


def test_a_segment_that_hides_what_it_writes_is_bounded_as_a_chained_row_is(golden, tmp_path):
    made = builder("numpy,show=layer-outputs", golden)(precision="bfloat16")
    run = Dump(run_device(RunRequest(made, golden, "local", (), tmp_path / "run", free=False)))
    report = compare(golden, run, read_policy(None, "bfloat16"), rerun=ReferenceRerun())
    assert {stage.verdict for stage in report.stages} == {"pass"} and widest_row(report) == 5.0
    assert report.verdict == "inconclusive" and len(report.parted) == 2, "bounds so wide do not see another format"


@pytest.mark.parametrize(("precision", "mode"), [("bfloat16", "local"), ("float32", "chained")])
def test_a_device_that_multiplies_by_the_inverse_of_the_scale_is_clean(precision, mode, golden, tmp_path):
    made = builder("numpy", golden)(precision=precision)
    for module in ("target_layer", "drafter_layer"):
        during(made.inside, f"kernels.{module}:quantised", inverted)
    report = judged(golden, Dump(run_device(RunRequest(made, golden, mode, (), tmp_path / "run", free=False))))
    assert report.verdict == "pass", report.first_summary


def inverted(clean):
    """Caches whose kernels divide by multiplying."""

    def written(rows, weights, kind):
        wide = [one.astype(np.float32) * (1.0 / weights[f"{part}_scale"]) for part, one in zip("kv", rows, strict=True)]
        return [np.minimum(np.maximum(one, -448.0), 448.0) for one in wide]

    return SimpleNamespace(written=written, read=clean.read)


def test_a_value_that_dividing_may_tip_is_replaced_by_the_number_it_is_kept_as():
    grid = Grid("fp8_e4m3", 0.013)
    edge = np.float32(17.0 * 0.013)  # the middle of 16 and 18
    values = np.array([edge, np.nextafter(edge, 0, dtype=np.float32), 0.2, 16 * 0.013], np.float32)
    pinned = grid.pinned(values)
    assert (grid.nearest(pinned) == grid.nearest(values)).all() and (pinned[2:] == values[2:]).all()
    assert (np.abs(pinned[:2] - edge) > 0.01).all()


def test_a_device_with_other_caches_is_refused(golden, tmp_path):
    model = golden.manifest.model
    plain = device.load(model.target.path, model.drafter.path, 4)
    with pytest.raises(UsageError, match="has none as the format of its caches"):
        run_device(RunRequest(plain, golden, "chained", (), tmp_path / "run"))


def test_a_factory_that_takes_no_format_or_forgets_it_is_refused(tiny):
    factory = Factory("numpy", tiny / "target", tiny / "drafter", 4, kv_cache="fp8_e4m3")
    factory._make = lambda target, drafter, k, precision: None
    with pytest.raises(NotOffered, match="takes no kv_cache"):
        factory(precision="float32")
    factory._make = lambda kv_cache, **case: device.load(**case)
    with pytest.raises(UsageError, match="asked for kv_cache fp8_e4m3"):
        factory(precision="float32")
    with pytest.raises(UsageError, match="is no option"):
        Factory("numpy,kv_cache=fp8_e4m3", tiny / "target", tiny / "drafter", 4)


def test_runs_of_other_caches_are_not_compared(golden, run):
    other = Dump(run.folder)
    other.manifest = run.manifest.model_copy(
        update={"case": run.manifest.case.model_copy(update={"kv_cache": "fp8_e5m2", "settled": ()})}
    )
    with pytest.raises(UsageError, match="keeps its caches in fp8_e5m2"):
        judged(golden, other)


def test_ranks_and_lanes_keep_the_same_numbers(golden):
    model, ids = golden.manifest.model, golden.manifest.case.prompts[0].ids
    seen = []
    for options in ({}, {"tp": 2}, {"lanes": 2}):
        made = device.load(model.target.path, model.drafter.path, 4, "float32", kv_cache="fp8_e4m3", **options)
        first = made.lanes[1] if "lanes" in options else made
        seen.append(first.generate(ids, 6).tokens)
    assert seen[0] == seen[1] == seen[2]


def test_what_is_off_loaded_comes_back(golden):
    model, ids = golden.manifest.model, golden.manifest.case.prompts[0].ids
    made = device.load(model.target.path, model.drafter.path, 4, "float32", kv_cache="fp8_e4m3")
    made.prefill(ids, 8)
    made.save("one")
    drafts = made.draft().tolist()
    made.prefill(ids[:9], 8)
    made.restore("one")
    assert made.draft().tolist() == drafts
    assert made.target.off_load()[0][0][0][0].dtype == ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("name", ["kv-scale-k-for-v", "kv-drafter-unquantised", "kv-cut-off", "kv-not-saturated"])
def test_a_fault_is_killed_and_placed(name, golden):
    request = FaultRunRequest(golden, "numpy", builder("numpy", golden), rounds=1)
    seen = compare_planted(request, CATALOGUE[name], "local")
    assert seen.placed, seen


def test_faults_of_quantised_caches_go_with_a_golden_of_them():
    chosen = choose_faults(CATALOGUE, (), "p-eagle", kv_cache="fp8_e4m3")
    assert len(chosen) == 21 and all(fault.kv_cache for fault in chosen)
    assert not any(fault.kv_cache for fault in choose_faults(CATALOGUE, (), "p-eagle"))
    with pytest.raises(UsageError, match="the golden's are not"):
        choose_faults(CATALOGUE, ("kv-scale-lost",), "p-eagle")
