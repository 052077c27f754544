"""Acceptance that an engine was told to make up is recorded, and such a dump neither judges nor is judged."""

from __future__ import annotations

import pytest

from parity.compare.preconditions import comparable
from parity.errors import UsageError
from parity.golden.provenance import producer
from parity.golden.store import Dump
from parity.golden.synthetic import NOTE, forced_by, option_in, synthetic
from parity.golden.trust import trusted


@pytest.mark.parametrize(
    ("name", "value", "forces"),
    [
        ("SGLANG_SIMULATE_ACC_LEN", "3.24", True),
        ("SGLANG_SIMULATE_ACC_LEN", "-1", False),
        ("SGLANG_SIMULATE_ACC_LEN", "0", False),
        ("SGLANG_SIMULATE_ACC_LEN", "", False),
        ("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS", "2.5", True),
        ("TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS", "0.0", False),
        ("SGLANG_SIMULATE_UNIFORM_EXPERTS", "true", True),
        ("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "uniform_random", True),
        ("SGLANG_SIMULATE_ACC_METHOD", "match-expected", False),  # says how, where the length says whether
    ],
)
def test_what_forces_acceptance(name, value, forces):
    assert bool(forced_by({name: value})) is forces


@pytest.mark.parametrize(
    ("text", "forces"),
    [
        ('{"rejection_sample_method": "synthetic"}', True),
        ('{"synthetic_acceptance_length": 3.24}', True),
        ("{'synthetic_acceptance_rates': [0.8, 0.5]}", True),
        ("--spec-decode-acceptance-length 3.78", True),
        ("--spec-decode-acceptance-rate=0.6", True),
        ("SGLANG_SIMULATE_ACC_LEN=3", True),
        ('{"synthetic_acceptance_length": null, "rejection_sample_method": "standard"}', False),
        ("{'synthetic_acceptance_rates': None}", False),
        ('{"spec_decode_acceptance_length": null, "synthetic_acceptance_length": 2}', True),
    ],
)
def test_options_in_what_a_server_tells(text, forces):
    assert bool(option_in(text)) is forces


def test_the_environment_is_a_note_of_the_producer(monkeypatch):
    assert NOTE not in producer("x", (), (), 0).notes
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3.1")
    made = producer("x", (), (), 0, notes={"batch": "1"})
    assert made.notes == {"batch": "1", NOTE: "SGLANG_SIMULATE_ACC_LEN=3.1"}
    assert synthetic(made) == "SGLANG_SIMULATE_ACC_LEN=3.1"


def noted(dump: Dump, **changes) -> Dump:
    manifest = dump.manifest
    notes = manifest.producer.notes | {NOTE: "SGLANG_SIMULATE_ACC_LEN=3.1"}
    changed = manifest.producer.model_copy(update={"notes": notes})
    return Dump(dump.folder, manifest.model_copy(update={"producer": changed, **changes}))


def test_such_a_dump_neither_judges_nor_is_judged(shallow_golden):
    with pytest.raises(UsageError, match="made with synthetic acceptance"):
        trusted(noted(shallow_golden))
    golden = trusted(shallow_golden)
    stranger = shallow_golden.manifest.producer.model_copy(update={"modules": ("else",), "sources": {}})
    run = shallow_golden.manifest.model_copy(update={"kind": "run", "producer": stranger})
    comparable(golden, Dump(shallow_golden.folder, run))
    with pytest.raises(UsageError, match="SGLANG_SIMULATE_ACC_LEN"):
        comparable(golden, noted(Dump(shallow_golden.folder, run)))
