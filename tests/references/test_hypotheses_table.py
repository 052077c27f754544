"""The catalogue of hypotheses as data: complete, read without torch, documented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from parity.references.hypotheses import HYPOTHESES
from parity.references.hypotheses.__main__ import page
from parity.stages import declared, matches
from tests.references.hypothesis_case import BY_ID, value_of

ROOT = Path(__file__).parents[2]


def test_metadata_is_complete():
    assert len(BY_ID) == len(HYPOTHESES) >= 70
    names = declared(8, 4, pages=True)
    for one in HYPOTHESES:
        assert one.fix and one.says and one.cost in (1, 2, 3), one.id
        assert all(any(matches(stage, name) for name in names) for stage in one.stages), one.id
        assert one.values or one.fit or one.infer or one.part, one.id
        assert one.describe(value_of(one)) != one.says or "{" not in one.says, one.id


def test_metadata_is_read_without_torch():
    code = "import sys, parity.references.hypotheses; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_documented_table_is_current():
    assert (ROOT / "docs/hypotheses.md").read_text() == page(), (
        "python -m parity.references.hypotheses > docs/hypotheses.md"
    )
