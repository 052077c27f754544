"""The list of tests that are left to the night: what may go, and that what it names is there and runs there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import nights

ROOT = Path(__file__).parents[2]
LINES = {
    "tests/bench/test_a.py::test_one[1]": {1, 2, 3},
    "tests/bench/test_a.py::test_one[2]": {1, 2},
    "tests/bench/test_a.py::test_alone": {2, 3},
    "tests/bench/test_a.py::test_more": {3, 4},
    "tests/bench/test_a.py::test_cheap": {3},
    "tests/compare/test_b.py::test_alone": {2},
    "tests/gates/test_c.py::test_a_fault_is_red[a]": {2},
    "tests/gates/test_c.py::test_a_clean_device_passes[a]": {2},
    "tests/gates/test_c.py::test_a_clean_device_passes[b]": {2},
}
COSTS = dict.fromkeys(LINES, 2.0) | {
    "tests/bench/test_a.py::test_one[1]": 1.0,
    "tests/bench/test_a.py::test_cheap": 0.1,
}


def test_what_goes_reaches_nothing_that_what_stays_does_not():
    gone = set(nights.left_to_the_night(LINES, COSTS))
    assert gone == {
        "tests/bench/test_a.py::test_one[2]",
        "tests/bench/test_a.py::test_alone",
        "tests/gates/test_c.py::test_a_clean_device_passes[b]",
    }
    assert set().union(*(LINES[test] for test in LINES.keys() - gone)) == {1, 2, 3, 4}


def test_of_a_function_whose_values_are_all_spare_the_cheapest_stays():
    costs = {f"tests/compare/test_b.py::test_one[{number}]": 1.0 + number for number in range(3)}
    costs["tests/bench/test_a.py::test_all"] = 0.6
    assert {test[-3:] for test in nights.left_to_the_night({test: {1} for test in costs}, costs)} == {"[1]", "[2]"}


def test_the_list_is_made_of_a_recording(tmp_path, monkeypatch, capsys):
    coverage = pytest.importorskip("coverage")
    data = coverage.CoverageData(str(tmp_path / ".coverage"))
    for test, reached in LINES.items():
        data.set_context(test)
        data.add_lines({"/parity/one.py": reached})
    data.write()
    (tmp_path / "costs.json").write_text(json.dumps({"tests": COSTS | {"parity/hardware_gates.py::test_it": 9.0}}))
    monkeypatch.setattr(nights, "LIST", tmp_path / "nights.txt")
    monkeypatch.setattr("sys.argv", ["nights", str(tmp_path)])
    nights.main()
    assert capsys.readouterr().out == "3 of 9 tests, 6 of 15 s (40%)\n"
    assert nights.listed() == set(nights.left_to_the_night(LINES, COSTS))
    monkeypatch.setenv("MUTANTS_GOLDENS", str(tmp_path))
    assert not nights.listed()


def test_every_listed_test_is_there_and_its_folder_is_run_by_night():
    catalogue = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "PARITY_CATALOGUE=whole" in line)
    for test in nights.listed():
        file, name = test.split("[")[0].split("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test
        assert "/".join(file.split("/")[:2]) in catalogue.split(), test
