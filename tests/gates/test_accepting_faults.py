"""Each catalogued fault of verify, accept and report turns the check red that is there for it."""

from __future__ import annotations

import pytest

from parity.device.faults import accepting
from parity.gates import acceptance, lossless, verify
from parity.gates.context import NoiseFloors
from tests.gates.planted import context_of
from tests.sample import sample

SAID = {
    "accept-past-mismatch": "emit other tokens; drafts [",
    "accept-one-late": "emit other tokens; drafts [",
    "accept-end-ignored": " of 10 rounds emit other tokens",
}
FAULTS = {one.id: one for family in (accepting.verify, accepting.accept, accepting.report) for one in family.faults}
ROWS, TIES, RULE, CUTS, COUNTS = "rows", "ties", "rule", "cuts", "counts"
RED = {
    "verify-not-batch-invariant": ROWS,
    "verify-rows-bidirectional": ROWS,
    "verify-first-row-missing": ROWS,
    "verify-tie-rule": TIES,
    "accept-past-mismatch": RULE,
    "accept-one-late": RULE,
    "accept-no-bonus": RULE,
    "accept-none": RULE,
    "accept-all": RULE,
    "accept-budget-overrun": CUTS,
    "accept-end-ignored": CUTS,
    "report-truncated-step": COUNTS,
    "report-bonus": COUNTS,
}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """One prompt and no padding widths."""
    monkeypatch.setattr(verify, "PROMPTS", 1)
    monkeypatch.setattr(verify, "EDGES", ())


def check(what: str, context):
    generations = lambda dump: [prompt.generation for prompt in dump.manifest.case.prompts]  # noqa: E731
    return {
        ROWS: lambda: verify.rows_agree(context, NoiseFloors(context.golden), "float32"),
        TIES: lambda: verify.lowest_wins(context),
        RULE: lambda: lossless.accepts_by_rule(context),
        CUTS: lambda: acceptance.emits_what_counts(context),
        COUNTS: lambda: acceptance.add_up(context, generations(context.run("chained")), generations(context.golden)),
    }[what]()


@pytest.mark.parametrize("fault", sample(RED, kind=RED.get))
def test_the_fault_turns_its_check_red(fault, request, tmp_path):
    """What truncates needs a round that accepts every draft."""
    golden = request.getfixturevalue("small_golden" if fault == "report-truncated-step" else "shallow_golden")
    found = check(RED[fault], context_of(golden, tmp_path, FAULTS[fault].plant))
    assert found.verdict == "fail" and SAID.get(fault, "") in found.evidence, found.evidence


def test_every_fault_that_a_device_can_have_is_in_the_table():
    assert set(FAULTS) - {"oracle-shared-bug"} == set(RED)
