"""Dumps of other tokens, told by their embeddings: each sentence, each row that is read, both sides of each limit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden.aligned import ALIKE, SHIFT, refuse_misaligned

TABLE = np.random.default_rng(3).normal(size=(90, 32)).astype(np.float32)
"""Rows of other tokens are hardly alike: their largest cosine is below 0.7."""

END = (
    ": the dump is of other tokens, rows or weights than the golden, and nothing behind its embeddings can be compared"
)


def judged(*dumps, partial: bool = False, true=TABLE[:8]) -> str:
    """What is said of embeddings of prompt 2 in these rounds; '' where they are taken."""
    asked = []

    def contents(*place):
        asked.append(place)
        return true

    embeddings = [(2, round_, rows) for round_, rows in enumerate(dumps, 3)]
    try:
        refuse_misaligned(SimpleNamespace(contents=contents), embeddings, "theirs", partial)
    except UsageError as error:
        return str(error)
    assert asked == [("float32", 2, round_, "target.embed") for round_, _ in enumerate(dumps, 3)]
    return ""


def turned(row: np.ndarray, cosine: float) -> np.ndarray:
    """A row that has this cosine with the given one."""
    other = np.roll(row, 1).astype(np.float64)
    other -= row * (other @ row) / (row @ row)
    other *= np.linalg.norm(row) / np.linalg.norm(other)
    return cosine * row + np.sqrt(1 - cosine**2) * other


def test_the_same_rows_scaled_or_fewer_are_taken():
    assert judged(TABLE[:8]) == judged(-0.0 + 7 * TABLE[:8]) == judged(TABLE[:5]) == judged(TABLE[:8], TABLE[:8]) == ""
    assert judged(np.concatenate([TABLE[:8], TABLE[:3]])) == ""  # what is beyond is told by the structure


@pytest.mark.parametrize("place", [0, 3, 7])
def test_the_first_row_that_is_another_one_is_named_with_its_cosine(place):
    rows = TABLE[:8].astype(np.float64)
    rows[place] = turned(rows[place], 0.25)
    rows[7] = turned(TABLE[7].astype(np.float64), 0.125) if place < 7 else rows[7]
    assert judged(TABLE[:8], rows) == (
        f"theirs: target.embed of prompt 2, round 4 is not the golden's from row {place} on (cosine 0.25){END}"
    )


@pytest.mark.parametrize(("cosine", "taken"), [(ALIKE + 1e-4, True), (ALIKE - 1e-4, False), (-0.99, False)])
def test_a_row_is_another_one_below_a_cosine_of_0_9(cosine, taken):
    rows = TABLE[:8].astype(np.float64)
    rows[2] = turned(rows[2], cosine)
    assert (judged(rows) == "") is taken and ALIKE == 0.9


def test_one_row_is_the_last_one():
    assert judged(TABLE[7:8]) == "" and "from row 0 on" in judged(TABLE[:1]) and "row 0 on" in judged(TABLE[6:7])
    assert judged(TABLE[:1], true=TABLE[:1]) == "" and "row 0" in judged(TABLE[:1], true=TABLE[1:2])


def test_rows_of_zeros_and_of_what_is_no_number_are_left_to_the_comparison():
    true = TABLE[:8].copy()
    true[3] = 0
    assert judged(true, true=true) == ""
    for value in (np.nan, np.inf, -np.inf):
        rows = true.copy()
        rows[5, 0] = value
        assert judged(rows, true=true) == ""
    rows = true.copy()
    rows[6] = 0  # of one side alone
    assert "from row 6 on (cosine 0)" in judged(rows, true=true)
    rows = true.copy()
    rows[3] = TABLE[3]
    assert "from row 3 on (cosine 0)" in judged(rows, true=true)


@pytest.mark.parametrize(
    ("first", "said"),
    [(1, "1 earlier"), (2, "2 earlier"), (SHIFT, f"{SHIFT} earlier"), (SHIFT + 1, "")],
)
def test_rows_that_come_early_or_late_are_told_so(first, said):
    """64 rows are searched, of as many as there are."""
    true, mine = TABLE, np.concatenate([TABLE[first:], np.roll(TABLE, 1, axis=1)[:first]])
    early = judged(mine, true=true)
    assert (f", whose rows it has {said}{END}" in early) if said else ("whose rows" not in early)
    late = judged(true, true=mine)
    assert (f", whose rows it has {said.replace('earlier', 'later')}{END}" in late) if said else "whose" not in late


def test_two_rows_in_common_tell_of_a_shift_and_one_does_not():
    assert "whose rows it has 1 earlier" in judged(TABLE[1:4], true=TABLE[:3])
    assert "whose rows" not in judged(TABLE[1:3], true=TABLE[:2])
    assert "whose rows it has 2 earlier" in judged(TABLE[2:6], true=TABLE[:4])
    assert "whose rows" not in judged(TABLE[3:7], true=TABLE[:4])


@pytest.mark.parametrize("rows", [TABLE[:8, 0], TABLE[:8, :31], TABLE[:8, :, None]], ids=["flat", "narrow", "three"])
def test_another_size_is_left_to_the_comparison_and_checks_nothing(rows, noted):
    assert judged(rows, partial=True) == "" and judged(TABLE[:8], partial=True, true=None) == ""
    said = "theirs shows no target.embed: nothing says that it ran over the golden's tokens"
    assert [record.getMessage() for record in noted.records] == [said, said]


def test_nothing_is_noted_of_a_dump_that_shows_them_or_may_not_lack_them(noted):
    assert judged(TABLE[:8], TABLE[:8, 0], partial=True) == judged(TABLE[:8, 0]) == judged() == ""
    assert not noted.records
    assert judged(partial=True) == "" and len(noted.records) == 1
