"""Every benchmark starts: a name of parity's that moved is seen here, not when a figure is wanted again."""

from __future__ import annotations

import os
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.sample import by_night

BENCHMARKS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))
EXTRAS = {"otava": "otava"}
"""What a benchmark needs that is not installed with the tests."""


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_shows_its_help(script, monkeypatch, capsys):
    if (extra := EXTRAS.get(script.stem)) and not find_spec(extra):
        pytest.skip(f"needs {extra}: see {script.name}")
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    with patch.dict(os.environ), pytest.raises(SystemExit) as ended:  # some set the threads of what they measure
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out


@by_night
def test_a_device_that_is_not_clean_is_accused_among_the_clean_ones():
    from benchmarks.clean_diagnoses import chat_lines, diagnosed

    said = diagnosed("parity.device.faults:tap_off_by_one", "bfloat16", [*chat_lines().values()][:2], gates=False)
    assert len(said["accused"]) == 2 and not said["lacks"]
