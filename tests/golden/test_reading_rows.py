"""Reading a manifest by hand: which are remembered, how keys are counted, and what is asked of the bytes first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from parity.errors import UsageError
from parity.golden import reading

PATH = Path("/golden/manifest.json")


class Said:
    """A manifest that was read from an object of two keys."""

    model_fields_set = frozenset(("schema_version", "digest"))

    def __init__(self, digest: object) -> None:
        self.schema_version, self.digest = 1, digest


@pytest.fixture
def checked(monkeypatch):
    """Check bytes whose digest is their own text; the bytes that were parsed, in their order."""
    parsed: list[bytes] = []
    monkeypatch.setattr(reading, "_checked", {})
    monkeypatch.setattr(reading, "_parsed", lambda data, path: parsed.append(data) or Said(data.decode()))
    monkeypatch.setattr(reading, "own_digest", bytes.decode)
    monkeypatch.setattr(reading, "refuse_contradictions", lambda manifest, path: None)
    return SimpleNamespace(of=lambda data: reading.checked_manifest(data, PATH), parsed=parsed)


def text(number: int, size: int = 0) -> bytes:
    return f'{{"schema_version": 1, "digest": {number}}}'.encode().ljust(size)


def test_the_last_four_manifests_are_remembered(checked):
    for number in (0, 1, 2, 3, 3, 0, 4, 1, 0):
        checked.of(text(number))
    assert checked.parsed == [text(number) for number in (0, 1, 2, 3, 4, 0)]
    assert (reading.KEPT, reading.KEPT_BYTES) == (4, 2 * 2**20)


def test_a_large_manifest_is_checked_each_time(checked, monkeypatch):
    monkeypatch.setattr(reading, "KEPT_BYTES", 60)
    for size in (60, 60, 61, 61):
        checked.of(text(size, size))
    assert [len(data) for data in checked.parsed] == [60, 61, 61]


def test_a_manifest_that_is_not_what_was_written_is_not_remembered(checked, monkeypatch):
    monkeypatch.setattr(reading, "own_digest", lambda data: "another")
    for _ in range(2):
        with pytest.raises(UsageError, match="is not what was written"):
            checked.of(text(7))
    assert len(checked.parsed) == 2


def test_a_key_that_is_there_twice_is_refused(checked):
    with pytest.raises(UsageError, match="schema_version"):
        checked.of(b'{"schema_version": 1, "digest": 2, "schema_version": 3}')


def test_keys_are_those_of_every_object_within():
    inner = Said("x")
    assert [reading.keys(leaf) for leaf in ("a", 1, 1.5, True, None)] == [0] * 5
    assert reading.keys({}) == reading.keys(()) == reading.keys((1, 2)) == 0
    assert reading.keys({"a": 1, "b": {"c": 2}}) == 3 and reading.keys(({"a": 1}, {"b": 2, "c": 3})) == 3
    assert reading.keys(inner) == 2 and reading.keys({"a": (inner, inner)}) == 5
    outer = Said({"a": inner, "b": 1})
    assert reading.keys(outer) == 2 + 2 + 2 and reading.keys({"a": {"b": 1}}) == 2


def test_values_are_counted_before_anything_is_parsed(monkeypatch):
    monkeypatch.setattr(reading.limits, "VALUES", 3)
    with pytest.raises(UsageError, match="holds more than 3 values"):
        reading._parsed(b"[1, 2, 3, 4]", PATH)
    with pytest.raises(UsageError, match="does not follow the golden format"):
        reading._parsed(b"[1, 2]", PATH)


def test_as_many_values_as_there_may_be_are_parsed(monkeypatch):
    data = b"[1, 2, 3]"
    for most, said in (
        (reading.files.values(data), "follow the golden format"),
        (reading.files.values(data) - 1, "holds"),
    ):
        monkeypatch.setattr(reading.limits, "VALUES", most)
        with pytest.raises(UsageError, match=said):
            reading._parsed(data, PATH)


def test_a_flag_stands_for_no_number(monkeypatch):
    monkeypatch.setattr(reading, "_mistake", lambda error: str([one["loc"] for one in error.errors()]))
    for given, refused in (("true", True), ("1", False)):
        with pytest.raises(UsageError) as told:
            reading._parsed(b'{"case": {"k": %s}}' % given.encode(), PATH)
        assert ("('case', 'k')" in str(told.value)) is refused


def test_a_dump_of_another_version_is_told_a_way_out():
    older = "schema_version: Input should be 2; `parity seal DIR` brings a dump of an older parity up to date"
    for data, said in ((b'{"schema_version": 1}', older), (b'{"schema_version": 2}', "kind: Field required")):
        with pytest.raises(UsageError) as refused:
            reading._parsed(data, PATH)
        assert str(refused.value) == f"{PATH} does not follow the golden format: {said}"
