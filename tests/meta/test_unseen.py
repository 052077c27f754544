"""The unseen faults say what they are: the truth of an answer is written down before there is one."""

from __future__ import annotations

import re

from benchmarks.unseen import FAULTS, PARTS
from parity.device.faults import CATALOGUE
from parity.device.faults.conditions import Condition

PASSES = {"prefill", "draft", "verify", "commit"}
STAGE = re.compile(r"(target|drafter|verify|accept|kv)\.[a-z_0-9.]+")


def test_every_fault_has_an_id_of_its_own():
    declared = [fault.id for part in PARTS for fault in part.fault.faults]
    assert len(declared) == len(FAULTS) >= 60
    assert not set(declared) & set(CATALOGUE)


def test_every_fault_says_which_set_it_is_of():
    of = [fault.truth["set"] for fault in FAULTS.values()]
    assert set(of) == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
    assert of.count(2) == of.count(3) == 40
    assert of.count(4) == of.count(5) == of.count(6) == of.count(7) == of.count(8) == 24
    assert of.count(9) == 60
    assert of.count(10) == of.count(11) == 40


def test_the_fifth_set_is_half_conditional_and_holds_three_of_float32():
    fifth = [fault for fault in FAULTS.values() if fault.number == 5]
    assert sum(bool(fault.words) for fault in fifth) in (12, 13)
    assert [fault.precision for fault in fifth].count("float32") == 3


def test_the_sixth_set_is_half_conditional():
    sixth = [fault for fault in FAULTS.values() if fault.number == 6]
    assert sum(bool(fault.words) for fault in sixth) == 12


def test_of_the_seventh_set_fourteen_are_conditional_and_one_is_of_float32():
    seventh = [fault for fault in FAULTS.values() if fault.number == 7]
    assert sum(bool(fault.words) for fault in seventh) == 14
    assert [fault.precision for fault in seventh].count("float32") == 1


def test_of_the_eighth_set_eighteen_are_conditional_and_one_is_of_float32():
    eighth = [fault for fault in FAULTS.values() if fault.number == 8]
    assert sum(bool(fault.words) for fault in eighth) == 18
    assert [fault.precision for fault in eighth].count("float32") == 1


def test_of_the_ninth_set_half_are_conditional_and_four_are_of_float32():
    ninth = [fault for fault in FAULTS.values() if fault.number == 9]
    assert sum(bool(fault.words) for fault in ninth) == 30
    assert [fault.precision for fault in ninth].count("float32") == 4


def test_of_the_tenth_set_nineteen_are_conditional_and_three_are_of_float32():
    tenth = [fault for fault in FAULTS.values() if fault.number == 10]
    assert sum(bool(fault.words) for fault in tenth) == 19
    assert [fault.precision for fault in tenth].count("float32") == 3


def test_of_the_eleventh_set_twenty_one_are_conditional_and_three_are_of_float32():
    eleventh = [fault for fault in FAULTS.values() if fault.number == 11]
    assert sum(bool(fault.words) for fault in eleventh) == 21
    assert [fault.precision for fault in eleventh].count("float32") == 3


def test_every_truth_is_filled_in():
    for fault in FAULTS.values():
        assert fault.what and fault.component and fault.part, fault.id
        assert fault.passes in PASSES and STAGE.fullmatch(fault.stage), fault.id
        assert fault.precision in ("bfloat16", "float32"), fault.id


def test_every_condition_is_said_in_words_and_can_be_read():
    for fault in FAULTS.values():
        assert fault.words or not fault.condition, fault.id
        assert not fault.condition or Condition.of(fault.condition).clauses, fault.id
