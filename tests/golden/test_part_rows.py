"""What is done of a golden, part by part: what is linked, kept, damaged or another golden's; options that do not go."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden import parts, shards
from parity.golden.case import Generation
from parity.golden.manifest import TensorRow, key
from parity.golden.parts import Parts

TOLD = Generation(emitted=(1, 2), acceptance_length=(1,), accepted_drafts=(0,), finish="length")
VALUES = np.arange(3, dtype=np.float32)


@pytest.fixture
def writer(tmp_path):
    """A golden under way that holds two prompts of two shards each, a tensor in each."""
    partial = tmp_path / "partial"
    partial.mkdir()
    rows = []
    for prompt in (0, 1):
        for variant in ("float32", "bfloat16"):
            name, shard = key(prompt, 0, "x"), f"p{prompt:03d}.{variant}.safetensors"
            shards.write(partial / shard, {name: VALUES + prompt})
            rows.append(
                TensorRow(
                    key=name, variant=variant, axes=("S",), dtype="float32", shape=(3,), start=0, shard=shard,
                    sha256=shards.digest(VALUES + prompt),
                )
            )  # fmt: skip
    return SimpleNamespace(partial=partial, rows=rows, adopted=[], adopt=lambda found: None)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_prompt_is_kept_with_its_own_shards_and_taken_again(writer, tmp_path, noted):
    kept = Parts(tmp_path / "golden", "this")
    assert kept.folder == tmp_path / "golden.parts" and kept.done == {} and not noted.records
    spool, other = kept.spool(1, "float32"), kept.spool(0, "float32")
    kept.keep(1, TOLD, writer)
    shards_ = ["p001.bfloat16.safetensors", "p001.float32.safetensors"]
    assert names(kept.folder) == ["p000.float32.spool", shards_[0], shards_[1], "p001.json"]
    assert os.path.samefile(kept.folder / shards_[0], writer.partial / shards_[0])
    del spool, other
    again, taken = Parts(tmp_path / "golden", "this"), []
    assert [*again.done] == [1] and noted.records[-1].getMessage() == f"{kept.folder}: 1 prompts are done already"
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    into = SimpleNamespace(partial=fresh, adopt=taken.extend)
    assert again.take(0, into) is None and again.take(1, into) == TOLD
    assert names(fresh) == shards_ and taken == writer.rows[2:]
    again.remove()
    assert not kept.folder.exists()


@pytest.mark.parametrize("damage", ["one of two", "file", "json"])
def test_a_part_of_which_any_tensor_is_another_is_none(damage, writer, tmp_path, noted):
    kept = Parts(tmp_path / "golden", "this")
    kept.keep(0, TOLD, writer), kept.keep(1, TOLD, writer)
    if damage == "one of two":
        shards.write(kept.folder / "p000.bfloat16.safetensors", {key(0, 0, "x"): VALUES + 9})
    elif damage == "file":
        shards.write(kept.folder / "p000.bfloat16.safetensors", {key(0, 0, "y"): VALUES})
    else:
        (kept.folder / "p000.json").write_text('{"golden": "this"}')
    assert [*Parts(tmp_path / "golden", "this").done] == [1]
    assert noted.records[-2].getMessage() == f"{kept.folder}/p000.json is damaged: its prompt is computed again"


def test_what_is_whole_and_of_another_golden_is_refused(writer, tmp_path):
    Parts(tmp_path / "golden", "that").keep(0, TOLD, writer)
    with pytest.raises(UsageError, match=rf"^{tmp_path}/golden\.parts is of another golden \(other checkpoints"):
        Parts(tmp_path / "golden", "this")


def test_a_spool_that_holds_something_is_noted(tmp_path, noted):
    kept = Parts(tmp_path / "golden", "this")
    spool = kept.spool(7, "bfloat16")
    assert not noted.records
    spool[0, "a"], spool[1, "a"] = VALUES, VALUES
    del spool
    assert len(kept.spool(7, "bfloat16")) == 2
    said = f"{kept.folder}/p007.bfloat16.spool: 2 tensors are recorded already"
    assert [record.getMessage() for record in noted.records] == [said]


def test_where_a_file_system_has_no_links_a_shard_is_copied(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"1")
    monkeypatch.setattr(os, "link", lambda *of: (_ for _ in ()).throw(OSError("no links")))
    parts._link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"1"
