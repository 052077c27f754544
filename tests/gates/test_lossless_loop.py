"""The lossless gate of a loop in one piece: its free run, its own plain decoding, the golden's text."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from parity import device
from parity.gates.golden_tokens import GoldenTokens, TextResult
from parity.gates.lossless_loop import LoopTexts, speculation_check

SPECULATION, TEXT = "speculation = plain decoding, {}", "plain decoding = the golden's text, {}"


@pytest.fixture
def judged(gate_checks, shallow_golden):
    return partial(gate_checks, "lossless", golden=shallow_golden)


def test_the_asynchronous_loop_is_lossless_in_both_precisions(judged, shallow_golden):
    checks = judged("numpy,loop=asynchronous")
    for precision in ("float32", "bfloat16"):
        for name in (SPECULATION, TEXT):
            assert checks[name.format(precision)].verdict == "pass", checks
    assert checks["accept rule"].verdict == "not judged" and len(checks) == 5
    figures = checks[SPECULATION.format("float32")].figures
    tokens = 2 * shallow_golden.manifest.case.max_new_tokens
    assert (figures["same"], figures["tokens"]) == (2, tokens) and figures["accepted_drafts"] > 0


def test_a_loop_that_emits_other_tokens_than_its_plain_decoding_fails(judged):
    checks = judged("tests.gates.test_lossless_loop:lossy")
    found = checks[SPECULATION.format("float32")]
    assert found.verdict == "fail" and "prompt 0, token 4: " in found.evidence, found.evidence
    assert found.place.prompt == 0 and checks[TEXT.format("float32")].verdict == "pass"
    assert checks[SPECULATION.format("bfloat16")].verdict == "inconclusive"


def test_a_loop_that_is_wrong_with_and_without_drafts_does_not_emit_the_goldens_text(judged):
    checks = judged("tests.gates.test_lossless_loop:wrong_alike")
    assert checks[SPECULATION.format("float32")].verdict == "pass"
    found = checks[TEXT.format("float32")]
    assert found.verdict == "fail" and "the golden's " in found.evidence and found.place.prompt == 0


def test_plain_decoding_that_ends_early_is_no_evidence(judged):
    (check,) = judged("tests.gates.test_lossless_loop:early").values()
    assert check.verdict == "inconclusive" and "decode_plain" in check.evidence and "ends after 5" in check.evidence


def test_a_loop_without_plain_decoding_is_inconclusive(judged):
    (check,) = judged("tests.gates.test_lossless_loop:bare").values()
    assert check.verdict == "inconclusive" and "a loop of its own" in check.evidence


class Wrapped:
    """The asynchronous loop, each of its tokens changed by `change(place, token)`."""

    def __init__(self, inside, speculated=lambda n, t: t, plain=lambda n, t: t):
        self.inside, self.describe, self.change, self.plain = inside, inside.describe, speculated, plain

    def speculate(self, ids, budget, tap, on_round):
        said = []

        def over(drafts, emitted, tokens=None):
            fresh = [self.change(len(said) + place, token) for place, token in enumerate(emitted)]
            said.extend(fresh)
            on_round(drafts, fresh)

        self.inside.speculate(ids, budget, tap, over)
        return said

    def decode_plain(self, ids, budget):
        return [self.plain(place, token) for place, token in enumerate(self.inside.decode_plain(ids, budget))]


def _loop(target, drafter, k, precision):
    return device.load(target, drafter, k, precision, loop="asynchronous")


def fifth(place, token):
    return (token + 1) % 1280 if place == 4 else token


def lossy(target, drafter, k, precision="bfloat16"):
    return Wrapped(_loop(target, drafter, k, precision), speculated=fifth)


def wrong_alike(target, drafter, k, precision="bfloat16"):
    return Wrapped(_loop(target, drafter, k, precision), fifth, fifth)


def early(target, drafter, k, precision="bfloat16"):
    made = Wrapped(_loop(target, drafter, k, precision))
    clean = made.decode_plain
    made.decode_plain = lambda ids, budget: clean(ids, budget)[:5]
    return made


class _Bare:
    def __init__(self, inside):
        self.describe, self.speculate = inside.describe, inside.speculate


def bare(target, drafter, k, precision="bfloat16"):
    return _Bare(_loop(target, drafter, k, precision))


@pytest.mark.parametrize(("behind", "verdict"), [(9, "inconclusive"), (2, "pass")])
def test_a_tie_explains_nothing_behind_another_text(behind, verdict):
    """Both texts left the golden's at an earlier tie: its logits at the place where these part are of other tokens."""
    prompts = [SimpleNamespace(generated=SimpleNamespace(emitted=(1, 2, 3, 4, 5)))]
    golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))
    texts = LoopTexts({0: [1, behind, 3, 7, 5]}, {0: [1, behind, 3, 8, 5]}, accepted=3, parted={0: 3})
    tied = GoldenTokens(golden, "bfloat16")
    tied.beside = lambda texts: TextResult()
    assert speculation_check(texts, tied, "bfloat16").verdict == verdict
