"""Stages on disk come back bit for bit; of a spool with a name, what is whole is taken up."""

from __future__ import annotations

import errno
import os

import ml_dtypes
import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden.spool import Spool

VALUES = (
    np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
    np.array([[1.5, -0.0, np.inf]], ml_dtypes.bfloat16),
    np.array([7, -1], np.int64),
    np.empty((0, 5), np.float32),
)


def test_what_is_written_comes_back_and_what_is_written_again_takes_its_place(tmp_path):
    spool = Spool(tmp_path)
    spool[0, "stage"] = np.zeros(3)
    for number, value in enumerate(VALUES):
        spool[number, "stage"] = value
    for number, value in enumerate(VALUES):
        for _ in range(2):
            back = spool[number, "stage"]
            assert back.dtype == value.dtype and back.shape == value.shape and back.tobytes() == value.tobytes()
    assert (0, "other") not in spool and spool.get((9, "stage")) is None
    del spool[1, "stage"]
    assert list(spool) == [(0, "stage"), (2, "stage"), (3, "stage")] and list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_by_the_folder(tmp_path, monkeypatch):
    def full(file, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool(tmp_path)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left") as told:
        spool[0, "stage"] = VALUES[0]
    assert told.value.filename == str(tmp_path)


@pytest.fixture
def written(tmp_path):
    """A spool of two tensors whose writer is gone."""
    spool = Spool(tmp_path, "p000.spool", "this golden")
    spool[0, "stage"], spool[1, "stage"] = VALUES[0], VALUES[1]
    del spool
    return tmp_path / "p000.spool"


def reopened(path, golden="this golden"):
    return Spool(path.parent, path.name, golden)


def test_what_a_writer_left_is_taken_up_and_added_to(written):
    spool, size = reopened(written), written.stat().st_size
    assert np.array_equal(spool[0, "stage"], VALUES[0]) and spool[1, "stage"].tobytes() == VALUES[1].tobytes()
    spool[1, "stage"] = VALUES[1]
    assert written.stat().st_size == size
    spool[1, "stage"], spool[2, "stage"] = VALUES[2], VALUES[3]
    del spool
    again = reopened(written)
    assert np.array_equal(again[1, "stage"], VALUES[2]) and again[2, "stage"].shape == (0, 5)


@pytest.mark.parametrize("left", range(1, 60, 7))
def test_what_was_half_written_is_not_there(written, left):
    os.truncate(written, written.stat().st_size - left)
    spool = reopened(written)
    assert list(spool) == [(0, "stage")]
    spool[1, "stage"] = VALUES[1]
    del spool
    assert list(reopened(written)) == [(0, "stage"), (1, "stage")]


def test_behind_a_damaged_tensor_nothing_is_taken_up(written):
    content = bytearray(written.read_bytes())
    content[content.index(np.float32(2).tobytes())] ^= 1
    written.write_bytes(content)
    assert not reopened(written)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 40, (9).to_bytes(8, "little") + b'{"a": [1]', b"\2" + b"\0" * 7 + b"[]"]
)
def test_a_file_of_anything_else_holds_nothing(written, content):
    written.write_bytes(content)
    spool = reopened(written)
    spool[0, "stage"] = VALUES[0]
    del spool
    assert list(reopened(written)) == [(0, "stage")]


@pytest.mark.parametrize("change", [(b'"round"', b'"sound"'), (b'"stage": "stage"', b'"stage": [1,2,3]')])
def test_a_header_that_names_no_place_ends_what_is_taken_up(written, change):
    content = written.read_bytes()
    assert change[0] in content and len(change[0]) == len(change[1])
    written.write_bytes(content.replace(*change))
    assert not reopened(written)


def test_a_spool_of_another_golden_or_of_a_living_writer_is_refused(written):
    with pytest.raises(UsageError, match="is of another golden"):
        reopened(written, "that golden")
    held = reopened(written)
    with pytest.raises(UsageError, match="is being written by another command"):
        reopened(written)
    assert len(held) == 2
