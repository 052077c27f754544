"""Digests by hand: which files are remembered on disk, what is too young, and the digest of a manifest's own bytes."""

from __future__ import annotations

import hashlib
import json
import os
from types import SimpleNamespace

import pytest

from parity.errors import UsageError
from parity.golden import digests
from parity.golden.digests import UNSEALED, digest_file, digest_files, digest_tensors, own_digest, sealed

BYTES = b"the weights"
LONG_AGO = 10**18


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A file of 11 bytes that changed long ago; nothing is remembered of it."""
    monkeypatch.setattr(digests, "_remembered", {})
    monkeypatch.setattr(digests, "UNSETTLED_NS", 0)
    monkeypatch.setenv("PARITY_HOME", str(tmp_path / "home"))
    path = tmp_path / "model.safetensors"
    path.write_bytes(BYTES)
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def hashed(monkeypatch) -> list[int]:
    """Grows by one with each file that is read."""
    read, hash_file = [], digests.hash_file
    monkeypatch.setattr(digests, "hash_file", lambda file: read.append(1) or hash_file(file))
    return read


def test_a_digest_is_of_names_and_digests_in_the_order_given(weights):
    other = weights.with_name("a.json")
    other.write_bytes(b"{}")
    parts = [path.name.encode() + hashlib.sha256(path.read_bytes()).digest() for path in (weights, other)]
    assert digest_files([weights, other]) == hashlib.sha256(b"".join(parts)).hexdigest()
    assert digest_files([other, weights]) == hashlib.sha256(b"".join(parts[::-1])).hexdigest()
    assert digest_file(weights) == hashlib.sha256(BYTES).digest()


@pytest.mark.parametrize(("least", "kept"), [(11, True), (12, False)])
def test_a_file_of_so_many_bytes_is_remembered_on_disk_and_a_smaller_one_not(
    least, kept, weights, hashed, monkeypatch, tmp_path
):
    monkeypatch.setattr(digests, "KEPT_BYTES", least)
    digest_file(weights)
    assert (tmp_path / "home").exists() is kept
    if kept:
        (place,) = (tmp_path / "home" / "digests").iterdir()
        status = weights.stat()
        mark = [11, LONG_AGO, status.st_ctime_ns, status.st_ino, status.st_dev]
        told = {"file": str(weights), "mark": mark, "sha256": hashlib.sha256(BYTES).hexdigest()}
        assert json.loads(place.read_text()) == told
        assert place.name == hashlib.sha256(str(weights).encode()).hexdigest()[:32] + ".json"
    digests._remembered.clear()
    assert digest_file(weights) == hashlib.sha256(BYTES).digest()
    assert len(hashed) == (1 if kept else 2)


def test_what_the_disk_remembers_of_a_smaller_file_is_not_looked_for(weights, hashed, monkeypatch):
    monkeypatch.setattr(digests, "KEPT_BYTES", 11)
    digest_file(weights)
    digests._remembered.clear()
    monkeypatch.setattr(digests, "KEPT_BYTES", 12)
    digest_file(weights)
    assert len(hashed) == 2


def test_a_home_that_cannot_be_written_costs_time_and_nothing_else(weights, hashed, monkeypatch, tmp_path):
    monkeypatch.setattr(digests, "KEPT_BYTES", 1)
    (tmp_path / "home").write_text("a file")
    assert digest_file(weights) == hashlib.sha256(BYTES).digest() == digest_file(weights)
    assert len(hashed) == 1


@pytest.mark.parametrize(("late", "remembered"), [(0, False), (1, True)])
def test_a_file_is_settled_two_seconds_behind_its_last_change(late, remembered, weights, hashed, monkeypatch):
    """Bytes or entry, whichever changed last; here the bytes, put into the future."""
    monkeypatch.setattr(digests, "UNSETTLED_NS", 2 * 10**9)
    changed = weights.stat().st_ctime_ns + 10**15
    os.utime(weights, ns=(changed, changed))
    monkeypatch.setattr(digests, "time_ns", lambda: changed + 2 * 10**9 + late)
    digest_file(weights), digest_file(weights)
    assert len(hashed) == (1 if remembered else 2)


def test_two_seconds_are_what_the_clock_of_a_file_system_may_take():
    assert (digests.UNSETTLED_NS, digests.KEPT_BYTES) == (2 * 10**9, 64 * 2**20)


def test_a_file_that_cannot_be_read_is_told_by_its_name_and_why(weights, monkeypatch):
    with pytest.raises(UsageError, match=r"gone\.safetensors cannot be read \(No such file or directory\)$"):
        digest_file(weights.with_name("gone.safetensors"))
    monkeypatch.setattr(digests, "hash_file", lambda file: os.read(-1, 1))
    with pytest.raises(UsageError, match=r"model\.safetensors cannot be read \(Bad file descriptor\)$"):
        digest_file(weights)


def test_tensors_are_digested_whatever_their_order_and_each_field_counts():
    rows = [SimpleNamespace(variant="float32", key=f"p000/r{n:04d}/x", sha256=str(n), shard=str(n)) for n in range(2)]
    assert digest_tensors(rows) == digest_tensors(rows[::-1])
    for field in ("variant", "key", "sha256"):
        other = SimpleNamespace(**vars(rows[0]) | {field: "z"})
        assert digest_tensors([other, rows[1]]) != digest_tensors(rows)
    elsewhere = SimpleNamespace(**vars(rows[0]) | {"shard": "z"})
    assert digest_tensors([elsewhere, rows[1]]) == digest_tensors(rows)


@pytest.mark.parametrize("size", [0, 1, 100, 1000])
def test_a_manifest_is_sealed_over_its_own_bytes(size):
    data = sealed({"digest": "old", "words": "x" * size, "last": 1})
    assert json.loads(data) == {"words": "x" * size, "last": 1, "digest": own_digest(data)}
    assert list(json.loads(data))[-1] == "digest"
    blank = data.replace(own_digest(data).encode(), UNSEALED.encode())
    assert own_digest(data) == hashlib.sha256(blank).hexdigest() == own_digest(blank) and len(UNSEALED) == 64


@pytest.mark.parametrize(
    ("between", "whole"),
    [(b'"digest":"%s"}', True), (b'"digest": "%s" }\n', True), (b'"digest":         "%s"         }', True),
     (b'"digest":          "%s"}', False), (b'"digest": "%s"          }', False),
     (b'"digest": "%s"}' + b"\n" * 10, False), (b'"digest": "%s"}x', False), (b'"digest": "%s"', False),
     (b'"digest": "%s0"}', False), (b'"Digest": "%s"}', False)],
)  # fmt: skip
def test_a_digest_is_read_where_it_is_the_last_field(between, whole):
    data = b'{"a": 1, ' + between % UNSEALED.encode()
    assert own_digest(data) == (hashlib.sha256(data).hexdigest() if whole else "")
    assert own_digest(b'{"a": 1, ' + between % (b"F" * 64)) == ""
