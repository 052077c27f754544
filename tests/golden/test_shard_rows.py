"""Shards by hand: what a header may say, and how the parts of ranks make one tensor and are cut out of one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from parity import limits
from parity.errors import UsageError
from parity.golden.manifest import TensorRow
from parity.golden.ranks import merge_shards, merged_row, replicas_differ, split
from parity.golden.shards import read

BODY = np.arange(6, dtype=np.float32).tobytes()


@pytest.fixture
def shard(tmp_path):
    """`shard(header, body)` reads a file of these."""

    def make(header, body: bytes = BODY, length: int | None = None):
        data = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / "s"
        path.write_bytes((len(data) if length is None else length).to_bytes(8, "little") + data + body)
        return read(path)

    return make


def entry(dtype="F32", shape=(2, 3), offsets=(0, 24)) -> dict:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def test_tensors_lie_where_the_header_says(shard):
    two = entry("F32", (1, 2), (16, 24)) | {"y": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}}
    held = shard(two | {"__metadata__": {"a": "b"}})
    assert [*held] == ["x", "y"] and held["x"].tolist() == [[4, 5]] and held["y"].dtype == np.int64
    assert shard(entry())["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert shard(entry(shape=(0, 3), offsets=(24, 24)))["x"].shape == (0, 3)
    assert shard({}, b"") == {} and shard(entry(shape=(0,), offsets=(0, 0)), b"")["x"].shape == (0,)
    assert shard(entry(shape=(), offsets=(0, 4)))["x"] == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "F8"}, "tensor x has dtype F8, which the format does not know"),
        ({"shape": (2, 2)}, "is truncated: tensor x ends at byte 24 of 24"),
        ({"offsets": (0, 20)}, "is truncated: tensor x ends at byte 20 of 24"),
        ({"offsets": (4, 28)}, "is truncated: tensor x ends at byte 28 of 24"),
        ({"shape": (-2, -3)}, "is damaged: its header does not say what tensor x is"),
        ({"shape": (2, 3.0)}, "is damaged: its header does not say what tensor x is"),
        ({"shape": (True, 6)}, "is damaged: its header does not say what tensor x is"),
        ({"offsets": (-24, 0)}, "is damaged: its header does not say what tensor x is"),
        ({"offsets": (0, 24, 24)}, "is damaged: its header does not say what tensor x is"),
        ({"offsets": None}, "is damaged: its header does not say what tensor x is"),
        ({"shape": [1] * (limits.AXES + 1)}, "tensor x has 9 axes, 8 at most are read"),
    ],
)
def test_a_tensor_that_the_header_does_not_tell_is_refused(changes, said, shard, tmp_path):
    with pytest.raises(UsageError) as refused:
        shard(entry(**changes))
    assert str(refused.value).removeprefix(f"{tmp_path}/s").removeprefix(":").strip() == said


def test_eight_axes_are_read(shard):
    assert shard(entry(shape=[1] * 6 + [2, 3]))["x"].ndim == 8 == limits.AXES


@pytest.mark.parametrize(
    ("header", "length", "said"),
    [
        (b"[]", None, "is not a safetensors file: its header is no JSON object"),
        (b"{}", 0, "is truncated or not a safetensors file"),
        (b"{}", 27, "is truncated or not a safetensors file"),
        (b"{}", 2**62, "is truncated or not a safetensors file"),
    ],
)
def test_a_file_that_is_none_is_told(header, length, said, shard, tmp_path):
    with pytest.raises(UsageError, match=rf"^{tmp_path}/s {said}$"):
        shard(header, BODY, length)


def test_a_header_may_fill_the_file_and_so_many_bytes_and_no_more(shard, monkeypatch):
    assert shard(b"{}" + b" " * 30, b"", 32) == {}
    monkeypatch.setattr(limits, "HEADER_BYTES", 8)
    assert shard(b"{}      ") == {}
    with pytest.raises(UsageError, match="is truncated or not a safetensors file"):
        shard(b"{}       ")


def row(rank: int = 0, sharding: str = "B", shape=(2, 3), **more) -> TensorRow:
    fields = dict(axes=("A", "B"), dtype="float32", start=0, shard="", sha256="", variant="float32") | more
    return TensorRow(key="p000/r0000/x", rank=rank, sharding=sharding, shape=shape, **fields)


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        ([row(0), row(1, shape=(2, 5))], (2, 8)),
        ([row(0, "A", (1, 3)), row(1, "A", (4, 3))], (5, 3)),
        ([row(rank, "B/2") for rank in range(4)], (2, 6)),
        ([row(rank, "B/4") for rank in range(4)], (2, 3)),
        ([row(rank, "B/1") for rank in range(3)], (2, 9)),
        ([row(rank, "sum") for rank in range(3)], (2, 3)),
        ([row(rank, "replicated") for rank in range(3)], (2, 3)),
        ([row(0)], (2, 3)),
        ([row(0, "replicated")], (2, 3)),
    ],
)
def test_the_whole_tensors_row_is_as_long_as_its_parts(rows, shape):
    assert merged_row(rows).shape == shape and merged_row(rows).key == "p000/r0000/x"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(1)], "ranks [1] are not 0 … 0, each once"),
        ([row(1, "replicated")], "ranks [1] are not 0 … 0, each once"),
        ([row(0), row(2)], "ranks [0, 2] are not 0 … 1, each once"),
        ([row(0), row(0)], "ranks [0, 0] are not 0 … 1, each once"),
        ([row(0), row(1, shape=(3, 3))], "the ranks disagree on axes, dtype, sharding or shape"),
        ([row(0), row(1, dtype="bfloat16")], "the ranks disagree on axes, dtype, sharding or shape"),
        ([row(0), row(1, start=1)], "the ranks disagree on axes, dtype, sharding or shape"),
        ([row(0), row(1, "A")], "the ranks disagree on axes, dtype, sharding or shape"),
        ([row(0, "sum"), row(1, "sum", (2, 4))], "the ranks disagree on axes, dtype, sharding or shape"),
        ([row(rank, "B/2") for rank in range(3)], "3 ranks are no multiple of 2, which B/2 asks for"),
        ([row(0, "C")], "sharding 'C' is none of sum, replicated, A, B, or a letter/copies"),
        ([row(0, "B/0")], "sharding 'B/0' is none of sum, replicated, A, B, or a letter/copies"),
        ([row(0, "B/")], "sharding 'B/' is none of sum, replicated, A, B, or a letter/copies"),
        ([row(0, "B/x")], "sharding 'B/x' is none of sum, replicated, A, B, or a letter/copies"),
    ],
)
def test_ranks_that_do_not_merge_are_told(rows, said):
    with pytest.raises(UsageError) as refused:
        merged_row(rows)
    assert str(refused.value) == f"p000/r0000/x: {said}"


WHOLE = np.arange(24, dtype=np.float32).reshape(2, 12)


@pytest.mark.parametrize(
    ("sharding", "ranks"), [("B", 3), ("B/2", 4), ("A", 2), ("sum", 3), ("replicated", 3), ("B", 1), ("B/3", 3)]
)
def test_what_is_cut_for_ranks_merges_again(sharding, ranks):
    parts = split("x", WHOLE, ranks, sharding, ("A", "B"))
    assert len(parts) == ranks
    assert merge_shards("x", parts, sharding, ("A", "B")).tolist() == WHOLE.tolist()


def test_which_rank_holds_what():
    three = split("x", WHOLE, 3, "B", ("A", "B"))
    assert [part[0].tolist() for part in three] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    four = split("x", WHOLE, 4, "B/2", ("A", "B"))
    assert [part[0, 0] for part in four] == [0, 0, 6, 6]
    added = split("x", WHOLE, 3, "sum", ("A", "B"))
    assert added[0] is WHOLE and [part.any() for part in added] == [True, False, False]
    assert merge_shards("x", [WHOLE, WHOLE + 1], "replicated", ("A", "B")) is WHOLE
    assert merge_shards("x", [WHOLE, WHOLE + 1], "sum", ("A", "B"))[1, 11] == 47


@pytest.mark.parametrize(
    ("sharding", "digests", "differ"),
    [
        ("replicated", "aaa", False), ("replicated", "aab", True), ("replicated", "baa", True), ("sum", "ab", False),
        ("B", "abc", False), ("B/2", "aabb", False), ("B/2", "abbb", True), ("B/2", "aabc", True),
        ("B/2", "aaaa", False),
    ],
)  # fmt: skip
def test_ranks_that_should_hold_the_same_are_compared(sharding, digests, differ):
    assert replicas_differ([row(rank, sharding, sha256=one) for rank, one in enumerate(digests)]) is differ
