"""The same by the tools themselves, where they are installed (`pip install -e '.[peers]'`): every bit comes back."""

from __future__ import annotations

import pytest

from parity.fixtures.recipe.imports import TOOLS
from tests.imports.conftest import RECORDED

MODULES = {"polygraphy": "polygraphy", "msprobe": "msprobe"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tool", MODULES)
def test_what_the_tool_writes_now(tool, short_run, imported, tmp_path):
    pytest.importorskip(MODULES[tool])
    TOOLS[tool](short_run, tmp_path / tool)
    run = imported(tool, tmp_path / tool, names=RECORDED / f"{tool}.toml")
    assert all(run.rows[place].sha256 == short_run.rows[place].sha256 for place in run.rows)
