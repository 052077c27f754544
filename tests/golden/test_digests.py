"""Digests of files: remembered as long as a file is unchanged, taken anew as soon as it is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import sleep

import pytest

from parity.errors import UsageError
from parity.golden import digests
from parity.golden.digests import digest_files

LONG_AGO = 1_000_000_000 * 10**9


@pytest.fixture(autouse=True)
def read(monkeypatch, tmp_path) -> list[str]:
    """Names of the files that are read, in order; nothing is remembered at first, and any file counts as settled."""
    names: list[str] = []
    hash_file = digests.hash_file
    monkeypatch.setattr(digests, "hash_file", lambda file: names.append(_name(file)) or hash_file(file))
    monkeypatch.setattr(digests, "_remembered", {})
    monkeypatch.setattr(digests, "UNSETTLED_NS", 0)
    monkeypatch.setenv("PARITY_HOME", str(tmp_path / "home"))
    return names


def _name(file) -> str:
    return Path(os.readlink(f"/proc/self/fd/{file.fileno()}")).name


@pytest.fixture
def weights(tmp_path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"the weights")
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    sleep(0.02)  # more than a tick of the file system's clock: what changes next changes later
    return path


def test_a_file_is_read_once(weights, read):
    assert digest_files([weights]) == digest_files([weights]) == digest_files([weights])
    assert read == ["model.safetensors"]


def test_names_count_and_no_file_has_no_digest(weights):
    other = weights.with_name("other.safetensors")
    other.write_bytes(weights.read_bytes())
    assert digest_files([weights]) != digest_files([other]) and digest_files([]) == ""


@pytest.mark.parametrize("moved", [LONG_AGO + 1, LONG_AGO], ids=["a nanosecond later", "time put back"])
def test_other_bytes_of_the_same_size_are_seen(moved, weights, read):
    """Who puts the time of the bytes back still moves that of the entry, which nobody sets."""
    before = digest_files([weights])
    weights.write_bytes(b"the WEIGHTS")
    os.utime(weights, ns=(moved, moved))
    assert digest_files([weights]) != before and len(read) == 2


def test_a_file_put_in_its_place_is_seen(weights, read):
    before = digest_files([weights])
    other = weights.with_name("new")
    other.write_bytes(b"the WEIGHTS")
    os.utime(other, ns=(LONG_AGO, LONG_AGO))
    other.replace(weights)
    assert digest_files([weights]) != before and len(read) == 2


def test_a_link_is_what_it_points_to(weights, read, tmp_path):
    link = tmp_path / "linked" / weights.name
    link.parent.mkdir()
    link.symlink_to(weights)
    assert digest_files([link]) == digest_files([weights]) and len(read) == 1
    weights.write_bytes(b"the WEIGHTS")
    digest_files([link])
    assert len(read) == 2


def test_a_file_that_just_changed_is_read_again(weights, read, monkeypatch):
    monkeypatch.setattr(digests, "UNSETTLED_NS", 3600 * 10**9)
    assert digest_files([weights]) == digest_files([weights])
    assert len(read) == 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(weights, read, monkeypatch):
    hash_file = digests.hash_file
    monkeypatch.setattr(digests, "hash_file", lambda file: (hash_file(file), weights.write_bytes(b"x"))[0])
    digest_files([weights])
    monkeypatch.setattr(digests, "hash_file", hash_file)
    digest_files([weights])
    assert len(read) == 2


def test_small_files_are_not_remembered_on_disk(weights, tmp_path):
    digest_files([weights])
    assert not (tmp_path / "home").exists()


@pytest.fixture
def kept(weights, monkeypatch, tmp_path) -> Path:
    """The file below home in which a large file's digest is remembered for the next process."""
    monkeypatch.setattr(digests, "KEPT_BYTES", 1)
    digest_files([weights])
    digests._remembered.clear()
    (place,) = (tmp_path / "home" / "digests").iterdir()
    return place


def test_the_next_process_reads_no_large_file_again(weights, kept, read):
    digest_files([weights])
    assert len(read) == 1


def test_what_is_remembered_of_a_file_as_it_was_says_nothing_of_it_as_it_is(weights, kept, read):
    before = digest_files([weights])
    weights.write_bytes(b"the WEIGHTS")
    os.utime(weights, ns=(LONG_AGO, LONG_AGO))
    assert digest_files([weights]) != before and len(read) == 2
    digests._remembered.clear()
    digest_files([weights])
    assert len(read) == 2 and len(list(kept.parent.iterdir())) == 1  # replaced, not added


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw.update(sha256="0" * 63),
        lambda raw: raw.update(sha256=7),
        lambda raw: raw.update(mark=raw["mark"][:4]),
        lambda raw: raw.update(file="another"),
        lambda raw: raw.clear(),
    ],
)
def test_a_spoilt_memory_is_none(spoil, weights, kept, read):
    raw = json.loads(kept.read_text())
    spoil(raw)
    kept.write_text(json.dumps(raw))
    digest_files([weights])
    assert len(read) == 2


@pytest.mark.parametrize("damage", [b"", b"[1]", b"not json", b"\xff"])
def test_a_damaged_memory_is_none(damage, weights, kept, read):
    kept.write_bytes(damage)
    digest_files([weights])
    assert len(read) == 2


def test_a_home_that_cannot_be_written_costs_nothing_but_time(weights, monkeypatch, tmp_path):
    monkeypatch.setattr(digests, "KEPT_BYTES", 1)
    (tmp_path / "home").write_text("no folder")
    assert digest_files([weights])
    monkeypatch.setenv("PARITY_HOME", "")
    digests._remembered.clear()
    assert digest_files([weights])


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"lost\.safetensors cannot be read"):
        digest_files([tmp_path / "lost.safetensors"])
