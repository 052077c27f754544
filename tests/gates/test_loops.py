"""The gate of two loops: a clean device passes, what goes wrong in flight fails, a device of one loop is not judged."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from parity import device
from parity.device.faults import CATALOGUE
from parity.gates.golden_tokens import GoldenTokens
from parity.isolation import ProcessLimits
from tests.sample import sample

RED = sorted(name for name, fault in CATALOGUE.items() if fault.gate == "loops")
ROUNDS, CACHES = "the same rounds, float32", "the same caches, float32"
TEXT = "the golden's text, float32"


@pytest.fixture
def judged(gate_checks):
    return partial(gate_checks, "loops")


@pytest.mark.parametrize("limits", [None, ProcessLimits()], ids=["here", "isolated"])
def test_a_clean_device_passes_in_both_precisions(limits, judged):
    checks = judged("numpy,loop=asynchronous", limits=limits)
    assert {check.verdict for check in checks.values()} == {"pass"} and len(checks) == 5
    assert checks[TEXT].figures["same"] == 2
    assert "bit for bit" in checks[CACHES].evidence and checks[ROUNDS].figures["rounds"] > 4


def test_there_are_faults_of_every_kind():
    assert len(RED) == 7 and all(CATALOGUE[name].loop == "asynchronous" for name in RED)


@pytest.mark.parametrize("name", sample(RED))
def test_what_goes_wrong_in_flight_fails(name, judged, small_golden):
    """In a pair whose drafts are accepted: a round that emits one token is the same late or early."""
    checks = judged(f"parity.device.faults:{name.replace('-', '_')}", golden=small_golden)
    assert checks[ROUNDS].verdict == "fail", checks[ROUNDS].evidence
    assert checks[ROUNDS].place.stage in ("drafter.draft_tokens", "accept.emitted")
    assert not CATALOGUE[name].same_text or checks[ROUNDS].place.stage == "drafter.draft_tokens"


def test_a_bit_in_a_cache_fails_where_no_token_shows_it(judged):
    checks = judged("tests.gates.test_loops:one_bit_off")
    assert checks[ROUNDS].verdict == "pass"
    assert checks[CACHES].verdict == "fail" and "kv.target.1.v" in checks[CACHES].evidence
    assert checks[CACHES].place.stage == "kv.target.1.v" and checks[CACHES].place.position == 3


def test_two_loops_that_are_wrong_alike_fail_by_the_goldens_text(judged):
    checks = judged("tests.gates.test_loops:alike")
    assert checks[ROUNDS].verdict == "pass", checks[ROUNDS].evidence
    assert checks[TEXT].verdict == "fail" and ", token 1: the golden's " in checks[TEXT].evidence
    assert checks[TEXT].place.stage == "verify.tokens"


def test_a_text_that_ends_too_early_is_not_the_goldens(shallow_golden):
    texts = [list(prompt.generated.emitted) for prompt in shallow_golden.manifest.case.prompts]
    whole, cut_short = (GoldenTokens(shallow_golden, "float32").beside({1: one}) for one in (texts[1], texts[1][:-1]))
    assert (whole.same, whole.place) == (1, None)
    assert cut_short.place is not None and cut_short.said.endswith("is its end here")


def test_a_device_of_one_loop_is_not_judged(gate_checks):
    (check,) = gate_checks("loops", "tests.gates.test_loops:one_loop").values()
    assert check.verdict == "not judged" and check.undeclared and "takes no loop" in check.evidence


def test_a_device_that_does_not_show_its_caches_is_judged_by_its_rounds(gate_checks):
    checks = gate_checks("loops", "tests.gates.test_loops:closed")
    assert checks[ROUNDS].verdict == "pass"
    assert checks[CACHES].verdict == "not judged" and "Inspectable" in checks[CACHES].evidence


def test_caches_that_a_view_hides_are_not_looked_at(judged):
    hidden = judged("numpy,show=layer-outputs")[CACHES]
    assert hidden.verdict == "not judged" and "shows no caches" in hidden.evidence
    assert judged("numpy,show=kv.target.*")[CACHES].figures["tensors"] == 2 * 5, "keys, values and length of two layers"


def test_a_loop_that_gives_other_tokens_every_time_says_nothing_of_the_other(gate_checks):
    checks = gate_checks("loops", "tests.gates.test_loops:restless")
    assert checks[ROUNDS].verdict == "inconclusive" and "again" in checks[ROUNDS].evidence


def test_a_loop_that_returns_other_tokens_than_its_rounds_emitted_fails(judged):
    rounds = judged("tests.gates.test_loops:short_of_one")[ROUNDS]
    assert rounds.verdict == "fail" and "it returns other tokens than those of its rounds" in rounds.evidence


def test_a_factory_that_ignores_the_loop_is_no_evidence_of_two(judged):
    (check,) = judged("tests.gates.test_loops:deaf").values()
    assert check.verdict == "inconclusive" and "describes itself alike" in check.evidence


def short_of_one(target, drafter, k, precision="bfloat16", loop: str = "synchronous"):
    """The asynchronous loop returns its text without the last token, and tells of it."""
    made = closed(target, drafter, k, precision, loop)
    if loop == "asynchronous":
        clean = made.speculate
        made.speculate = lambda *given: clean(*given)[:-1]
    return made


def alike(target, drafter, k, precision="bfloat16", loop: str = "synchronous"):
    """In every round both loops emit the next token of the vocabulary."""
    made = closed(target, drafter, k, precision, loop)
    if loop == "asynchronous":
        clean = made.speculate

        def speculate(ids, budget, tap, on_round):
            def over(drafts, emitted, tokens=None):
                on_round(drafts, [(one + bool(drafts)) % 1280 for one in emitted])

            emitted = clean(ids, budget, tap, over)
            return [emitted[0], *((one + 1) % 1280 for one in emitted[1:])]

        made.speculate = speculate
    else:
        inside, made.commit = made.commit, lambda drafts, chosen, tap: (inside(drafts, chosen, tap) + 1) % 1280
    return made


def deaf(target, drafter, k, precision="bfloat16", loop: str = "synchronous"):
    """A factory that takes the option and has one loop."""
    return device.load(target, drafter, k, precision)


def one_bit_off(target, drafter, k, precision="bfloat16", loop: str = "synchronous", chunk: int = 1):
    """The asynchronous loop leaves the last bit of one value of a committed row otherwise."""
    made = device.load(target, drafter, k, precision, loop=loop, chunk=chunk)
    if loop == "asynchronous":
        clean = made.show_caches

        def show_caches(tap):
            def wrong(stage, value):
                if stage == "kv.target.1.v":
                    value = value.copy()
                    bits = value.view(np.uint16 if precision == "bfloat16" else np.uint32)
                    bits[3, 0, 0] ^= 1
                return tap(stage, value)

            clean(wrong)

        made.show_caches = show_caches
    return made


def one_loop(target, drafter, k, precision="bfloat16"):
    """A factory without the option."""
    return device.load(target, drafter, k, precision)


class _Verbs:
    def __init__(self, inside):
        for name in ("describe", "prefill", "draft", "verify", "commit"):
            setattr(self, name, getattr(inside, name))


class _Loop:
    def __init__(self, inside):
        self.describe, self.speculate = inside.describe, inside.speculate


def closed(target, drafter, k, precision="bfloat16", loop: str = "synchronous"):
    """Two loops, no look at the caches, no option `chunk`."""
    made = device.load(target, drafter, k, precision, loop=loop)
    return _Loop(made) if loop == "asynchronous" else _Verbs(made)


def restless(target, drafter, k, precision="bfloat16", loop: str = "synchronous"):
    """The synchronous loop drafts otherwise every time it is run."""
    made = closed(target, drafter, k, precision, loop)
    if loop == "synchronous":
        clean, calls = made.draft, [0]

        def draft(tap):
            calls[0] += 1
            return (clean(tap) + calls[0]) % 100

        made.draft = draft
    return made
