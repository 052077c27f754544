"""The worked examples of docs/ports.md: the right port passes, a planted bug fails where it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from docs.ports import fused, fused_device, fused_loop, torch_device, torch_port
from parity.api import compare_dumps, open_golden
from parity.builders import builder
from parity.drive import run_device
from parity.errors import UsageError
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.golden.store import Dump
from parity.golden.views import GoldenSlice
from parity.guard import guard
from parity.isolation import ProcessLimits
from parity.oracles import ReferenceRerun
from parity.run_request import RunRequest
from tests.sample import WHOLE, first


@pytest.fixture(scope="module")
def golden(small_golden):
    return one_prompt(open_golden(small_golden.folder))


def one_prompt(golden):
    """The whole text of the first prompt; by night of both."""
    case = golden.manifest.case
    rounds = len(case.prompts[0].generated.acceptance_length)
    return golden if WHOLE else GoldenSlice(golden, 0, rounds, case.max_new_tokens)


@pytest.fixture(scope="module")
def plain_golden(once_for_all, remake_small_golden):
    """Of the target from its equations: transformers' own cannot judge transformers'."""
    from parity.references import plain

    return one_prompt(open_golden(once_for_all("plain", lambda out: remake_small_golden(out, reference=plain))))


@pytest.fixture
def judge(golden, tmp_path):
    """A device of a factory, run and compared."""

    def judged(load, precision="float32", mode="chained", golden=golden):
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


FUSED = list(product([fused_device.load, fused_loop.load], ["chained", "local"], ["float32", "bfloat16"]))


@pytest.mark.parametrize(("load", "mode", "precision"), FUSED if WHOLE else [FUSED[0], FUSED[5]])
def test_the_fused_port_passes(load, mode, precision, judge):
    report = judge(load, precision, mode)
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


def test_a_bug_of_the_loop_itself_is_not_repaired_by_its_adapter(judge, small_golden, monkeypatch):
    """It shows where the budget ends amid a round, as in the second prompt."""
    golden = open_golden(small_golden.folder)

    def generate(self, ids, budget):
        emitted = [self.prefill(ids, budget)]
        while emitted[-1] not in self.eos and len(emitted) < budget:
            drafts = self.draft()
            emitted += self.accept(drafts, self.verify(drafts), budget)  # what is emitted already does not count
        return emitted

    monkeypatch.setattr(fused.Speculator, "generate", generate)
    assert judge(fused_device.load, golden=golden).verdict == "pass"  # verbs of its own have a loop of their own
    report = judge(fused_loop.load, golden=golden)
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


def test_a_loop_whose_host_sees_no_rejected_choice_owes_none(judge, monkeypatch):
    """The port accepts on the accelerator: what the target chose behind a rejected draft stays there."""
    says = fused_loop.FusedLoop.describe
    monkeypatch.setattr(fused_loop.FusedLoop, "describe", lambda self: replace(says(self), shown=fused_device.SHOWN))
    monkeypatch.setattr(fused_loop.Steps, "verify", unseen_verify)
    monkeypatch.setattr(fused_loop.Steps, "accept", unseen_accept)
    report = judge(fused_loop.load)
    assert report.verdict == "pass" and "verify.tokens" in report.not_shown


def unseen_verify(self, drafts):
    with self.watched.tap.during(self.watched.given, "round", head="verify"):
        return fused.Speculator.verify(self, drafts)


def unseen_accept(self, drafts, tokens, left):
    emitted = fused.Speculator.accept(self, drafts, tokens, left)
    with self.watched.tap.during(self.watched.given, "round"):
        self.watched.hand_over_caches()
    self.watched.on_round(drafts, emitted)
    return emitted


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


@pytest.mark.parametrize(("precision", "mode"), first([("bfloat16", "chained"), ("float32", "local")]))
def test_the_torch_port_passes(precision, mode, judge, plain_golden):
    report = judge(torch_device.load, precision, mode, plain_golden)
    assert report.verdict == "pass" and "target.layers.3.q" in report.not_shown
    assert {stage.stage for stage in report.stages} >= {"target.layers.3.attn_out", "drafter.fc_out", "kv.drafter.2.k"}


def test_transformers_cannot_be_judged_by_its_own_model(judge):
    with pytest.raises(UsageError, match="golden and device share source"):
        judge(torch_device.load)


def test_a_norm_that_the_torch_drafter_leaves_out_is_placed(judge, plain_golden, monkeypatch):
    original = torch_port.Layer.__init__

    def without(self, config, fusion):
        original(self, config, fusion)
        if fusion:
            self.hidden_norm.forward = lambda x: x

    monkeypatch.setattr(torch_port.Layer, "__init__", without)
    report = judge(torch_device.load, golden=plain_golden)
    assert report.verdict == "fail" and report.first.stage == "drafter.layers.0.attn_out"


def test_an_accept_rule_that_the_port_follows_ends_the_comparison_where_it_is_wrong(judge, monkeypatch):
    """The caches behind another number of tokens are of another sequence: one cause, no heap of findings."""
    accept = fused.Speculator.accept

    def one_fewer(self, drafts, tokens, left):
        return accept(self, drafts[:-1], tokens[:-1], left)

    monkeypatch.setattr(fused.Speculator, "accept", one_fewer)
    report = judge(fused_device.load)
    assert report.verdict == "fail" and report.first.stage == "accept.length"
    assert not [one for one in report.findings if one.kind != "generation"]
    assert any("from accept.length of round" in one for one in report.parted)
