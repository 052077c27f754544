"""Spools byte by byte: records, what a system call leaves over, and what another header makes of a file."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from parity import limits
from parity.errors import UsageError
from parity.golden.shards import digest
from parity.golden.spool import Spool, Written

VALUE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
FIRST = json.dumps({"golden": "this"}).encode()


def record(said: dict | bytes, content: bytes = b"") -> bytes:
    header = said if isinstance(said, bytes) else json.dumps(said).encode()
    return len(header).to_bytes(8, "little") + header + content


def tensor(round_=0, stage="stage", value=VALUE, **changes) -> bytes:
    told = {"round": round_, "stage": stage, "dtype": value.dtype.name, "shape": value.shape, "sha256": digest(value)}
    told = {name: one for name, one in (told | changes).items() if one is not None}
    return record(told, value.tobytes())


def opened(path, *parts: bytes) -> Spool:
    path.mkdir(exist_ok=True)
    (path / "s").write_bytes(b"".join(parts))
    return Spool(path, "s", "this")


def test_a_named_spool_is_its_golden_and_then_each_tensor_with_its_digest(tmp_path):
    spool = Spool(tmp_path, "s", "this")
    assert spool.path == tmp_path / "s" and not spool
    spool[0, "stage"], spool[3, "other"] = VALUE, VALUE[0].astype(np.float64)
    due = record(FIRST) + tensor() + tensor(3, "other", VALUE[0].astype(np.float64))
    assert spool.path.read_bytes() == due and len(spool) == 2


def test_a_spool_without_a_name_takes_no_digests(tmp_path):
    spool = Spool(tmp_path)
    spool[0, "stage"] = VALUE
    header = {"round": 0, "stage": "stage", "dtype": "float32", "shape": [2, 3, 4]}
    assert spool._end == len(record(header)) + 96 == spool._held[0, "stage"].end
    assert spool._held[0, "stage"] == Written(len(record(header)), (2, 3, 4), np.dtype(np.float32))


def test_what_a_system_call_leaves_over_is_written_and_read_by_the_next(tmp_path, monkeypatch):
    write, read = os.write, os.preadv
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:7]))
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: read(file, [parts[0][:5]], at))
    spool = Spool(tmp_path, "s", "this")
    for round_ in range(3):
        spool[round_, "stage"] = VALUE + round_
    assert [float(spool[round_, "stage"][0, 0, 0]) for round_ in range(3)] == [0, 1, 2]
    assert all(np.array_equal(spool[round_, "stage"], VALUE + round_) for round_ in range(3))
    assert spool.path.read_bytes() == record(FIRST) + b"".join(tensor(n, value=VALUE + np.float32(n)) for n in range(3))


def test_what_was_cut_off_behind_the_writers_back_is_told(tmp_path):
    spool = Spool(tmp_path, "s", "this")
    spool[0, "stage"] = VALUE
    os.truncate(spool.path, spool._end - 1)
    with pytest.raises(UsageError, match=rf"^{tmp_path}/s: what was written is not there any more$"):
        spool[0, "stage"]


@pytest.mark.parametrize(
    ("behind", "held"),
    [
        ([tensor(), tensor(1), tensor(2)], [0, 1, 2]),
        ([tensor(), tensor(1, sha256="0" * 64), tensor(2)], [0]),
        ([tensor(), tensor(1, sha256=None)], [0]),
        ([tensor(), tensor(1, dtype="float3"), tensor(2)], [0]),
        ([tensor(), tensor(1, shape=[2, 3, 5]), tensor(2)], [0]),
        ([tensor(), tensor(1, shape=None)], [0]),
        ([tensor(), tensor(1, shape=7)], [0]),
        ([tensor(), tensor(True)], [0]),
        ([tensor(), tensor(1.0)], [0]),
        ([tensor(), tensor(1, stage=None)], [0]),
        ([tensor(), tensor(1)[:-1]], [0]),
        ([tensor(), tensor(1)[:9]], [0]),
        ([tensor(), b"\1" * 7], [0]),
        ([tensor(), record(b"[]")], [0]),
        ([tensor(), record(b"{")], [0]),
        ([tensor(), record(b"")], [0]),
        ([tensor(), record({"golden": "this"}), tensor(1)], [0]),
        ([tensor(), tensor(value=VALUE + 1)], [0]),
        ([], []),
    ],
)
def test_records_are_taken_up_to_the_first_that_is_none(behind, held, tmp_path):
    spool = opened(tmp_path, record(FIRST), *behind)
    assert [round_ for round_, _ in spool] == held
    assert spool.path.stat().st_size == spool._end
    if len(behind) == len(held):
        assert spool.path.read_bytes() == record(FIRST) + b"".join(behind)
    elif behind[1:] != [tensor(value=VALUE + 1)]:
        assert spool.path.read_bytes() == record(FIRST) + tensor()
    else:  # a tensor that is there twice is the second one
        assert np.array_equal(spool[0, "stage"], VALUE + 1)


@pytest.mark.parametrize("first", [tensor(), record({"gold": "this"}), record(b"7"), b"\2\0\0\0\0\0\0", b""])
def test_a_file_that_does_not_begin_with_its_golden_is_begun_anew(first, tmp_path):
    spool = opened(tmp_path, first, tensor(1))
    assert not spool and spool.path.read_bytes() == record(FIRST)


@pytest.mark.parametrize("there", [b"", tensor()])
def test_another_golden_is_refused_by_the_folder_and_nothing_is_touched(there, tmp_path):
    before = record({"golden": "that"}) + there
    (tmp_path / "s").write_bytes(before)
    with pytest.raises(UsageError) as refused:
        Spool(tmp_path, "s", "this")
    words = "is of another golden (other checkpoints, prompts, options or sources): remove it, or choose another --out"
    assert str(refused.value) == f"{tmp_path} {words}" and (tmp_path / "s").read_bytes() == before


@pytest.mark.parametrize(("size", "held"), [(limits.SPOOL_HEADER_BYTES, 1), (limits.SPOOL_HEADER_BYTES + 1, 0)])
def test_a_header_has_so_many_bytes_at_the_most(size, held, tmp_path):
    bare = len(tensor()) - 8 - VALUE.nbytes
    assert len(opened(tmp_path, record(FIRST), tensor(x="y" * (size - bare - len(', "x": ""'))))) == held


def test_the_same_tensor_is_not_written_again_and_another_one_is(tmp_path):
    spool = Spool(tmp_path, "s", "this")
    for value, more in (
        (VALUE, True),
        (VALUE.copy(), False),
        (VALUE.reshape(4, 6), True),
        (VALUE.view(np.int32), True),
    ):
        before = spool._end
        spool[0, "stage"] = value
        assert (spool._end > before) is more and spool.path.stat().st_size == spool._end
    spool[0, "stage"] = VALUE.view(np.int32) * -1
    assert spool[0, "stage"].dtype == np.int32 and spool[0, "stage"][1, 2, 3] < 0
