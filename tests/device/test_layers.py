"""Target layers judged alone: what the whole device shows of them, faults in them, and what says no more than that."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity import device
from parity.api import compare_dumps, run_device
from parity.device import layerwise
from parity.device.weights import Reader
from parity.errors import NotOffered, UsageError
from parity.layers import Layers
from tests.sample import WHOLE


@pytest.mark.parametrize(
    ("name", "precision"),
    [("numpy", "bfloat16"), ("torch", "float32"), *([("xla", "bfloat16"), ("torch", "bfloat16")] if WHOLE else [])],
)
def test_a_layer_alone_shows_what_it_shows_in_the_whole_device(name, precision, small_golden, tmp_path):
    run = run_device(small_golden, name, "local", precision, out=tmp_path / "run", layers="3:5")
    whole = run_device(small_golden, name, "local", precision, out=tmp_path / "whole", stages=run.manifest.stages)
    layers = {name for name in small_golden.declared if name.startswith(("target.layers.3.", "target.layers.4."))}
    assert {*run.manifest.stages} == layers | {f"kv.target.{layer}.{part}" for layer in (3, 4) for part in "kv"}
    assert run.rows.keys() == whole.rows.keys() and run.rows
    for place in run.rows:
        assert np.array_equal(run.stored(*place), whole.stored(*place)), place
    report = compare_dumps(small_golden, run)
    assert report.verdict == "pass", report.first
    assert report.title.startswith("local verdict of target layers 3:5 alone: pass;")
    assert f"{report.outside} stages not judged (outside --layers)" in report.title and report.outside > 100


def window_one_wide(target, layer):
    target.windows = tuple(window and window + 1 for window in target.windows)


def sinks_dropped_in_rounds(target, layer):
    """Verify rows alone: the prompt has its sinks."""
    clean, sinks = target.layer, target.layers[0]["sinks"]

    def run(held, x, step, tap):
        target.layers[0]["sinks"] = (
            target.engine.array(np.full(sinks.shape, -1e30, np.float32)) if x.shape[1] < 8 else sinks
        )
        return clean(held, x, step, tap)

    target.layer = run


def last_expert_twice(target, layer):
    target.layers[0]["down"][-2:-1] = target.layers[0]["down"][-1:]


def next_layer(target, layer):
    weights = target.layers[0]
    weights["q"] = target.engine.array(0.0 * target.engine.host(weights["q"]).astype(np.float32), target.dtype)


@pytest.mark.parametrize(
    ("fault", "stage", "round_"),
    [
        (window_one_wide, "target.layers.4.attn_out", 0),
        (sinks_dropped_in_rounds, "target.layers.4.attn_out", 1),
        (last_expert_twice, "target.layers.4.ffn_out", 0),
        (next_layer, "target.layers.4.q", 0),
    ],
)
def test_a_fault_is_seen_in_its_layer(fault, stage, round_, small_golden, tmp_path, monkeypatch):
    opened = layerwise.LayeredTarget.open

    def planted(self, layer):
        opened(self, layer)
        fault(self._target, layer)

    monkeypatch.setattr(layerwise.LayeredTarget, "open", planted)
    run = run_device(small_golden, "numpy", "local", out=tmp_path / "run", layers="4:5")
    report = compare_dumps(small_golden, run)
    assert report.verdict == "fail" and (report.first.stage, report.first.round) == (stage, round_)


def test_one_layer_is_in_memory_at_a_time_and_nothing_else_is_read(tiny, monkeypatch):
    made = device.layered(tiny / "target-mxfp4", tiny / "drafter", 4)
    taken, take = [], Reader.take

    def seen(self, name, *shape, **options):
        assert not made._target.layers and not made._target.caches
        taken.append(name)
        return take(self, name, *shape, **options)

    monkeypatch.setattr(Reader, "take", seen)
    for layer in (3, 4):
        made.open(layer)
        assert taken and all(name.startswith(f"model.layers.{layer}.") for name in taken)
        taken.clear()


def test_what_says_nothing_of_the_whole_is_taken_for_it_nowhere(parity, small_golden):
    golden = small_golden.folder
    made = parity("diff", "--golden", golden, "--mode", "local", "--layers", "1:2")
    assert made.code == 0 and "local verdict of target layers 1:2 alone: pass" in made.last
    assert "no verdict on the device" in made.last
    run = next((parity.home / "runs").iterdir())
    assert parity("diff", run, "--golden", golden).last == made.last
    for refused in (
        ("gate", "--golden", golden, "--run", run, "--only", "stages"),
        ("diagnose", run, "--golden", golden),
        ("diff", run, "--golden", golden, "--against", "numpy"),
        ("report", run, "--golden", golden),
    ):
        ended = parity(*refused)
        assert ended.code == 2 and "holds target layers 1:2 alone" in ended.err, refused
    ended = parity("diff", run, "--golden", golden, "--layers", "1:3")
    assert ended.code == 2 and "--layers 1:3 contradicts" in ended.err


@pytest.mark.parametrize("layers", ["3", "3:3", "5:3", "0:9", "-1:2", "a:b", "1:2:3"])
def test_a_range_that_is_none_is_refused(layers):
    with pytest.raises(UsageError, match=r"^--layers .*: it takes A:B, layers A to B - 1 of the target's 0 to 7"):
        Layers.parse(layers, 8)


def test_what_layers_alone_cannot_be_is_refused(small_golden):
    with pytest.raises(UsageError, match="mode local"):
        run_device(small_golden, "numpy", "chained", layers="1:2")
    with pytest.raises(UsageError, match="--stage: none of these stages"):
        run_device(small_golden, "numpy", "local", layers="1:2", stages=["target.layers.3.*"])
    with pytest.raises(NotOffered, match="has no function layered"):
        run_device(small_golden, "parity.device.variants:plain", "local", layers="1:2")
    with pytest.raises(NotOffered, match="takes no tp"):
        run_device(small_golden, "numpy,tp=2", "local", layers="1:2")


def test_a_golden_that_lacks_what_enters_the_layers_is_refused(small_golden):
    stages = tuple(name for name in small_golden.manifest.stages if name != "target.layers.2.out")
    with pytest.raises(UsageError, match=r"lacks target\.layers\.2\.out, from which layers 3:4 are run"):
        Layers(3, 4).refuse_missing(replace_stages(small_golden, stages))


def replace_stages(golden, stages):
    """The golden as one that was dumped without some of its stages."""
    manifest = golden.manifest.model_copy(update={"stages": stages})
    return SimpleNamespace(folder=golden.folder, declared=golden.declared, manifest=manifest)
