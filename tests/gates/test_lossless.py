"""The lossless gate: clean devices pass in either precision, each accept fault fails, and every explanation holds."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.choices import BUG, NOISE, TIE
from parity.decode import Decoded, accepted
from parity.device.faults import CATALOGUE
from parity.gates import lossless, run_gate
from parity.gates.context import NoiseFloors
from parity.gates.lossless import ROUTER, TWO_ULP, Divergence, classify_divergence
from parity.gates.lossless_golden_text import golden_text
from tests.gates import planted
from tests.gates.asked import Asked
from tests.sample import WHOLE


def verdicts(golden, tmp_path, plant=lambda device: None):
    return {check.name: check for check in run_gate(planted.context_of(golden, tmp_path, plant), "lossless").checks}


FLOAT32, BFLOAT16, RULE = (
    "speculation = plain decoding, float32",
    "speculation = plain decoding, bfloat16",
    "accept rule",
)
TEXT = {precision: f"plain decoding = the golden's text, {precision}" for precision in ("float32", "bfloat16")}


def test_a_clean_device_is_lossless_in_both_precisions_and_accepts_by_the_rule(shallow_golden, tmp_path):
    found = verdicts(shallow_golden, tmp_path)
    names = {FLOAT32, BFLOAT16, RULE, *TEXT.values()}
    assert {name: check.verdict for name, check in found.items()} == dict.fromkeys(names, "pass")
    figures, tokens = found[TEXT["float32"]].figures, 2 * shallow_golden.manifest.case.max_new_tokens
    assert (figures["tokens"], figures["same"], figures["others"]) == (tokens, tokens, {}) and figures["noise"] < 1
    assert found[TEXT["bfloat16"]].figures["noise"] < 1.5
    assert found[FLOAT32].figures["same"] == 2
    assert found[FLOAT32].figures["tokens"] == tokens
    assert found[FLOAT32].figures["accepted_drafts"] > 0
    # Of K = 4: no draft, and 16 patterns.
    assert found[RULE].figures["rounds"] == 17


def test_an_accept_fault_shows_in_the_text_and_names_the_round(shallow_golden, tmp_path):
    context = planted.context_of(shallow_golden, tmp_path, CATALOGUE["accept-one-late"].plant)
    found = lossless.equals_plain_decoding(context, NoiseFloors(shallow_golden), "float32")
    assert found.verdict == "fail", found.evidence
    assert "prompt " in found.evidence
    assert "round " in found.evidence


@pytest.mark.parametrize("precision", ["float32", "bfloat16"] if WHOLE else ["bfloat16"])
def test_a_verify_path_that_chooses_others_is_no_tie(precision, shallow_golden, tmp_path):
    context = planted.context_of(shallow_golden, tmp_path, _swap_in_wide_passes)
    found = lossless.equals_plain_decoding(context, NoiseFloors(shallow_golden), precision)
    assert found.verdict == "fail"
    assert found.figures["divergences"][BUG] > 0
    assert found.place is not None and (found.place.prompt, found.place.round) == (0, 1)
    # Led back to the plain text, the comparison went to its end.
    assert found.figures["lost"] == 0


def test_what_is_wrong_with_and_without_drafts_is_no_loss_but_not_the_goldens_text(two_layer_golden, tmp_path):
    golden = two_layer_golden
    context = planted.context_of(golden, tmp_path, planted.verify_rotated_one_too_far)
    found = Asked(context, "lossless")
    assert found[FLOAT32].verdict == "pass"
    failed = next(check for check in found.values() if check.verdict == "fail")
    assert failed.name == TEXT["float32"] and failed.place.stage == "verify.logits", failed


def test_the_first_step_that_is_another_counts_whichever_of_the_two_ids_is_larger():
    """Behind the first token the plain text has 7; speculation emits a smaller id and a larger one."""
    for emitted in (4, 9):
        toy = SimpleNamespace(
            describe=lambda: SimpleNamespace(eos=()),
            prefill=lambda ids, budget, tap: 5,
            draft=lambda tap: np.array([1]),
            verify=lambda drafts, tap, emitted=emitted: np.array([emitted, 6]),
            commit=lambda drafts, returned, tap, emitted=emitted: [emitted],
        )
        plain = Decoded((5, 7, 8), {"verify.logits": np.ones((2, 10), np.float32)})
        found = lossless._Alignment(toy, 0, (1, 2), 3, plain, None).run()
        assert (found.tokens, found.lost, found.rounds) == (1, 2, 1)


def _given(device, of: str, change):
    """The tap is given something else, or nothing, of a stage of logits; the device continues with its own."""
    for name in ("prefill", "verify"):
        verb = getattr(device, name)

        def call(one, tap, verb=verb):
            return verb(*one, lambda stage, x: _instead(change, x, tap) if stage == of else tap(stage, x))

        setattr(device, name, lambda *arguments, call=call: call(arguments[:-1], arguments[-1]))


def _instead(change, x, tap):
    if (other := change(x)) is not None:
        tap("target.logits", other)
    return x


def test_logits_that_were_not_shown_are_no_pass_and_those_of_prefill_are_looked_at(shallow_golden, tmp_path):
    silent = planted.context_of(
        shallow_golden, tmp_path, lambda device: _given(device, "verify.logits", lambda x: None)
    )
    found, tokens = golden_text(silent, "float32"), 2 * shallow_golden.manifest.case.max_new_tokens
    assert found.verdict == "inconclusive" and f"no verify.logits of {tokens - 2} tokens" in found.evidence, found
    louder = planted.context_of(
        shallow_golden, tmp_path, lambda device: _given(device, "target.logits", lambda x: x * np.float32(2))
    )
    found = golden_text(louder, "float32")
    assert found.verdict == "fail" and found.figures["same"] == tokens and found.place.stage == "target.logits", found


def test_a_device_deaf_to_the_tap_is_not_led_along_the_golden(shallow_golden, tmp_path):
    def wrong_and_deaf(device):
        planted.verify_rotated_one_too_far(device)
        planted.deaf(device)

    found = golden_text(planted.context_of(shallow_golden, tmp_path, wrong_and_deaf), "float32")
    assert found.verdict != "pass", found


def _swap_in_wide_passes(device):
    """Passes of several rows see one logit too large."""

    def change():
        right, name = device.target.outer["head"], "head"
        wrong = right.held.copy()
        wrong[:, 7] *= 40
        device.target.outer[name] = type(right)(wrong, right.dtype)
        return lambda: device.target.outer.__setitem__(name, right)

    planted._in_wide_passes(device, change)


def test_a_device_that_never_accepts_a_draft_was_not_tried(shallow_golden, tmp_path):
    def blind(device):
        draft = device.draft
        device.draft = lambda tap: draft(tap) * 0 + 3

    context = planted.context_of(shallow_golden, tmp_path, blind)
    found = lossless.equals_plain_decoding(context, NoiseFloors(shallow_golden), "float32")
    assert found.verdict == "inconclusive"
    assert "no draft was ever accepted" in found.evidence


def test_a_device_deaf_to_the_tap_leaves_the_rule_unchecked(shallow_golden, tmp_path):
    found = lossless.accepts_by_rule(planted.context_of(shallow_golden, tmp_path, planted.deaf))
    assert found.verdict == "inconclusive"


NAME = "target.layers.0.experts"


def divergence(gap: float, flip=None) -> tuple[Divergence, Decoded]:
    """A row whose best logit 17 leads by `gap`; one bfloat16 ULP there is 0.125."""
    scores = np.zeros(64, np.float32)
    scores[3], scores[5] = 17, 17 - gap
    router = np.array([[2.0, 1.0, 1.0 - 1e-6, -4.0]], np.float32)
    rows = {"target.layers.0.router_logits": router, NAME: np.array([[0, 1]])}
    return Divergence(0, 1, 1, 9, 3, 5, scores, flip), Decoded((1, 3), rows)


class Loud:
    """RMS noise of 0.1 in the logits, next to none in the router."""

    def rms(self, stage, scores):
        return np.full(len(scores), 0.1 if stage == "verify.logits" else 1e-9)


@pytest.mark.parametrize(
    ("gap", "flip", "verdict"),
    [
        (0.125, None, TIE),
        (0.126, None, TWO_ULP),
        (0.25, None, TWO_ULP),
        (0.69, None, NOISE),
        (0.71, None, BUG),
        (5.0, (NAME, 0, np.array([0, 2])), ROUTER),
        (5.0, (NAME, 0, np.array([0, 3])), BUG),
    ],
)
def test_a_divergence_is_explained_by_the_rows_own_scores(gap, flip, verdict):
    assert classify_divergence(*divergence(gap, flip), Loud()) == verdict


def test_a_plain_choice_far_below_the_best_is_a_bug_too():
    found, plain = divergence(5.0)
    assert classify_divergence(replace(found, mine=found.theirs, theirs=found.mine), plain, Loud()) == BUG


def test_in_float32_nothing_explains_a_divergence():
    assert classify_divergence(*divergence(0.0), None) == BUG


@pytest.mark.parametrize(
    ("drafts", "tokens", "left", "emitted"),
    [
        ([5, 6], [5, 6, 7], 9, [5, 6, 7]),
        ([5, 6], [5, 8, 7], 9, [5, 8]),
        ([5, 6], [4, 6, 7], 9, [4]),
        ([5, 6], [5, 6, 7], 2, [5, 6]),
        ([9, 6], [9, 6, 7], 9, [9]),
        ([5, 9], [5, 9, 7], 9, [5, 9]),
        ([], [7], 1, [7]),
    ],
)
def test_the_accept_rule(drafts, tokens, left, emitted):
    assert accepted(drafts, tokens, (9,), left) == emitted
