"""A device that is not transactional: wrapped it is, unwrapped the gate says that it does not judge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.adapters import transactional
from parity.gates import run_gate
from parity.gates.context import GateContext
from tests.sample import WHOLE

pytestmark = pytest.mark.usefixtures("few_histories")


class Careless:
    """The device that ships here without its own recovery: a verb that raises leaves what it did so far."""

    def __init__(self, inside):
        self.inside = inside

    def describe(self):
        return replace(self.inside.describe(), transactional=False)

    def __getattr__(self, name):
        return getattr(self.__dict__["inside"], name)

    def commit(self, drafts, tokens, tap):
        emitted = self.inside.commit(drafts, tokens, lambda stage, value: value)
        tap("accept.length", np.array([len(emitted)]))
        tap("accept.emitted", emitted)
        self.inside._record_caches(_recorder(tap, self.inside))
        return emitted


def _recorder(tap, pipeline):
    from parity.device.recorder import Recorder

    return Recorder(tap, pipeline._engine)


STATE = [
    *(f"inside.{side}.{what}" for side in ("target", "drafter") for what in ("caches", "length")),
    *(f"inside.{name}" for name in ("_text", "_emitted", "_taps", "_verified", "_left", "_drafted")),
]


@pytest.fixture
def gate(shallow_golden, tmp_path):
    from parity.builders import builder

    base = builder("numpy", shallow_golden)

    def run(wrap):
        def build(precision, **options):
            return wrap(Careless(base(precision=precision, **options).inside))

        context = GateContext(shallow_golden, "careless", build, "float32", tmp_path, 1)
        return {check.name: check for check in run_gate(context, "rollback").checks}

    return run


def test_what_needs_a_device_that_can_be_asked_again_is_not_judged(gate):
    checks = gate(lambda device: device)
    assert checks["accept and reject, float32"].verdict == "pass", checks
    for name in ("poisoned dead rows", "errors in mid-round"):
        assert checks[name].verdict == "not judged" and "parity.adapters.transactional" in checks[name].evidence


def test_such_a_device_fails_where_it_claims_otherwise(gate, monkeypatch):
    if not WHOLE:  # a device that repeats itself is asked twice more instead of twelve times
        monkeypatch.setattr("parity.gates.rollback.repeat.MORE", 8)

    class Claims(Careless):
        def describe(self):
            return replace(super().describe(), transactional=True)

    assert gate(lambda device: Claims(device.inside))["errors in mid-round"].verdict == "fail"


def test_the_wrapper_makes_it_so(gate):
    checks = gate(lambda device: transactional(device, STATE))
    assert {check.verdict for check in checks.values()} == {"pass"}, checks
