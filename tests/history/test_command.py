"""`parity history` as a user meets it."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parity.history import append
from parity.nightly.folder import NightFolder
from parity.reports.history import sparkline
from tests.history.synthetic import cells, night, results
from tests.history.test_verdicts import flat

ROOT = Path(__file__).parents[2]
CELL, OTHER = cells(2)


@pytest.fixture(scope="module")
def made():
    """Eighteen nights of two cells; one figure steps on the sixteenth."""
    made = flat(18, 2)
    made.values[15:, made.column(CELL, "drafter.fc_out", "local", "l2")] += 0.5
    return made


@pytest.fixture(scope="module")
def written(made, tmp_path_factory):
    """Their history, once."""
    folder = tmp_path_factory.mktemp("written") / "history"
    for number in range(made.nights):
        append(str(folder), night(made, number), results(made, number))
    return folder


@pytest.fixture
def url(written, parity):
    """They are where history is by default."""
    return str(shutil.copytree(written, parity.home / "history"))


def test_figures_have_a_trend(url, parity):
    found = parity("history", "--stage", "fc_out", "--metric", "l2", "--mode", "local")
    assert found.code == 0 and "▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁███" in found.out and CELL in found.out and OTHER in found.out


def test_the_headlines_come_first(url, parity):
    found = parity("history", url)
    assert "over_baseline" in found.out and "passed" in found.out and "drafter.fc_out" not in found.out


def test_rows_are_written_as_json_and_csv(url, parity, tmp_path):
    parity(
        "history",
        url,
        "--cell",
        "case1*",
        "--stage",
        "fc_out",
        "--metric",
        "l2",
        "--last",
        "3",
        "--json",
        tmp_path / "a.json",
        "--csv",
        tmp_path / "a.csv",
    )
    rows = json.loads((tmp_path / "a.json").read_text())
    with (tmp_path / "a.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(rows) == len(lines) == 6 and {row["cell"] for row in rows} == {OTHER}
    assert float(lines[0]["value"]) == rows[0]["value"] and rows[0]["low"] is None


def test_nights_are_listed_with_their_verdicts(url, made, parity):
    found = parity("history", "--nights")
    assert found.out.count("2 pass") == 18 and made.commit(15) in found.out


def test_changes_end_with_what_they_mean(url, made, parity, tmp_path):
    found = parity("history", "--changes", "--json", tmp_path / "c.json")
    assert found.code == 1 and "regression" in found.out and made.date(15) in found.out
    (change,) = json.loads((tmp_path / "c.json").read_text())["changes"]
    assert change["commits"] == [made.commit(14), made.commit(15)]
    assert parity("history", "--changes", "--night", made.name(14)).code == 0
    few = parity("history", "--changes", "--night", made.name(4))
    assert few.code == 3 and f"{CELL}: 10 more nights until" in few.out


def test_what_matches_nothing_is_said(url, parity):
    assert "no figure of history matches" in parity("history", "--cell", "nobody").out
    assert parity("history", "--changes", "--cell", "nobody").code == 3


@pytest.mark.parametrize("more", [(), ("--nights",), ("--changes",), ("--stage", "fc_out")])
def test_a_night_that_history_does_not_know_is_one_sentence(more, url, made, parity):
    found = parity("history", *more, "--night", "nobody")
    assert found.code == 2 and not found.out
    assert f"history has no night nobody: its nights have names as {made.name(17)}" in found.err


def test_a_night_is_meant_by_its_folder_too(url, made, parity, tmp_path):
    NightFolder.start(tmp_path / "N3", night(made, 3))
    found = parity("history", "--nights", "--night", tmp_path / "N3")
    assert found.code == 0 and made.name(3) in found.out and made.name(4) not in found.out


def test_help_loads_neither_pandas_nor_pyarrow():
    code = (
        "import sys\nfrom parity.cli import main\ntry: main()\n"
        "except SystemExit: print([m for m in ('pandas', 'pyarrow', 'fsspec', 'scipy') if m in sys.modules])"
    )
    for arguments in (["--help"], ["history", "--help"], ["ratchet", "--help"]):
        found = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert found.stdout.rstrip().endswith("[]"), found.stdout + found.stderr


def test_a_sparkline_goes_from_least_to_largest():
    assert sparkline([1, 2, None, 3]) == "▁▅·█" and sparkline([2, 2]) == "▄▄" and sparkline([None]) == "·"
