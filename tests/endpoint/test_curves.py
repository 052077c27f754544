"""Acceptance curves: written so that others can read them, read with suspicion, compared by an interval."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from parity import curves
from parity.errors import UsageError
from parity.gates.acceptance_interval import TokenSums
from parity.golden.store import Dump

# The layout of InferenceX's files: comments, a block of metadata, one model, modes, values as numbers or text.
THEIRS = """# Acceptance Length (AL) reference values
_metadata:
  draft-model: org/drafter
tiny:
  thinking_on: {4: '2.4', 1: 1.4}
  thinking_off: {4: 1.5}
"""


@pytest.fixture
def theirs(tmp_path):
    path = tmp_path / "theirs.yaml"
    path.write_text(THEIRS)
    return path


def test_what_is_written_reads_as_a_curve_with_limits_and_rates_beside(shallow_golden, parity, tmp_path):
    out = tmp_path / "tiny.yaml"
    found = parity("curve", shallow_golden.folder, "--out", out, "--model", "tiny", "--mode", "thinking_on")
    assert found.code == 0 and "accepted by place" in found.out
    whole = yaml.safe_load(out.read_text())
    assert list(whole) == ["tiny"] and list(whole["tiny"]["thinking_on"]) == [4]  # their readers take one model alone
    line = next(line for line in out.read_text().splitlines() if line.startswith("# parity: "))
    ours = json.loads(line.removeprefix("# parity: "))
    drafts = [n for one in shallow_golden.manifest.case.prompts for n in one.generated.accepted_drafts]
    assert ours["mean"] == pytest.approx(1 + np.mean(drafts)) == pytest.approx(1 + sum(ours["rates"]))
    assert ours["low"] <= ours["mean"] <= ours["high"] and ours["rounds"] == len(drafts)
    assert curves.read_curve(out) == ("tiny", {"thinking_on": {4: round(ours["mean"], 2)}})
    assert parity("curve", shallow_golden.folder, "--out", out, "--model", "tiny").code == 2  # it is there


def test_a_curve_is_read(theirs):
    assert curves.read_curve(theirs) == ("tiny", {"thinking_on": {4: 2.4, 1: 1.4}, "thinking_off": {4: 1.5}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 models"),
        ("- 1", "0 models"),
        ("a: {m: {1: 1}}\nb: {m: {1: 1}}", "2 models"),
        ("a: []", "no modes"),
        ('{"id": "a", "text": "x"}', "id has no modes"),
        ("a: {m: 3}", "no modes"),
        ("a: {m: {}}", "no modes"),
        ("a: {m: {4: 5.1}}", "no acceptance length at K = 4"),
        ("a: {m: {4: 0.9}}", "no acceptance length"),
        ("a: {m: {4: .nan}}", "no acceptance length"),
        ("a: {m: {4: true}}", "no acceptance length"),
        ("a: {m: {'4': 2}}", "no number of drafts"),
        ("a: {m: {0: 1}}", "no number of drafts"),
        ("a: {m: {4: 2, 4: 3}}", "there twice"),
        ("a: &x {m: {4: 2}}\nb: *x", "an alias"),
        ("a: !!python/object/apply:os.system [true]", "cannot be read as YAML"),
        ("a: {m: {? [1, 2] : 3}}", "cannot be read as YAML"),
        ("[" * 200_000, "values within values"),
        ("\0", "cannot be read as YAML"),
        ("a" * 300_000, "is larger than"),
    ],
)
def test_what_is_no_curve_is_refused(tmp_path, text, said):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        curves.read_curve(path)
    assert said in str(raised.value)


def test_few_prompts_are_inconclusive_and_what_is_missing_is_said(theirs, shallow_golden, parity):
    found = parity("curve", shallow_golden.folder, "--against", theirs, "--mode", "thinking_on")
    assert found.code == 3 and "too few" in found.out and "curve verdict: inconclusive" in found.last
    assert "no mode else" in parity("curve", shallow_golden.folder, "--against", theirs, "--mode", "else").err
    theirs.write_text("tiny: {thinking_off: {3: 2.0}}")
    assert "no value of thinking_off at K = 4" in parity("curve", shallow_golden.folder, "--against", theirs).err
    assert "K = 4 already" in parity("curve", shallow_golden.folder, shallow_golden.folder).err


@pytest.mark.parametrize(("curve", "verdict"), [("2.4", "pass"), ("3.4", "fail")])
def test_a_loss_against_a_curve_is_judged_by_its_interval(theirs, shallow_golden, monkeypatch, curve, verdict):
    from dataclasses import replace

    theirs.write_text(THEIRS.replace("2.4", curve))
    made = curves.point(shallow_golden)
    monkeypatch.setattr(curves, "_sums", lambda dump: TokenSums(np.full(24, 48.0), np.full(24, 20.0)))
    monkeypatch.setattr(curves, "point", lambda dump: replace(made, rounds=480, prompts=24))
    report = curves.compare_curve([shallow_golden], theirs, "thinking_on")
    assert report.verdict == verdict and report.compared[0].relative == pytest.approx(2.4 / float(curve) - 1)


def test_synthetic_acceptance_is_no_point(shallow_golden):
    manifest = shallow_golden.manifest
    notes = {"speculative_config": "{'rejection_sample_method': 'synthetic', 'synthetic_acceptance_length': 3.5}"}
    forced = manifest.model_copy(update={"producer": manifest.producer.model_copy(update={"notes": notes})})
    with pytest.raises(UsageError, match="synthetic acceptance"):
        curves.point(Dump(shallow_golden.folder, forced))
