"""A cell that is meant to be gone is said to be once, and is told as such as long as it stays away."""

from __future__ import annotations

import json
import shutil

import pytest

from parity.errors import UsageError
from parity.history import acknowledged, acknowledgements, append, load, verdicts
from tests.history.synthetic import cells, night, results
from tests.history.test_verdicts import flat

CELL, OTHER = cells(2)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Six nights of two cells, once; the second cell is gone on the last two."""
    made, folder = flat(6, 2), tmp_path_factory.mktemp("written") / "history"
    for number in range(6):
        found = results(made, number)
        there = found if number < 4 else [one for one in found if one.cell.name == CELL]
        append(str(folder), night(made, number), there)
    return folder


@pytest.fixture
def url(written, parity):
    """They are where history is by default."""
    return str(shutil.copytree(written, parity.home / "history"))


def test_an_acknowledged_cell_is_told_as_such_and_lacks_no_evidence(url, parity):
    assert "gone" in parity("history", "--changes").out
    ended = parity("history", "--acknowledge", OTHER, "--because", "the [b]old[/b] port is retired")
    assert ended.code == 0 and OTHER in ended.out
    ended = parity("history", "--changes")
    assert f"acknowledged {OTHER}: has no result" in ended.out
    assert "the [b]old[/b] port is retired" in ended.out
    assert "0 changed for the worse, 1 without evidence, 1 other changes" in ended.last, "one waits for its band"
    again = parity("history", "--acknowledge", OTHER, "--because", "twice")
    assert again.code == 2 and "none is gone" in again.err


def test_a_cell_that_came_back_and_is_gone_again_is_told_anew(url, parity):
    parity("history", "--acknowledge", OTHER, "--because", "retired")
    made = flat(9, 2)
    append(url, night(made, 6), results(made, 6))
    for number in (7, 8):
        append(url, night(made, number), [one for one in results(made, number) if one.cell.name == CELL])
    found = acknowledged(verdicts(load(url, repeats=True), made.name(8)), acknowledgements(url))
    assert [(one.kind, one.since_night) for one in found if one.cell == OTHER] == [("gone", made.name(7))]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--acknowledge", CELL, "--because", "it is there"),
        ("--acknowledge", OTHER),
        ("--because", "nothing"),
        ("--acknowledge", OTHER, "--because", " "),
        ("--acknowledge", OTHER, "--because", "two\nlines"),
        ("--acknowledge", OTHER, "--because", "x" * 501),
    ],
)
def test_what_cannot_be_acknowledged_is_refused_and_keeps_nothing(url, parity, arguments):
    assert parity("history", *arguments).code == 2 and acknowledgements(url) == ()


def test_a_damaged_acknowledgement_is_named(url, parity):
    parity("history", "--acknowledge", OTHER, "--because", "retired")
    (file,) = (parity.home / "history" / "acknowledged").iterdir()
    told = json.loads(file.read_text())
    for damaged in ("{", json.dumps(told | {"cell": ""}), json.dumps(told | {"schema_version": 2})):
        file.write_text(damaged)
        with pytest.raises(UsageError, match=file.name):
            acknowledgements(url)
