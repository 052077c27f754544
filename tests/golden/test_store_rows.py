"""Writing a dump by hand: shards and their names, limits of bytes, what is kept of a tensor and what is not."""

from __future__ import annotations

import errno
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden import shards
from parity.golden.manifest import TensorRow, key
from parity.golden.shards import digest
from parity.golden.store import by_place, seal
from parity.golden.writer import DumpWriter, _Shard, unchanged_rows
from parity.sketch import Sketched
from parity.stages import declared

NAMES = declared(1, 1)
EMBED, LOGITS, CACHE, TOKENS = "target.embed", "target.logits", "kv.target.0.k", "target.tokens"


def row(stage: str, shape, start: int = 0, prompt: int = 0, round_: int = 0, **more) -> TensorRow:
    fields = dict(axes=NAMES[stage].stage.axes, dtype="float32", variant="float32", shard="s", sha256="") | more
    return TensorRow(key=key(prompt, round_, stage), shape=shape, start=start, **fields)


def test_a_shard_is_named_by_its_number_and_counts_its_bytes():
    shard = _Shard("p001.float32")
    value = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    assert shard.name == "p001.float32.safetensors" and shard.bytes == 0
    assert shard.hold("a", value) == digest(np.ascontiguousarray(value)) and shard.bytes == 24
    shard.hold("b", np.zeros(2, np.int64))
    assert shard.bytes == 40 and list(shard.held) == ["a", "b"]
    assert _Shard("p001.float32", 2).name == "p001.float32.2.safetensors"


@pytest.mark.parametrize(
    ("size", "files"),
    [
        (2**20, {"p002.float32.safetensors": ["r0000", "r0001", "r0002"]}),
        (64, {"p002.float32.safetensors": ["r0000", "r0001"], "p002.float32.1.safetensors": ["r0002"]}),
        (65, {"p002.float32.safetensors": ["r0000", "r0001", "r0002"]}),
        (96, {"p002.float32.safetensors": ["r0000", "r0001", "r0002"]}),
        (
            32,
            {
                "p002.float32.safetensors": ["r0000"],
                "p002.float32.1.safetensors": ["r0001"],
                "p002.float32.2.safetensors": ["r0002"],
            },
        ),
    ],
)
def test_another_shard_is_begun_at_so_many_bytes_and_none_is_empty(size, files, tmp_path, monkeypatch):
    monkeypatch.setattr("parity.golden.writer.SHARD", size)
    tensors = {(round_, EMBED): np.full((2, 4), round_, np.float32) for round_ in range(3)}
    with DumpWriter(tmp_path / "out") as writer:
        writer.add(2, "float32", NAMES.values(), tensors)
        held = {
            path.name: sorted(name.split("/")[1] for name in shards.read(path)) for path in writer.partial.iterdir()
        }
        assert held == files
        assert {one.key: one.shard for one in writer.rows} == {
            key(2, int(round_[1:]), EMBED): name for name, rounds in files.items() for round_ in rounds
        }
        assert writer.bytes == sum(path.stat().st_size for path in writer.partial.iterdir())


def test_a_prompt_without_a_tensor_has_an_empty_shard_and_a_rank_its_own(tmp_path):
    with DumpWriter(tmp_path / "out") as writer:
        writer.add(0, "bfloat16", [], {})
        writer.add(0, "bfloat16", NAMES.values(), {(0, EMBED): np.ones((2, 4), np.float32)}, 3, {EMBED: "sum"})
        names = {path.name for path in writer.partial.iterdir()}
        assert names == {"p000.bfloat16.safetensors", "p000.bfloat16.rank3.safetensors"}
        assert [(one.rank, one.sharding, one.shape) for one in writer.rows] == [(3, "sum", (2, 4))]


def test_a_cache_is_stored_as_what_changed_since_the_round_before(tmp_path):
    rounds = [np.arange(6.0).reshape(3, 1, 2), np.arange(10.0).reshape(5, 1, 2), np.arange(10.0).reshape(5, 1, 2)]
    rounds[2] = rounds[2].copy()
    rounds[2][3] = 7
    tensors = {(n, CACHE): value.astype(np.float32) for n, value in enumerate(rounds)}
    tensors |= {(n, EMBED): np.ones((2, 4), np.float32) for n in range(2)}
    with DumpWriter(tmp_path / "out") as writer:
        writer.add(0, "float32", NAMES.values(), tensors)
        told = {one.place[1:]: (one.start, one.shape) for one in writer.rows}
        assert told == {
            (0, CACHE): (0, (3, 1, 2)), (1, CACHE): (3, (2, 1, 2)), (2, CACHE): (3, (2, 1, 2)),
            (0, EMBED): (0, (2, 4)), (1, EMBED): (0, (2, 4)),
        }  # fmt: skip
        held = shards.read(writer.partial / "p000.float32.safetensors")
        assert held[key(0, 2, CACHE)].tolist() == rounds[2][3:].tolist()


def test_so_many_bytes_may_be_written_and_not_one_more(tmp_path):
    with DumpWriter(tmp_path / "out", 100) as writer:
        writer._take(60, "a")
        writer._take(40, "b")
        with pytest.raises(UsageError) as refused:
            writer._take(1, "c.safetensors")
        assert str(refused.value) == "--max-bytes 100: c.safetensors would make it 101 bytes; nothing was written"
    with DumpWriter(tmp_path / "none") as writer:
        writer._take(2**60, "a")


def test_adopted_shards_are_counted_once_each(tmp_path):
    with DumpWriter(tmp_path / "out") as writer:
        (writer.partial / "s").write_bytes(b"12345")
        (writer.partial / "t").write_bytes(b"123")
        rows = [row(EMBED, (1, 2)), row(LOGITS, (1, 2)), row(EMBED, (1, 2), round_=1, shard="t")]
        writer.adopt(iter(rows))
        assert writer.bytes == 8 and writer.rows == rows


def test_a_dtype_that_the_format_does_not_hold_is_told_with_its_place(tmp_path):
    tensors = {(1, EMBED): np.zeros((2, 4), np.complex64)}
    said = r"^target\.embed came as complex64, which the format does not hold \(prompt 5, round 1\)$"
    with DumpWriter(tmp_path / "out") as writer, pytest.raises(UsageError, match=said):
        writer.add(5, "float32", NAMES.values(), tensors)


@pytest.mark.parametrize("code", [errno.ENOTEMPTY, errno.EEXIST, errno.EACCES])
def test_only_a_folder_that_is_there_was_written_by_another_command(code, small_golden, tmp_path, monkeypatch):
    def rename(path, to):
        raise OSError(code, "no")

    made = small_golden.manifest
    given = {name: getattr(made, name) for name in ("kind", "stages", "created", "producer", "model", "case")}
    given["case"] = made.case.model_copy(update={"prompts": made.case.prompts[:1]})
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError if code == errno.EACCES else UsageError), DumpWriter(tmp_path / "out") as writer:
        writer.finish(**given)


def test_rows_of_a_place_are_in_the_order_of_their_ranks():
    rows = [row(EMBED, (1, 2), rank=rank, prompt=prompt) for rank, prompt in ((2, 0), (0, 0), (1, 0), (0, 1))]
    grouped = by_place(rows)
    assert [one.rank for one in grouped["float32", 0, 0, EMBED]] == [0, 1, 2]
    assert grouped["float32", 1, 0, EMBED] == [rows[3]] and len(grouped) == 2


WIDE = np.arange(40, dtype=np.float32).reshape(2, 20)
OTHER = WIDE + np.float32([[0], [1]])


@pytest.mark.parametrize(
    ("before", "now", "rows"),
    [
        (None, WIDE, 0), (WIDE, WIDE, 2), (WIDE, WIDE[:1], 1), (WIDE[:1], WIDE, 1), (WIDE[:0], WIDE, 0),
        (WIDE, OTHER, 1), (WIDE, WIDE + 1, 0), (WIDE, WIDE.astype(float), 0), (WIDE, WIDE[:, :10], 0),
        (WIDE, WIDE.reshape(2, 10, 2), 0), (WIDE, WIDE.view(np.int32), 0),
        (Sketched(WIDE, (2, 90), "bfloat16"), Sketched(OTHER, (2, 90), "bfloat16"), 1),
        (Sketched(WIDE, (2, 90), "bfloat16"), WIDE, 0), (WIDE, Sketched(WIDE, (2, 90), "bfloat16"), 0),
    ],
)  # fmt: skip
def test_leading_rows_that_are_alike_are_counted(before, now, rows):
    assert unchanged_rows(before, now) == rows


@pytest.mark.parametrize("data", [b"[]", b"1", b'"manifest"'])
def test_what_is_no_object_is_not_sealed(data, tmp_path):
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(UsageError, match=rf"^{tmp_path}/manifest\.json holds no JSON object$"):
        seal(tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == data


def test_bytes_are_compared_and_not_values():
    zeros = np.zeros((2, 3), ml_dtypes.bfloat16)
    assert unchanged_rows(zeros, np.concatenate([zeros[:1], -zeros[:1]])) == 1
