"""What of a product the ordinary tests take, and that the nights run all of it."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from tests import sample

ROOT = Path(__file__).parents[2]
SPARED = re.compile(
    r"from tests\.sample import .*\b(WHOLE|by_night|cover|first|sample)\b|\b(shallow_golden|three_layers)\b"
)
"""What a test has that is more by night."""

ROWS = [*product("ab", "cde", "fg")]


def by_night(makefile: str) -> set[str]:
    """The folders that `make catalogue` runs."""
    return set(re.findall(r"tests/\w+", re.search(r"PARITY_CATALOGUE=whole .*", makefile)[0]))


def spared() -> set[str]:
    """The folders of the tests that are more by night."""
    files = [path for path in (ROOT / "tests").glob("*/*.py") if path != Path(__file__)]
    return {f"tests/{path.parent.name}" for path in files if SPARED.search(path.read_text(encoding="utf-8"))}


def test_the_nights_run_every_folder_that_the_ordinary_tests_take_a_sample_of():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert spared() and not spared() - by_night(makefile)
    assert spared() - by_night(makefile.replace("tests/adapters", "")) == {"tests/adapters"}


def test_few_rows_meet_every_value_in_their_order(monkeypatch):
    monkeypatch.setattr(sample, "WHOLE", False)
    taken = sample.cover(ROWS)
    assert len(taken) == 3 and taken == sorted(taken)
    assert [set(axis) for axis in zip(*taken, strict=True)] == [set("ab"), set("cde"), set("fg")]


def test_an_axis_may_be_a_pair_of_two_others(monkeypatch):
    monkeypatch.setattr(sample, "WHOLE", False)
    taken = sample.cover(ROWS, lambda row: (row[:2], row[2]))
    assert len(taken) == 6 and {row[2] for row in taken} == set("fg")


@pytest.mark.parametrize("rows", [[], ROWS])
def test_by_night_it_is_all_of_them(rows, monkeypatch):
    monkeypatch.setattr(sample, "WHOLE", True)
    assert sample.cover(rows) == rows
