"""Every planted defect ends non-zero and is named; the pair without it passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.api import compare_dumps
from tests.meta import worlds
from tests.meta.conformance import HEAD, judge
from tests.meta.defects import DEFECTS
from tests.meta.dumps import clean, write
from tests.sample import sample

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
ALSO = {"stage renamed in the run", "stage renamed in the golden", "stage of another layer's name in the run"}
"""Defects in which two names are wrong: the old one and the new one."""


@pytest.mark.parametrize("size", [worlds.SHORT, worlds.LONG, worlds.WIDE], ids=["short", "long", "wide"])
def test_the_pair_passes_without_a_defect(size, tmp_path):
    report = compare_dumps(*write(clean(size), tmp_path), strict=True)
    assert report.exit_code == 0, {stage.stage: stage.x for stage in report.stages if stage.verdict != "pass"}


@pytest.mark.parametrize(
    "defect",
    sample(DEFECTS, lambda defect: defect.name, lambda defect: defect.kind),
    ids=lambda defect: defect.name,
)
def test_a_planted_defect_ends_non_zero_and_is_named(defect, tmp_path):
    seen = judge(defect, tmp_path)
    assert seen.exit_code != 0, f"{defect.name} passes"
    assert (defect.stage, defect.kind) in seen.named, seen
    assert defect.name in ALSO or seen.stages == (defect.stage,), seen
    line = next((line for line in PAGE.read_text().splitlines() if line.startswith(f"| {defect.name} |")), "")
    assert f"| {seen.exit_code} | {seen.verdict}: " in line and defect.kind in line, "docs/conformance.md is stale"


def test_the_page_has_every_defect_and_no_other():
    assert PAGE.read_text().startswith(HEAD)
    assert PAGE.read_text().removeprefix(HEAD).count("\n") == len(DEFECTS)
