"""Gates over a device of which a part is shown: what cannot be seen is no failure, and what can be still is one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.builders import builder
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.seam import Shown
from tests.sample import by_night, first

VIEW = "numpy,show=layer-kernels"


@pytest.fixture
def gate(shallow_golden, tmp_path):
    """A gate's checks by the first words of their names."""

    def run(name, device=VIEW, wrap=lambda device: device):
        build = builder(device, shallow_golden)
        context = GateContext(
            shallow_golden, device, lambda **how: wrap(build(**how)), "float32", tmp_path, 1, rotate=build.rotary()
        )
        return {check.name.partition(",")[0]: check for check in run_gate(context, name).checks}

    return run


def test_which_token_a_hidden_is_paired_with_is_not_seen_without_the_ids(gate):
    pairs = gate("taps")["pairs (next token"]
    assert pairs.verdict == "inconclusive" and "does not show drafter.input_ids" in pairs.evidence


def test_taps_are_compared_with_the_streams_all_the_same(gate):
    checks = gate("taps", "parity.device.faults:tap_order,show=layer-kernels")
    assert next(iter(checks.values())).verdict == "fail"


def test_keys_are_no_witness_where_rows_cannot_be_made_the_same(gate):
    passes = gate("positions")["the passes of the golden's pair"]
    assert passes.verdict == "inconclusive" and "its rows cannot be made the same" in passes.evidence


class LastRow:
    """A device whose prefill computes the logits of the last row alone; verify's are `off` by so much."""

    def __init__(self, inside, off=0.0):
        self.inside, self.off = inside, off

    def describe(self):
        says = self.inside.describe()
        return replace(says, shown=(Shown("*"), Shown("target.logits", rows="last")))

    def __getattr__(self, name):
        return getattr(self.__dict__["inside"], name)

    def prefill(self, ids, budget, tap):
        def last(stage, value):
            if stage != "target.logits":
                return tap(stage, value) if stage != "target.tokens" else value
            return np.concatenate([value[:-1], tap(stage, value[-1:])])

        return self.inside.prefill(ids, budget, last)

    def verify(self, drafts, tap):
        def off(stage, value):
            return tap(stage, value + np.asarray(self.off, value.dtype) if stage == "verify.logits" else value)

        return self.inside.verify(drafts, off)


@pytest.mark.usefixtures("few_histories")
@pytest.mark.parametrize(("off", "verdict"), [(0.0, "pass"), (0.01, "fail")])
def test_the_last_row_of_each_prefill_is_what_verify_is_compared_with(off, verdict, gate):
    state = gate("rollback", "numpy", lambda device: LastRow(device, off))["as never speculated"]
    assert state.verdict == verdict and (verdict == "pass" or "verify.logits row" in state.evidence), state


def test_taps_of_layers_that_are_hidden_are_not_judged(gate):
    (check,) = gate("taps", "numpy,show=drafter.taps+logits").values()
    assert check.verdict == "not judged" and "does not show target." in check.evidence, check


@pytest.mark.usefixtures("few_histories")
@pytest.mark.parametrize("name", ["rollback", pytest.param("boundary", marks=by_night)])
def test_caches_that_are_declared_to_be_hidden_are_not_judged(name, shallow_golden, tmp_path):
    device = "numpy,show=layer-outputs"
    build = builder(device, shallow_golden)
    result = run_gate(GateContext(shallow_golden, device, build, "float32", tmp_path, 1, rotate=build.rotary()), name)
    assert result.verdict == "not judged", result
    assert "does not declare kv.target.0.k as shown" in result.checks[-1].evidence


@pytest.mark.parametrize(
    ("name", "fault", "says"),
    [
        ("rollback", "k_zero_skips_drafter", "drafter.logits row"),
        pytest.param("boundary", "commit_cache_short", "drafter.logits row", marks=by_night),
    ],
)
def test_what_breaks_where_caches_are_hidden_is_a_failure(name, fault, says, gate):
    checks = gate(name, f"parity.device.faults:{fault},show=layer-outputs").values()
    failing = [check for check in checks if check.verdict == "fail"]
    assert failing and all(says in check.evidence for check in failing), checks


class OnceARound:
    """A device that drafts once a round, and again only behind an error."""

    def __init__(self, inside):
        self.inside, self.drafted = inside, False

    def __getattr__(self, name):
        return getattr(self.__dict__["inside"], name)

    def prefill(self, *given):
        self.drafted = False
        return self.inside.prefill(*given)

    def draft(self, tap, *k):
        if self.drafted:
            raise RuntimeError("this round has its drafts")
        drafts = self.inside.draft(tap, *k)
        self.drafted = True
        return drafts

    def commit(self, *given):
        self.drafted = False
        return self.inside.commit(*given)


@pytest.mark.usefixtures("few_histories")
@pytest.mark.parametrize("view", first(["target.logits+verify.logits+kv.*", "logits+kv.*"]))
def test_a_verb_that_shows_no_stage_to_raise_at_is_called_once(view, gate):
    """Where its last stage, or every one, is hidden."""
    checks = gate("rollback", f"numpy,show={view}", OnceARound)
    assert not [check for check in checks.values() if check.verdict == "fail"], checks


LOOP = "docs.ports.fused_loop:load"


def test_choices_behind_a_token_that_a_loop_keeps_are_not_judged(gate):
    target = gate("decisions", LOOP)["target"]
    assert target.verdict == "not judged" and "target.tokens was not forced" in target.evidence, target


def test_a_loop_in_one_piece_is_not_failed_for_refusing_single_verbs(gate):
    (admission,) = gate("boundary", "numpy,loop=asynchronous").values()
    assert admission.verdict == "inconclusive" and "one piece" in admission.evidence, admission


def test_the_caches_of_a_loop_are_seen_on_demand_through_a_view_of_them(gate):
    """Its rounds show none: what is handed over on demand is no part of what is declared."""
    checks = gate("loops")
    assert {check.verdict for check in checks.values()} == {"pass"} and "the same caches" in checks, checks
    assert gate("loops", "numpy,show=tokens")["the same caches"].verdict == "not judged"


def test_a_loop_in_one_piece_cannot_be_asked_for_its_accept_rule(gate):
    cuts = next(check for name, check in gate("acceptance", LOOP).items() if name.startswith("cuts"))
    assert cuts.verdict == "not judged" and "no round of it can be made up" in cuts.evidence, cuts
