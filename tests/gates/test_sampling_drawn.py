"""The sampling gate over devices that draw by numbers of their own: outcomes are counted, nothing is replayed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.device.faults import CATALOGUE
from parity.errors import NotOffered
from parity.gates.sampling import drawn
from parity.gates.sampling import gate as sampling
from parity.gates.sampling.drawn import Often
from tests.gates import planted
from tests.gates.asked import Asked
from tests.sample import WHOLE, first

pytestmark = pytest.mark.usefixtures("few_samples")


def _own(pipeline, refused=lambda settings: None):
    """It looks at no table, and refuses some settings."""
    random, says = np.random.default_rng(7), replace(pipeline.describe(), own_numbers=True)
    sample, decide = pipeline.sample, pipeline.decide

    def sampled(settings, uniforms):
        refused(settings)
        sample(settings, random.random(uniforms.shape, np.float32))

    def decided(settings, *arrays):
        refused(settings)
        return decide(settings, *arrays[:-1], random.random(arrays[-1].shape, np.float32))

    pipeline.describe, pipeline.sample, pipeline.decide = lambda: says, sampled, decided


@pytest.fixture
def judged(shallow_golden, tmp_path, monkeypatch):
    """The gate's checks of a device with this defect that draws by numbers of its own, by name; by day of fewer
    draws."""
    if not WHOLE:
        monkeypatch.setattr(drawn, "DRAWN", 20_000)

    def run(plant=lambda pipeline: None, refused=lambda settings: None):
        def both(pipeline):
            plant(pipeline)
            _own(pipeline, refused)

        return Asked(planted.context_of(shallow_golden, tmp_path, both), "sampling")

    return run


def test_a_clean_device_passes_and_its_replay_is_not_judged(judged, monkeypatch):
    monkeypatch.setattr(sampling, "ROUNDS", 30)
    checks = judged()
    for rule in sampling.RULES:
        assert checks[f"rule alone, {rule}"].verdict == checks[f"distribution, {rule}"].verdict == "pass"
        assert checks[f"replay, {rule}, plain"].verdict == "not judged"
    assert checks["replay, in lanes"].verdict == "not judged" and checks["temperature 0"].verdict == "pass"


@pytest.mark.parametrize("name", first(["sample-q-ignored", "sample-replaced-from-p", "sample-ratio-inverted"]))
def test_a_wrong_rule_is_found_by_its_outcomes(name, judged):
    found = judged(CATALOGUE[name].plant)["rule alone, residual"]
    assert found.verdict == "fail" and found.figures["surprise"] > 10, found.evidence


def test_settings_that_it_does_not_have_are_named_and_the_rest_is_judged(judged, monkeypatch):
    monkeypatch.setattr(sampling, "ROUNDS", 5)

    def refused(settings):
        if settings is not None and (settings.min_p or settings.rule == "match"):
            raise NotOffered("no such thing")

    checks = judged(refused=refused)
    assert checks["rule alone, residual"].verdict == "pass"
    assert checks["rule alone, residual"].evidence.endswith("not asked: no such thing")
    assert checks["distribution, residual"].verdict == "pass"
    for name in ("rule alone, match", "replay, match, plain", "distribution, match"):
        assert checks[name].verdict == "not judged", checks[name]


def test_what_cannot_come_is_wrong_once_it_comes():
    assert Often((1,), 1e-4, 0.0, 10_000).surprise == Often((1,), 0.9999, 1.0, 10_000).surprise == float("inf")
    assert Often((1,), 0.0, 0.0, 10_000).surprise == Often((1,), 1.0, 1.0, 10_000).surprise == 0
    assert Often((1,), 0.5, 0.5, 100).surprise == 0 and Often((1,), 0.0, 0.5, 100).surprise > 1
    assert Often((1,), 0.512, 0.5, 50_000).surprise < 1 < Often((1,), 0.514, 0.5, 50_000).surprise
