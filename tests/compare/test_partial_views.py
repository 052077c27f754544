"""A device that shows a part of its stages: what it declares is its contract, and the rest is judged through it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from parity.builders import builder, planted_faults
from parity.compare import compare, tipped
from parity.compare.between import DeviceDifference, compare_devices
from parity.compare.hidden_experts import HiddenExperts, spots
from parity.compare.rows import stage_rows
from parity.compare.scores import row_noise
from parity.drive import run_device as drive_device
from parity.errors import UsageError
from parity.golden.smaller import Smaller, smaller_golden
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice
from parity.guard import unguarded
from parity.oracles import ReferenceRerun
from parity.partly_shown import PartlyShown
from parity.policy import read_policy
from parity.run_request import RunRequest
from parity.seam import Shown
from parity.shown import VIEWS, View, check_declarations
from tests.sample import WHOLE

FLIPPED = 1
"""The prompt in which the clean device chooses other experts than the golden within noise, in chained bfloat16."""


@pytest.fixture(scope="module")
def rerun() -> ReferenceRerun:
    """Each run's once."""
    return ReferenceRerun()


@pytest.fixture(scope="module")
def golden(small_golden) -> GoldenSlice:
    """One prompt and two rounds."""
    return GoldenSlice(trusted(small_golden), FLIPPED, 2)


@pytest.fixture(scope="module")
def run_through(golden, tmp_path_factory):
    """A device's run through a view, once for all tests."""

    @cache
    def run(view, mode, precision, fault, declares):
        device = builder(f"numpy,show={view}", golden)(precision=precision)
        if fault:
            planted_faults()[0][fault].plant(unguarded(device))
        if declares is not None:
            declares(device.inside)
        out = tmp_path_factory.mktemp("view") / "run"
        return Dump(drive_device(RunRequest(device, golden, mode, (), out, free=False)))

    return run


@pytest.fixture
def seen(golden, rerun, run_through):
    """The report on a device through a view."""

    def judged(view, mode="chained", precision="bfloat16", fault="", declares=None, with_rerun=True):
        run = run_through(view, mode, precision, fault, declares)
        return compare(golden, run, read_policy(None, precision), rerun=rerun if with_rerun else None)

    return judged


@pytest.mark.parametrize(
    ("view", "mode"),
    [(view, mode) for view in VIEWS for mode in ("chained", "local")]
    if WHOLE
    else [("layer-kernels", "chained"), ("layer-outputs", "local"), ("tokens", "chained")],
)
def test_a_clean_device_passes_through_every_view(view, mode, seen):
    report = seen(view, mode)
    assert report.verdict == "pass", [result for result in report.stages if result.verdict != "pass"]
    assert not report.findings and len(report.stages) + len(report.not_shown) == 126


def test_choices_within_noise_are_inferred_and_counted(seen):
    report = seen("layer-kernels")
    assert report.own_experts.positions >= 3 and report.own_experts.differing <= report.own_experts.explained


@pytest.mark.parametrize(("view", "mode"), [("layer-kernels", "chained"), ("layer-kernels", "local")])
def test_without_the_reference_such_rows_are_inconclusive(view, mode, seen):
    assert seen(view, mode, with_rerun=False).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("view", "mode", "fault", "first"),
    [
        ("layer-kernels", "chained", "attn-window-one-narrow", "target.layers.0.out"),
        ("layer-outputs", "local", "load-mxfp4-scale", "target.layers.0.out"),
        ("layer-outputs", "chained", "tap-off-by-one", "drafter.layers.0.out"),
    ],
)
def test_a_fault_in_a_hidden_stage_fails_the_first_one_shown_behind_it(view, mode, fault, first, seen):
    report = seen(view, mode, fault=fault)
    assert (report.verdict, report.first.stage) == ("fail", first)


def test_a_defect_of_verify_rows_does_not_hide_a_router_tie_of_the_prefill(golden, monkeypatch):
    """Its many wrong rows, which no choice of experts mends, used up the patience of the search for such choices."""
    late, tied = (0, 1, 60), (0, 0, 14)
    bad = {"target.layers.3.out": [late], "target.layers.5.out": [tied]}
    search = object.__new__(HiddenExperts)
    search.truth, search.hidden = golden, range(8)
    search.shown = [golden.declared[name] for name in bad]
    monkeypatch.setattr(HiddenExperts, "_bad", lambda self, basis, named: bad[named.name])
    monkeypatch.setattr(HiddenExperts, "_untried", lambda self, basis, layers, spot: iter([spot]))
    assert {spot for _, spot in search.picks(golden)} == {late, tied}


@pytest.fixture
def blind(monkeypatch):
    """The search for experts gives up at once: any choice may have tipped."""
    monkeypatch.setattr("parity.compare.hidden_experts.PATIENCE", 0)


def returned(device: PartlyShown) -> None:
    """It shows what its verbs return, the prefill's last token alone."""
    device._shown = (Shown("verify.tokens"),)


def choosing(run: Dump, tokens) -> Dump:
    """The run with other tokens of its first verify round."""
    seen = Dump(run.folder, run.manifest)
    stored = seen.stored
    seen.stored = lambda *place: tokens if place[2:] == (1, "verify.tokens") else stored(*place)
    return seen


def runner_up(golden, far: bool) -> np.ndarray:
    """The golden's tokens, but in one row the second best by score: in the one where it is closest, or farthest."""
    logits = golden.contents("float32", 0, 1, "verify.logits").astype(np.float64)
    tokens = golden.contents("float32", 0, 1, "verify.tokens").copy()
    ordered = np.sort(logits, axis=1)
    row = int((ordered[:, -1] - ordered[:, -2]).argsort()[-1 if far else 0])
    tokens[row] = logits[row].argsort()[-2]
    return tokens


def test_a_token_that_no_close_choice_of_experts_explains_is_wrong(golden, run_through, rerun, blind):
    """The recorded bonus of a port that shows tokens alone was called inconclusive, however low its score is."""
    run = run_through("tokens", "chained", "bfloat16", "", returned)
    report = compare(
        golden, choosing(run, runner_up(golden, True)), read_policy(None, "bfloat16"), ["verify.tokens"], rerun=rerun
    )
    (result,) = report.stages
    assert (result.verdict, result.bad_rows) == ("fail", 1) and report.own_experts.lack


def test_a_token_that_tipped_experts_explain_stays_undecided(golden, run_through, rerun, blind, monkeypatch):
    run = choosing(run_through("tokens", "chained", "bfloat16", "", returned), runner_up(golden, True))
    changes = tipped.moved
    monkeypatch.setattr(
        tipped,
        "moved",
        lambda *asked: {name: dict.fromkeys(known, 1e3) for name, known in changes(*asked).items()},
    )
    report = compare(golden, run, read_policy(None, "bfloat16"), ["verify.tokens"], rerun=rerun)
    assert report.verdict == "inconclusive" and report.own_experts.lack


def test_tokens_of_a_reference_with_other_close_experts_are_never_wrong(golden, run_through, rerun, blind):
    """Some of the close choices, drawn by chance, move the scores less than what is granted for all of them."""
    run = run_through("tokens", "chained", "bfloat16", "", returned)
    search = HiddenExperts(golden, run, lambda seen, prompts: rerun(golden, seen, prompts, False))
    close = search.close(golden, [0], {})
    granted = tipped.moved(search, [0])
    assert len(close) > 20 and max(granted["verify.logits"].values()) > 0
    for seed in range(3):
        some = np.random.default_rng(seed).random(len(close)) < 0.3
        other = search.again(search.chosen_with([one for one, taken in zip(close, some, strict=True) if taken]))
        scores = stage_rows(golden, golden, golden.declared["verify.logits"], device="float32", mode="chained")
        tokens = stage_rows(golden, run, golden.declared["verify.tokens"])
        chosen = stage_rows(golden, other, golden.declared["verify.logits"], device="float32", mode="chained")
        tokens = replace(tokens, device=chosen.device.argmax(axis=1))
        assert not tipped.beyond(tokens, scores, granted).any()
        regret = np.abs(chosen.device - scores.golden).max(axis=1)
        allowed = 7 * np.hypot(row_noise(scores), [granted["verify.logits"][spot] for spot in spots(scores)])
        assert (regret < allowed).all()


def test_experts_are_not_inferred_from_sketches(golden, small_golden, run_through, rerun, tmp_path):
    """The sentence named the embeddings, and the golden twice."""
    small = trusted(Dump(smaller_golden(small_golden, tmp_path / "small", Smaller(16))), smaller=True)
    run = run_through("layer-kernels", "chained", "bfloat16", "", None)
    with pytest.raises(UsageError, match=r"does not show target\.layers\.\*\.experts.*show the experts") as refused:
        compare(GoldenSlice(small, FLIPPED, 2), run, read_policy(None, "bfloat16"), rerun=rerun)
    assert str(refused.value).count(str(small.folder)) == 1


def test_a_verdict_on_some_stages_is_none_on_the_device(golden, run_through, rerun):
    run = run_through("tokens", "chained", "bfloat16", "", None)
    some, whole = (
        compare(golden, run, read_policy(None, "bfloat16"), stages, rerun=rerun) for stages in (["verify.tokens"], [])
    )
    left = f"{some.unasked} stages not compared (outside --stage): no verdict on the device"
    assert some.title == f"chained verdict: pass; {left}" and whole.title == "chained verdict: pass"
    assert (some.unasked, whole.unasked) == (len(whole.stages) + len(whole.not_shown) - 1, 0)


def test_a_shown_stage_that_is_missing_fails(seen):
    def more(device: PartlyShown) -> None:
        device._shown = (*device._shown, Shown("drafter.slots"))

    report = seen("tokens", declares=more)
    assert report.verdict == "fail" and {finding.kind for finding in report.findings} == {"missing"}
    assert {finding.stage for finding in report.findings} == {"drafter.slots"}


def test_a_stage_that_is_handed_over_undeclared_is_refused(seen):
    def less(device: PartlyShown) -> None:
        device._shown = device._shown[1:]

    with pytest.raises(UsageError, match=r"hands over target\.embed in round 0, which it does not declare as shown"):
        seen("layer-kernels", declares=less)


def test_one_row_is_compared_with_the_goldens_last(seen):
    def last(device: PartlyShown) -> None:
        device._shown = (Shown("target.logits", rows="last"),)
        device._view = View((Shown("target.logits"),), device._view.declared)
        tapped = device.inside.prefill

        def prefill(ids, budget, tap):
            def one(stage, value):
                return np.concatenate([value[:-1], tap(stage, value[-1:])]) if stage == "target.logits" else value

            return tapped(ids, budget, one)

        device.prefill = prefill

    report = seen("target.logits", precision="float32", declares=last)
    rows = {result.stage: result.rows for result in report.stages}
    assert report.verdict == "pass" and rows["target.logits"] == 1


def unforced(device: PartlyShown) -> None:
    """Tensors of the device are only copied out."""
    says = device.describe
    device.describe = lambda: replace(says(), forcible=())


def test_behind_a_token_of_its_own_nothing_of_a_device_is_compared(seen):
    def beginning_otherwise(device: PartlyShown) -> None:
        prefilled = device.inside.prefill
        device.prefill = lambda ids, budget, tap: prefilled(ids, budget, lambda stage, value: value) + 1

    report = seen("verify.tokens", precision="float32", declares=beginning_otherwise)
    assert (report.verdict, report.first.stage) == ("fail", "target.tokens")
    assert len(report.parted) == 1 and "continues with tokens of its own" in report.parted[0]
    assert not [finding for finding in report.findings if finding.kind == "missing"]


def test_a_router_tie_in_rows_that_nothing_shows_is_no_failure_and_no_pass(seen):
    def ending_otherwise(device: PartlyShown) -> None:
        verified = device.inside.verify
        device.verify = lambda drafts, tap: verified(drafts, lambda stage, value: value) + 1

    report = seen("accept.length", declares=ending_otherwise)
    assert report.verdict in ("inconclusive", "fail") and "settles it" in " ".join(report.unseen)


def test_a_sequence_that_never_parts_is_compared_to_its_end(seen):
    report = seen("tokens", precision="float32", declares=unforced)
    assert report.verdict == "pass" and not report.parted


@pytest.mark.parametrize(("verb", "stage"), [("draft", "drafter.draft_tokens"), ("verify", "verify.tokens")])
def test_what_a_verb_returns_is_judged_though_the_tap_was_handed_something_else(verb, stage, golden, tmp_path):
    device = builder("numpy", golden)(precision="float32")
    called = getattr(device.inside, verb)

    def wrong(*arguments):
        ids = np.array(called(*arguments))
        ids[-1] = 5
        return ids

    setattr(device.inside, verb, wrong)
    run = Dump(drive_device(RunRequest(device, golden, "chained", (), tmp_path / "run", free=False)))
    report = compare(golden, run, read_policy(None, "float32"))
    assert report.verdict == "fail" and {result.stage for result in report.stages if result.verdict == "fail"} == {
        stage
    }


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("shown", "logits", "shown of type str"),
        ("shown", ("logits",), "as shown: it takes parity.seam.Shown"),
        ("shown", (Shown("logits", rows="first"),), "as shown: it takes"),
        ("forcible", None, "it takes globs"),
        ("forcible", ("x",), "no stage of this pair"),
        ("transactional", "no", "True or False"),
        ("name", "a\x1b[1m", "printable"),
    ],
)
def test_a_declaration_of_another_type_is_one_sentence(field, value, words, golden):
    says = replace(builder("numpy", golden)(precision="float32").describe(), **{field: value})
    with pytest.raises(UsageError, match=words):
        check_declarations(says, "mine")


def test_two_devices_that_show_no_number_in_common_are_not_equivalent(golden, tmp_path):
    runs = []
    for view in ("target.layers.*.out", "kv.*"):
        device = builder(f"numpy,show={view}", golden)(precision="float32")
        runs.append(Dump(drive_device(RunRequest(device, golden, "chained", (), tmp_path / view[:2], free=False))))
    report = compare_devices(golden, DeviceDifference(golden, *runs), read_policy(None, "float32"))
    assert report.verdict == "inconclusive" and "no numbers of the same stage" in report.parted[0]


def test_a_view_of_nothing_is_refused(golden):
    with pytest.raises(UsageError, match="names no stage"):
        builder("numpy,show=+", golden)(precision="float32")


@pytest.mark.parametrize("view", ["layer-kernels", "tokens"])
def test_a_view_of_a_loop_leaves_of_what_it_shows_and_says_no_more(golden, tmp_path, view):
    device = builder(f"numpy,loop=asynchronous,show={view}", golden)(precision="float32")
    run = Dump(drive_device(RunRequest(device, golden, "chained", (), tmp_path / "run", free=False)))
    left = View(run.manifest.case.shown, golden.declared)
    assert bool(left.rows("verify.tokens", 1)) == (view == "tokens")
    assert bool(left.rows("target.logits", 0)) == (view == "layer-kernels")
    assert left.rows("verify.logits", 1) is None
    assert compare(golden, run, read_policy(None, "float32")).verdict == "pass"


def test_what_a_port_shows_in_the_prefill_alone_is_forced_there_alone(golden, rerun, tmp_path):
    device = PartlyShown(builder("numpy", golden)(precision="bfloat16"), ("target.*", "verify.logits"))
    device._shown = (Shown("target.*", when="prefill"), Shown("verify.logits"))
    device._view = View(device._shown, golden.declared)
    run = Dump(drive_device(RunRequest(device, golden, "local", (), tmp_path / "run", free=False)))
    layer = "target.layers.1.out"
    assert run.follows(0, layer) and not run.follows(1, layer) and layer in run.followed
    assert run.follows(1, "drafter.draft_tokens")  # the golden's text, whatever is shown
    report = compare(golden, run, read_policy(None, "bfloat16"), rerun=rerun)
    (logits,) = (stage for stage in report.stages if stage.stage == "verify.logits")
    assert report.verdict == "pass" and 0.5 < logits.x["l2"] < 1.5, logits
