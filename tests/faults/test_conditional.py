"""Planted faults under a condition: right wherever it does not hold, wrong wherever it does."""

from __future__ import annotations

from functools import cache
from itertools import count

import numpy as np
import pytest

from parity import device
from parity.builders import builder
from parity.device.faults import CATALOGUE, CONDITIONAL, only, planted
from parity.device.faults.conditional import JOINT, WHERES, drawn, fits
from parity.device.faults.conditions import Condition, Pass
from parity.drive import run_device
from parity.errors import UsageError
from parity.faults import FaultRunRequest, compare_planted
from parity.golden.store import Dump
from parity.golden.views import PromptSlice
from parity.run_request import RunRequest
from tests.sample import by_night

VERIFY = Pass("verify", round=3, prompt=2, cached=130, accepted=0)
ROWS = np.arange(130, 135)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("cached > 128", "11111"),
        ("cached>130", "00000"),
        ("position % 4 = 0", "00100"),
        ("position >= 132 and row != 4", "00110"),
        ("pass = verify and accepted = 0 and prompt > 1", "11111"),
        ("pass != verify", "00000"),
        ("layer % 2 = 1", "11111"),
        ("layer < 3", "00000"),
        ("round <= 3", "11111"),
    ],
)
def test_a_condition_holds_for_rows(where, rows):
    held = Condition.of(where).rows(VERIFY, 3, ROWS)
    assert "".join(str(int(each)) for each in held) == rows


def test_what_a_place_has_not_is_not_true_there():
    prefill = Pass("prefill", round=0, prompt=1, cached=0, accepted=None)
    assert not Condition.of("accepted != 0").rows(prefill, 3, ROWS).any()
    assert not Condition.of("layer >= 0").rows(prefill, None, ROWS).any()
    assert not Condition.of("row >= 0").rows(prefill, 3, None).any()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("attn-sinks-missing where head = 3", "'head = 3' is no NAME"),
        ("attn-sinks-missing where cached > many", "compares with no number"),
        ("attn-sinks-missing where pass = decode", "prefill, draft, verify"),
        ("attn-sinks-missing where pass % 2 = 1", "NAME|a pass is"),
        ("no-such-fault where round = 1", "no such fault"),
        ("attn-o-bias-per-rank where round = 1", "cannot be held to a condition"),
        ("attn-o-bias-dropped where layer = 2", "in no layer where layer = 2"),
    ],
)
def test_what_is_no_condition_is_said_in_one_sentence(name, sentence):
    with pytest.raises(UsageError, match=sentence):
        planted(name)


def test_a_prefill_in_parts_is_refused(shallow_golden):
    """The copies of a device meet at each stage, and a stage is shown behind its last part."""
    model, case = shallow_golden.manifest.model, shallow_golden.manifest.case
    pair = dict(target=model.target.path, drafter=model.drafter.path, k=case.k)
    with pytest.raises(UsageError, match="prefills at once"):
        only(**pair, fault="drafter-eps", where="layer = 0", prefill_rows=16)


@pytest.fixture(scope="module")
def shown(shallow_golden, tmp_path_factory):
    """What a device with a fault shows of one prompt, by place, made once; the clean one where there is no name."""
    model, case = shallow_golden.manifest.model, shallow_golden.manifest.case
    golden, folder = PromptSlice(shallow_golden, 0, 3), tmp_path_factory.mktemp("shown")
    pair = dict(target=model.target.path, drafter=model.drafter.path, k=case.k)

    numbers = count()

    @cache
    def run(name: str = "") -> dict:
        fault, _, where = name.partition(" where ")
        if where:
            made = only(**pair, fault=fault, where=where)
        else:
            made = CATALOGUE[fault].factory(**pair) if fault else device.load(**pair)
        dump = Dump(run_device(RunRequest(made, golden, "local", (), folder / str(next(numbers)), free=False)))
        return {place: dump.stored(*place) for place in dump.rows}

    return run


def differing(one: dict, other: dict) -> set:
    """The places at which two devices show different bits."""
    return {place for place in one if not np.array_equal(one[place], other[place])}


@by_night
def test_a_fault_is_whole_where_its_condition_always_holds_and_absent_where_it_never_does(shown):
    for fault in ("attn-scale-missing", "tap-early"):  # a kernel, and what the host loop keeps for the next round
        assert not differing(shown(f"{fault} where round >= 0"), shown(fault))
        assert not differing(shown(f"{fault} where round > 99"), shown())


def test_rows_under_the_condition_are_wrong_and_no_others(shown):
    clean, faulty = shown(), shown("attn-scale-missing where position % 16 = 3")
    (stage,) = {place[3] for place in differing(clean, faulty) if place[2] == 0 and ".0.attn_out" in place[3]}
    place = next(place for place in clean if place[2] == 0 and place[3] == stage)
    wrong = (clean[place] != faulty[place]).any(axis=1)
    assert [*np.flatnonzero(wrong)] == [*range(3, len(wrong), 16)]
    odd = {place[3] for place in differing(clean, shown("attn-scale-missing where layer = 1"))}
    assert odd and all(".1." in stage for stage in odd if stage.startswith("target.layers"))


def test_a_fault_of_another_dtype_leaves_passes_without_it_as_they_are(shown):
    """Its float32 logits: the token of a tie is another one behind them."""
    clean, faulty = shown(), shown("head-softcap where pass = prefill")
    verify = [place for place in clean if place[2] > 0 and place[3].startswith("verify.")]
    assert differing(clean, faulty) and verify
    assert all(clean[place].dtype == faulty[place].dtype for place in verify)


def test_a_fault_that_drops_rows_is_held_to_passes_alone(shown):
    assert differing(shown(), shown("input-last-token-only where round >= 2"))
    with pytest.raises(UsageError, match="cannot be held to some rows of a pass"):
        shown("input-last-token-only where position % 2 = 0")


def test_the_sample_has_every_condition_and_no_fault_twice():
    ids = [name.split(" where ")[0] for name in CONDITIONAL]
    assert len(set(ids)) == len(ids) == 26 and len({name.split(" where ")[1] for name in CONDITIONAL}) == 13


def test_all_that_can_be_drawn_are_every_fault_that_fits_a_condition_once():
    faults = [*CATALOGUE.values()]
    ids = [fault.id.split(JOINT)[0] for fault in drawn(faults, None, seed=1)]
    assert sorted(ids) == sorted(fault.id for fault in faults if any(fits(fault, where) for where in WHERES))
    assert [fault.id for fault in drawn(faults, 5, seed=1)] == [fault.id for fault in drawn(faults, None, seed=1)][:5]


@pytest.mark.parametrize("mode", ["local", "chained"])
def test_a_fault_of_a_later_prompt_is_seen_on_the_device_that_had_one_before(mode, shallow_golden):
    """Chained, the first prompt's free text is the device's second sequence: a tensor has to show it."""
    asked = FaultRunRequest(shallow_golden, "numpy", builder("numpy", shallow_golden), rounds=1)
    seen = compare_planted(asked, planted("attn-scale-missing where prompt > 1"), mode)
    assert seen.verdict == "fail" and seen.placed, seen
