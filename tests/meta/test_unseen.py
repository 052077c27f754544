"""The unseen faults say what they are: the truth of an answer is written down before there is one."""

from __future__ import annotations

import re

from benchmarks.unseen import FAULTS, PARTS
from parity.device.faults import CATALOGUE
from parity.device.faults.conditions import Condition

PASSES = {"prefill", "draft", "verify", "commit"}
STAGE = re.compile(r"(target|drafter|verify|accept|kv)\.[a-z_0-9.]+")


def test_every_fault_has_an_id_of_its_own():
    declared = [fault.id for part in PARTS for fault in part.faults]
    assert len(declared) == len(FAULTS) >= 60
    assert not set(declared) & set(CATALOGUE)


HELD = {
    1: (111, 77, 3),
    2: (40, 28, 5),
    3: (40, 25, 5),
    4: (24, 12, 3),
    5: (24, 13, 3),
    6: (24, 12, 0),
    7: (24, 14, 1),
    8: (24, 18, 1),
    9: (60, 30, 4),
    10: (40, 19, 3),
    11: (40, 21, 3),
    12: (40, 24, 2),
    13: (40, 26, 2),
    14: (24, 18, 3),
    15: (36, 18, 3),
    16: (36, 18, 2),
    17: (36, 18, 1),
    18: (36, 18, 1),
    19: (60, 30, 0),
    20: (60, 30, 2),
    21: (60, 30, 0),
    22: (60, 30, 0),
    23: (59, 30, 1),
    24: (64, 32, 0),
    25: (64, 32, 0),
    26: (64, 32, 0),
    27: (64, 32, 0),
    28: (64, 32, 0),
}
"""Of each set: faults, those that are conditional, and those of float32."""


def test_every_set_holds_what_its_figures_are_of():
    assert {fault.number for fault in FAULTS.values()} == set(HELD)
    for number, counts in HELD.items():
        those = [fault for fault in FAULTS.values() if fault.number == number]
        told = len(those), sum(bool(fault.words) for fault in those), sum(one.precision == "float32" for one in those)
        assert told == counts, number


def test_every_truth_is_filled_in():
    for fault in FAULTS.values():
        assert fault.what and fault.component and fault.part, fault.id
        assert fault.passes in PASSES and STAGE.fullmatch(fault.stage), fault.id
        assert fault.precision in ("bfloat16", "float32"), fault.id


def test_every_condition_is_said_in_words_and_can_be_read():
    for fault in FAULTS.values():
        assert fault.words or not fault.condition, fault.id
        assert not fault.condition or Condition.of(fault.condition).clauses, fault.id
