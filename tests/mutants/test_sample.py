"""Which mutants are drawn: none of an annotation, whatever stands on its line, and what is evaluated beside it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.mutants import sample

SOURCE = """from __future__ import annotations


def first(one: int | None = 1 + 2, *, two: str | None = None) -> int | None:
    three: int | None = one - 4
    return three


class Told:
    four: int = 5 * 6
    five: int | None
"""


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """The characters of SOURCE whose mutants are drawn."""
    (tmp_path / "module.py").write_text(SOURCE)
    monkeypatch.setattr(sample, "TARGETS", ("module.py",))

    def places(text: str):
        """Where a character stands, as cosmic-ray has it: lines from 1, columns from 0."""
        for number, line in enumerate(SOURCE.splitlines(), 1):
            for column, letter in enumerate(line):
                if letter == text:
                    yield number, column

    def of(text: str) -> list[int]:
        items = [
            SimpleNamespace(mutations=[SimpleNamespace(
                module_path=sample.modules(tmp_path)[0], start_pos=place, end_pos=(place[0], place[1] + 1),
                operator_name="a", occurrence=0,
            )]) for place in places(text)
        ]  # fmt: skip
        return sorted(one.mutations[0].start_pos[0] for one in sample.sampled(items, 1, tmp_path))

    return of


def test_an_annotation_is_mutated_nowhere(drawn):
    assert drawn("|") == []


def test_defaults_and_values_beside_one_are(drawn):
    assert (drawn("+"), drawn("1"), drawn("4"), drawn("6"), drawn("*")) == ([4], [4], [5], [10], [4, 10])
