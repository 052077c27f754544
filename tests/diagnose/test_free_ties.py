"""Hypotheses that leave the same at every stage are told apart by what the device emits freely."""

from __future__ import annotations

import pytest

from parity import producers
from parity.api import diagnose_device
from parity.diagnose import whole
from parity.diagnose.trials import PromptTrials
from tests.sample import by_night

ALIKE = ("accept-budget-ignored", "report-truncated-step")


@pytest.fixture(autouse=True)
def these_alone(monkeypatch):
    def counterfactuals(golden, threads):
        reference, hypotheses = producers.counterfactuals(golden, threads)
        return reference, [one for one in hypotheses if one.id in ALIKE]

    monkeypatch.setattr(whole, "counterfactuals", counterfactuals)


@by_night
def test_a_count_that_is_not_cut_is_told_from_text_that_is_not(shallow_golden):
    (cause,) = diagnose_device(shallow_golden, "parity.device.faults:report_truncated_step").causes
    assert (cause.hypothesis, cause.alike) == (ALIKE[1], ())


@by_night
def test_without_the_free_run_both_are_said(shallow_golden, monkeypatch):
    monkeypatch.setattr(PromptTrials, "emits", lambda self, assumed: False)
    (cause,) = diagnose_device(shallow_golden, "parity.device.faults:report_truncated_step").causes
    assert len(cause.alike) == 1
