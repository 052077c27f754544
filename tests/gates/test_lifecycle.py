"""The gate of lifecycles: clean devices pass at every cut, what continuing leaves out fails in the check that asks."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from parity import device
from parity.batching import perform
from parity.device.batch import Batch
from parity.device.faults import CATALOGUE
from parity.errors import UsageError
from parity.families import FAMILIES
from parity.gates.gate import Check
from parity.gates.lifecycle import LANES, SEVERAL
from parity.gates.lifecycle_cases import Lives
from parity.isolation import ProcessLimits
from parity.rounds import free_rounds, untapped
from tests.sample import WHOLE, by_night, first, sample

RED = {
    "life-hit-drafter-unwritten": "prefix hit",
    "life-caches-ahead": "resumed after a stop",
    "life-positions-from-zero": "after an abort",
    "life-restore-caches-left": "off-loaded and restored",
    "life-restore-taps-left": "off-loaded and restored",
    "life-chunk-blind": "prefill in chunks",
    "life-hit-page-of-neighbour": "prefix hit, in lanes",
    "life-restore-taps-of-neighbour": "off-loaded and restored, in lanes",
}
"""A check of each fault's that has to fail."""


@pytest.fixture
def judged(gate_checks, monkeypatch):
    """The gate's checks; given names, it runs no other of its cases."""

    check = Lives.check

    def run(device, *names, **given):
        if names and not WHOLE:
            monkeypatch.setattr(Lives, "check", lambda *of: check(*of) if of[1] in names else Check(of[1], "pass", ""))
        monkeypatch.setattr("parity.gates.lifecycle.LANES", LANES if WHOLE else 2)
        return gate_checks("lifecycle", device, **given)

    return run


@pytest.mark.parametrize("limits", first([None, ProcessLimits()]))
def test_a_clean_device_passes_at_every_cut(limits, judged):
    checks = judged("numpy", limits=limits)
    assert {check.verdict for check in checks.values()} == {"pass"} and len(checks) == 12
    assert "the same bits" in checks["off-loaded and restored"].evidence
    assert "beside sequences in mid-generation" in checks["after an abort, in lanes"].evidence
    assert "0 rows cached, 1 rows cached, 5 rows cached, 16 rows cached" in checks["prefix hit"].evidence


def test_every_fault_of_a_lifecycle_has_its_check():
    assert set(RED) == {name for name, fault in CATALOGUE.items() if fault.gate == "lifecycle" and not fault.kv_cache}


@pytest.mark.parametrize("name", sample(RED))
def test_what_continuing_leaves_out_fails(name, judged):
    checks = judged(f"parity.device.faults:{name.replace('-', '_')}", RED[name])
    assert checks[RED[name]].verdict == "fail", {check.name: check.evidence for check in checks.values()}


UNTAPPED = [name for name in RED if name != "life-chunk-blind" and not name.endswith("-of-neighbour")]


@pytest.mark.parametrize("name", sample(UNTAPPED))
def test_what_verbs_return_is_compared_where_nothing_is_tapped(name, judged):
    checks = judged(f"tests.gates.host_only:load,fault={name}", RED[name])
    assert checks[RED[name]].verdict == "fail", {check.name: check.evidence for check in checks.values()}


@by_night
def test_a_clean_device_of_which_nothing_is_tapped_fails_nothing(judged):
    checks = judged("tests.gates.host_only:load,fault=none")
    assert not {check.name for check in checks.values() if check.verdict == "fail"}


def test_a_prefill_in_chunks_that_shows_fewer_rows_fails(judged):
    name = "prefill in chunks"
    check = judged("tests.gates.test_lifecycle:last_rows", name)[name]
    assert check.verdict == "fail" and "another value" in check.evidence and check.place.stage == "target.embed"


def last_rows(target, drafter, k, precision="bfloat16", prefill_rows: int = 0):
    """With chunks, it shows the last one alone."""
    made = device.load(target, drafter, k, precision)
    if prefill_rows:
        clean = made.prefill
        made.prefill = lambda ids, budget, tap: clean(ids, budget, partial(_two, tap))
    return made


def _two(tap, stage, value):
    tap(stage, value[-2:])
    return value


def test_a_gap_in_the_drafters_cache_behind_a_round_of_several_tokens_fails(judged):
    check = judged("tests.gates.test_lifecycle:drafter_behind", SEVERAL)[SEVERAL]
    assert check.verdict == "fail"
    assert check.place.stage.startswith("drafter.")


def drafter_behind(target, drafter, k, precision="bfloat16"):
    """A hit skips the drafter's rows as it skips the target's: what the last round emitted none of its passes fed."""
    made = device.load(target, drafter, k, precision)
    clean = made.prefill_from

    def prefill_from(cached, *rest):
        made.drafter.length = made.drafter.length and max(made.drafter.length, cached - 1)
        return clean(cached, *rest)

    made.prefill_from = prefill_from
    return made


def test_texts_that_end_at_once_are_named_as_not_exercised(judged):
    """There is no round of several tokens, and no neighbour in the midst of its text."""
    checks = judged("tests.gates.test_lifecycle:ends_at_once", SEVERAL, "after an abort, in lanes")
    check = checks[SEVERAL]
    assert check.verdict == "not judged" and check.evidence.startswith("not exercised: behind none of")
    check = checks["after an abort, in lanes"]
    assert check.verdict == "not judged" and check.evidence.startswith("not exercised: the texts of all neighbours")


def ends_at_once(target, drafter, k, precision="bfloat16", lanes: int = 1):
    """Every first token ends the text."""
    made = device.load(target, drafter, k, precision, lanes=lanes)
    vocabulary = tuple(range(json.loads((target / "config.json").read_text())["vocab_size"]))
    made.describe = partial(_ending, made.describe(), vocabulary)
    return made


def _ending(says, eos):
    return replace(says, eos=eos)


def test_what_a_device_does_not_offer_is_not_judged(judged):
    """A lane of a batch continues nothing alone; one of this batch nothing beside others either."""
    checks = judged("tests.gates.test_lifecycle:no_more_than_verbs,lanes=2", "the next prompt")
    missing = {name for name, check in checks.items() if check.verdict == "not judged"}
    alone = {"prefix hit", "off-loaded and restored"}
    assert missing == alone | {f"{name}, in lanes" for name in alone} | {"prefill in chunks"}
    assert checks["the next prompt"].verdict == "pass"


class VerbsAlone(Batch):
    prefill_from_batch = save_batch = restore_batch = None


def no_more_than_verbs(target, drafter, k, precision="bfloat16", lanes: int = 2):
    made = device.load(target, drafter, k, precision, lanes=lanes)
    made.__class__ = VerbsAlone
    return made


@pytest.mark.parametrize("family", FAMILIES if WHOLE else ["draft-model", "n-gram"])
def test_every_family_continues_its_text(family, three_layers):
    tiny = three_layers
    pair = dict(target=tiny / "target", drafter=tiny / FAMILIES[family].checkpoint, k=3, precision="float32")
    made, fresh = device.load(**pair), device.load(**pair)
    text = [7, *range(30, 60)]
    text += perform(made, free_rounds(made, text, 9)).emitted
    turn = [*text, 11, 12, 13]
    tokens = [made.prefill_from(len(text) - 1, turn, 9, untapped)]
    made.save("aside")
    made.prefill([5, 6, 7], 4)
    made.restore("aside")
    while not made.finished:
        drafts = made.draft()
        tokens += made.commit(drafts, made.verify(drafts)).tolist()
    assert tokens == list(perform(fresh, free_rounds(fresh, turn, 9)).emitted)


@pytest.mark.parametrize(
    ("cached", "ids", "said"), [(4, [1, 2, 3], "cached: 4"), (9, range(9, 30), "cached: 9"), (2, [5, 9, 1], "another")]
)
def test_what_is_not_in_the_caches_is_refused_and_leaves_them(cached, ids, said, tiny):
    made = device.load(tiny / "target", tiny / "drafter", 3)
    made.prefill([5, 6, 7, 8], 4)
    before = [made.target.length, made.drafter.length]
    with pytest.raises(UsageError, match=said):
        made.prefill_from(cached, list(ids), 4)
    assert [made.target.length, made.drafter.length] == before
    with pytest.raises(UsageError, match="no sequence was saved as 'x'"):
        made.restore("x")
    assert len(made.verify(np.array([1]))) == 2


ENDS = {
    "budget,verb=restore": ("off-loaded and restored", "prefix hit"),
    "end_tokens,verb=prefill_from": ("after an abort", "off-loaded and restored"),
    "budget,verb=prefill_from": ("prefix hit", "off-loaded and restored"),
    "end_tokens,verb=restore": ("off-loaded and restored", "prefix hit"),
}
"""Where a text ends wrongly behind a verb, a check that fails, and one that passes."""


@pytest.mark.parametrize("ends", first(ENDS))
def test_a_text_that_ends_otherwise_behind_a_continuation_fails(ends, judged):
    red, green = ENDS[ends]
    checks = judged(f"tests.gates.test_lifecycle:{ends}", red, green)
    assert checks[red].verdict == "fail" and "where the text ends" in checks[red].evidence, checks[red].evidence
    assert checks[green].verdict == "pass", checks[green].evidence
    assert ("end token" in checks[red].evidence) == ends.startswith("end_tokens")


SLOTS = {
    "one_slot": ("off-loaded and restored", "the next prompt"),
    "slot_of_the_first": ("off-loaded and restored as the second of two", "the next prompt"),
}
"""Where sequences are kept that were taken off, a check that fails, and one that passes."""


@pytest.mark.parametrize("slots", SLOTS)
def test_sequences_that_share_a_slot_fail(slots, judged):
    red, green = SLOTS[slots]
    checks = judged(f"tests.gates.test_lifecycle:{slots}", red, green)
    assert checks[red].verdict == "fail", checks[red].evidence
    assert checks[green].verdict == "pass", checks[green].evidence


def one_slot(target, drafter, k, precision="bfloat16"):
    """The last sequence that was saved is put back, whatever its name."""
    made = device.load(target, drafter, k, precision)
    clean = made.save
    made.save = lambda name: (clean(name), made._saved.update(dict.fromkeys(made._saved, made._saved[name])))
    return made


def slot_of_the_first(target, drafter, k, precision="bfloat16"):
    """The sequence that was put back first since a save is put back again."""
    made = device.load(target, drafter, k, precision)
    clean, held = (made.save, made.restore), []
    made.save = lambda name: (clean[0](name), held.clear())
    made.restore = lambda name: (held.append(name), clean[1](held[0]))
    return made


def budget(target, drafter, k, verb, precision="bfloat16"):
    """A sequence that continues by this verb has a budget of one token too many."""
    made = device.load(target, drafter, k, precision)
    return _behind(made, verb, lambda: setattr(made, "_left", made._left + 1))


def end_tokens(target, drafter, k, verb, precision="bfloat16"):
    """One that continues by this verb knows no end tokens until the next prefill."""
    made = device.load(target, drafter, k, precision)
    ends = made._ends
    _behind(made, "prefill", lambda: setattr(made, "_ends", ends))
    return _behind(made, verb, lambda: setattr(made, "_ends", ends - 1_000_000))


def _behind(made, verb, change):
    clean = getattr(made, verb)

    def run(*given):
        found = clean(*given)
        change()
        return found

    setattr(made, verb, run)
    return made


def test_a_cut_that_a_prompt_is_too_short_for_is_named_as_not_exercised(judged, shallow_golden):
    short, case = copy(shallow_golden), shallow_golden.manifest.case
    prompts = tuple(one.model_copy(update={"ids": one.ids[:29]}) for one in case.prompts)
    changed = case.model_copy(update={"prompts": prompts})
    short.manifest = shallow_golden.manifest.model_copy(update={"case": changed})
    checks = judged("numpy", "prefix hit", golden=short)
    assert checks["prefix hit"].verdict == "pass" and "28 rows cached" in checks["prefix hit"].evidence
    check = checks["prefix hit at the window"]
    assert check.verdict == "not judged"
    assert check.evidence == "not exercised: cut at the window (32): the prompt has 29 tokens"
