"""What a device declares to show: how it is read, what it leaves of a view, and what of it is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.api import run_device
from parity.compare import compare
from parity.compare.exercised import unseen_passes
from parity.compare.hidden_experts import reach, swaps
from parity.compare.places import judged_inputs, segment, shows_first_in
from parity.compare.rebased import WithTensors
from parity.errors import UsageError
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.golden.views import PromptSlice
from parity.policy import read_policy
from parity.seam import Shown
from parity.shown import RETURNED, View, narrowed, with_returned
from parity.stages import declared

NAMES = declared(3, 1)


def test_a_declaration_is_a_glob_with_rounds_and_rows():
    view = View((Shown("target.logits", rows="last"), Shown("target.layers.*.out", when="prefill")), NAMES)
    assert (view.rows("target.logits", 0), view.rows("target.logits", 1)) == ("last", None)
    assert (view.rows("target.layers.2.out", 0), view.rows("target.layers.2.out", 3)) == ("all", None)
    assert not view.shows("drafter.taps") and not view.whole("target.layers.2.out")


def test_what_verbs_return_is_shown_whatever_is_declared():
    view = View(with_returned((Shown("logits"),), NAMES), NAMES)
    assert (view.rows("target.tokens", 0), view.rows("verify.tokens", 1)) == ("last", "all")
    assert View(with_returned((), NAMES), NAMES).whole("target.tokens")


@pytest.mark.parametrize("shown", [Shown("no.such.stage"), Shown("kv.*", rows="last")])
def test_a_declaration_that_cannot_be_kept_is_refused(shown):
    with pytest.raises(UsageError, match="as shown"):
        View((shown,), NAMES)


def test_an_error_shows_first_in_the_next_shown_stage():
    shown = ["target.layers.1.out", "target.logits", *RETURNED]
    hidden = ["target.layers.0.q", "target.layers.1.ffn_out", "target.layers.2.out", "drafter.slots"]
    assert [*shows_first_in(hidden, NAMES, shown).values()] == [*shown[:1] * 2, shown[1], "drafter.draft_tokens"]
    assert judged_inputs("drafter.fc_out", NAMES, {"drafter.fc_out"}) == []  # nor is it computed from itself
    assert shows_first_in(["accept.length"], NAMES, ["target.embed"]) == {"accept.length": ""}
    assert segment(shown[0], NAMES, {*shown, "target.layers.0.out"})[1:3] == [
        "target.layers.1.attn_out",
        "target.layers.1.ffn_out",
    ]


def test_only_close_choices_are_candidates():
    scores = np.array([3.0, 2.0, 1.9, 0.0])
    assert swaps(scores, (0, 1), 0.5) == [((0, 2), pytest.approx(0.1))]
    assert swaps(scores, (0, 2), 0.5)[0] == ((0, 1), pytest.approx(-0.1))
    assert not swaps(scores, (0, 1), 0.05)


@pytest.mark.parametrize(
    ("stage", "layers"),
    [
        ("target.embed", 0),
        ("target.layers.1.attn_out", 1),
        ("target.layers.1.ffn_out", 2),
        ("target.layers.1.out", 2),
        ("verify.logits", 3),
        ("drafter.layers.0.attn_out", 3),
    ],
)
def test_a_stage_rests_on_the_experts_of_the_layers_below_it(stage, layers):
    model = SimpleNamespace(manifest=SimpleNamespace(model=SimpleNamespace(num_layers=3)))
    assert reach(NAMES[stage], model) == layers


def test_a_view_of_a_device_is_an_option_of_its_name(small_golden, tmp_path):
    run = run_device(small_golden, "numpy,show=logits+tokens", "chained", out=tmp_path / "run", free=False)
    assert [shown.stages for shown in run.manifest.case.shown][:2] == ["logits", "tokens"]
    assert "target.layers.{l}.experts" not in run.manifest.case.forced and "target.tokens" in run.manifest.case.forced


def test_what_is_recorded_and_not_declared_is_a_finding(small_golden, tmp_path):
    run = run_device(small_golden, "numpy,show=target.embed+logits", "chained", out=tmp_path / "run", free=False)
    case = run.manifest.case.model_copy(update={"shown": run.manifest.case.shown[1:]})
    run.manifest = run.manifest.model_copy(update={"case": case})
    report = compare(trusted(small_golden), run, read_policy(None, "bfloat16"))
    assert report.verdict == "fail"
    assert {(finding.kind, finding.stage) for finding in report.findings} == {("surplus", "target.embed")}


def test_a_stage_that_never_occurs_there_is_refused():
    with pytest.raises(UsageError, match="it never occurs there"):
        View((Shown("verify.logits", when="prefill"),), NAMES)


def test_a_run_with_inferred_experts_is_cut_to_a_prompt_with_them(small_golden):
    place = "bfloat16", 0, 0, "target.layers.0.experts"
    run = Dump(small_golden.folder)
    del run.rows[place], run.parts[place]
    inferred = small_golden.stored("float32", *place[1:]) + 1
    cut = PromptSlice(WithTensors(run, trusted(small_golden), {place: inferred}), 0, 1)
    assert np.array_equal(cut.stored(*place), inferred) and np.array_equal(cut.shards(*place)[0], inferred)


def test_what_is_shown_in_the_prefill_alone_is_said():
    shown = [Shown("target.layers.*.out", when="prefill"), Shown("target.logits")]
    run = SimpleNamespace(declared=NAMES, view=View(with_returned(shown, NAMES), NAMES))
    run.sides = (run,)
    said = "target.layers.*.out in rounds: this run shows them in the prefill alone"
    assert list(unseen_passes(run, list(NAMES))) == [said] and not list(unseen_passes(run, ["target.logits"]))


def test_a_view_of_a_port_is_of_what_the_port_declares():
    own = (Shown("target.layers.*.out", when="prefill"), Shown("target.logits", rows="last"))
    assert narrowed((), ("logits", "kv.*"), NAMES) == (Shown("logits"), Shown("kv.*"))
    left = View(narrowed(own, ("target.*.out", "*logits", "kv.*"), NAMES), NAMES)
    assert (left.rows("target.layers.1.out", 0), left.rows("target.layers.1.out", 1)) == ("all", None)
    assert left.rows("target.logits", 0) == "last" and not left.shows("kv.target.layers.0.k")
    assert narrowed(own, ("target.layers.*.out",), NAMES) == own[:1]  # one declaration of all layers
    assert narrowed(own, ("target.layers.1.out",), NAMES) == (Shown("target.layers.1.out", when="prefill"),)
    with pytest.raises(UsageError, match="shows none of these stages"):
        narrowed(own, ("kv.*",), NAMES)
