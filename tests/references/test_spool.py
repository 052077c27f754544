"""Stages on disk come back bit for bit, as often as they are asked for, and the file is gone with them."""

from __future__ import annotations

import errno
import os

import ml_dtypes
import numpy as np
import pytest

from parity.references.spool import Spool

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
    def full(file, content, start):
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool(tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as told:
        spool[0, "stage"] = VALUES[0]
    assert told.value.filename == str(tmp_path)
