"""The worked examples of docs/ports.md: the right port passes, a planted bug fails where it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docs.ports import fused, fused_device, fused_loop
from parity.api import compare_dumps, open_golden
from parity.drive import RunRequest, run_device
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.golden.store import Dump
from parity.guard import guard
from parity.isolation import ProcessLimits
from parity.producers import ReferenceRerun, builder


@pytest.fixture(scope="module")
def golden(small_golden):
    return open_golden(small_golden.folder)


@pytest.fixture
def judge(golden, tmp_path):
    """A device of a factory, run and compared."""

    def judged(load, precision="float32", mode="chained"):
        pair = golden.manifest.model
        device = load(Path(pair.target.path), Path(pair.drafter.path), golden.manifest.case.k, precision)
        run = run_device(
            RunRequest(
                guard(device, "port"),
                golden,
                mode,
                (),
                tmp_path / f"{load.__module__}-{mode}",
                device_name="docs.ports.x:load",
            )
        )
        return compare_dumps(golden, Dump(run), rerun=ReferenceRerun())

    return judged


@pytest.mark.parametrize("mode", ["chained", "local"])
@pytest.mark.parametrize("load", [fused_device.load, fused_loop.load])
def test_the_fused_port_passes_in_float32(load, mode, judge):
    report = judge(load, mode=mode)
    assert report.verdict == "pass" and "target.layers.3.attn_out" in report.not_shown
    assert {stage.stage for stage in report.stages} >= {"target.layers.3.out", "drafter.taps", "verify.tokens"}


@pytest.mark.parametrize("load", [fused_device.load, fused_loop.load])
def test_taps_one_layer_late_are_seen_at_the_taps(load, judge, monkeypatch):
    original = fused.Speculator.__init__

    def late(self, *args):
        original(self, *args)
        self.taps = [tap + 1 for tap in self.taps]

    monkeypatch.setattr(fused.Speculator, "__init__", late)
    report = judge(load)
    assert report.verdict == "fail" and report.first.stage == "drafter.taps"
    assert not [finding for finding in report.findings if finding.kind == "generation"]  # the text is right


def test_a_bug_of_the_loop_itself_is_not_repaired_by_its_adapter(judge, monkeypatch):
    def generate(self, ids, budget):
        emitted = [self.prefill(ids)]
        while emitted[-1] not in self.eos and len(emitted) < budget:
            drafts = self.draft()
            emitted += self.accept(drafts, self.verify(drafts), budget)  # what is emitted already does not count
        return emitted

    monkeypatch.setattr(fused.Speculator, "generate", generate)
    assert judge(fused_device.load).verdict == "pass"  # verbs of its own have a loop of their own
    report = judge(fused_loop.load)
    assert report.verdict == "fail" and report.first.stage == "accept.length"


def test_a_loop_that_takes_another_token_is_compared_up_to_there(judge, monkeypatch):
    """Nothing of it is forced: what comes behind is of another sequence."""
    original, rounds = fused.Speculator.draft, []

    def draft(self):
        rounds.append(original(self))
        return rounds[-1] if len(rounds) != 2 else np.roll(rounds[-1], 1)

    says = fused_loop.FusedLoop.describe
    monkeypatch.setattr(fused_loop.FusedLoop, "describe", lambda self: replace(says(self), forcible=()))
    monkeypatch.setattr(fused.Speculator, "draft", draft)
    report = judge(fused_loop.load)
    assert report.verdict == "fail" and (report.first.stage, report.first.round) == ("drafter.draft_tokens", 2)
    assert len(report.parted) == 1 and "from drafter.draft_tokens of round 2 on" in report.parted[0]
    assert not [finding for finding in report.findings if finding.kind == "missing"]
    assert {stage.stage: stage.verdict for stage in report.stages}["verify.logits"] == "pass"


def test_a_loop_in_a_process_of_its_own_gives_the_same_bits(golden, tmp_path):
    runs = []
    for limits in (None, ProcessLimits()):
        device = builder("docs.ports.fused_loop:load", golden, limits)(precision="float32")
        out = tmp_path / str(limits is None)
        runs.append(Dump(run_device(RunRequest(device, golden, "chained", (), out))).manifest)
    assert [row.sha256 for row in runs[0].tensors] == [row.sha256 for row in runs[1].tensors]
    assert runs[0].case.prompts == runs[1].case.prompts


def test_gates_that_need_single_verbs_say_so_in_a_sentence(golden, tmp_path):
    name = "docs.ports.fused_loop:load"
    context = GateContext(golden, name, builder(name, golden), "float32", tmp_path, 1)
    (check,) = run_gate(context, "rollback").checks
    assert check.verdict == "inconclusive" and "runs a loop of its own" in check.evidence
